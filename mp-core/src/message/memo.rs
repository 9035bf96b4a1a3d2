//! Memo: data that a codec keeps while a message is written or read, for example the parts already written.
//!
//! The memo belongs to one message: it is empty at first, and dropped after the outermost value of the
//! message, even after an error or a panic. (At that time no [level](super::nesting_depth) is entered.) A
//! message that is written or read inside another message has its own memo.

use std::any::Any;
use std::cell::Cell;

use crate::process::user_code::drop_caught;

thread_local! {
    /// `true` if there is a memo. A variable without a destructor, so that a message without a memo costs
    /// only one load.
    static IS_THERE: Cell<bool> = const { Cell::new(false) };
    static MEMO: Cell<Option<Box<dyn Any>>> = const { Cell::new(None) };
}

/// Returns `true` if there is a memo for the message that this thread writes or reads.
#[inline]
pub fn exists() -> bool {
    IS_THERE.get()
}

/// Calls `f`, which runs no user code, with the memo of the message. Returns `None` if the thread is ending
/// and has destroyed the variable of the memo.
pub fn with<M: Any + Default, R>(f: impl FnOnce(&mut M) -> R) -> Option<R> {
    MEMO.try_with(|variable| {
        let mut memo = match variable.take().map(<Box<dyn Any>>::downcast::<M>) {
            Some(Ok(memo)) => memo,
            _ => Box::default(),
        };
        let result = f(&mut memo);
        variable.set(Some(memo));
        IS_THERE.set(true);
        result
    })
    .ok()
}

/// Drops the memo, if there is one, at the end of a message.
#[inline]
pub(super) fn end() {
    if IS_THERE.get() {
        forget();
    }
}

/// Drops the memo. It may contain user values, whose panics are caught.
#[cold]
#[inline(never)]
fn forget() {
    drop_caught(take());
}

fn take() -> Option<Box<dyn Any>> {
    IS_THERE.set(false);
    MEMO.try_with(Cell::take).ok().flatten()
}

/// Memo of the enclosing message, hidden until this value is dropped.
#[derive(Debug)]
#[must_use = "dropping the guard makes the memo visible again"]
pub(super) struct HiddenMemo(Option<Box<dyn Any>>);

impl HiddenMemo {
    #[inline]
    pub(super) fn new() -> Self {
        Self(if IS_THERE.get() { take() } else { None })
    }
}

impl Drop for HiddenMemo {
    #[inline]
    fn drop(&mut self) {
        end();
        if let Some(memo) = self.0.take() {
            IS_THERE.set(MEMO.try_with(|variable| variable.set(Some(memo))).is_ok());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::nesting_depth::{Level, with_message, with_nested_message};
    use super::*;

    fn push(n: u8) -> Vec<u8> {
        with(|all: &mut Vec<u8>| {
            all.push(n);
            all.clone()
        })
        .unwrap()
    }

    #[test]
    fn message_memo_lasts_for_one_message() {
        with_message(|_| assert_eq!((push(1), push(2)), (vec![1], vec![1, 2])));
        assert!(!exists(), "the memo outlived its message");
        let level = Level::enter().unwrap();
        with_message(|_| assert_eq!(push(3), [3]));
        with_nested_message(|| with_message(|_| assert_eq!(push(4), [4])));
        let panics = || with_nested_message(|| with_message(|_| -> () { panic!("with {:?}", push(5)) }));
        assert!(std::panic::catch_unwind(panics).is_err());
        with_message(|_| assert_eq!(push(6), [3, 6], "several values are one message"));
        drop(level);
        assert!(!exists());
        assert!(
            std::panic::catch_unwind(|| with_message(|_| -> () { panic!("with {:?}", push(7)) })).is_err()
        );
        assert!(!exists());
    }

    #[test]
    fn panic_in_drop_of_a_memo_is_caught() {
        #[derive(Default)]
        struct Panics;
        impl Drop for Panics {
            fn drop(&mut self) {
                panic!("dropped");
            }
        }
        with_message(|_| with(|_: &mut Panics| ()).unwrap());
        assert!(!exists());
    }
}
