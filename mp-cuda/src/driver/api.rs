//! Table of the driver's functions: their symbols in `libcuda.so.1`, their types, and whether every driver
//! has them. Results are numbers: see [`codes`](crate::codes).
//!
//! # Safety
//! Unsafe, because it declares the types of a foreign library's symbols. Sound, because
//! - each type is copied from the driver's header, and is written only in this file;
//! - the simulator declares its functions separately, and its tests call them by this table.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use libloading::Library;

use crate::error::Error;

/// Object of the driver (a context, a stream, an event, a module, a function): its address in the driver's
/// memory, which this crate never dereferences.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DriverHandle(pub *mut c_void);

// SAFETY: the address is passed to the driver and compared, by any thread, and all threads may call the
// driver's functions.
unsafe impl Send for DriverHandle {}
// SAFETY: likewise.
unsafe impl Sync for DriverHandle {}

impl DriverHandle {
    /// Null handle. As a stream, it is the default stream.
    pub const NULL: Self = Self(std::ptr::null_mut());
}

/// Location of memory: `kind` 1 is a device, `id` is its number.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Location {
    /// Type of the location (`CUmemLocationType`); 1 is a device.
    pub kind: c_int,
    /// Number of the device.
    pub id: c_int,
}

/// Properties of memory to allocate (`CUmemAllocationProp`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AllocationProp {
    /// Kind of memory; 1 is pinned memory.
    pub kind: c_int,
    /// Bits of handle types; 1 is a file descriptor.
    pub handle_types: c_int,
    /// Location of the memory.
    pub location: Location,
    /// Security attributes on Windows. Null on Linux.
    pub win32: *mut c_void,
    /// Flags of compression, RDMA and usage. All are 0.
    pub flags: [u8; 8],
}

impl AllocationProp {
    /// Returns the properties of device memory that can be exported as a descriptor.
    #[must_use]
    pub fn shareable(device: i32) -> Self {
        let location = Location { kind: 1, id: device };
        Self { kind: 1, handle_types: 1, location, win32: std::ptr::null_mut(), flags: [0; 8] }
    }
}

/// Access of a device to a mapping (`CUmemAccessDesc`): 1 is read, 3 is read and write.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AccessDesc {
    /// Device that accesses the mapping.
    pub location: Location,
    /// Permitted access (`CUmemAccess_flags`).
    pub flags: c_int,
}

/// Handle by which other processes open memory or an event (`CUipcMemHandle`, `CUipcEventHandle`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct IpcHandle(pub [u8; 64]);

/// Defines the table, and the function that fills it: `required fn` for functions that every driver has,
/// `optional fn` for functions that some drivers lack.
macro_rules! table {
    ($($(#[$if:meta])* $kind:ident fn $name:ident ( $($argument:ident : $type:ty),* $(,)? );)*) => {
        /// Functions of the driver, by the names of their symbols. [NVIDIA's
        /// manual](https://docs.nvidia.com/cuda/cuda-driver-api/) explains them. All are thread-safe.
        #[allow(non_snake_case)]
        #[derive(Debug)]
        pub struct Api {
            $(
                $(#[$if])*
                #[doc = concat!("`", stringify!($name), "`")]
                pub $name: table!(@type $kind unsafe extern "C" fn($($argument: $type),*) -> u32),
            )*
        }

        impl Api {
            /// Finds all functions in the library. Returns the name of the first missing required function as
            /// an error.
            ///
            /// # Safety
            /// The library's functions of these names have the types of the CUDA driver's functions.
            pub unsafe fn load(library: &Library) -> Result<Self, &'static str> {
                Ok(Self {
                    $(
                        $(#[$if])*
                        $name: {
                            // SAFETY: the caller vouches for the type.
                            let found = unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) };
                            table!(@take $kind $name found)
                        },
                    )*
                })
            }
        }
    };
    (@type required $type:ty) => { $type };
    (@type optional $type:ty) => { Option<$type> };
    (@take required $name:ident $found:ident) => { *$found.map_err(|_| stringify!($name))? };
    (@take optional $name:ident $found:ident) => { $found.ok().map(|symbol| *symbol) };
}

table! {
    required fn cuInit(flags: c_uint);
    required fn cuDriverGetVersion(version: *mut c_int);
    required fn cuGetErrorName(code: u32, name: *mut *const c_char);
    required fn cuGetErrorString(code: u32, text: *mut *const c_char);
    required fn cuDeviceGetCount(count: *mut c_int);
    required fn cuDeviceGet(device: *mut c_int, ordinal: c_int);
    required fn cuDeviceGetName(name: *mut c_char, length: c_int, device: c_int);
    optional fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: c_int);
    optional fn cuDeviceGetUuid(uuid: *mut [u8; 16], device: c_int);
    required fn cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int);
    required fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int);
    required fn cuDeviceCanAccessPeer(can: *mut c_int, device: c_int, peer: c_int);

    required fn cuDevicePrimaryCtxRetain(context: *mut DriverHandle, device: c_int);
    required fn cuDevicePrimaryCtxRelease_v2(device: c_int);
    required fn cuCtxGetCurrent(context: *mut DriverHandle);
    required fn cuCtxSetCurrent(context: DriverHandle);
    required fn cuCtxPushCurrent_v2(context: DriverHandle);
    required fn cuCtxPopCurrent_v2(context: *mut DriverHandle);
    required fn cuCtxGetDevice(device: *mut c_int);
    required fn cuCtxSynchronize();
    required fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize);

    optional fn cuMemGetAllocationGranularity(
        granularity: *mut usize, prop: *const AllocationProp, option: c_int
    );
    optional fn cuMemAddressReserve(address: *mut u64, size: usize, alignment: usize, at: u64, flags: u64);
    optional fn cuMemAddressFree(address: u64, size: usize);
    optional fn cuMemCreate(handle: *mut u64, size: usize, prop: *const AllocationProp, flags: u64);
    optional fn cuMemRelease(handle: u64);
    optional fn cuMemMap(address: u64, size: usize, offset: usize, handle: u64, flags: u64);
    optional fn cuMemUnmap(address: u64, size: usize);
    optional fn cuMemSetAccess(address: u64, size: usize, access: *const AccessDesc, count: usize);
    optional fn cuMemGetAccess(flags: *mut u64, location: *const Location, address: u64);
    optional fn cuMemExportToShareableHandle(shareable: *mut c_void, handle: u64, kind: c_int, flags: u64);
    optional fn cuMemImportFromShareableHandle(handle: *mut u64, shareable: *mut c_void, kind: c_int);
    optional fn cuMemRetainAllocationHandle(handle: *mut u64, address: *mut c_void);
    optional fn cuMemGetAllocationPropertiesFromHandle(prop: *mut AllocationProp, handle: u64);

    required fn cuMemAlloc_v2(address: *mut u64, size: usize);
    required fn cuMemFree_v2(address: u64);
    optional fn cuMemAllocManaged(address: *mut u64, size: usize, flags: c_uint);
    optional fn cuMemAllocAsync(address: *mut u64, size: usize, stream: DriverHandle);
    optional fn cuMemFreeAsync(address: u64, stream: DriverHandle);
    required fn cuMemGetAddressRange_v2(base: *mut u64, size: *mut usize, address: u64);
    required fn cuIpcGetMemHandle(handle: *mut IpcHandle, address: u64);
    required fn cuIpcOpenMemHandle_v2(address: *mut u64, handle: IpcHandle, flags: c_uint);
    required fn cuIpcCloseMemHandle(address: u64);
    required fn cuIpcGetEventHandle(handle: *mut IpcHandle, event: DriverHandle);
    required fn cuIpcOpenEventHandle(event: *mut DriverHandle, handle: IpcHandle);

    required fn cuStreamCreate(stream: *mut DriverHandle, flags: c_uint);
    required fn cuStreamDestroy_v2(stream: DriverHandle);
    required fn cuStreamQuery(stream: DriverHandle);
    required fn cuStreamSynchronize(stream: DriverHandle);
    required fn cuStreamWaitEvent(stream: DriverHandle, event: DriverHandle, flags: c_uint);
    required fn cuStreamIsCapturing(stream: DriverHandle, status: *mut c_int);
    required fn cuStreamGetCtx(stream: DriverHandle, context: *mut DriverHandle);
    optional fn cuThreadExchangeStreamCaptureMode(mode: *mut c_int);
    optional fn cuStreamGetId(stream: DriverHandle, id: *mut u64);
    optional fn cuLaunchHostFunc(
        stream: DriverHandle, function: extern "C" fn(*mut c_void), data: *mut c_void
    );
    optional fn cuStreamWriteValue64_v2(stream: DriverHandle, address: u64, value: u64, flags: c_uint);
    optional fn cuStreamWaitValue64_v2(stream: DriverHandle, address: u64, value: u64, flags: c_uint);

    required fn cuEventCreate(event: *mut DriverHandle, flags: c_uint);
    required fn cuEventRecord(event: DriverHandle, stream: DriverHandle);
    required fn cuEventQuery(event: DriverHandle);
    required fn cuEventSynchronize(event: DriverHandle);
    required fn cuEventDestroy_v2(event: DriverHandle);
    required fn cuEventElapsedTime(milliseconds: *mut f32, start: DriverHandle, end: DriverHandle);

    required fn cuMemcpyHtoD_v2(to: u64, from: *const c_void, bytes: usize);
    required fn cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, bytes: usize, stream: DriverHandle);
    required fn cuMemcpyDtoH_v2(to: *mut c_void, from: u64, bytes: usize);
    required fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, bytes: usize, stream: DriverHandle);
    required fn cuMemcpyDtoD_v2(to: u64, from: u64, bytes: usize);
    required fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: DriverHandle);
    required fn cuMemsetD8_v2(to: u64, value: u8, count: usize);
    required fn cuMemsetD8Async(to: u64, value: u8, count: usize, stream: DriverHandle);
    required fn cuMemsetD32_v2(to: u64, value: c_uint, count: usize);
    required fn cuMemsetD32Async(to: u64, value: c_uint, count: usize, stream: DriverHandle);
    required fn cuMemHostRegister_v2(address: *mut c_void, bytes: usize, flags: c_uint);
    required fn cuMemHostUnregister(address: *mut c_void);
    required fn cuMemHostGetDevicePointer_v2(device: *mut u64, host: *mut c_void, flags: c_uint);
    required fn cuMemHostAlloc(address: *mut *mut c_void, bytes: usize, flags: c_uint);
    required fn cuMemFreeHost(address: *mut c_void);
    required fn cuPointerGetAttribute(value: *mut c_void, attribute: c_int, address: u64);

    required fn cuModuleLoadData(module: *mut DriverHandle, image: *const c_void);
    required fn cuModuleUnload(module: DriverHandle);
    required fn cuModuleGetFunction(function: *mut DriverHandle, module: DriverHandle, name: *const c_char);
    required fn cuLaunchKernel(
        function: DriverHandle,
        grid_x: c_uint,
        grid_y: c_uint,
        grid_z: c_uint,
        block_x: c_uint,
        block_y: c_uint,
        block_z: c_uint,
        shared_bytes: c_uint,
        stream: DriverHandle,
        arguments: *mut *mut c_void,
        extra: *mut *mut c_void,
    );

    #[cfg(feature = "inject")]
    optional fn mp_sim_piece(address: u64, bytes: u64);
    #[cfg(feature = "inject")]
    optional fn mp_sim_shared(address: u64, bytes: u64);
}

impl Api {
    /// Returns the error for a result.
    pub(crate) fn error(&self, call: &'static str, code: u32) -> Error {
        Error::driver(call, code, || self.error_name(code))
    }

    /// Returns the driver's name of a result.
    fn error_name(&self, code: u32) -> Option<String> {
        let mut name: *const c_char = std::ptr::null();
        // SAFETY: the call writes a pointer to a variable of this function.
        let known = unsafe { (self.cuGetErrorName)(code, &raw mut name) } == crate::codes::SUCCESS;
        if !known || name.is_null() {
            return None;
        }
        // SAFETY: `name` points to a static text of the driver that ends with 0.
        Some(unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned())
    }
}

#[cfg(test)]
mod tests {
    use std::mem::{align_of, offset_of, size_of};

    use super::*;

    #[test]
    fn driver_structures_match_the_cuda_header_layout() {
        assert_eq!((size_of::<AllocationProp>(), align_of::<AllocationProp>()), (32, 8));
        assert_eq!((offset_of!(AllocationProp, location), offset_of!(AllocationProp, win32)), (8, 16));
        assert_eq!((size_of::<AccessDesc>(), size_of::<IpcHandle>(), size_of::<DriverHandle>()), (12, 64, 8));
    }
}
