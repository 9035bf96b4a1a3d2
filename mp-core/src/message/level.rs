//! How deeply a message is nested: one limit, counted alike by writers and readers.
//!
//! A level is a sequence, tuple, map, struct, enum variant with something in it, newtype, or `Some`; and a
//! type with `#[derive(Message)]`, a `Bundle`, or what a closure captures. serde and codecs recurse once for
//! each, so the limit is what keeps a thread's stack from its end; and where values need more of it than
//! others, or a thread has less, its rest is looked at. The count is this thread's, since what is written
//! within a value (what a closure captures) is written by another serializer, on the same stack.
//!
//! | levels | written if |
//! |---|---|
//! | up to [`SHALLOW`] | this thread's stack has room |
//! | up to [`MAX_NESTING`] | the type is known with which the value is read, and reading it takes at most [`READER_STACK`]: that is tried ([`within`]) |

use std::cell::Cell;

use super::{Number, Result, memo};
use crate::error::Error;

/// How many levels may be nested in each other.
///
/// The same for all processes, whatever their stacks: what one of them may put, the others can read.
pub const MAX_NESTING: u16 = 1024;

/// Number of levels that are written without a look at what reading them takes. In messages by
/// `#[derive(Message)]`, which are not read when they are written, it is the limit.
pub const SHALLOW: u16 = 128;

/// Bytes of a stack that reading a value of more levels may take: 1.375 MiB of the 2 MiB that a thread of the
/// standard library has.
pub const READER_STACK: usize = 11 << 17;

thread_local! {
    /// How many more levels may be entered.
    static LEFT: Cell<u16> = const { Cell::new(MAX_NESTING) };
    /// Bytes of this thread's stack that have to be left.
    static STACK_END: Cell<usize> = const { Cell::new(0) };
}

/// How many levels are entered without a look at the stack.
const FREE: u16 = 12;
/// How much of a stack is left to one level, and to what an error needs; of a small one a quarter.
const RESERVE: usize = 128 << 10;

/// Enters a level, of which `left` can be entered: whether that was possible. What enters it leaves it by adding one.
#[inline]
pub fn down(left: &Cell<u16>) -> bool {
    down_to(left, 0)
}

/// Enters a level, as [`down`] does, if more than `last` can be entered.
#[inline]
pub fn down_to(left: &Cell<u16>, last: u16) -> bool {
    let n = left.get();
    if n <= MAX_NESTING - FREE && (n <= last || is_end()) {
        return false;
    }
    left.set(n - 1);
    true
}

#[cold]
#[inline(never)]
fn is_end() -> bool {
    let end = STACK_END.get();
    crate::sys::stack::left().is_some_and(|(rest, all)| rest < RESERVE.min(all / 4).max(end))
}

/// Calls `f` while levels are entered only within the next [`READER_STACK`] of this thread's stack. Returns
/// `None` if that can't be measured here.
pub fn within<R>(f: impl FnOnce() -> R) -> Option<R> {
    struct Before(usize);
    impl Drop for Before {
        fn drop(&mut self) {
            STACK_END.set(self.0);
        }
    }
    let (rest, _) = crate::sys::stack::left()?;
    let _before = Before(STACK_END.replace(rest.saturating_sub(READER_STACK)));
    Some(f())
}

/// Whether this thread's stack has room for a message in what is written or read of another one.
#[cold]
#[inline(never)]
pub(super) fn room() -> Result<()> {
    if !is_end() {
        return Ok(());
    }
    let (rest, all) = crate::sys::stack::left().unwrap_or_default();
    Err(Error::LimitExceeded(format!(
        "messages are nested: a value sends or receives another one while it is written or read, and that one does so, until {rest} of \
         the {all} bytes of this thread's stack are left: send the inner one before or after the outer one"
    )))
}

/// A level that was entered; dropped, it is left. For messages that are made of messages.
#[derive(Debug)]
#[must_use = "the level is left when this is dropped"]
pub struct Level(());

impl Level {
    /// Enters one.
    ///
    /// # Errors
    /// [`Error::LimitExceeded`] when there are [`SHALLOW`] around it, or this thread's stack is nearly used
    /// up.
    #[inline]
    pub fn enter() -> Result<Self> {
        const LAST: u16 = MAX_NESTING - SHALLOW;
        LEFT.with(|left| if down_to(left, LAST) { Ok(Self(())) } else { Err(too_deep(left, LAST)) })
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

/// Error for a level that is not entered. `left` levels are left, and `last` of them have to stay.
#[cold]
pub fn too_deep(left: &Cell<u16>, last: u16) -> Error {
    let (rest, all) = crate::sys::stack::left().unwrap_or_default();
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

/// What the count was, to be restored, also after an error or a panic in the middle.
struct Before(u16);

impl Drop for Before {
    #[inline]
    fn drop(&mut self) {
        LEFT.set(self.0);
    }
}

/// Calls `f` with the number of levels left, for a codec to count down and up again. However that ends, it is afterwards what it
/// was.
#[inline]
pub fn counted<R>(f: impl FnOnce(&Cell<u16>) -> R) -> R {
    // Not `with`, which is no inline function: the value would be written or read in a function of its own.
    let ended = LEFT.try_with(|left| {
        let _before = Before(left.get());
        f(left)
    });
    match ended {
        Ok(ended) => ended,
        Err(_) => {
            unreachable!("a variable of the thread without a destructor is there as long as the thread")
        }
    }
}

/// As [`counted`], for a value that is a message unless others of it are around: with the message ends what is remembered of it
/// ([`memo`]).
#[inline]
pub fn whole<R>(f: impl FnOnce(&Cell<u16>) -> R) -> R {
    struct Ends(bool);
    impl Drop for Ends {
        #[inline]
        fn drop(&mut self) {
            if self.0 {
                memo::end();
            }
        }
    }
    let _ends = Ends(LEFT.get() == MAX_NESTING);
    counted(f)
}

/// Calls `f` for a message of its own: a value that sends or receives messages while it is written or read is
/// none of their levels, and what is remembered of it is nothing of theirs.
#[inline]
pub fn afresh<R>(f: impl FnOnce() -> R) -> R {
    let _before = Before(LEFT.replace(MAX_NESTING));
    let _memo = memo::Hidden::new();
    f()
}

/// Writes or reads a `T` as a message of its own: [`afresh`], unless it is a [`Number`], which has no levels, and of which nothing
/// is remembered.
#[inline(always)]
pub fn of_its_own<T: 'static, R>(f: impl FnOnce() -> R) -> R {
    // Known when this is compiled, for each type.
    if Number::has::<T>() { f() } else { afresh(f) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_left_however_they_end() {
        let all: Vec<Level> = (0..SHALLOW).map(|_| Level::enter().unwrap()).collect();
        assert!(Level::enter().is_err());
        afresh(|| assert!(Level::enter().is_ok()));
        assert!(Level::enter().is_err());
        drop(all);
        counted(|left| left.set(3));
        assert_eq!(LEFT.get(), MAX_NESTING);
        let panics = || {
            counted(|left| {
                left.set(3);
                panic!("in the middle");
            })
        };
        assert!(std::panic::catch_unwind(panics).is_err());
        assert_eq!(LEFT.get(), MAX_NESTING);
    }
}
