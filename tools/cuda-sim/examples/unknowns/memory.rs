//! Calls of the driver for memory.
//!
//! # Safety
//! Unsafe, because it calls a driver; sound, because
//! - calls write to variables of the function that makes them, of the types that the calls write;
//! - host memory of a copy is a slice that outlives it: the caller waits for copies to the host, and the
//!   memory of other copies stays allocated;
//! - memory that is registered stays mapped for the life of the process.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr;

use mp_cuda::driver::api::{AccessDesc, AllocationProp, DriverHandle, IpcHandle, Location};

use crate::gpu::{Gpu, Outcome, ProbeError, cu, newer};

/// Flags with which `mp-cuda` registers memory: for all contexts, and with addresses for devices.
const PORTABLE_MAPPED: u32 = 3;

impl Gpu {
    pub(crate) fn register(&self, host: *mut c_void, bytes: usize) -> Outcome<u64> {
        let mut device = 0;
        cu!(self.cuMemHostRegister_v2(host, bytes, PORTABLE_MAPPED))?;
        cu!(self.cuMemHostGetDevicePointer_v2(&raw mut device, host, 0))?;
        Ok(device)
    }

    pub(crate) fn unregister(&self, host: *mut c_void) -> Outcome {
        cu!(self.cuMemHostUnregister(host))
    }

    /// Allocates pinned memory of the driver, and frees it at once.
    pub(crate) fn host_alloc(&self, bytes: usize) -> Outcome<*mut c_void> {
        let mut host = ptr::null_mut();
        cu!(self.cuMemHostAlloc(&raw mut host, bytes, PORTABLE_MAPPED))?;
        Ok(host)
    }

    pub(crate) fn free_host(&self, host: *mut c_void) -> Outcome {
        cu!(self.cuMemFreeHost(host))
    }

    pub(crate) fn alloc(&self, bytes: usize) -> Outcome<u64> {
        let mut at = 0;
        cu!(self.cuMemAlloc_v2(&raw mut at, bytes))?;
        Ok(at)
    }

    pub(crate) fn free(&self, at: u64) -> Outcome {
        cu!(self.cuMemFree_v2(at))
    }

    pub(crate) fn alloc_async(&self, bytes: usize, stream: DriverHandle) -> Outcome<u64> {
        let mut at = 0;
        newer!(self.cuMemAllocAsync(&raw mut at, bytes, stream))?;
        Ok(at)
    }

    pub(crate) fn free_async(&self, at: u64, stream: DriverHandle) -> Outcome {
        newer!(self.cuMemFreeAsync(at, stream))
    }

    pub(crate) fn address_range(&self, at: u64) -> Outcome<(u64, usize)> {
        let (mut base, mut size) = (0, 0);
        cu!(self.cuMemGetAddressRange_v2(&raw mut base, &raw mut size, at))?;
        Ok((base, size))
    }

    pub(crate) fn memory_handle(&self, at: u64) -> Outcome<IpcHandle> {
        let mut handle = IpcHandle([0; 64]);
        cu!(self.cuIpcGetMemHandle(&raw mut handle, at))?;
        Ok(handle)
    }

    pub(crate) fn open_memory(&self, handle: IpcHandle) -> Outcome<u64> {
        let mut at = 0;
        cu!(self.cuIpcOpenMemHandle_v2(&raw mut at, handle, 1))?;
        Ok(at)
    }

    pub(crate) fn close_memory(&self, at: u64) -> Outcome {
        cu!(self.cuIpcCloseMemHandle(at))
    }

    /// Returns the free bytes of the device.
    pub(crate) fn free_bytes(&self) -> Outcome<usize> {
        let (mut free, mut total) = (0, 0);
        cu!(self.cuMemGetInfo_v2(&raw mut free, &raw mut total))?;
        Ok(free)
    }

    pub(crate) fn create(&self, bytes: usize) -> Outcome<u64> {
        let (mut handle, prop) = (0, AllocationProp::shareable(0));
        newer!(self.cuMemCreate(&raw mut handle, bytes, &raw const prop, 0))?;
        Ok(handle)
    }

    pub(crate) fn release(&self, handle: u64) -> Outcome {
        newer!(self.cuMemRelease(handle))
    }

    pub(crate) fn reserve(&self, bytes: usize) -> Outcome<u64> {
        let mut at = 0;
        newer!(self.cuMemAddressReserve(&raw mut at, bytes, 0, 0, 0))?;
        Ok(at)
    }

    pub(crate) fn give_back(&self, at: u64, bytes: usize) -> Outcome {
        newer!(self.cuMemAddressFree(at, bytes))
    }

    pub(crate) fn map(&self, at: u64, bytes: usize, handle: u64) -> Outcome {
        newer!(self.cuMemMap(at, bytes, 0, handle, 0))
    }

    pub(crate) fn unmap(&self, at: u64, bytes: usize) -> Outcome {
        newer!(self.cuMemUnmap(at, bytes))
    }

    pub(crate) fn set_access(&self, at: u64, bytes: usize) -> Outcome {
        let access = AccessDesc { location: Location { kind: 1, id: 0 }, flags: 3 };
        newer!(self.cuMemSetAccess(at, bytes, &raw const access, 1))
    }

    pub(crate) fn export(&self, handle: u64) -> Outcome<OwnedFd> {
        let mut file: i32 = -1;
        newer!(self.cuMemExportToShareableHandle((&raw mut file).cast(), handle, 1, 0))?;
        // SAFETY: the driver made it for its caller.
        Ok(unsafe { OwnedFd::from_raw_fd(file) })
    }

    pub(crate) fn import(&self, file: i32) -> Outcome<u64> {
        let number = usize::try_from(file).map_err(|_| ProbeError("no descriptor".to_owned()))?;
        let (mut handle, shareable) = (0, ptr::with_exposed_provenance_mut::<c_void>(number));
        newer!(self.cuMemImportFromShareableHandle(&raw mut handle, shareable, 1))?;
        Ok(handle)
    }

    /// Reserves addresses, maps a handle's memory, and makes it accessible.
    pub(crate) fn mapped(&self, handle: u64, bytes: usize) -> Outcome<u64> {
        let at = self.reserve(bytes)?;
        self.map(at, bytes, handle)?;
        self.set_access(at, bytes)?;
        Ok(at)
    }

    pub(crate) fn set_bytes(&self, at: u64, value: u8, bytes: usize, stream: DriverHandle) -> Outcome {
        cu!(self.cuMemsetD8Async(at, value, bytes, stream))
    }

    pub(crate) fn set_words(&self, at: u64, value: u32, words: usize, stream: DriverHandle) -> Outcome {
        cu!(self.cuMemsetD32Async(at, value, words, stream))
    }

    /// Copies pageable memory, which stays.
    pub(crate) fn to_device(&self, at: u64, from: &'static [u8], stream: DriverHandle) -> Outcome {
        cu!(self.cuMemcpyHtoDAsync_v2(at, from.as_ptr().cast(), from.len(), stream))
    }

    /// Does the same by a call that has no stream.
    pub(crate) fn to_device_now(&self, at: u64, from: &[u8]) -> Outcome {
        cu!(self.cuMemcpyHtoD_v2(at, from.as_ptr().cast(), from.len()))
    }

    pub(crate) fn to_host(&self, to: &mut [u32], at: u64) -> Outcome {
        cu!(self.cuMemcpyDtoH_v2(to.as_mut_ptr().cast(), at, size_of_val(to)))
    }

    pub(crate) fn to_host_async(&self, to: &'static mut [u8], at: u64, stream: DriverHandle) -> Outcome {
        cu!(self.cuMemcpyDtoHAsync_v2(to.as_mut_ptr().cast(), at, to.len(), stream))
    }

    pub(crate) fn on_device(&self, to: u64, from: u64, bytes: usize, stream: DriverHandle) -> Outcome {
        cu!(self.cuMemcpyDtoDAsync_v2(to, from, bytes, stream))
    }
}
