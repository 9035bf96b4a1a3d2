//! How much of its stack a thread has left.
//!
//! # Safety
//! `pthread_getattr_np` fills an attribute object that is then read and destroyed.
//! - The object is this function's own, and is read only if it was filled.
//! - It is destroyed exactly once, and not used afterwards.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::mem::MaybeUninit;

thread_local! {
    /// The stack of this thread, from its end on: where it ends, and how long it is. Length 0: not asked yet.
    // fork: the only thread of a copy has the stack of the one that was copied.
    static STACK: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

/// How many bytes are left below the caller, and how many the stack has; `None` when the caller does not run on the stack that its
/// thread began with, or nothing is known of it.
pub(crate) fn left() -> Option<(usize, usize)> {
    let (mut end, mut len) = STACK.get();
    if len == 0 {
        (end, len) = this_stack().unwrap_or((0, 1));
        STACK.set((end, len));
    }
    let here = 0_u8;
    let at = &raw const here as usize;
    let left = at.checked_sub(end).filter(|left| *left < len)?;
    Some((left, len))
}

/// Where the stack of this thread ends, and how long it is.
fn this_stack() -> Option<(usize, usize)> {
    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
    let (mut end, mut len) = (std::ptr::null_mut(), 0);
    // SAFETY: it has no preconditions.
    let this = unsafe { libc::pthread_self() };
    // SAFETY: the thread is this one; the place for its attributes is ours, and large enough by its type.
    let found = unsafe { libc::pthread_getattr_np(this, attributes.as_mut_ptr()) };
    if found != 0 {
        return None;
    }
    // SAFETY: the attributes were filled just now; both places are ours.
    let found = unsafe { libc::pthread_attr_getstack(attributes.as_ptr(), &mut end, &mut len) };
    // SAFETY: they were filled, and are not used any more.
    unsafe { libc::pthread_attr_destroy(attributes.as_mut_ptr()) };
    (found == 0 && len > 0).then_some((end as usize, len))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn less_is_left_further_down() {
        #[inline(never)]
        fn down(levels: usize) -> usize {
            let room = std::hint::black_box([levels as u8; 4096]);
            let below = if levels == 0 { left().unwrap().0 } else { down(levels - 1) };
            below + usize::from(std::hint::black_box(room)[7]) - (levels & 0xff)
        }
        let thread = || (left().unwrap(), down(20));
        let ((top, len), bottom) =
            std::thread::Builder::new().stack_size(1 << 20).spawn(thread).unwrap().join().unwrap();
        // The C library may give it a larger stack of a thread that has ended.
        assert!(len >= 1 << 20 && top < len, "{top} of {len}");
        assert!((80_000..500_000).contains(&(top - bottom)), "{top} {bottom}");
    }
}
