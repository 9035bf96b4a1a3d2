//! Client process, which makes the calls that it receives over the socket on its standard input.
#![allow(unsafe_code)]

use std::ffi::{CString, c_void};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;

use mp_cuda::driver::api::{AccessDesc, AllocationProp, Api, DriverHandle, IpcHandle, Location};

use crate::support::{Answer, Asked, receive, send};

/// State of the process between calls.
struct Client {
    library: libloading::Library,
    /// Functions of the driver. `None` if a required function is hidden, which `mp-cuda` reports as an error.
    api: Option<Api>,
    /// Descriptors that the process received or exported, and keeps open.
    files: Vec<OwnedFd>,
}

/// Entry point of a test's clients. Not a test.
#[test]
fn helper_client() {
    if std::env::var_os("MP_SIM_CLIENT").is_none() {
        return;
    }
    let input = std::io::stdin();
    // SAFETY: the session's library has the driver's functions.
    let library = unsafe { libloading::Library::new("libcuda.so.1") }.unwrap();
    // SAFETY: the session's library has the driver's functions.
    let api = unsafe { Api::load(&library) }.ok();
    let mut client = Client { library, api, files: Vec::new() };
    while let Some((asked, file)) = receive::<Asked>(input.as_fd()) {
        let (answer, file) = client.call(&asked, file);
        send(input.as_fd(), &answer, file);
    }
    // The end of standard input is a normal exit.
    std::process::exit(0);
}

fn pointer(address: u64) -> *mut c_void {
    ptr::with_exposed_provenance_mut(usize::try_from(address).unwrap())
}

fn handle(number: u64) -> DriverHandle {
    DriverHandle(pointer(number))
}

/// Calls a function that every driver has.
macro_rules! driver {
    ($client:ident.$name:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: the call writes only to variables of the caller, which have the types that the call writes.
        unsafe { ($client.api.as_ref().unwrap().$name)($($argument),*) }
    }};
}

/// Calls a function that only newer drivers have.
macro_rules! optional {
    ($client:ident.$name:ident($($argument:expr),* $(,)?)) => {{
        let function = $client.api.as_ref().unwrap().$name.unwrap();
        // SAFETY: the call writes only to variables of the caller, which have the types that the call writes.
        unsafe { function($($argument),*) }
    }};
}

impl Client {
    fn call(&mut self, asked: &Asked, file: Option<OwnedFd>) -> (Answer, Option<BorrowedFd<'_>>) {
        let came = file.map(|file| {
            self.files.push(file);
            self.files.last().unwrap().as_raw_fd()
        });
        if asked.call == "close-files" {
            self.files.clear();
        }
        let me = &*self;
        let a = |i: usize| asked.numbers.get(i).copied().unwrap_or(0);
        let size = |i: usize| usize::try_from(a(i)).unwrap();
        let int = |i: usize| a(i) as i32;
        let small = |i: usize| a(i) as u32;
        let (mut out, mut other) = (0_u64, 0_u64);
        let mut object = DriverHandle::NULL;
        let mut bytes = Vec::new();
        let mut exported = None;
        let code = match asked.call.as_str() {
            "cuInit" => driver!(me.cuInit(small(0))),
            "cuDeviceGetCount" => driver!(me.cuDeviceGetCount((&raw mut out).cast())),
            "cuDeviceGetAttribute" => driver!(me.cuDeviceGetAttribute((&raw mut out).cast(), int(0), int(1))),
            "cuDeviceGetUuid" => {
                bytes = vec![0; 16];
                optional!(me.cuDeviceGetUuid_v2(bytes.as_mut_ptr().cast(), int(0)))
            }
            "cuDevicePrimaryCtxRetain" => driver!(me.cuDevicePrimaryCtxRetain(&raw mut object, int(0))),
            "cuDevicePrimaryCtxRelease" => driver!(me.cuDevicePrimaryCtxRelease_v2(int(0))),
            "cuCtxSetCurrent" => driver!(me.cuCtxSetCurrent(handle(a(0)))),
            "cuCtxSynchronize" => driver!(me.cuCtxSynchronize()),
            "cuMemGetInfo" => driver!(me.cuMemGetInfo_v2((&raw mut out).cast(), (&raw mut other).cast())),
            "cuMemGetAllocationGranularity" => {
                let prop = AllocationProp::shareable(int(0));
                optional!(me.cuMemGetAllocationGranularity((&raw mut out).cast(), &raw const prop, 0))
            }
            "cuMemAddressReserve" => optional!(me.cuMemAddressReserve(&raw mut out, size(0), size(1), 0, 0)),
            "cuMemAddressFree" => optional!(me.cuMemAddressFree(a(0), size(1))),
            "cuMemCreate" => {
                let mut prop = AllocationProp::shareable(int(1));
                if asked.numbers.len() > 2 {
                    prop.handle_types = int(2);
                }
                optional!(me.cuMemCreate(&raw mut out, size(0), &raw const prop, 0))
            }
            "cuMemRelease" => optional!(me.cuMemRelease(a(0))),
            "cuMemMap" => optional!(me.cuMemMap(a(0), size(1), size(2), a(3), 0)),
            "cuMemUnmap" => optional!(me.cuMemUnmap(a(0), size(1))),
            "cuMemSetAccess" => {
                let location = Location { kind: 1, id: int(2) };
                let access = AccessDesc { location, flags: int(3) };
                optional!(me.cuMemSetAccess(a(0), size(1), &raw const access, 1))
            }
            "cuMemGetAccess" => {
                let location = Location { kind: 1, id: int(1) };
                optional!(me.cuMemGetAccess(&raw mut out, &raw const location, a(0)))
            }
            "cuMemExportToShareableHandle" => {
                let mut file: i32 = -1;
                let code = optional!(me.cuMemExportToShareableHandle((&raw mut file).cast(), a(0), 1, 0));
                exported = (code == 0).then_some(file);
                code
            }
            "cuMemImportFromShareableHandle" => {
                let file = pointer(came.map_or(a(0), |file| u64::try_from(file).unwrap()));
                optional!(me.cuMemImportFromShareableHandle(&raw mut out, file, 1))
            }
            "cuMemRetainAllocationHandle" => {
                optional!(me.cuMemRetainAllocationHandle(&raw mut out, pointer(a(0))))
            }
            "cuMemAlloc" => driver!(me.cuMemAlloc_v2(&raw mut out, size(0))),
            "cuMemAllocManaged" => optional!(me.cuMemAllocManaged(&raw mut out, size(0), 1)),
            "cuMemAllocAsync" => optional!(me.cuMemAllocAsync(&raw mut out, size(0), handle(a(1)))),
            "cuMemFreeAsync" => optional!(me.cuMemFreeAsync(a(0), handle(a(1)))),
            "cuMemFree" => driver!(me.cuMemFree_v2(a(0))),
            "cuMemGetAddressRange" => {
                driver!(me.cuMemGetAddressRange_v2(&raw mut out, (&raw mut other).cast(), a(0)))
            }
            "cuIpcGetMemHandle" => {
                bytes = vec![0; 64];
                driver!(me.cuIpcGetMemHandle(bytes.as_mut_ptr().cast(), a(0)))
            }
            "cuIpcOpenMemHandle" => {
                let handle = IpcHandle(asked.bytes.as_slice().try_into().unwrap());
                driver!(me.cuIpcOpenMemHandle_v2(&raw mut out, handle, 1))
            }
            "cuIpcCloseMemHandle" => driver!(me.cuIpcCloseMemHandle(a(0))),
            "cuIpcGetEventHandle" => {
                bytes = vec![0; 64];
                driver!(me.cuIpcGetEventHandle(bytes.as_mut_ptr().cast(), handle(a(0))))
            }
            "cuIpcOpenEventHandle" => {
                let handle = IpcHandle(asked.bytes.as_slice().try_into().unwrap());
                driver!(me.cuIpcOpenEventHandle(&raw mut object, handle))
            }
            "cuStreamCreate" => driver!(me.cuStreamCreate(&raw mut object, small(0))),
            "cuStreamDestroy" => driver!(me.cuStreamDestroy_v2(handle(a(0)))),
            "cuStreamQuery" => driver!(me.cuStreamQuery(handle(a(0)))),
            "cuStreamSynchronize" => driver!(me.cuStreamSynchronize(handle(a(0)))),
            "cuStreamWaitEvent" => driver!(me.cuStreamWaitEvent(handle(a(0)), handle(a(1)), 0)),
            "cuStreamGetCtx" => driver!(me.cuStreamGetCtx(handle(a(0)), &raw mut object)),
            "cuStreamWriteValue64" => optional!(me.cuStreamWriteValue64_v2(handle(a(0)), a(1), a(2), 0)),
            "cuStreamWaitValue64" => optional!(me.cuStreamWaitValue64_v2(handle(a(0)), a(1), a(2), small(3))),
            "cuEventCreate" => driver!(me.cuEventCreate(&raw mut object, small(0))),
            "cuEventRecord" => driver!(me.cuEventRecord(handle(a(0)), handle(a(1)))),
            "cuEventQuery" => driver!(me.cuEventQuery(handle(a(0)))),
            "cuEventSynchronize" => driver!(me.cuEventSynchronize(handle(a(0)))),
            "cuEventDestroy" => driver!(me.cuEventDestroy_v2(handle(a(0)))),
            "cuMemcpyHtoD" => {
                driver!(me.cuMemcpyHtoD_v2(a(0), asked.bytes.as_ptr().cast(), asked.bytes.len()))
            }
            "cuMemcpyHtoDAsync" => {
                let (from, length) = match a(3) {
                    0 => (asked.bytes.as_ptr().cast(), asked.bytes.len()),
                    host => (pointer(host).cast_const(), size(2)),
                };
                driver!(me.cuMemcpyHtoDAsync_v2(a(0), from, length, handle(a(1))))
            }
            "cuMemcpyDtoH" => {
                bytes = vec![0; size(1)];
                driver!(me.cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), a(0), bytes.len()))
            }
            "cuMemcpyDtoHAsync" => {
                driver!(me.cuMemcpyDtoHAsync_v2(pointer(a(3)), a(0), size(2), handle(a(1))))
            }
            "cuMemcpyDtoDAsync" => driver!(me.cuMemcpyDtoDAsync_v2(a(0), a(1), size(2), handle(a(3)))),
            "cuMemsetD8Async" => driver!(me.cuMemsetD8Async(a(0), a(1) as u8, size(2), handle(a(3)))),
            "cuMemHostRegister" => driver!(me.cuMemHostRegister_v2(pointer(a(0)), size(1), 3)),
            "cuMemHostUnregister" => driver!(me.cuMemHostUnregister(pointer(a(0)))),
            "cuMemHostGetDevicePointer" => {
                driver!(me.cuMemHostGetDevicePointer_v2(&raw mut out, pointer(a(0)), 0))
            }
            "cuMemHostAlloc" => driver!(me.cuMemHostAlloc((&raw mut out).cast(), size(0), 0)),
            "cuMemFreeHost" => driver!(me.cuMemFreeHost(pointer(a(0)))),
            "cuPointerGetAttribute" => driver!(me.cuPointerGetAttribute((&raw mut out).cast(), int(0), a(1))),
            "cuModuleLoadData" => {
                let image = CString::new(asked.bytes.clone()).unwrap();
                driver!(me.cuModuleLoadData(&raw mut object, image.as_ptr().cast()))
            }
            "cuModuleUnload" => driver!(me.cuModuleUnload(handle(a(0)))),
            "cuModuleGetFunction" => {
                let name = CString::new(asked.bytes.clone()).unwrap();
                driver!(me.cuModuleGetFunction(&raw mut object, handle(a(0)), name.as_ptr()))
            }
            // Arguments have 8 bytes each. For a parameter of 4 bytes, the lower half is read.
            "cuLaunchKernel" => {
                let mut values = asked.numbers[2..].to_vec();
                let mut all: Vec<*mut c_void> =
                    values.iter_mut().map(|value| ptr::from_mut(value).cast()).collect();
                let (function, stream) = (handle(a(0)), handle(a(1)));
                let arguments = all.as_mut_ptr();
                driver!(me.cuLaunchKernel(function, 4, 1, 1, 64, 1, 1, 0, stream, arguments, ptr::null_mut()))
            }
            // The function stores 7 at this address.
            "cuLaunchHostFunc" => {
                optional!(me.cuLaunchHostFunc(handle(a(0)), store_seven, pointer(a(1))))
            }
            "mp_sim_piece" | "mp_sim_shared" => {
                // SAFETY: the simulator's hooks have this type.
                let hook = unsafe { me.library.get::<extern "C" fn(u64, u64) -> u32>(asked.call.as_bytes()) };
                hook.unwrap()(a(0), a(1))
            }
            // Requests to the client itself: map a received file, read a word, write a word, fork.
            "map" => {
                let file = me.files.last().unwrap();
                out = crate::support::map(file.as_fd(), size(0));
                0
            }
            "load" => {
                out = crate::support::word(a(0)).load(std::sync::atomic::Ordering::SeqCst);
                0
            }
            "store" => {
                crate::support::word(a(0)).store(a(1), std::sync::atomic::Ordering::SeqCst);
                0
            }
            "fork" => {
                out = u64::from(in_a_copy(|| driver!(me.cuDeviceGetCount((&raw mut other).cast()))));
                0
            }
            "copy" => {
                copy_until_the_end_of(me.files.last().unwrap().as_fd());
                0
            }
            "touch" => {
                out = u64::from(crate::support::touches(a(0)));
                0
            }
            "close-files" => 0,
            "open-files" => {
                out = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64;
                0
            }
            other => match crate::library::scenario(other) {
                Some(text) => {
                    bytes = text.into_bytes();
                    0
                }
                None => panic!("no call {other}"),
            },
        };
        let number = if object == DriverHandle::NULL { out } else { object.0.expose_provenance() as u64 };
        if let Some(file) = exported {
            self.files.push(crate::support::own(file));
        }
        let file = exported.and_then(|_| self.files.last()).map(AsFd::as_fd);
        (Answer { code, number, other, bytes }, file)
    }
}

extern "C" fn store_seven(at: *mut c_void) {
    crate::support::word(at.expose_provenance() as u64).store(7, std::sync::atomic::Ordering::SeqCst);
}

/// Makes a call in a forked child, and returns its result. The result must be at most 255.
fn in_a_copy(call: impl FnOnce() -> u32) -> u32 {
    // SAFETY: no other thread of this process is active. The copy makes one call and ends.
    match unsafe { libc::fork() } {
        0 => {
            let code = i32::try_from(call()).unwrap_or(255);
            // SAFETY: the call ends the copy.
            unsafe { libc::_exit(code) }
        }
        copy => {
            let copy = rustix::process::Pid::from_raw(copy).unwrap();
            let status = rustix::process::waitpid(Some(copy), rustix::process::WaitOptions::empty()).unwrap();
            u32::try_from(status.unwrap().1.exit_status().unwrap()).unwrap()
        }
    }
}

/// Forks a child that lives until the test closes its end of a pipe.
fn copy_until_the_end_of(pipe: BorrowedFd<'_>) {
    // SAFETY: no other thread of this process is active. The copy reads from the pipe, and ends.
    if unsafe { libc::fork() } == 0 {
        while rustix::io::read(pipe, &mut [0; 8]).is_ok_and(|bytes| bytes > 0) {}
        // SAFETY: the call ends the copy.
        unsafe { libc::_exit(0) }
    }
}
