//! Primary contexts. They are retained as long as they are used, and current only during a call of this
//! crate. The previous context of the thread is current afterwards.
//!
//! # Safety
//! Unsafe, because contexts are objects of the driver. Sound, because
//! - a [`PrimaryContext`] is released once, when its last owner drops it, and only owners use its context;
//! - a [`BoundContext`] borrows the `PrimaryContext` whose context it has made current.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::marker::PhantomData;

use super::api::DriverHandle;
use super::load::Driver;
use crate::error::{Error, Result};

/// Primary context of a device, which all libraries of a process share.
#[derive(Debug)]
pub(crate) struct PrimaryContext {
    device: c_int,
    context: DriverHandle,
}

impl PrimaryContext {
    /// Retains the context, which is created if no library of this process has retained it.
    pub(crate) fn retain(driver: &Driver, device: c_int) -> Result<Self> {
        Ok(Self { device, context: driver.retain_primary(device)? })
    }

    pub(crate) fn context(&self) -> DriverHandle {
        self.context
    }

    /// Makes the context current until the returned value is dropped. Returns `Forked` in a forked copy of
    /// the process.
    pub(crate) fn bind(&self) -> Result<BoundContext<'_>> {
        let driver = Driver::get()?;
        let pushed = driver.current()? != self.context;
        if pushed {
            // SAFETY: `self` keeps the context, and the returned value borrows `self`.
            unsafe { driver.push(self.context) }?;
        }
        Ok(BoundContext { driver, pushed, _primary: PhantomData })
    }
}

impl Drop for PrimaryContext {
    fn drop(&mut self) {
        // A forked copy has no driver, and does not own the context.
        if let Some(driver) = Driver::loaded() {
            // SAFETY: this value retained the context, and is no longer used. An error means that the driver
            // is gone, with the context.
            _ = unsafe { driver.release_primary(self.device) };
        }
    }
}

/// Context that is current on this thread.
#[derive(Debug)]
pub(crate) struct BoundContext<'a> {
    driver: &'static Driver,
    /// `true` if [`bind`](PrimaryContext::bind) pushed the context. `false` if the context was current when
    /// `bind` was called.
    pushed: bool,
    /// Contexts are current for a thread, so this value must not be sent to another thread.
    _primary: PhantomData<(&'a PrimaryContext, *const ())>,
}

impl std::ops::Deref for BoundContext<'_> {
    type Target = Driver;

    fn deref(&self) -> &Driver {
        self.driver
    }
}

impl Drop for BoundContext<'_> {
    fn drop(&mut self) {
        if self.pushed {
            _ = self.driver.pop();
        }
    }
}

/// Returns the primary context of a context's device. Returns an error if the context is not the primary
/// context.
///
/// # Safety
/// The context is alive.
pub(crate) unsafe fn primary_of(driver: &Driver, context: DriverHandle) -> Result<(PrimaryContext, c_int)> {
    // SAFETY: guaranteed by the caller; it is popped below.
    unsafe { driver.push(context) }?;
    let device = driver.current_device();
    driver.pop()?;
    let device = device?;
    let primary = PrimaryContext::retain(driver, device)?;
    if primary.context() == context { Ok((primary, device)) } else { Err(Error::OtherContext) }
}
