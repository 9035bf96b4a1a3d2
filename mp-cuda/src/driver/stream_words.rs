//! Words that streams write and wait for, and the registration of the host's memory in which they are.
//!
//! # Safety
//! Unsafe, because the driver's functions are; sound, because
//! - an address that a stream is given is one that the driver gave for memory that is registered, says the caller;
//! - memory is registered by a caller that vouches for it as long as it is.
#![allow(unsafe_code)]

use std::ffi::c_void;

use super::api::Handle;
use super::load::Driver;
use crate::codes;
use crate::error::Result;

/// `CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP`: for all contexts, and with addresses for devices.
const PORTABLE_MAPPED: u32 = 3;

/// `CU_STREAM_WAIT_VALUE_GEQ`, which is cyclic: the difference is taken as a number with a sign.
const AT_LEAST: u32 = 0;

impl Driver {
    /// Has a stream write a word when all that it was given before has run, and is seen by all that see the word.
    ///
    /// # Safety
    /// The stream is alive; the address is a device's, of a word that is registered until the write has run.
    pub(crate) unsafe fn stream_write(&self, stream: Handle, address: u64, value: u64) -> Result<()> {
        const NAME: &str = "cuStreamWriteValue64_v2";
        let function = self.optional(NAME, self.api.cuStreamWriteValue64_v2)?;
        // SAFETY: the caller's. The flag 0 is a fence for the whole system before the write.
        self.check(NAME, unsafe { function(stream, address, value, 0) })
    }

    /// Has a stream wait until a word is at least this value.
    ///
    /// # Safety
    /// The stream is alive; the address is a device's, of a word that is registered until the wait has ended.
    pub(crate) unsafe fn stream_wait(&self, stream: Handle, address: u64, value: u64) -> Result<()> {
        const NAME: &str = "cuStreamWaitValue64_v2";
        let function = self.optional(NAME, self.api.cuStreamWaitValue64_v2)?;
        // SAFETY: the caller's.
        self.check(NAME, unsafe { function(stream, address, value, AT_LEAST) })
    }

    /// Lets the devices of this process reach its memory; that they can do so already is no error.
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

    /// The address by which the device whose context is current reaches registered memory.
    pub(crate) fn host_device_address(&self, address: *mut c_void) -> Result<u64> {
        let mut device = 0;
        // SAFETY: it writes an address to a variable of this function; of memory that isn't registered it is an error.
        let code = unsafe { (self.api.cuMemHostGetDevicePointer_v2)(&raw mut device, address, 0) };
        self.check("cuMemHostGetDevicePointer_v2", code)?;
        Ok(device)
    }
}
