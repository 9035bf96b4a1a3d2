//! Memory of another process that was opened by its legacy handle.
//!
//! # Safety
//! Unsafe, because closing ends what the address leads to; sound, because the one value that has the address closes it, when the slab is
//! dropped whose streams have run what they had there.
#![allow(unsafe_code)]

use mp_core::mutant;

use crate::device::Device;
use crate::driver::api::IpcHandle;
use crate::error::Result;
use crate::memory::virtual_memory::give_back;

/// Memory of another process, at an address that one device of this one reaches, until this is dropped.
#[derive(Debug)]
pub(crate) struct Opened {
    device: Device,
    address: u64,
}

impl Opened {
    /// Opens it. The driver refuses handles of this process, and those of processes that are gone.
    pub(crate) fn new(by: &Device, handle: IpcHandle) -> Result<Self> {
        Ok(Self { device: by.clone(), address: by.bind()?.ipc_open(handle)? })
    }

    /// The device that it was opened for.
    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// Where it begins.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if mutant!("cuda.legacy.not-closed") {
            return;
        }
        // SAFETY: the slab that has this was given up, so no stream reaches it.
        give_back(&self.device, |bound| unsafe { bound.ipc_close(self.address) });
    }
}
