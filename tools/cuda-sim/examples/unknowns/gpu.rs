//! Driver of a process, with each failed result as an error that names the call: start, streams, events,
//! kernels.
//!
//! # Safety
//! Unsafe, because it calls a driver; sound, because
//! - calls write to variables of the function that makes them, of the types that the calls write;
//! - a wrong handle or address is an error of the driver, or a fault of this process's context, which ends
//!   one question;
//! - memory that is registered stays mapped for the life of the process.
#![allow(unsafe_code)]

use std::ffi::{CString, c_void};
use std::ptr;
use std::time::{Duration, Instant};

use mp_cuda::codes;
use mp_cuda::driver::api::{Api, DriverHandle, IpcHandle};

/// Cause of a question's end: a call and its code, or a helper's message.
#[derive(Debug)]
pub(crate) struct ProbeError(pub(crate) String);

pub(crate) type Outcome<T = ()> = Result<T, ProbeError>;

impl From<std::io::Error> for ProbeError {
    fn from(error: std::io::Error) -> Self {
        Self(error.to_string())
    }
}

impl From<rustix::io::Errno> for ProbeError {
    fn from(error: rustix::io::Errno) -> Self {
        Self(error.to_string())
    }
}

impl From<std::num::ParseIntError> for ProbeError {
    fn from(error: std::num::ParseIntError) -> Self {
        Self(error.to_string())
    }
}

/// Returns the driver's name of a result.
pub(crate) fn name(code: u32) -> String {
    codes::name(code).map_or_else(|| code.to_string(), str::to_owned)
}

/// Converts a result to an error.
pub(crate) fn check(call: &str, code: u32) -> Outcome {
    if code == codes::SUCCESS { Ok(()) } else { Err(ProbeError(format!("{call}: {}", name(code)))) }
}

/// Calls a function that every driver has.
macro_rules! cu {
    ($me:ident.$name:ident($($argument:expr),*)) => {{
        // SAFETY: the call writes only variables of the caller, of the types that it writes.
        let code = unsafe { ($me.api.$name)($($argument),*) };
        $crate::gpu::check(stringify!($name), code)
    }};
}
pub(crate) use cu;

/// Calls a function that newer drivers have.
macro_rules! newer {
    ($me:ident.$name:ident($($argument:expr),*)) => {{
        match $me.api.$name {
            None => {
                let missing = concat!(stringify!($name), ": the driver has none");
                Err($crate::gpu::ProbeError(missing.to_owned()))
            }
            Some(function) => {
                // SAFETY: the call writes only variables of the caller, of the types that it writes.
                let code = unsafe { function($($argument),*) };
                $crate::gpu::check(stringify!($name), code)
            }
        }
    }};
}
pub(crate) use newer;

/// First device in this process.
#[derive(Debug)]
pub(crate) struct Gpu {
    pub(crate) api: Api,
    module: DriverHandle,
    spin: DriverHandle,
    fill: DriverHandle,
    /// `true` if the driver is the simulator.
    pub(crate) simulated: bool,
    /// Times to initialise the driver, and to create the context.
    pub(crate) started: (Duration, Duration),
}

impl Gpu {
    /// Loads the driver without a device, for calls that don't need a context.
    pub(crate) fn load() -> Outcome<Api> {
        // SAFETY: a library of this name is the CUDA driver, or the simulated one.
        let library = unsafe { libloading::Library::new("libcuda.so.1") };
        let library = library.map_err(|error| ProbeError(error.to_string()))?;
        // SAFETY: likewise.
        let api = unsafe { Api::load(&library) };
        std::mem::forget(library);
        api.map_err(|missing| ProbeError(format!("the driver has no {missing}")))
    }

    /// Makes the context current on the calling thread, without kernels.
    pub(crate) fn of_this_thread() -> Outcome<Self> {
        let nothing = DriverHandle::NULL;
        let begin = Instant::now();
        let api = Self::load()?;
        let mut me = Self {
            api,
            module: nothing,
            spin: nothing,
            fill: nothing,
            simulated: false,
            started: Default::default(),
        };
        let (mut device, mut context) = (0, DriverHandle::NULL);
        cu!(me.cuInit(0))?;
        cu!(me.cuDeviceGet(&raw mut device, 0))?;
        let init = begin.elapsed();
        let begin = Instant::now();
        cu!(me.cuDevicePrimaryCtxRetain(&raw mut context, device))?;
        me.started = (init, begin.elapsed());
        cu!(me.cuCtxSetCurrent(context))?;
        Ok(me)
    }

    /// Creates a context, and loads the simulator's kernels.
    pub(crate) fn start() -> Outcome<Self> {
        let mut me = Self::of_this_thread()?;
        me.simulated = me.device_name()?.contains("simulated");
        me.module = me.module(mp_cuda_sim::KERNELS)?;
        me.spin = me.function(me.module, "spin_ns")?;
        me.fill = me.function(me.module, "fill_f32")?;
        Ok(me)
    }

    pub(crate) fn device_name(&self) -> Outcome<String> {
        let mut text = [0_u8; 100];
        cu!(self.cuDeviceGetName(text.as_mut_ptr().cast(), 100, 0))?;
        Ok(text.iter().take_while(|byte| **byte != 0).map(|byte| char::from(*byte)).collect())
    }

    pub(crate) fn version(&self) -> Outcome<i32> {
        let mut version = 0;
        cu!(self.cuDriverGetVersion(&raw mut version))?;
        Ok(version)
    }

    /// Loads a module from a text that ends with 0.
    pub(crate) fn module(&self, image: &'static str) -> Outcome<DriverHandle> {
        let mut module = DriverHandle::NULL;
        cu!(self.cuModuleLoadData(&raw mut module, image.as_ptr().cast()))?;
        Ok(module)
    }

    pub(crate) fn unload(&self, module: DriverHandle) -> Outcome {
        cu!(self.cuModuleUnload(module))
    }

    pub(crate) fn function(&self, module: DriverHandle, name: &str) -> Outcome<DriverHandle> {
        let mut function = DriverHandle::NULL;
        let text = CString::new(name).unwrap_or_default();
        cu!(self.cuModuleGetFunction(&raw mut function, module, text.as_ptr()))?;
        Ok(function)
    }

    pub(crate) fn launch(
        &self,
        function: DriverHandle,
        stream: DriverHandle,
        (blocks, threads): (u32, u32),
        mut values: Vec<u64>,
    ) -> Outcome {
        let mut all: Vec<*mut c_void> = values.iter_mut().map(|value| ptr::from_mut(value).cast()).collect();
        let arguments = all.as_mut_ptr();
        let none = ptr::null_mut();
        cu!(self.cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, stream, arguments, none))
    }

    /// Keeps a stream busy.
    pub(crate) fn spin(&self, stream: DriverHandle, ms: u64) -> Outcome {
        self.launch(self.spin, stream, (1, 1), vec![ms * 1_000_000])
    }

    /// Sets `n` floats: `to = value`.
    pub(crate) fn fill(&self, stream: DriverHandle, to: u64, n: u64, value: f32) -> Outcome {
        let blocks = if n > 1 << 16 { 512 } else { 4 };
        self.launch(self.fill, stream, (blocks, 256), vec![to, n, u64::from(value.to_bits())])
    }

    /// Creates a stream that doesn't wait for the default one.
    pub(crate) fn stream(&self) -> Outcome<DriverHandle> {
        let mut stream = DriverHandle::NULL;
        cu!(self.cuStreamCreate(&raw mut stream, 1))?;
        Ok(stream)
    }

    pub(crate) fn destroy_stream(&self, stream: DriverHandle) -> Outcome {
        cu!(self.cuStreamDestroy_v2(stream))
    }

    pub(crate) fn sync(&self, stream: DriverHandle) -> Outcome {
        cu!(self.cuStreamSynchronize(stream))
    }

    /// Returns `true` if a stream has work to do.
    pub(crate) fn is_busy(&self, stream: DriverHandle) -> bool {
        // SAFETY: it writes nothing.
        unsafe { (self.api.cuStreamQuery)(stream) == codes::NOT_READY }
    }

    pub(crate) fn write(&self, stream: DriverHandle, address: u64, value: u64) -> Outcome {
        newer!(self.cuStreamWriteValue64_v2(stream, address, value, 0))
    }

    /// Waits until a word has at least this value.
    pub(crate) fn wait(&self, stream: DriverHandle, address: u64, value: u64) -> Outcome {
        newer!(self.cuStreamWaitValue64_v2(stream, address, value, 0))
    }

    /// Calls a function of this process that does nothing.
    pub(crate) fn host_function(&self, stream: DriverHandle) -> Outcome {
        extern "C" fn nothing(_: *mut c_void) {}
        newer!(self.cuLaunchHostFunc(stream, nothing, ptr::null_mut()))
    }

    /// Creates an event for other processes.
    pub(crate) fn event(&self) -> Outcome<DriverHandle> {
        let mut event = DriverHandle::NULL;
        cu!(self.cuEventCreate(&raw mut event, 6))?;
        Ok(event)
    }

    pub(crate) fn destroy_event(&self, event: DriverHandle) -> Outcome {
        cu!(self.cuEventDestroy_v2(event))
    }

    pub(crate) fn record(&self, event: DriverHandle, stream: DriverHandle) -> Outcome {
        cu!(self.cuEventRecord(event, stream))
    }

    pub(crate) fn wait_event(&self, stream: DriverHandle, event: DriverHandle) -> Outcome {
        cu!(self.cuStreamWaitEvent(stream, event, 0))
    }

    pub(crate) fn event_handle(&self, event: DriverHandle) -> Outcome<IpcHandle> {
        let mut handle = IpcHandle([0; 64]);
        cu!(self.cuIpcGetEventHandle(&raw mut handle, event))?;
        Ok(handle)
    }

    pub(crate) fn open_event(&self, handle: IpcHandle) -> Outcome<DriverHandle> {
        let mut event = DriverHandle::NULL;
        cu!(self.cuIpcOpenEventHandle(&raw mut event, handle))?;
        Ok(event)
    }
}
