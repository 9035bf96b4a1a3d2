//! Attributes of addresses, and legacy handles of memory.
//!
//! # Safety
//! Unsafe, because the driver's functions are. Sound, because
//! - the driver finds addresses in its tables and does not dereference them: an unknown address is an error;
//! - a call writes to a variable of the calling function, which is at least as large as the written value.
#![allow(unsafe_code)]

use std::ffi::c_int;

use super::api::IpcHandle;
use super::load::Driver;
use crate::codes;
use crate::error::Result;

/// Attribute of an address (`CUpointer_attribute`).
#[derive(Clone, Copy, Debug)]
#[repr(i32)]
pub(crate) enum PointerAttribute {
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

/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`, which is required.
const LAZY_PEER_ACCESS: u32 = 1;

impl Driver {
    /// Returns an attribute of an address, or `None` if the address or the attribute is unknown to the
    /// driver.
    pub(crate) fn pointer(&self, attribute: PointerAttribute, address: u64) -> Result<Option<u64>> {
        // Some attributes are a byte, some a word, some an address.
        let mut value = 0_u64;
        let to = (&raw mut value).cast();
        // SAFETY: it writes at most eight bytes to a variable of eight, which was zero.
        match unsafe { (self.api.cuPointerGetAttribute)(to, attribute as c_int, address) } {
            codes::INVALID_VALUE => Ok(None),
            code => self.check("cuPointerGetAttribute", code).map(|()| Some(value)),
        }
    }

    /// Returns the address and the bytes of the allocation that contains an address.
    pub(crate) fn address_range(&self, address: u64) -> Result<(u64, u64)> {
        let (mut base, mut size) = (0_u64, 0_usize);
        // SAFETY: it writes an address and a size to variables of this function.
        let code = unsafe { (self.api.cuMemGetAddressRange_v2)(&raw mut base, &raw mut size, address) };
        self.check("cuMemGetAddressRange_v2", code)?;
        Ok((base, size as u64))
    }

    /// Returns the handle by which other processes open an allocation, by the allocation's address.
    pub(crate) fn ipc_handle(&self, base: u64) -> Result<IpcHandle> {
        let mut handle = IpcHandle([0; 64]);
        // SAFETY: it writes a handle to a variable of this function.
        self.check("cuIpcGetMemHandle", unsafe { (self.api.cuIpcGetMemHandle)(&raw mut handle, base) })?;
        Ok(handle)
    }

    /// Opens memory of another process for the current context's device. Returns its address.
    pub(crate) fn ipc_open(&self, handle: IpcHandle) -> Result<u64> {
        let mut address = 0;
        // SAFETY: it writes an address to a variable of this function; an invalid handle is an error.
        let code = unsafe { (self.api.cuIpcOpenMemHandle_v2)(&raw mut address, handle, LAZY_PEER_ACCESS) };
        self.check("cuIpcOpenMemHandle_v2", code)?;
        Ok(address)
    }

    /// Closes opened memory. Each opening is closed once.
    ///
    /// # Safety
    /// No stream accesses it any more.
    pub(crate) unsafe fn ipc_close(&self, address: u64) -> Result<()> {
        // SAFETY: the caller's; an address that was not opened is an error.
        self.check("cuIpcCloseMemHandle", unsafe { (self.api.cuIpcCloseMemHandle)(address) })
    }
}
