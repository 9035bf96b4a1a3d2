//! Calls of the conformance program. Each line of its log contains a call, its conditions, and its result.
//! Machine-dependent values (addresses, names, sizes of memory) are omitted.
//!
//! # Safety
//! Unsafe, because it calls a driver and maps memory; sound, because
//! - calls write to variables of the function that makes them, of the types that the calls write;
//! - the driver's manual documents an error for each wrong argument;
//! - memory that this program maps is never unmapped, and each of its words is read and written as a whole.
#![allow(unsafe_code)]

use std::ffi::{CString, c_void};
use std::fmt::Write;
use std::ptr;
use std::time::{Duration, Instant};

use mp_cuda::codes;
use mp_cuda::driver::api::{AccessDesc, AllocationProp, Api, DriverHandle, IpcHandle, Location};

/// Calls a function that every driver has.
macro_rules! cu {
    ($me:ident.$name:ident($($argument:expr),*)) => {{
        // SAFETY: the call writes only to variables of the caller, which have the types that the call writes.
        unsafe { ($me.api.$name)($($argument),*) }
    }};
}

/// Calls a function that newer drivers have.
macro_rules! newer {
    ($me:ident.$name:ident($($argument:expr),*)) => {{
        let function = $me.api.$name.expect(concat!("the driver has no ", stringify!($name)));
        // SAFETY: the call writes only to variables of the caller, which have the types that the call writes.
        unsafe { function($($argument),*) }
    }};
}

#[path = "captures.rs"]
mod captures;

struct Log {
    api: Api,
    graphs: captures::Graphs,
    text: String,
}

/// Returns the name of a result without its prefix, or the number of an unknown result.
fn named(code: u32) -> String {
    let name = mp_cuda_sim::codes::name(code).and_then(|name| name.to_str().ok());
    let short = |name: &str| name.trim_start_matches("CUDA_").trim_start_matches("ERROR_").to_owned();
    name.map_or_else(|| code.to_string(), short)
}

/// Maps a file as host memory, and never unmaps it.
fn shared(bytes: usize) -> *mut c_void {
    let file =
        rustix::fs::memfd_create("conformance", rustix::fs::MemfdFlags::CLOEXEC).expect("memfd_create");
    rustix::fs::ftruncate(&file, bytes as u64).expect("ftruncate");
    let protection = rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE;
    let shared = rustix::mm::MapFlags::SHARED;
    // SAFETY: a new mapping, which is never unmapped.
    let host = unsafe { rustix::mm::mmap(ptr::null_mut(), bytes, protection, shared, &file, 0) };
    std::mem::forget(file);
    host.expect("mmap")
}

/// Makes all calls, in a process that has not called the driver before. Returns the log.
pub(crate) fn log() -> String {
    // SAFETY: a library of this name is the CUDA driver, or the simulated driver.
    let library = unsafe { libloading::Library::new("libcuda.so.1") }.expect("no driver");
    // SAFETY: the library is a driver.
    let api = unsafe { Api::load(&library) }.expect("no driver");
    let graphs = captures::Graphs::load(&library);
    std::mem::forget(library);
    let mut log = Log { api, graphs, text: String::new() };
    let context = log.start();
    log.virtual_memory();
    log.events();
    log.words();
    log.legacy();
    log.kernels();
    log.captures(context);
    log.fault(context);
    log.text
}

impl Log {
    fn say(&mut self, what: &str, code: u32) {
        self.line(&format!("{what}: {}", named(code)));
    }

    fn line(&mut self, line: &str) {
        _ = writeln!(self.text, "{line}");
    }

    fn value(&mut self, what: &str, value: impl std::fmt::Debug) {
        _ = writeln!(self.text, "{what} = {value:?}");
    }

    fn start(&mut self) -> DriverHandle {
        let mut number = 0;
        let mut object = DriverHandle::NULL;
        self.say("cuDeviceGetCount before cuInit", cu!(self.cuDeviceGetCount(&raw mut number)));
        self.say("cuInit(1)", cu!(self.cuInit(1)));
        self.say("cuInit(0)", cu!(self.cuInit(0)));
        self.say("cuInit(0) again", cu!(self.cuInit(0)));
        self.say("cuDeviceGet(99)", cu!(self.cuDeviceGet(&raw mut number, 99)));
        for attribute in [99, 102, 103, 122, 125] {
            let code = cu!(self.cuDeviceGetAttribute(&raw mut number, attribute, 0));
            self.say(&format!("attribute {attribute}"), code);
            self.value(&format!("attribute {attribute}"), number);
        }
        self.say("cuStreamCreate without a context", cu!(self.cuStreamCreate(&raw mut object, 1)));
        let mut context = DriverHandle::NULL;
        self.say("cuDevicePrimaryCtxRetain", cu!(self.cuDevicePrimaryCtxRetain(&raw mut context, 0)));
        self.say("cuDevicePrimaryCtxRetain again", cu!(self.cuDevicePrimaryCtxRetain(&raw mut object, 0)));
        self.value("the same context", object == context);
        self.say("cuCtxSetCurrent", cu!(self.cuCtxSetCurrent(context)));
        self.say(
            "cuStreamGetCtx of the default stream",
            cu!(self.cuStreamGetCtx(DriverHandle::NULL, &raw mut object)),
        );
        self.value("that context", object == context);
        self.say("cuStreamQuery of the default stream", cu!(self.cuStreamQuery(DriverHandle::NULL)));
        context
    }

    fn virtual_memory(&mut self) {
        let prop = AllocationProp::shareable(0);
        let (mut unit, mut handle, mut at, mut other, mut flags) = (0_usize, 0, 0, 0, 0);
        let code = newer!(self.cuMemGetAllocationGranularity(&raw mut unit, &raw const prop, 0));
        self.say("cuMemGetAllocationGranularity", code);
        self.value("granularity", unit);
        let code = newer!(self.cuMemCreate(&raw mut handle, unit - 1, &raw const prop, 0));
        self.say("cuMemCreate of a byte less than the granularity", code);
        let code = newer!(self.cuMemCreate(&raw mut handle, 2 * unit, &raw const prop, 0));
        self.say("cuMemCreate", code);
        let code = newer!(self.cuMemAddressReserve(&raw mut at, 2 * unit, 0, 0, 0));
        self.say("cuMemAddressReserve", code);
        let code = newer!(self.cuMemMap(at, 2 * unit, unit, handle, 0));
        self.say("cuMemMap from an offset", code);
        self.say("cuMemMap", newer!(self.cuMemMap(at, 2 * unit, 0, handle, 0)));
        self.say("cuMemMap again", newer!(self.cuMemMap(at, 2 * unit, 0, handle, 0)));
        let location = Location { kind: 1, id: 0 };
        let code = newer!(self.cuMemGetAccess(&raw mut flags, &raw const location, at));
        self.say("cuMemGetAccess", code);
        self.value("access", flags);
        let access = AccessDesc { location, flags: 3 };
        let code = newer!(self.cuMemSetAccess(at, 2 * unit, &raw const access, 1));
        self.say("cuMemSetAccess", code);
        let code = newer!(self.cuMemGetAccess(&raw mut flags, &raw const location, at));
        self.say("cuMemGetAccess", code);
        self.value("access", flags);
        let mut file: i32 = -1;
        let code = newer!(self.cuMemExportToShareableHandle((&raw mut file).cast(), handle, 1, 0));
        self.say("cuMemExportToShareableHandle", code);
        let count = || std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
        let before = count();
        let shareable = ptr::with_exposed_provenance_mut::<c_void>(usize::try_from(file).unwrap_or(0));
        let code = newer!(self.cuMemImportFromShareableHandle(&raw mut other, shareable, 1));
        self.say("cuMemImportFromShareableHandle of the own export", code);
        self.value("the descriptor stays ours", count() == before);
        self.value("another handle", other != handle);
        self.say("cuMemRelease of it", newer!(self.cuMemRelease(other)));
        self.say("cuMemRelease of the first", newer!(self.cuMemRelease(handle)));
        let value = [7_u8; 4];
        self.say(
            "cuMemcpyHtoD to what is mapped still",
            cu!(self.cuMemcpyHtoD_v2(at, value.as_ptr().cast(), 4)),
        );
        let code = newer!(self.cuMemRetainAllocationHandle(
            &raw mut other,
            ptr::with_exposed_provenance_mut(usize::try_from(at).unwrap_or(0))
        ));
        self.say("cuMemRetainAllocationHandle", code);
        self.say("cuMemRelease of it", newer!(self.cuMemRelease(other)));
        self.say("cuMemUnmap of a half", newer!(self.cuMemUnmap(at, unit)));
        self.say("cuMemUnmap", newer!(self.cuMemUnmap(at, 2 * unit)));
        self.say("cuMemAddressFree", newer!(self.cuMemAddressFree(at, 2 * unit)));
        // SAFETY: the driver created the descriptor for its caller, and it is closed once.
        unsafe { libc::close(file) };
    }

    fn events(&mut self) {
        let (mut event, mut stream) = (DriverHandle::NULL, DriverHandle::NULL);
        self.say("cuEventCreate between processes, with timing", cu!(self.cuEventCreate(&raw mut event, 4)));
        self.say("cuEventCreate between processes", cu!(self.cuEventCreate(&raw mut event, 6)));
        self.say("cuEventQuery, never recorded", cu!(self.cuEventQuery(event)));
        self.say("cuEventSynchronize, never recorded", cu!(self.cuEventSynchronize(event)));
        self.say("cuStreamCreate", cu!(self.cuStreamCreate(&raw mut stream, 1)));
        self.say("cuStreamWaitEvent, never recorded", cu!(self.cuStreamWaitEvent(stream, event, 0)));
        self.say("cuEventRecord", cu!(self.cuEventRecord(event, stream)));
        self.say("cuEventSynchronize", cu!(self.cuEventSynchronize(event)));
        self.say("cuEventQuery", cu!(self.cuEventQuery(event)));
        let mut handle = IpcHandle([0; 64]);
        self.say("cuIpcGetEventHandle", cu!(self.cuIpcGetEventHandle(&raw mut handle, event)));
        self.say("cuEventDestroy", cu!(self.cuEventDestroy_v2(event)));
        self.say("cuStreamDestroy", cu!(self.cuStreamDestroy_v2(stream)));
    }

    fn words(&mut self) {
        let (bytes, mut device, mut stream) = (4096_usize, 0, DriverHandle::NULL);
        let host = shared(bytes);
        let word = |i: usize| host.cast::<u64>().wrapping_add(i);
        // SAFETY: inside the mapping, which stays, and aligned. The device accesses whole words.
        let load = |i| unsafe { word(i).read_volatile() };
        // SAFETY: inside the mapping, which stays, and aligned. The device accesses whole words.
        let store = |i, value| unsafe { word(i).write_volatile(value) };
        self.say("cuMemHostRegister", cu!(self.cuMemHostRegister_v2(host, bytes, 3)));
        self.say("cuMemHostRegister again", cu!(self.cuMemHostRegister_v2(host, bytes, 3)));
        let code = cu!(self.cuMemHostGetDevicePointer_v2(&raw mut device, host, 0));
        self.say("cuMemHostGetDevicePointer", code);
        self.say("cuStreamCreate", cu!(self.cuStreamCreate(&raw mut stream, 1)));
        let code = newer!(self.cuStreamWriteValue64_v2(stream, device + 4, 1, 0));
        self.say("cuStreamWriteValue64 of a word that isn't aligned", code);
        self.say("cuStreamWriteValue64", newer!(self.cuStreamWriteValue64_v2(stream, device, 41, 0)));
        self.say("cuStreamSynchronize", cu!(self.cuStreamSynchronize(stream)));
        self.value("the host's word", load(0));
        let waits = [
            ("GEQ", 0, 41, 41, true),
            ("GEQ", 0, 42, 41, false),
            ("GEQ, the end of all ticks", 0, 1 << 40, i64::MAX.cast_unsigned(), true),
            ("GEQ, the largest number", 0, 1, u64::MAX, false),
            ("EQ", 1, 5, 5, true),
            ("EQ", 1, 5, 6, false),
            ("AND", 2, 6, 2, true),
            ("AND", 2, 6, 1, false),
            ("NOR", 3, 6, 1, true),
        ];
        for (what, flags, value, found, is_met) in waits {
            store(1, found);
            let code = newer!(self.cuStreamWaitValue64_v2(stream, device + 8, value, flags));
            self.say(&format!("cuStreamWaitValue64 {what}: {value:#x}, {found:#x} is there"), code);
            let code = self.settled(stream, is_met);
            self.say("cuStreamQuery", code);
            if code == codes::NOT_READY {
                // A store by the host ends the wait.
                store(1, value);
                self.say("cuStreamSynchronize after a host's store", cu!(self.cuStreamSynchronize(stream)));
            }
        }
        self.say("cuStreamDestroy", cu!(self.cuStreamDestroy_v2(stream)));
        self.say("cuMemHostUnregister", cu!(self.cuMemHostUnregister(host)));
        self.say("cuMemHostUnregister again", cu!(self.cuMemHostUnregister(host)));
    }

    /// Queries a stream until it has run its work, or a time limit has passed. Returns the result of the last
    /// query. The limit is 30 s if `is_done` is set, and 20 ms otherwise.
    fn settled(&self, stream: DriverHandle, is_done: bool) -> u32 {
        let until =
            Instant::now() + if is_done { Duration::from_secs(30) } else { Duration::from_millis(20) };
        loop {
            let code = cu!(self.cuStreamQuery(stream));
            if code != codes::NOT_READY || Instant::now() >= until {
                return code;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn legacy(&mut self) {
        let (mut at, mut base, mut size, mut opened) = (0, 0, 0_usize, 0);
        self.say("cuMemAlloc of nothing", cu!(self.cuMemAlloc_v2(&raw mut at, 0)));
        self.say("cuMemAlloc", cu!(self.cuMemAlloc_v2(&raw mut at, 1000)));
        self.value("aligned", at % 256 == 0);
        let code = cu!(self.cuMemGetAddressRange_v2(&raw mut base, &raw mut size, at + 10));
        self.say("cuMemGetAddressRange", code);
        self.value("base and size", (base == at, size));
        let mut handle = IpcHandle([0; 64]);
        self.say("cuIpcGetMemHandle", cu!(self.cuIpcGetMemHandle(&raw mut handle, at)));
        let code = cu!(self.cuIpcOpenMemHandle_v2(&raw mut opened, handle, 1));
        self.say("cuIpcOpenMemHandle of an own handle", code);
        let mut capable: i32 = -1;
        let code = cu!(self.cuPointerGetAttribute((&raw mut capable).cast(), 10, at));
        self.say("cuPointerGetAttribute of legacy capability", code);
        self.value("legacy capable", capable & 1);
        self.say("cuMemFree", cu!(self.cuMemFree_v2(at)));
        self.say("cuMemFree again", cu!(self.cuMemFree_v2(at)));
        self.say("cuMemFree(0)", cu!(self.cuMemFree_v2(0)));
    }

    fn function(&mut self, module: DriverHandle, name: &str) -> DriverHandle {
        let (mut function, text) = (DriverHandle::NULL, CString::new(name).unwrap_or_default());
        let code = cu!(self.cuModuleGetFunction(&raw mut function, module, text.as_ptr()));
        self.say(&format!("cuModuleGetFunction {name}"), code);
        function
    }

    fn launch(&mut self, name: &str, function: DriverHandle, stream: DriverHandle, mut values: Vec<u64>) {
        let mut all: Vec<*mut c_void> = values.iter_mut().map(|value| ptr::from_mut(value).cast()).collect();
        let arguments = all.as_mut_ptr();
        let code =
            cu!(self.cuLaunchKernel(function, 4, 1, 1, 64, 1, 1, 0, stream, arguments, ptr::null_mut()));
        self.say(&format!("cuLaunchKernel {name}"), code);
    }

    fn kernels(&mut self) {
        let (mut module, mut stream, mut at) = (DriverHandle::NULL, DriverHandle::NULL, 0_u64);
        let image = mp_cuda_sim::KERNELS.as_ptr().cast();
        self.say("cuModuleLoadData", cu!(self.cuModuleLoadData(&raw mut module, image)));
        self.function(module, "no_such_kernel");
        self.say("cuStreamCreate", cu!(self.cuStreamCreate(&raw mut stream, 1)));
        self.say("cuMemAlloc", cu!(self.cuMemAlloc_v2(&raw mut at, 1 << 16)));
        let [a, b, c, d] = [0, 1 << 12, 1 << 13, 1 << 14].map(|offset: u64| at + offset);
        let float = |value: f32| u64::from(value.to_bits());
        let kernels: [(&str, Vec<u64>); 8] = [
            ("fill_f32", vec![a, 1000, float(1.5)]),
            ("fill_f32", vec![b, 1000, float(2.0)]),
            ("add_f32", vec![c, a, b, 1000]),
            ("mul_f32", vec![c, c, 500, float(2.0)]),
            ("sum_f32", vec![d, c, 1000]),
            ("copy_strided", vec![d + 8, c + 4 * 499, 2, 3, 100, 1]),
            ("check_u64", vec![d + 64, a, 500, 0x3fc0_0000_3fc0_0000]),
            ("spin_ns", vec![1_000_000]),
        ];
        for (name, values) in kernels {
            let function = self.function(module, name);
            self.launch(name, function, stream, values);
        }
        self.say("cuStreamSynchronize", cu!(self.cuStreamSynchronize(stream)));
        let (mut sum, mut strided, mut wrong) = (0_f32, [0_f32; 6], u64::MAX);
        self.say("cuMemcpyDtoH", cu!(self.cuMemcpyDtoH_v2((&raw mut sum).cast(), d, 4)));
        self.say("cuMemcpyDtoH", cu!(self.cuMemcpyDtoH_v2(strided.as_mut_ptr().cast(), d + 8, 24)));
        self.say("cuMemcpyDtoH", cu!(self.cuMemcpyDtoH_v2((&raw mut wrong).cast(), d + 64, 8)));
        self.value("the sum", sum);
        self.value("by strides", strided);
        self.value("words that are not as expected", wrong);
        self.say("cuStreamDestroy", cu!(self.cuStreamDestroy_v2(stream)));
        self.say("cuMemFree", cu!(self.cuMemFree_v2(at)));
        self.say("cuModuleUnload", cu!(self.cuModuleUnload(module)));
    }

    /// Makes the last calls, after which the context returns only errors.
    fn fault(&mut self, context: DriverHandle) {
        let (mut module, mut stream) = (DriverHandle::NULL, DriverHandle::NULL);
        self.say("cuStreamCreate", cu!(self.cuStreamCreate(&raw mut stream, 1)));
        let image = mp_cuda_sim::KERNELS.as_ptr().cast();
        self.say("cuModuleLoadData", cu!(self.cuModuleLoadData(&raw mut module, image)));
        let function = self.function(module, "fill_f32");
        self.launch("fill_f32 where nothing is mapped", function, stream, vec![1 << 20, 10, 0]);
        self.say("cuStreamSynchronize", cu!(self.cuStreamSynchronize(stream)));
        self.say("cuStreamQuery", cu!(self.cuStreamQuery(stream)));
        let mut other = DriverHandle::NULL;
        self.say("cuStreamCreate", cu!(self.cuStreamCreate(&raw mut other, 1)));
        self.say("cuCtxSetCurrent", cu!(self.cuCtxSetCurrent(context)));
    }
}
