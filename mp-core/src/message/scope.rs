//! Context in which serde types access the attachments of their message.
//!
//! serde passes no context through `Serialize`, so the attachments are in a thread-local variable. A codec
//! sets it for the duration of one call.

use std::cell::Cell;
use std::thread::LocalKey;

use super::{Attached, Error, Incoming, Outgoing, ReceivedAttachments, Result, nesting_depth};
use crate::Hold;

thread_local! {
    static ATTACHED: Cell<Option<Box<Attached>>> = const { Cell::new(None) };
    static ARRIVED: Cell<Option<Box<ReceivedAttachments>>> = const { Cell::new(None) };
}

/// Previous value of a thread-local variable, restored on drop, even after a panic.
struct Scope<T: 'static> {
    variable: &'static LocalKey<Cell<Option<Box<T>>>>,
    before: Option<Box<T>>,
}

impl<T: 'static> Scope<T> {
    #[inline]
    fn enter(variable: &'static LocalKey<Cell<Option<Box<T>>>>, value: Box<T>) -> Self {
        let before = variable.try_with(|v| v.replace(Some(value))).ok().flatten();
        Self { variable, before }
    }

    #[inline]
    fn leave(mut self) -> Option<Box<T>> {
        let before = self.before.take();
        let inner = self.variable.try_with(|v| v.replace(before)).ok().flatten();
        std::mem::forget(self);
        inner
    }
}

impl<T: 'static> Drop for Scope<T> {
    fn drop(&mut self) {
        let before = self.before.take();
        // The inner value is dropped after the replacement, because its destructor runs code.
        drop(self.variable.try_with(|v| v.replace(before)));
    }
}

impl<T> Scope<T> {
    /// Checks that the stack has room, if this message is inside another message. (A value may send or
    /// receive messages while the value is written or read.) Each inner message begins its own count of
    /// levels, so only the stack limits the nesting of messages.
    #[inline]
    fn has_room(&self) -> Result<()> {
        if self.before.is_some() { nesting_depth::check_stack() } else { Ok(()) }
    }
}

/// Calls `f` with the bytes of `out` while serde values can attach blocks to `out`.
///
/// # Errors
/// [`Error::LimitExceeded`] for a message inside another one, if this thread's stack is nearly used up.
#[inline]
pub fn with_outgoing<R>(out: &mut Outgoing, f: impl FnOnce(&mut Vec<u8>) -> R) -> Result<R> {
    let Outgoing { bytes, attached } = out;
    with_value(&ATTACHED, attached, || f(bytes))
}

/// Calls `f` while the thread-local `variable` contains the value of `place`. Moves the value back
/// afterwards.
#[inline(always)]
fn with_value<T: Default, R>(
    variable: &'static LocalKey<Cell<Option<Box<T>>>>,
    place: &mut Option<Box<T>>,
    f: impl FnOnce() -> R,
) -> Result<R> {
    let scope = Scope::enter(variable, place.take().unwrap_or_default());
    let result = scope.has_room().map(|()| f());
    *place = scope.leave();
    result
}

/// Calls `f` with the bytes of `inc` while serde values can take its attachments.
///
/// # Errors
/// [`Error::LimitExceeded`] for a message inside another one, if this thread's stack is nearly used up.
#[inline]
pub fn with_incoming<R>(inc: &mut Incoming, f: impl FnOnce(&[u8]) -> R) -> Result<R> {
    let mut arrived = inc.arrived.take();
    let result = with_value(&ARRIVED, &mut arrived, || f(inc.rest()));
    inc.arrived = arrived;
    result
}

/// Calls `f` to read serde values that can't have attachments. They can't take attachments of an enclosing
/// message either.
#[inline]
pub fn with_nothing<R>(f: impl FnOnce() -> R) -> R {
    match ARRIVED.try_with(Cell::take) {
        Ok(Some(around)) => {
            let scope = Scope { variable: &ARRIVED, before: Some(around) };
            let result = f();
            drop(scope);
            result
        }
        _ => f(),
    }
}

/// Calls `f` while serde values can be read from the part of the caller's message that is already written, to
/// check that it can be read.
pub fn with_written<R>(f: impl FnOnce() -> R) -> R {
    let attached = ATTACHED.try_with(Cell::take).ok().flatten();
    let arrived = attached.as_deref().map(Attached::as_arrived).unwrap_or_default();
    let writing = Scope { variable: &ATTACHED, before: attached };
    let reading = Scope::enter(&ARRIVED, Box::new(arrived));
    let result = f();
    drop(reading);
    drop(writing);
    result
}

#[inline(always)]
fn within<T, R>(
    variable: &'static LocalKey<Cell<Option<Box<T>>>>,
    what: &'static str,
    f: impl FnOnce(&mut T) -> Result<R>,
) -> Result<R> {
    let outside = || Err(Error::OutsideMessage(what));
    let inside = |variable: &Cell<Option<Box<T>>>| {
        let Some(mut value) = variable.take() else { return outside() };
        let result = f(&mut value);
        variable.set(Some(value));
        result
    };
    // A thread that is ending has no messages.
    variable.try_with(inside).unwrap_or_else(|_| outside())
}

/// Attaches a handle of a block to the message that is being written, and returns the number of the
/// attachment. `what` names the value in the error.
///
/// # Errors
/// Returns [`Error::OutsideMessage`] if the thread is writing no message. Also returns the errors of
/// [`Attached::attach_object`].
#[doc(hidden)]
pub fn attach_object(what: &'static str, hold: &Hold) -> Result<u32> {
    outgoing(what, |out| out.attach_object(hold))
}

/// Takes a handle of a block out of the message that is being read. `what` names the value in the error.
///
/// # Errors
/// Returns [`Error::OutsideMessage`] if the thread is reading no message. Also returns the errors of
/// [`ReceivedAttachments::take_object`].
#[doc(hidden)]
pub fn take_object(what: &'static str, attachment: u32) -> Result<Hold> {
    incoming(what, |inc| inc.take_object(attachment))
}

/// Calls `f` with the attachments of the message that the caller's value is being written into. `what` names
/// the value in the error.
///
/// # Errors
/// [`Error::OutsideMessage`] if there is no message, or the error of `f`.
#[inline(always)]
pub fn outgoing<R>(what: &'static str, f: impl FnOnce(&mut Attached) -> Result<R>) -> Result<R> {
    within(&ATTACHED, what, f)
}

/// Calls `f` with the attachments of the message that the caller's value is being read from. `what` names the
/// value in the error.
///
/// # Errors
/// [`Error::OutsideMessage`] if there is no message, or the error of `f`.
#[inline(always)]
pub fn incoming<R>(what: &'static str, f: impl FnOnce(&mut ReceivedAttachments) -> Result<R>) -> Result<R> {
    within(&ARRIVED, what, f)
}
