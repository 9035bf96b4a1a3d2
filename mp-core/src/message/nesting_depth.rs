//! Nesting depth of a message: one limit, counted in the same way by writers and readers.
//!
//! A level is a sequence, tuple, map, struct, non-empty enum variant, newtype, or `Some`. A type with
//! `#[derive(Message)]`, a `Bundle`, and the captures of a closure are levels, too. serde and codecs recurse
//! once for each level, so the limit protects the thread's stack from overflow. The remaining stack is also
//! checked, for values that need more of it and for threads with small stacks. The count is thread-local,
//! because nested values (the captures of a closure) are written by another serializer on the same stack.
//!
//! | levels | written if |
//! |---|---|
//! | up to [`SHALLOW`] | this thread's stack has room |
//! | up to [`MAX_NESTING`] | the type that reads the value is known, and a trial ([`with_reader_stack`]) shows that reading needs at most [`READER_STACK`] |

use std::cell::Cell;

use super::{PlainNumber, Result, memo};
use crate::error::Error;

/// Maximum number of nested levels.
///
/// The limit is the same for all processes, regardless of their stack sizes: every process can read the
/// messages of every other process.
pub const MAX_NESTING: u16 = 1024;

/// Number of levels that are written without a check of the stack that reading needs. This is the limit for
/// messages by `#[derive(Message)]`, for which no trial is made.
pub const SHALLOW: u16 = 128;

/// Maximum number of stack bytes for reading a value of more than [`SHALLOW`] levels: 1.375 MiB of the 2 MiB
/// of a thread of the standard library.
pub const READER_STACK: usize = 11 << 17;

thread_local! {
    /// Number of levels that can still be entered.
    static LEFT: Cell<u16> = const { Cell::new(MAX_NESTING) };
    /// Number of bytes of this thread's stack that must remain free.
    static STACK_END: Cell<usize> = const { Cell::new(0) };
}

/// Number of levels that are entered without a check of the stack.
const FREE: u16 = 12;
/// Number of stack bytes reserved for the code of one level and for creating an error. At most a quarter of
/// the stack is reserved.
const RESERVE: usize = 128 << 10;

/// Enters a level if `left` and the stack allow it. Returns `true` if the level was entered; the caller
/// leaves it by adding one to `left`.
#[inline]
pub fn try_enter(left: &Cell<u16>) -> bool {
    try_enter_above(left, 0)
}

/// Enters a level, like [`try_enter`], if more than `last` levels can be entered.
#[inline]
pub fn try_enter_above(left: &Cell<u16>, last: u16) -> bool {
    let n = left.get();
    if n <= MAX_NESTING - FREE && (n <= last || is_stack_used_up()) {
        return false;
    }
    left.set(n - 1);
    true
}

#[cold]
#[inline(never)]
fn is_stack_used_up() -> bool {
    let end = STACK_END.get();
    crate::sys::environment::remaining_stack().is_some_and(|(rest, all)| rest < RESERVE.min(all / 4).max(end))
}

/// Calls `f`, within which no level can be entered after [`READER_STACK`] bytes of the stack are used.
/// Returns `None` if the stack can't be measured.
pub fn with_reader_stack<R>(f: impl FnOnce() -> R) -> Option<R> {
    struct Restore(usize);
    impl Drop for Restore {
        fn drop(&mut self) {
            STACK_END.set(self.0);
        }
    }
    let (rest, _) = crate::sys::environment::remaining_stack()?;
    let _before = Restore(STACK_END.replace(rest.saturating_sub(READER_STACK)));
    Some(f())
}

/// Checks that this thread's stack has room for a message inside another message that is being written or
/// read.
#[cold]
#[inline(never)]
pub(super) fn check_stack() -> Result<()> {
    if !is_stack_used_up() {
        return Ok(());
    }
    let (rest, all) = crate::sys::environment::remaining_stack().unwrap_or_default();
    Err(Error::LimitExceeded(format!(
        "messages are nested: a value sends or receives another one while it is written or read, and that \
        one does so, until {rest} of \
         the {all} bytes of this thread's stack are left: send the inner one before or after the outer one"
    )))
}

/// Level of nesting, left on drop. For messages that consist of messages.
#[derive(Debug)]
#[must_use = "the level is left when this is dropped"]
pub struct Level(());

impl Level {
    /// Enters a level.
    ///
    /// # Errors
    /// [`Error::LimitExceeded`] if [`SHALLOW`] levels are already entered, or this thread's stack is nearly
    /// used up.
    #[inline]
    pub fn enter() -> Result<Self> {
        const LAST: u16 = MAX_NESTING - SHALLOW;
        LEFT.with(|left| if try_enter_above(left, LAST) { Ok(Self(())) } else { Err(too_deep(left, LAST)) })
    }
}

impl Drop for Level {
    #[inline]
    fn drop(&mut self) {
        let left = LEFT.get() + 1;
        LEFT.set(left);
        if left == MAX_NESTING {
            memo::end();
        }
    }
}

/// Creates the error for a level that can't be entered: `left` levels can be entered, and `last` of them must
/// remain.
#[cold]
pub fn too_deep(left: &Cell<u16>, last: u16) -> Error {
    let (rest, all) = crate::sys::environment::remaining_stack().unwrap_or_default();
    let (n, levels) = (left.get(), MAX_NESTING - left.get());
    Error::LimitExceeded(if n <= last {
        format!(
            "values are nested more than {levels} deep (each struct, sequence, tuple, map, newtype, \
             variant and Some counts); send them as a list whose elements name each other by index"
        )
    } else if rest >= RESERVE.min(all / 4) {
        format!(
            "values are nested more than {levels} deep, and a receiver would need more than \
             {READER_STACK} bytes of its thread's stack for them; send them as a \
             list whose elements name each other by index"
        )
    } else {
        format!(
            "values are nested {levels} deep, and {rest} of the {all} bytes of this thread's stack are \
             left, too few to continue: do it in a thread \
             with a larger stack (std::thread::Builder::stack_size)"
        )
    })
}

/// Count to restore on drop, even after an error or a panic.
struct Restore(u16);

impl Drop for Restore {
    #[inline]
    fn drop(&mut self) {
        LEFT.set(self.0);
    }
}

/// Calls `f` with the number of levels that can be entered, for a codec to decrement and increment. Restores
/// the number afterwards, even after an error or a panic.
#[inline]
pub fn with_depth<R>(f: impl FnOnce(&Cell<u16>) -> R) -> R {
    // Not `with`, which is not an inline function: the value would be written or read in a separate function.
    let ended = LEFT.try_with(|left| {
        let _before = Restore(left.get());
        f(left)
    });
    match ended {
        Ok(ended) => ended,
        Err(_) => {
            unreachable!("a variable of the thread without a destructor is there as long as the thread")
        }
    }
}

/// Calls `f` like [`with_depth`], for a value that is a whole message, or a part of an enclosing message. The
/// [`memo`] is dropped at the end of the whole message.
#[inline]
pub fn with_message<R>(f: impl FnOnce(&Cell<u16>) -> R) -> R {
    struct MemoEnd(bool);
    impl Drop for MemoEnd {
        #[inline]
        fn drop(&mut self) {
            if self.0 {
                memo::end();
            }
        }
    }
    let _ends = MemoEnd(LEFT.get() == MAX_NESTING);
    with_depth(f)
}

/// Calls `f` for an independent message, with its own levels and its own memo. For values that send or
/// receive messages while they are written or read themselves.
#[inline]
pub fn with_nested_message<R>(f: impl FnOnce() -> R) -> R {
    let _before = Restore(LEFT.replace(MAX_NESTING));
    let _memo = memo::HiddenMemo::new();
    f()
}

/// Writes or reads a `T` as an independent message: [`with_nested_message`], unless it is a
/// [`PlainNumber`], which has neither levels nor a memo.
#[inline(always)]
pub fn as_separate_message<T: 'static, R>(f: impl FnOnce() -> R) -> R {
    if const { PlainNumber::is_possible::<T>() } && PlainNumber::has::<T>() {
        f()
    } else {
        with_nested_message(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nesting_level_is_restored_after_return_and_panic() {
        let all: Vec<Level> = (0..SHALLOW).map(|_| Level::enter().unwrap()).collect();
        assert!(Level::enter().is_err());
        with_nested_message(|| assert!(Level::enter().is_ok()));
        assert!(Level::enter().is_err());
        drop(all);
        with_depth(|left| left.set(3));
        assert_eq!(LEFT.get(), MAX_NESTING);
        let panics = || {
            with_depth(|left| {
                left.set(3);
                panic!("in the middle");
            })
        };
        assert!(std::panic::catch_unwind(panics).is_err());
        assert_eq!(LEFT.get(), MAX_NESTING);
    }
}
