//! Primary contexts: kept while they are used, current for a call of this crate, and no longer. What was current before is current
//! again, whatever other library has made it so.
//!
//! # Safety
//! Unsafe, because contexts are objects of the driver; sound, because
//! - a [`Primary`] is released once, when its last owner drops it, and its context is used by owners only;
//! - a [`Bound`] borrows the `Primary` whose context it has made current.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::marker::PhantomData;

use super::api::Handle;
use super::load::Driver;
use crate::error::{Error, Result};

/// The primary context of a device, which all libraries of a process share.
#[derive(Debug)]
pub(crate) struct Primary {
    device: c_int,
    context: Handle,
}

impl Primary {
    /// Makes the context, if no library of this process has.
    pub(crate) fn retain(driver: &Driver, device: c_int) -> Result<Self> {
        Ok(Self { device, context: driver.retain_primary(device)? })
    }

    pub(crate) fn context(&self) -> Handle {
        self.context
    }

    /// The driver, with this context current until the returned value is dropped. In a copy of the process that made it: `Forked`.
    pub(crate) fn bind(&self) -> Result<Bound<'_>> {
        let driver = Driver::get()?;
        let pushed = driver.current()? != self.context;
        if pushed {
            // SAFETY: the context is kept by `self`, which the returned value borrows.
            unsafe { driver.push(self.context) }?;
        }
        Ok(Bound { driver, pushed, _primary: PhantomData })
    }
}

impl Drop for Primary {
    fn drop(&mut self) {
        // None in a copy of the process, whose context it isn't.
        if let Some(driver) = Driver::loaded() {
            // SAFETY: this one retained it, and is used no more. Its failure would be that of the driver's end, which took it.
            _ = unsafe { driver.release_primary(self.device) };
        }
    }
}

/// A context that is current on this thread.
#[derive(Debug)]
pub(crate) struct Bound<'a> {
    driver: &'static Driver,
    /// Whether it was not current before.
    pushed: bool,
    /// What is current is so for a thread: this can't go to another one.
    _primary: PhantomData<(&'a Primary, *const ())>,
}

impl std::ops::Deref for Bound<'_> {
    type Target = Driver;

    fn deref(&self) -> &Driver {
        self.driver
    }
}

impl Drop for Bound<'_> {
    fn drop(&mut self) {
        if self.pushed {
            _ = self.driver.pop();
        }
    }
}

/// The primary context of the device that a context is of; an error if it is another one.
///
/// # Safety
/// The context is alive.
pub(crate) unsafe fn primary_of(driver: &Driver, context: Handle) -> Result<(Primary, c_int)> {
    // SAFETY: the caller's; it is popped below.
    unsafe { driver.push(context) }?;
    let device = driver.current_device();
    driver.pop()?;
    let device = device?;
    let primary = Primary::retain(driver, device)?;
    if primary.context() == context { Ok((primary, device)) } else { Err(Error::OtherContext) }
}
