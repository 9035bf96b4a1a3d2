//! Events that other processes open, and functions of this program that streams call.
//!
//! # Safety
//! Unsafe, because the driver's functions are. Sound, because
//! - callers guarantee that streams and events are alive;
//! - a call writes to a variable of the calling function;
//! - streams call only functions of this crate, which take their argument as a number.
#![allow(unsafe_code)]

use std::ffi::c_void;

use super::api::{DriverHandle, IpcHandle};
use super::load::Driver;
use crate::error::Result;

/// `CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS`, which are required together.
const BETWEEN_PROCESSES: u32 = 2 | 4;

/// Function that a stream calls: `CUhostFn`. It must not call the driver.
pub(crate) type HostFunction = extern "C" fn(*mut c_void);

impl Driver {
    /// Returns `true` if streams can call functions.
    pub(crate) fn has_host_calls(&self) -> bool {
        self.api.cuLaunchHostFunc.is_some()
    }

    /// Returns `true` if streams can write words and wait for them.
    pub(crate) fn has_stream_words(&self) -> bool {
        self.api.cuStreamWriteValue64_v2.is_some() && self.api.cuStreamWaitValue64_v2.is_some()
    }

    /// Creates an event of the current context's device. Returns the event and its name for other processes.
    pub(crate) fn event_create(&self) -> Result<(DriverHandle, [u8; 64])> {
        let (mut event, mut handle) = (DriverHandle::NULL, IpcHandle([0; 64]));
        // SAFETY: it writes a pointer to a variable of this function.
        let code = unsafe { (self.api.cuEventCreate)(&raw mut event, BETWEEN_PROCESSES) };
        self.check("cuEventCreate", code)?;
        // SAFETY: the event was made above; its name is written to a variable of this function.
        let code = unsafe { (self.api.cuIpcGetEventHandle)(&raw mut handle, event) };
        if let Err(error) = self.check("cuIpcGetEventHandle", code) {
            // SAFETY: the event was made above, and is not used any more.
            _ = unsafe { self.event_destroy(event) };
            return Err(error);
        }
        Ok((event, handle.0))
    }

    /// Opens another process's event.
    pub(crate) fn event_open(&self, handle: [u8; 64]) -> Result<DriverHandle> {
        let mut event = DriverHandle::NULL;
        // SAFETY: it writes a pointer to a variable of this function; an unknown name is an error.
        let code = unsafe { (self.api.cuIpcOpenEventHandle)(&raw mut event, IpcHandle(handle)) };
        self.check("cuIpcOpenEventHandle", code)?;
        Ok(event)
    }

    /// # Safety
    /// This process made or opened the event, and does not use it any more.
    pub(crate) unsafe fn event_destroy(&self, event: DriverHandle) -> Result<()> {
        // SAFETY: the caller's.
        self.check("cuEventDestroy_v2", unsafe { (self.api.cuEventDestroy_v2)(event) })
    }

    /// # Safety
    /// Both are alive, and of one context.
    pub(crate) unsafe fn event_record(&self, event: DriverHandle, stream: DriverHandle) -> Result<()> {
        // SAFETY: the caller's.
        self.check("cuEventRecord", unsafe { (self.api.cuEventRecord)(event, stream) })
    }

    /// Has a stream wait for the last record of an event.
    ///
    /// # Safety
    /// Both are alive.
    pub(crate) unsafe fn stream_wait_event(&self, stream: DriverHandle, event: DriverHandle) -> Result<()> {
        // SAFETY: the caller's. There are no flags.
        self.check("cuStreamWaitEvent", unsafe { (self.api.cuStreamWaitEvent)(stream, event, 0) })
    }

    /// Has a stream call a function with this number, when all earlier work has run.
    ///
    /// # Safety
    /// The stream is alive.
    pub(crate) unsafe fn launch_host(
        &self,
        stream: DriverHandle,
        function: HostFunction,
        number: u64,
    ) -> Result<()> {
        const NAME: &str = "cuLaunchHostFunc";
        let launch = self.optional(NAME, self.api.cuLaunchHostFunc)?;
        let number = std::ptr::without_provenance_mut(number as usize);
        // SAFETY: the caller guarantees the stream; the function is part of the program, and its argument is
        // a number.
        self.check(NAME, unsafe { launch(stream, function, number) })
    }
}
