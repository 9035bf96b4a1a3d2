//! Memory of another process, opened by its legacy handle.
//!
//! # Safety
//! Unsafe, because closing invalidates the address. Sound, because only the drop of a [`LegacyMapping`]
//! closes its address. The slab drops the mapping after streams have run their work with the slab.
#![allow(unsafe_code)]

use crate::device::Device;
use crate::driver::api::IpcHandle;
use crate::error::Result;
use crate::memory::virtual_memory::give_back;

/// Mapping of memory of another process, for one device of this process. Dropping the mapping closes the
/// memory.
#[derive(Debug)]
pub(crate) struct LegacyMapping {
    device: Device,
    address: u64,
}

impl LegacyMapping {
    /// Opens memory by its handle. The driver returns an error for handles of this process and of dead
    /// processes.
    pub(crate) fn new(by: &Device, handle: IpcHandle) -> Result<Self> {
        Ok(Self { device: by.clone(), address: by.bind()?.ipc_open(handle)? })
    }

    /// Returns the device for which the memory was opened.
    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// Returns the device address of the memory.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }
}

impl Drop for LegacyMapping {
    fn drop(&mut self) {
        // SAFETY: the slab with this mapping was released, so no stream reaches it.
        give_back(&self.device, |bound| unsafe { bound.ipc_close(self.address) });
    }
}
