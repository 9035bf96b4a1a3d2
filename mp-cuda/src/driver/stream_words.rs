//! Words that streams write and wait for, and registration of the host's memory that contains them.
//!
//! # Safety
//! Unsafe, because the driver's functions are. Sound, because
//! - callers guarantee that the driver returned the address that a stream gets, for registered memory;
//! - callers guarantee that registered memory stays mapped.
#![allow(unsafe_code)]

use std::ffi::c_void;

use super::api::DriverHandle;
use super::load::Driver;
use crate::codes;
use crate::error::Result;

/// `CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP`: for all contexts, with addresses for
/// devices.
const PORTABLE_MAPPED: u32 = 3;

/// `CU_STREAM_WAIT_VALUE_GEQ`, which is cyclic: the difference is taken as a number with a sign.
const AT_LEAST: u32 = 0;

impl Driver {
    /// Has a stream write a word when all earlier work has run, and is visible to all readers of the word.
    ///
    /// # Safety
    /// The stream is alive. The address is a device's, of a word that is registered until the write has run.
    pub(crate) unsafe fn stream_write(&self, stream: DriverHandle, address: u64, value: u64) -> Result<()> {
        const NAME: &str = "cuStreamWriteValue64_v2";
        let function = self.optional(NAME, self.api.cuStreamWriteValue64_v2)?;
        // SAFETY: the caller's. The flag 0 is a fence for the whole system before the write.
        self.check(NAME, unsafe { function(stream, address, value, 0) })
    }

    /// Has a stream wait until a word is at least this value.
    ///
    /// # Safety
    /// The stream is alive. The address is a device's, of a word that is registered until the wait has ended.
    pub(crate) unsafe fn stream_wait(&self, stream: DriverHandle, address: u64, value: u64) -> Result<()> {
        const NAME: &str = "cuStreamWaitValue64_v2";
        let function = self.optional(NAME, self.api.cuStreamWaitValue64_v2)?;
        // SAFETY: the caller's.
        self.check(NAME, unsafe { function(stream, address, value, AT_LEAST) })
    }

    /// Lets the devices of this process access its memory. Memory that is registered already is not an error.
    ///
    /// # Safety
    /// The memory stays mapped until the process ends.
    pub(crate) unsafe fn host_register(&self, address: *mut c_void, bytes: usize) -> Result<()> {
        // SAFETY: the caller's.
        let register = || unsafe { (self.api.cuMemHostRegister_v2)(address, bytes, PORTABLE_MAPPED) };
        match self.beside_captures(register) {
            codes::HOST_MEMORY_ALREADY_REGISTERED => Ok(()),
            code => self.check("cuMemHostRegister_v2", code),
        }
    }

    /// Returns the address of registered memory for the current context's device.
    pub(crate) fn host_device_address(&self, address: *mut c_void) -> Result<u64> {
        let mut device = 0;
        // SAFETY: it writes an address to a variable of this function; memory that isn't registered is an
        // error.
        let code = unsafe { (self.api.cuMemHostGetDevicePointer_v2)(&raw mut device, address, 0) };
        self.check("cuMemHostGetDevicePointer_v2", code)?;
        Ok(device)
    }
}
