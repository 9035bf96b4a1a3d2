//! What the driver knows of an address, and legacy handles of memory.
//!
//! # Safety
//! Unsafe, because the driver's functions are; sound, because
//! - an address is looked up by the driver, and followed by none: one that it doesn't know is an error;
//! - what a call writes to is a variable of the function that makes it, at least as large as what the call writes.
#![allow(unsafe_code)]

use std::ffi::c_int;

use super::api::IpcHandle;
use super::load::Driver;
use crate::codes;
use crate::error::Result;

/// What can be asked of an address (`CUpointer_attribute`).
#[derive(Clone, Copy, Debug)]
#[repr(i32)]
pub(crate) enum Attribute {
    MemoryType = 2,
    DevicePointer = 3,
    IsManaged = 8,
    Ordinal = 9,
    IsLegacyCapable = 10,
    HandleTypes = 14,
    Pool = 17,
    MappingSize = 18,
    MappingBase = 19,
}

/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`, which has to be there.
const LAZY_PEER_ACCESS: u32 = 1;

impl Driver {
    /// One attribute of an address; `None` if the driver doesn't know the address, or the attribute.
    pub(crate) fn pointer(&self, attribute: Attribute, address: u64) -> Result<Option<u64>> {
        // Some are written as a byte, some as a word, some as an address.
        let mut value = 0_u64;
        let to = (&raw mut value).cast();
        // SAFETY: it writes at most eight bytes to a variable of eight, which was zero.
        match unsafe { (self.api.cuPointerGetAttribute)(to, attribute as c_int, address) } {
            codes::INVALID_VALUE => Ok(None),
            code => self.check("cuPointerGetAttribute", code).map(|()| Some(value)),
        }
    }

    /// Where the allocation begins that an address is in, and how many bytes it has.
    pub(crate) fn address_range(&self, address: u64) -> Result<(u64, u64)> {
        let (mut base, mut size) = (0_u64, 0_usize);
        // SAFETY: it writes an address and a size to variables of this function.
        let code = unsafe { (self.api.cuMemGetAddressRange_v2)(&raw mut base, &raw mut size, address) };
        self.check("cuMemGetAddressRange_v2", code)?;
        Ok((base, size as u64))
    }

    /// The handle by which other processes open an allocation, by where it begins.
    pub(crate) fn ipc_handle(&self, base: u64) -> Result<IpcHandle> {
        let mut handle = IpcHandle([0; 64]);
        // SAFETY: it writes a handle to a variable of this function.
        self.check("cuIpcGetMemHandle", unsafe { (self.api.cuIpcGetMemHandle)(&raw mut handle, base) })?;
        Ok(handle)
    }

    /// Opens memory of another process, for the device whose context is current: where it begins here.
    pub(crate) fn ipc_open(&self, handle: IpcHandle) -> Result<u64> {
        let mut address = 0;
        // SAFETY: it writes an address to a variable of this function; a handle that names nothing is an error.
        let code = unsafe { (self.api.cuIpcOpenMemHandle_v2)(&raw mut address, handle, LAZY_PEER_ACCESS) };
        self.check("cuIpcOpenMemHandle_v2", code)?;
        Ok(address)
    }

    /// Closes what was opened, once.
    ///
    /// # Safety
    /// No stream reaches it any more.
    pub(crate) unsafe fn ipc_close(&self, address: u64) -> Result<()> {
        // SAFETY: the caller's; an address that was not opened is an error.
        self.check("cuIpcCloseMemHandle", unsafe { (self.api.cuIpcCloseMemHandle)(address) })
    }
}
