//! Sessions, processes that use the simulated driver, and the kernels that these processes launch.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::path::Path;
use std::process::Command;
use std::ptr;
use std::sync::{OnceLock, mpsc};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use mp_core::message::{IntoOutcome, Message};
use mp_cuda::driver::api::{Api, DriverHandle};
use mp_cuda::{CudaStream, Device, Order, order};
use mp_cuda_sim::session::{Session, Setup};
use mp_harness::{DEADLINE, eventually};
use mp_queue::Queue;
use mp_spawn::{Process, ProcessBuilder, StartMethod};

pub(crate) use crate::common::{nothing_found, stat};

/// Result of a function that runs in a separate process.
pub(crate) type Outcome<T = ()> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Returns the setup with the files that cargo has built.
pub(crate) fn setup() -> Setup {
    let engine = Path::new(env!("CARGO_BIN_EXE_mp-cuda-sim-engine"));
    // The library in `deps` was built for the tests. The library next to the engine was built by `cargo
    // build`, and may be older.
    let library = engine.parent().unwrap().join("deps/libmp_cuda_sim.so");
    let simulated = std::env::var_os(mp_cuda_sim::session::AS_IT_IS).is_none();
    assert!(library.exists() || !simulated, "{} is not built", library.display());
    Setup::new(engine, &library)
}

pub(crate) fn session() -> Session {
    setup().start().unwrap()
}

/// Returns the simulator profile with which streams have this order.
pub(crate) fn profile(order: Order) -> &'static str {
    match order {
        Order::Clocks => "h100",
        Order::IpcEvents => "no-memops",
        Order::Host => "no-memops,no-events",
        other => unreachable!("{other:?}"),
    }
}

/// Starts a session in which streams of devices have this order.
pub(crate) fn under(order: Order) -> Session {
    setup().set("PROFILE", profile(order)).start().unwrap()
}

/// Returns `true` if hosts wait for work of other processes, because streams can't ([`Order::Host`]).
pub(crate) fn hosts_wait() -> bool {
    order(&Device::new(0).unwrap()).unwrap() == Order::Host
}

/// Defines a test for each of the listed orders of streams.
macro_rules! under_orders {
    (
        [$($test:ident: $which:ident),*]
        $(#[doc = $doc:literal])* fn $name:ident($order:ident: Order) $body:block
    ) => {
        $(#[doc = $doc])*
        mod $name {
            use super::*;

            fn scenario($order: mp_cuda::Order) $body

            $(#[test]
            fn $test() {
                scenario(mp_cuda::Order::$which);
            })*
        }
    };
}
pub(crate) use under_orders;

/// Defines tests that must pass for every order of a device's streams.
macro_rules! under_each_order {
    ($($scenario:tt)*) => {
        $crate::support::under_orders! { [clocks: Clocks, ipc_events: IpcEvents, hosts: Host] $($scenario)* }
    };
}
pub(crate) use under_each_order;

/// Defines tests in which a process uses tensors while another process's work with them is still pending. The
/// tests run with each variant of [`Order`] with which streams wait. (With [`Order::Host`] hosts wait, so no
/// work is pending.)
macro_rules! on_the_device {
    ($($scenario:tt)*) => {
        $crate::support::under_orders! { [clocks: Clocks, ipc_events: IpcEvents] $($scenario)* }
    };
}
pub(crate) use on_the_device;

/// Returns the builder of a process that has the devices of a session.
pub(crate) fn with_gpu(session: &Session) -> ProcessBuilder {
    let builder = Process::builder().start_method(StartMethod::Spawn);
    session.environment().into_iter().fold(builder, |builder, (name, value)| builder.env(name, value))
}

/// Returns the builder of a process without a GPU.
pub(crate) fn without_gpu() -> ProcessBuilder {
    let builder = Process::builder().start_method(StartMethod::Spawn);
    // The last variable hides a real driver, which a process finds without a path.
    builder.env("LD_LIBRARY_PATH", "").env_remove("MP_CUDA_SIM").env("CUDA_VISIBLE_DEVICES", "-1")
}

/// Permits fork in this process, which does not use a GPU.
pub(crate) fn allow_copies() {
    // SAFETY: a copy uses no state of other threads of this process, except for the state that its test is
    // about.
    // about.
    unsafe { mp_spawn::allow_fork() };
}

/// Waits for the end of a process, and returns the result of its function.
#[track_caller]
pub(crate) fn join<T: Message>(process: Process<T>) -> T {
    assert!(process.wait_timeout(DEADLINE), "still running after {DEADLINE:?}");
    process.join().unwrap()
}

/// Runs a function in a process with a GPU.
#[track_caller]
pub(crate) fn run<F, A, R>(session: &Session, function: F, args: A) -> R::Value
where
    F: Fn(A) -> R + Send + Sync + Copy + 'static,
    A: Message,
    R: IntoOutcome,
    R::Value: Message,
{
    join(with_gpu(session).spawn(function, args).unwrap())
}

/// Returns a stream of the first device. Also loads the kernels, because loading them later would wait for
/// the stream's work.
pub(crate) fn stream() -> CudaStream {
    let stream = CudaStream::new(&Device::new(0).unwrap()).unwrap();
    kernels();
    stream
}

/// Runs an ignored test in a separate program, so that no process of another test recovers dead processes.
#[track_caller]
pub(crate) fn alone(test: &str) {
    let mut alone = Command::new(std::env::current_exe().unwrap());
    // The result of the inner test on stdout would count as the result of another test.
    alone.args(["--exact", test, "--ignored", "--nocapture"]).stdout(std::io::stderr());
    let mut alone = alone.spawn().unwrap();
    let mut status = None;
    eventually(test, || {
        status = alone.try_wait().unwrap();
        status.is_some()
    });
    assert!(status.unwrap().success());
}

/// Returns the next message of a queue. Panics if none arrives before the deadline.
#[track_caller]
pub(crate) fn taken<T: Message>(queue: &Queue<T>) -> T {
    queue.get_timeout(DEADLINE).expect("a message by the deadline").expect("the queue is open")
}

/// Sleeps until another process kills this process.
pub(crate) fn stays() {
    std::thread::park_timeout(2 * DEADLINE);
}

/// Checks that there are no findings, and that all memory is free again.
#[track_caller]
pub(crate) fn nothing_is_left(session: &Session) {
    eventually("all memory is free", || stat(session, "bytes") == 0 && stat(session, "processes") == 0);
    nothing_found(session);
}

/// Driver as a user's program calls it, with the kernels of the simulator.
pub(crate) struct Kernels {
    api: Api,
    context: DriverHandle,
    /// Functions of the kernels by name, requested when the module is loaded. On a GPU, the first request of
    /// a function delays later work of streams until earlier work is done.
    functions: HashMap<&'static str, DriverHandle>,
}

const NAMES: [&str; 3] = ["fill_f32", "mul_f32", "spin_ns"];

/// Gate in a stream. Work that is submitted after the gate runs when the gate is dropped.
pub(crate) struct Gate {
    _shut: mpsc::Sender<()>,
}

/// Host function of a gate: blocks the stream until the gate is dropped.
extern "C" fn pass(gate: *mut c_void) {
    // SAFETY: `Kernels::gate` made the pointer from such a box, for one call.
    let gate = unsafe { Box::from_raw(gate.cast::<mpsc::Receiver<()>>()) };
    _ = gate.recv_timeout(DEADLINE);
}

/// Returns the kernels of this process.
pub(crate) fn kernels() -> &'static Kernels {
    static KERNELS: OnceLock<Kernels> = OnceLock::new();
    KERNELS.get_or_init(Kernels::load)
}

impl Kernels {
    fn load() -> Self {
        // SAFETY: mp-cuda has loaded this library.
        let library = unsafe { Library::open(Some("libcuda.so.1"), RTLD_NOW | RTLD_LOCAL) }.unwrap();
        let library: libloading::Library = library.into();
        // SAFETY: the library's functions have the types of the driver's functions.
        let api = unsafe { Api::load(&library) }.unwrap();
        std::mem::forget(library);
        let mut context = DriverHandle::NULL;
        // SAFETY: the call retains a context for the life of the process.
        assert_eq!(unsafe { (api.cuDevicePrimaryCtxRetain)(&raw mut context, 0) }, 0);
        // SAFETY: the context was retained above.
        assert_eq!(unsafe { (api.cuCtxSetCurrent)(context) }, 0);
        let (image, mut module) = (mp_cuda_sim::KERNELS.as_ptr().cast(), DriverHandle::NULL);
        // SAFETY: the image ends with 0.
        assert_eq!(unsafe { (api.cuModuleLoadData)(&raw mut module, image) }, 0);
        let look_up = |name| {
            let (mut function, text) = (DriverHandle::NULL, CString::new(name).unwrap());
            // SAFETY: the module is loaded, and the name ends with 0.
            let code = unsafe { (api.cuModuleGetFunction)(&raw mut function, module, text.as_ptr()) };
            assert_eq!(code, 0, "{name}");
            (name, function)
        };
        let functions = NAMES.into_iter().map(look_up).collect();
        Self { api, context, functions }
    }

    fn launch(&self, stream: &CudaStream, name: &str, arguments: &mut [u64]) {
        // A new thread has no current context.
        // SAFETY: the context is retained for the life of the process.
        assert_eq!(unsafe { (self.api.cuCtxSetCurrent)(self.context) }, 0);
        let function = self.functions[name];
        let mut all: Vec<*mut c_void> = arguments.iter_mut().map(|one| ptr::from_mut(one).cast()).collect();
        let (launch, arguments) = (self.api.cuLaunchKernel, all.as_mut_ptr());
        let stream = DriverHandle(stream.as_raw());
        // SAFETY: there is an argument for each parameter of the kernel, and the caller has loaned the
        // addresses in them.
        let code = unsafe { launch(function, 4, 1, 1, 64, 1, 1, 0, stream, arguments, ptr::null_mut()) };
        assert_eq!(code, 0);
    }

    /// Returns a stream that another library than `mp-cuda` has created. The returned value keeps
    /// `keep_alive` as long as the stream is needed.
    pub(crate) fn stream_of_another(&self, keep_alive: impl std::any::Any + Send + Sync) -> CudaStream {
        // SAFETY: the context is retained for the life of the process.
        assert_eq!(unsafe { (self.api.cuCtxSetCurrent)(self.context) }, 0);
        let mut stream = DriverHandle::NULL;
        // SAFETY: the call writes a handle to a variable of this function.
        assert_eq!(unsafe { (self.api.cuStreamCreate)(&raw mut stream, 1) }, 0);
        // SAFETY: context and stream live as long as the process.
        unsafe { CudaStream::from_raw(self.context.0, stream.0, keep_alive) }.unwrap()
    }

    /// Sets the `n` floats at `to` to `value`.
    pub(crate) fn fill(&self, stream: &CudaStream, to: u64, n: usize, value: f32) {
        self.launch(stream, "fill_f32", &mut [to, n as u64, u64::from(value.to_bits())]);
    }

    /// Multiplies the `n` floats at `a` by `factor`, and stores the products at `to`.
    pub(crate) fn multiply(&self, stream: &CudaStream, to: u64, a: u64, n: usize, factor: f32) {
        self.launch(stream, "mul_f32", &mut [to, a, n as u64, u64::from(factor.to_bits())]);
    }

    /// Keeps a stream busy until the returned gate is dropped.
    pub(crate) fn gate(&self, stream: &CudaStream) -> Gate {
        let (shut, gate) = mpsc::channel::<()>();
        let gate = Box::into_raw(Box::new(gate)).cast();
        // SAFETY: the context is retained for the life of the process.
        assert_eq!(unsafe { (self.api.cuCtxSetCurrent)(self.context) }, 0);
        let launch = self.api.cuLaunchHostFunc.unwrap();
        // SAFETY: the stream is alive, and the function takes the box once.
        assert_eq!(unsafe { launch(DriverHandle(stream.as_raw()), pass, gate) }, 0);
        Gate { _shut: shut }
    }

    /// Keeps a stream busy for this time.
    pub(crate) fn spin(&self, stream: &CudaStream, time: std::time::Duration) {
        self.launch(stream, "spin_ns", &mut [u64::try_from(time.as_nanos()).unwrap()]);
    }
}
