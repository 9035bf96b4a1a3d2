//! User code in places where it must not unwind: destructors, wakers, callbacks.
//!
//! A panic is reported by the panic hook, and caught where the library calls the user code. The library's
//! state stays consistent. Each value is dropped separately, so that a second panic in another destructor
//! does not abort the process.

use std::any::Any;
#[cfg(feature = "tracing")]
use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Calls user code. Returns `None` if it panicked.
pub fn catch_panic<R>(call: impl FnOnce() -> R) -> Option<R> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(value) => Some(value),
        Err(payload) => {
            drop_payload(payload);
            None
        }
    }
}

#[cfg(feature = "tracing")]
thread_local! {
    // fork: a copy made by a subscriber of `tracing` continues within its call.
    static IS_EMITTING: Cell<bool> = const { Cell::new(false) };
}

/// Calls a subscriber of the crate `tracing`. Returns `None` if the subscriber panicked, or if the calling
/// thread is already within such a call. Otherwise a subscriber that uses this library would receive events
/// about itself forever.
#[cfg(feature = "tracing")]
pub fn emit<R>(call: impl FnOnce() -> R) -> Option<R> {
    let Ok(false) = IS_EMITTING.try_with(|is_emitting| is_emitting.replace(true)) else { return None };
    let result = catch_panic(call);
    _ = IS_EMITTING.try_with(|is_emitting| is_emitting.set(false));
    result
}

/// Drops the payload of a panic. The drop may panic again, with a payload whose drop may panic as well. That
/// second payload is leaked.
pub fn drop_payload(payload: Box<dyn Any + Send>) {
    if let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(second);
    }
}

/// Drops a user value and catches its panic.
#[inline]
pub fn drop_caught<T>(value: T) {
    if std::mem::needs_drop::<T>() {
        // Dropped in place: a closure that captures the value would copy it.
        let mut value = Some(value);
        catch_panic(|| value = None);
    }
}

/// User value whose panic on drop is caught.
pub struct UserValue<T>(Option<T>);

impl<T> UserValue<T> {
    /// Wraps a value.
    pub fn new(value: T) -> Self {
        UserValue(Some(value))
    }

    /// Returns the value.
    pub fn get(&self) -> Option<&T> {
        self.0.as_ref()
    }

    /// Returns the value mutably.
    pub fn get_mut(&mut self) -> Option<&mut T> {
        self.0.as_mut()
    }

    /// Unwraps the value.
    pub fn into_inner(mut self) -> Option<T> {
        self.0.take()
    }
}

impl<T> fmt::Debug for UserValue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UserValue(..)")
    }
}

impl<T> Drop for UserValue<T> {
    fn drop(&mut self) {
        if let Some(value) = self.0.take() {
            drop_caught(value);
        }
    }
}

/// User values that are dropped separately. Panics of their drops are caught.
pub struct UserValues<T>(VecDeque<T>);

impl<T> Default for UserValues<T> {
    fn default() -> Self {
        UserValues(VecDeque::new())
    }
}

impl<T> From<VecDeque<T>> for UserValues<T> {
    fn from(values: VecDeque<T>) -> Self {
        UserValues(values)
    }
}

impl<T> fmt::Debug for UserValues<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UserValues({})", self.0.len())
    }
}

impl<T> Deref for UserValues<T> {
    type Target = VecDeque<T>;

    fn deref(&self) -> &VecDeque<T> {
        &self.0
    }
}

impl<T> DerefMut for UserValues<T> {
    fn deref_mut(&mut self) -> &mut VecDeque<T> {
        &mut self.0
    }
}

impl<T> Drop for UserValues<T> {
    fn drop(&mut self) {
        if std::mem::needs_drop::<T>() {
            while let Some(value) = self.0.pop_front() {
                drop_caught(value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::resume_unwind;

    use super::*;

    /// Panics when it is dropped, with a payload that panics as well, until the count is 0.
    struct Bomb(u32);

    impl Drop for Bomb {
        fn drop(&mut self) {
            if self.0 > 0 {
                resume_unwind(Box::new(Bomb(self.0 - 1)));
            }
        }
    }

    #[test]
    fn panics_in_drop_of_user_values_are_caught() {
        drop(UserValue::new(Bomb(3)));
        drop(UserValues::from(VecDeque::from([Bomb(3), Bomb(1), Bomb(2)])));
        assert!(catch_panic::<()>(|| resume_unwind(Box::new(Bomb(2)))).is_none());
        assert_eq!(catch_panic(|| 1), Some(1));
        assert_eq!(UserValue::new(5).into_inner(), Some(5));
    }

    #[test]
    fn user_value_drop_panics_are_caught_during_unwinding() {
        let both = catch_panic::<()>(|| {
            let _values = UserValues::from(VecDeque::from([Bomb(1), Bomb(1)]));
            resume_unwind(Box::new(Bomb(1)));
        });
        assert!(both.is_none());
    }
}
