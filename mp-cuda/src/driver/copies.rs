//! Copies between the host and devices, and filling.
//!
//! # Safety
//! Unsafe, because the driver's functions are; sound, because
//! - memory of the host is a slice, which is as long as the copy, and which the call has read or written when it returns: callers
//!   that give it to a stream wait for that;
//! - the memory of a device is the caller's, who vouches for the range.
#![allow(unsafe_code)]

use super::api::Handle;
use super::load::Driver;
use crate::error::Result;

impl Driver {
    /// Copies bytes to a device, in the order of a stream.
    ///
    /// # Safety
    /// The stream is alive; the device may write that many bytes at `to`; the bytes stay as they are until the copy has run.
    pub(crate) unsafe fn copy_to_device(&self, to: u64, from: &[u8], stream: Handle) -> Result<()> {
        let at = from.as_ptr().cast();
        // SAFETY: the slice is as long as the copy; the rest is the caller's.
        let code = unsafe { (self.api.cuMemcpyHtoDAsync_v2)(to, at, from.len(), stream) };
        self.check("cuMemcpyHtoDAsync_v2", code)
    }

    /// Copies bytes of a device, in the order of a stream.
    ///
    /// # Safety
    /// The stream is alive; the device may read that many bytes at `from`; the bytes are not looked at before the copy has run.
    pub(crate) unsafe fn copy_to_host(&self, to: &mut [u8], from: u64, stream: Handle) -> Result<()> {
        let at = to.as_mut_ptr().cast();
        // SAFETY: the slice is as long as the copy; the rest is the caller's.
        let code = unsafe { (self.api.cuMemcpyDtoHAsync_v2)(at, from, to.len(), stream) };
        self.check("cuMemcpyDtoHAsync_v2", code)
    }

    /// Copies within devices, in the order of a stream.
    ///
    /// # Safety
    /// The stream is alive; its device may read that many bytes at `from`, and write them at `to`; they don't overlap.
    pub(crate) unsafe fn copy_on_device(
        &self,
        to: u64,
        from: u64,
        bytes: usize,
        stream: Handle,
    ) -> Result<()> {
        // SAFETY: the caller's.
        let code = unsafe { (self.api.cuMemcpyDtoDAsync_v2)(to, from, bytes, stream) };
        self.check("cuMemcpyDtoDAsync_v2", code)
    }

    /// Fills with one byte, in the order of a stream.
    ///
    /// # Safety
    /// The stream is alive, and its device may write that many bytes there.
    pub(crate) unsafe fn fill_bytes(&self, to: u64, value: u8, count: usize, stream: Handle) -> Result<()> {
        // SAFETY: the caller's.
        self.check("cuMemsetD8Async", unsafe { (self.api.cuMemsetD8Async)(to, value, count, stream) })
    }

    /// Fills with one pattern of four bytes, in the order of a stream.
    ///
    /// # Safety
    /// The stream is alive, and its device may write that many words at `to`, a multiple of four.
    pub(crate) unsafe fn fill_words(&self, to: u64, value: u32, count: usize, stream: Handle) -> Result<()> {
        // SAFETY: the caller's.
        self.check("cuMemsetD32Async", unsafe { (self.api.cuMemsetD32Async)(to, value, count, stream) })
    }

    /// Tells a simulated driver what a range of memory is, so that it finds work that leaves it, and doesn't take for mistakes what may
    /// overlap on purpose. No other driver has such functions.
    #[cfg(feature = "inject")]
    pub(crate) fn declare(&self, address: u64, bytes: u64, shared: bool) {
        let hooks = [self.api.mp_sim_piece, self.api.mp_sim_shared.filter(|_| shared)];
        for hook in hooks.into_iter().flatten() {
            // SAFETY: the simulator's own; it notes two numbers.
            unsafe { hook(address, bytes) };
        }
    }
}
