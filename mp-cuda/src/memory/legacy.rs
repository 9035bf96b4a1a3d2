//! Memory of another process, opened by its legacy handle.
//!
//! # Safety
//! Unsafe, because closing invalidates the address. Sound, because only the value with the address closes it,
//! when the slab is dropped, after streams have run their work with it.
#![allow(unsafe_code)]

use crate::device::Device;
use crate::driver::api::IpcHandle;
use crate::error::Result;
use crate::memory::virtual_memory::give_back;

/// Memory of another process, at an address for one device of this process. Dropping it closes the memory.
#[derive(Debug)]
pub(crate) struct LegacyMapping {
    device: Device,
    address: u64,
}

impl LegacyMapping {
    /// Opens a handle. The driver refuses handles of this process, and of dead processes.
    pub(crate) fn new(by: &Device, handle: IpcHandle) -> Result<Self> {
        Ok(Self { device: by.clone(), address: by.bind()?.ipc_open(handle)? })
    }

    /// Returns the device for which the memory was opened.
    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// Returns the address.
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
