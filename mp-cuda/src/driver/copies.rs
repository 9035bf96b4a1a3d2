//! Copies between the host and devices, and filling.
//!
//! # Safety
//! Unsafe, because the driver's functions are. Sound, because
//! - memory of the host is a slice of the copy's length, and callers wait until the stream has run the copy;
//! - memory of a device is the caller's, who guarantees the range.
#![allow(unsafe_code)]

use super::api::DriverHandle;
use super::load::Driver;
use crate::error::Result;

impl Driver {
    /// Copies bytes to a device, in the order of a stream.
    ///
    /// # Safety
    /// The stream is alive. The device may write that many bytes at `to`. The bytes do not change until the
    /// copy has run.
    pub(crate) unsafe fn copy_to_device(&self, to: u64, from: &[u8], stream: DriverHandle) -> Result<()> {
        let at = from.as_ptr().cast();
        // SAFETY: the slice is as long as the copy; the rest is the caller's.
        let code = unsafe { (self.api.cuMemcpyHtoDAsync_v2)(to, at, from.len(), stream) };
        self.check("cuMemcpyHtoDAsync_v2", code)
    }

    /// Copies bytes of a device, in the order of a stream.
    ///
    /// # Safety
    /// The stream is alive. The device may read that many bytes at `from`. The bytes are not read before the
    /// copy has run.
    pub(crate) unsafe fn copy_to_host(&self, to: &mut [u8], from: u64, stream: DriverHandle) -> Result<()> {
        let at = to.as_mut_ptr().cast();
        // SAFETY: the slice is as long as the copy; the rest is the caller's.
        let code = unsafe { (self.api.cuMemcpyDtoHAsync_v2)(at, from, to.len(), stream) };
        self.check("cuMemcpyDtoHAsync_v2", code)
    }

    /// Copies bytes between devices, in the order of a stream.
    ///
    /// # Safety
    /// The stream is alive. Its device may read that many bytes at `from`, and write them at `to`. Both do
    /// not overlap.
    pub(crate) unsafe fn copy_on_device(
        &self,
        to: u64,
        from: u64,
        bytes: usize,
        stream: DriverHandle,
    ) -> Result<()> {
        // SAFETY: the caller's.
        let code = unsafe { (self.api.cuMemcpyDtoDAsync_v2)(to, from, bytes, stream) };
        self.check("cuMemcpyDtoDAsync_v2", code)
    }

    /// Fills memory with a byte, in the order of a stream.
    ///
    /// # Safety
    /// The stream is alive, and its device may write that many bytes there.
    pub(crate) unsafe fn fill_bytes(
        &self,
        to: u64,
        value: u8,
        count: usize,
        stream: DriverHandle,
    ) -> Result<()> {
        // SAFETY: the caller's.
        self.check("cuMemsetD8Async", unsafe { (self.api.cuMemsetD8Async)(to, value, count, stream) })
    }

    /// Fills memory with a pattern of four bytes, in the order of a stream.
    ///
    /// # Safety
    /// The stream is alive, and its device may write that many words at `to`, a multiple of four.
    pub(crate) unsafe fn fill_words(
        &self,
        to: u64,
        value: u32,
        count: usize,
        stream: DriverHandle,
    ) -> Result<()> {
        // SAFETY: the caller's.
        self.check("cuMemsetD32Async", unsafe { (self.api.cuMemsetD32Async)(to, value, count, stream) })
    }

    /// Declares a range of memory to a simulated driver. The simulator reports work that leaves the range,
    /// and accepts overlapping accesses that are intended. Other drivers have no such functions.
    #[cfg(feature = "inject")]
    pub(crate) fn declare(&self, address: u64, bytes: u64, shared: bool) {
        let hooks = [self.api.mp_sim_piece, self.api.mp_sim_shared.filter(|_| shared)];
        for hook in hooks.into_iter().flatten() {
            // SAFETY: the simulator's own; it records two numbers.
            unsafe { hook(address, bytes) };
        }
    }
}
