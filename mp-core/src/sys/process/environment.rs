//! Environment of this process: gained privileges, valgrind, the number of processors, and the remaining
//! stack of a thread.
//!
//! # Safety
//! - The C library is asked for a value that the kernel passed to this process at its start (`getauxval(3)`),
//!   which reads memory that never changes.
//! - The client request to valgrind is assembly without an effect elsewhere: its instructions rotate one
//!   register by 128 bits, which leaves it unchanged, and exchange another register with itself. Valgrind
//!   reads six words, which live until the assembly has ended, and changes one register, which is declared.
//! - `pthread_getattr_np` fills an attribute object, which is local to a function. The object is read only if
//!   it was filled, is destroyed exactly once, and is not used afterwards.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::sync::OnceLock;

/// Returns `true` if this process runs a set-user-ID or set-group-ID program, or one with file capabilities,
/// for a user who lacks these privileges: the kernel's `AT_SECURE`, see `getauxval(3)`. The environment is
/// then untrusted input, and must not influence this process.
///
/// ```
/// if !mp_core::gained_privileges() {
///     println!("{:?}", std::env::var_os("MY_PLUGINS"));
/// }
/// ```
#[must_use]
#[inline]
pub fn gained_privileges() -> bool {
    // SAFETY: it takes a number, and reads a value that the kernel passed to this process at its start.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Returns `true` if this process runs under valgrind (any of its tools, on x86-64). Takes a dozen
/// instructions.
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub fn under_valgrind() -> bool {
    const RUNNING_ON_VALGRIND: u64 = 0x1001;
    let request = [RUNNING_ON_VALGRIND, 0, 0, 0, 0, 0];
    let mut answer = 0u64;
    // SAFETY: see the documentation of this module; `valgrind.h` has the same code. Flags and memory count as
    // changed.
    unsafe {
        std::arch::asm!(
            "rol rdi, 3",
            "rol rdi, 13",
            "rol rdi, 61",
            "rol rdi, 51",
            "xchg rbx, rbx",
            in("rax") request.as_ptr(),
            inout("rdx") answer,
            options(nostack),
        );
    }
    answer != 0
}

/// Returns `false`: valgrind is detected only on x86-64, and not under Miri.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
pub fn under_valgrind() -> bool {
    false
}

/// Returns `true` if this process and all processes that it may wait for share one processor.
///
/// A machine with one processor, or a quota of one processor, counts. Pinning this process to one processor
/// does not count, because the process may wait for processes on other processors.
pub(crate) fn has_one_processor() -> bool {
    // Computed once, since the computation reads files.
    // fork: the machine and its quota are the same, and pinning does not matter. The value is computed before
    // a fork, so that no copy inherits an unfinished computation.
    static ONE: OnceLock<bool> = OnceLock::new();
    *ONE.get_or_init(|| {
        let usable = std::thread::available_parallelism().map_or(1, |n| n.get());
        let pinned = rustix::thread::sched_getaffinity(None).is_ok_and(|cpus| cpus.count() == 1);
        usable == 1 && !(pinned && online().is_some_and(|list| is_several(&list)))
    })
}

/// Returns the processor that this thread runs on now.
pub(crate) fn current_processor() -> u32 {
    if crate::sys::under_valgrind() {
        // Valgrind runs one thread at a time, and hides the kernel's code that reports the processor.
        return 0;
    }
    rustix::thread::sched_getcpu() as u32
}

pub(super) fn online() -> Option<String> {
    std::fs::read_to_string("/sys/devices/system/cpu/online").ok()
}

/// Returns `true` if a list such as `0-3,5` has several processors.
fn is_several(list: &str) -> bool {
    list.trim().contains([',', '-'])
}

thread_local! {
    /// Stack of this thread: its lowest address, and its length. Length 0: not looked up yet.
    // fork: the only thread of a copy has the stack of the thread that was copied.
    static STACK: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

/// Returns the number of bytes left below the caller, and the size of the stack. Returns `None` if the caller
/// does not run on the stack with which its thread began, or its stack is unknown.
pub(crate) fn remaining_stack() -> Option<(usize, usize)> {
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
    // SAFETY: the attributes were filled, and are not used afterwards.
    unsafe { libc::pthread_attr_destroy(attributes.as_mut_ptr()) };
    (found == 0 && len > 0).then_some((end as usize, len))
}

/// Pins this thread, and the threads that it starts, to its present processor.
#[cfg(test)]
pub(crate) fn pin_to_current() {
    let mut only = rustix::thread::CpuSet::new();
    only.set(current_processor() as usize);
    rustix::thread::sched_setaffinity(None, &only).unwrap();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_several_processors_are_recognized() {
        assert!(["0-1\n", "0,2", "0-3,5-7\n"].into_iter().all(is_several));
        assert!(!["0\n", "12", ""].into_iter().any(is_several));
    }

    #[test]
    fn remaining_stack_shrinks_with_depth() {
        #[inline(never)]
        fn down(levels: usize) -> usize {
            let room = std::hint::black_box([levels as u8; 4096]);
            let below = if levels == 0 { remaining_stack().unwrap().0 } else { down(levels - 1) };
            below + usize::from(std::hint::black_box(room)[7]) - (levels & 0xff)
        }
        let thread = || (remaining_stack().unwrap(), down(20));
        let ((top, len), bottom) =
            std::thread::Builder::new().stack_size(1 << 20).spawn(thread).unwrap().join().unwrap();
        // The C library may reuse the larger stack of a thread that has ended.
        assert!(len >= 1 << 20 && top < len, "{top} of {len}");
        assert!((80_000..500_000).contains(&(top - bottom)), "{top} {bottom}");
    }
}
