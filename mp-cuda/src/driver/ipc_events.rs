//! Events that other processes open: creation and export, opening, records and waits.
//!
//! # Safety
//! Unsafe, because the driver's functions are. Sound, because
//! - callers guarantee that streams and events are alive;
//! - a call writes to a variable of the calling function.
#![allow(unsafe_code)]

use super::api::{DriverHandle, IpcHandle};
use super::calls::value;
use super::load::Driver;
use crate::error::Result;

/// `CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS`, which are required together.
const BETWEEN_PROCESSES: u32 = 2 | 4;

impl Driver {
    /// Creates an event of the current context's device. Returns the event, and the handle by which other
    /// processes open it.
    pub(crate) fn event_create(&self) -> Result<(DriverHandle, [u8; 64])> {
        let event = value!(DriverHandle::NULL, |event| self.cuEventCreate(event, BETWEEN_PROCESSES));
        let name = self.event_export(event).inspect_err(|_| {
            // SAFETY: the event was made above, and is no longer used.
            _ = unsafe { self.event_destroy(event) };
        })?;
        Ok((event, name))
    }

    /// Returns the handle by which other processes open an event.
    fn event_export(&self, event: DriverHandle) -> Result<[u8; 64]> {
        Ok(value!(IpcHandle([0; 64]), |handle| self.cuIpcGetEventHandle(handle, event)).0)
    }

    /// Opens another process's event. Returns an error if the handle is unknown.
    pub(crate) fn event_open(&self, handle: [u8; 64]) -> Result<DriverHandle> {
        Ok(value!(DriverHandle::NULL, |event| self.cuIpcOpenEventHandle(event, IpcHandle(handle))))
    }

    /// Destroys or closes an event.
    ///
    /// # Safety
    /// This process made or opened the event, and no longer uses it.
    pub(crate) unsafe fn event_destroy(&self, event: DriverHandle) -> Result<()> {
        // SAFETY: guaranteed by the caller.
        self.check("cuEventDestroy_v2", unsafe { (self.api.cuEventDestroy_v2)(event) })
    }

    /// Has a stream record an event.
    ///
    /// # Safety
    /// The event and the stream are alive, and belong to one context.
    pub(crate) unsafe fn event_record(&self, event: DriverHandle, stream: DriverHandle) -> Result<()> {
        // SAFETY: guaranteed by the caller.
        self.check("cuEventRecord", unsafe { (self.api.cuEventRecord)(event, stream) })
    }

    /// Has a stream wait for the last record of an event.
    ///
    /// # Safety
    /// The stream and the event are alive.
    pub(crate) unsafe fn stream_wait_event(&self, stream: DriverHandle, event: DriverHandle) -> Result<()> {
        // SAFETY: guaranteed by the caller. There are no flags.
        self.check("cuStreamWaitEvent", unsafe { (self.api.cuStreamWaitEvent)(stream, event, 0) })
    }
}
