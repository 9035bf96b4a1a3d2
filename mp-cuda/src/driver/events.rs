//! Events that other processes open, and functions of this program that a stream has called.
//!
//! # Safety
//! Unsafe, because the driver's functions are; sound, because
//! - callers vouch that streams and events are alive;
//! - what a call writes to is a variable of the function that makes it;
//! - a function that a stream calls is one of this crate's, which takes its argument as a number.
#![allow(unsafe_code)]

use std::ffi::c_void;

use super::api::{Handle, IpcHandle};
use super::load::Driver;
use crate::error::Result;

/// `CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS`, which go together.
const BETWEEN_PROCESSES: u32 = 2 | 4;

/// What a stream calls in its turn: `CUhostFn`. It calls no driver.
pub(crate) type HostFunction = extern "C" fn(*mut c_void);

impl Driver {
    /// Whether the driver has streams call functions.
    pub(crate) fn has_host_calls(&self) -> bool {
        self.api.cuLaunchHostFunc.is_some()
    }

    /// Whether streams write words and wait for them.
    pub(crate) fn has_stream_words(&self) -> bool {
        self.api.cuStreamWriteValue64_v2.is_some() && self.api.cuStreamWaitValue64_v2.is_some()
    }

    /// An event of the device whose context is current, and its name in other processes.
    pub(crate) fn event_create(&self) -> Result<(Handle, [u8; 64])> {
        let (mut event, mut handle) = (Handle::NULL, IpcHandle([0; 64]));
        // SAFETY: it writes a pointer to a variable of this function.
        let code = unsafe { (self.api.cuEventCreate)(&raw mut event, BETWEEN_PROCESSES) };
        self.check("cuEventCreate", code)?;
        // SAFETY: the event was made above; its name is written to a variable of this function.
        let code = unsafe { (self.api.cuIpcGetEventHandle)(&raw mut handle, event) };
        if let Err(error) = self.check("cuIpcGetEventHandle", code) {
            // SAFETY: it was made above, and is used no more.
            _ = unsafe { self.event_destroy(event) };
            return Err(error);
        }
        Ok((event, handle.0))
    }

    /// Another process's event.
    pub(crate) fn event_open(&self, handle: [u8; 64]) -> Result<Handle> {
        let mut event = Handle::NULL;
        // SAFETY: it writes a pointer to a variable of this function; a name that is none is an error.
        let code = unsafe { (self.api.cuIpcOpenEventHandle)(&raw mut event, IpcHandle(handle)) };
        self.check("cuIpcOpenEventHandle", code)?;
        Ok(event)
    }

    /// # Safety
    /// The event is this process's, made or opened, and used no more.
    pub(crate) unsafe fn event_destroy(&self, event: Handle) -> Result<()> {
        // SAFETY: the caller's.
        self.check("cuEventDestroy_v2", unsafe { (self.api.cuEventDestroy_v2)(event) })
    }

    /// # Safety
    /// Both are alive, and of one context.
    pub(crate) unsafe fn event_record(&self, event: Handle, stream: Handle) -> Result<()> {
        // SAFETY: the caller's.
        self.check("cuEventRecord", unsafe { (self.api.cuEventRecord)(event, stream) })
    }

    /// Has a stream wait for what was recorded last.
    ///
    /// # Safety
    /// Both are alive.
    pub(crate) unsafe fn stream_wait_event(&self, stream: Handle, event: Handle) -> Result<()> {
        // SAFETY: the caller's. There are no flags.
        self.check("cuStreamWaitEvent", unsafe { (self.api.cuStreamWaitEvent)(stream, event, 0) })
    }

    /// Has a stream call a function with this number, when all has run that it was given before.
    ///
    /// # Safety
    /// The stream is alive.
    pub(crate) unsafe fn launch_host(
        &self,
        stream: Handle,
        function: HostFunction,
        number: u64,
    ) -> Result<()> {
        const NAME: &str = "cuLaunchHostFunc";
        let launch = self.optional(NAME, self.api.cuLaunchHostFunc)?;
        let number = std::ptr::without_provenance_mut(number as usize);
        // SAFETY: the stream is the caller's; the function is one of the program, and its argument leads nowhere.
        self.check(NAME, unsafe { launch(stream, function, number) })
    }
}
