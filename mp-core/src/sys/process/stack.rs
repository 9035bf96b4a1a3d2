//! Remaining stack of a thread.
//!
//! # Safety
//! `pthread_getattr_np` fills an attribute object that is then read and destroyed.
//! - The object is local to a function, and is read only if it was filled.
//! - It is destroyed exactly once, and not used afterwards.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::mem::MaybeUninit;

thread_local! {
    /// Stack of this thread: its lowest address, and its length. Length 0: not looked up yet.
    // fork: the only thread of a copy has the stack of the thread that was copied.
    static STACK: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

/// Returns the number of bytes left below the caller, and the size of the stack. Returns `None` if the caller
/// does not run on the stack with which its thread began, or its stack is unknown.
pub(crate) fn remaining() -> Option<(usize, usize)> {
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

/// Returns the lowest address and the length of this thread's stack.
fn this_stack() -> Option<(usize, usize)> {
    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
    let (mut end, mut len) = (std::ptr::null_mut(), 0);
    // SAFETY: it has no preconditions.
    let this = unsafe { libc::pthread_self() };
    // SAFETY: the thread is this one; the pointer refers to a local variable of the right type.
    let found = unsafe { libc::pthread_getattr_np(this, attributes.as_mut_ptr()) };
    if found != 0 {
        return None;
    }
    // SAFETY: the attributes were filled just now; both pointers refer to local variables.
    let found = unsafe { libc::pthread_attr_getstack(attributes.as_ptr(), &mut end, &mut len) };
    // SAFETY: they were filled, and are no longer used.
    unsafe { libc::pthread_attr_destroy(attributes.as_mut_ptr()) };
    (found == 0 && len > 0).then_some((end as usize, len))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remaining_stack_shrinks_with_depth() {
        #[inline(never)]
        fn down(levels: usize) -> usize {
            let room = std::hint::black_box([levels as u8; 4096]);
            let below = if levels == 0 { remaining().unwrap().0 } else { down(levels - 1) };
            below + usize::from(std::hint::black_box(room)[7]) - (levels & 0xff)
        }
        let thread = || (remaining().unwrap(), down(20));
        let ((top, len), bottom) =
            std::thread::Builder::new().stack_size(1 << 20).spawn(thread).unwrap().join().unwrap();
        // The C library may reuse the larger stack of a thread that has ended.
        assert!(len >= 1 << 20 && top < len, "{top} of {len}");
        assert!((80_000..500_000).contains(&(top - bottom)), "{top} {bottom}");
    }
}
