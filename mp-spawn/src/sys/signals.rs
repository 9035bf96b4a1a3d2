//! Signals: blocked, ignored, as they are by default.
//!
//! # Safety
//! Unsafe, because it passes libc pointers to sets and actions; sound, because they live on the stack, and a handler is
//! ignored, default, or does nothing but count.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::io;
use std::mem::MaybeUninit;
use std::ptr;

use crate::sys::check;
use crate::sys::exec::HANDED_DOWN;

/// The signals that a program finds at their default. (Real-time signals that are ignored stay so.)
pub(crate) const STANDARD_SIGNALS: std::ops::Range<c_int> = 1..32;

/// Blocks every signal in the calling thread.
pub(crate) fn block_signals() -> io::Result<()> {
    let all = all_signals();
    // SAFETY: `all` is an initialised set; a null pointer says that the old set isn't wanted.
    check(unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, ptr::null_mut()) })
}

/// Makes a write to a closed pipe an error, as the standard library does before `main`.
#[inline]
pub(crate) fn ignore_sigpipe() {
    // SAFETY: this installs no handler, so there is no code whose safety could matter.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
}

/// Ignores SIGINT from now on; whether it was ignored before.
pub(crate) fn ignore_interrupts() -> bool {
    // SAFETY: this installs no handler, so there is no code whose safety could matter.
    unsafe { libc::signal(libc::SIGINT, libc::SIG_IGN) == libc::SIG_IGN }
}

/// SIGINT ends this process from now on, as it does by default.
pub(crate) fn heed_interrupts() {
    // SAFETY: as above.
    unsafe { libc::signal(libc::SIGINT, libc::SIG_DFL) };
}

/// Blocks every signal in the calling thread, and returns those that were blocked before.
pub(crate) fn hold_signals() -> io::Result<libc::sigset_t> {
    let (all, mut before) = (all_signals(), no_signals());
    // SAFETY: both sets are initialised.
    check(unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before) })?;
    Ok(before)
}

/// Blocks these signals and no others in the calling thread.
pub(crate) fn let_signals(blocked: &libc::sigset_t) {
    // SAFETY: the set is initialised; a null pointer says that the old one isn't wanted. It can't fail for a valid set.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, blocked, ptr::null_mut()) };
}

/// Sets every signal to its default and unblocks all in the calling thread, as [`posix_spawn`] does.
pub(crate) fn forget_signal_handlers() {
    for signal in 1..=libc::SIGRTMAX() {
        // SAFETY: this installs no handler. Of signals that can't be changed it is an error, which changes nothing.
        let before = unsafe { libc::signal(signal, libc::SIG_DFL) };
        if before == libc::SIG_IGN && HANDED_DOWN.contains(&signal) {
            // SAFETY: as above. All signals are blocked meanwhile.
            unsafe { libc::signal(signal, libc::SIG_IGN) };
        }
    }
    let_signals(&no_signals());
}

pub(super) fn all_signals() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the function initialises the set behind a valid pointer, and can't fail for one.
    unsafe { libc::sigfillset(set.as_mut_ptr()) };
    // SAFETY: initialised just now.
    unsafe { set.assume_init() }
}

pub(super) fn no_signals() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the function initialises the set behind a valid pointer, and can't fail for one.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: initialised just now.
    unsafe { set.assume_init() }
}

/// Makes a call while the calling thread gets signals, one after the other, whose handler does nothing: a system call that is
/// interrupted returns `EINTR`. The call gets how many there were so far.
#[cfg(test)]
pub(crate) fn interrupted<R>(call: impl FnOnce(&dyn Fn() -> u32) -> R) -> R {
    use mp_core::sync::shared::{AtomicBool, AtomicU32, Ordering};

    // fork: of tests, which copy no process here.
    static HANDLED: AtomicU32 = AtomicU32::new(0);

    extern "C" fn count(_: c_int) {
        HANDLED.fetch_add(1, Ordering::Relaxed);
    }

    // SAFETY: all zeroes is an action without flags, so that calls are not begun anew.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = count as extern "C" fn(c_int) as usize;
    // SAFETY: the action is initialised, and its handler adds to a number, which may be done at any time.
    assert_eq!(unsafe { libc::sigaction(libc::SIGURG, &raw const action, ptr::null_mut()) }, 0);
    let thread = rustix::thread::gettid().as_raw_nonzero().get();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let process = std::process::id().cast_signed();
                // SAFETY: numbers of this process and of a thread that waits for this one; the signal has a handler.
                unsafe { libc::syscall(libc::SYS_tgkill, process, thread, libc::SIGURG) };
            }
        });
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            call(&|| HANDLED.load(Ordering::Relaxed))
        }));
        over.store(true, Ordering::Relaxed);
        result.unwrap_or_else(|payload| std::panic::resume_unwind(payload))
    })
}
