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

/// What SIGINT does to this process: a handler's address, or one of the constants `SIG_DFL`, `SIG_IGN`.
fn interrupt_action() -> libc::sighandler_t {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: a null pointer says that nothing is changed; the present action is written to a valid place.
    unsafe { libc::sigaction(libc::SIGINT, ptr::null(), action.as_mut_ptr()) };
    // SAFETY: all zeroes are an action, and the call can't have written another kind of thing.
    unsafe { action.assume_init() }.sa_sigaction
}

/// Whether this process ignores SIGINT.
pub(crate) fn ignores_interrupts() -> bool {
    interrupt_action() == libc::SIG_IGN
}

extern "C" fn note(_: c_int) {
    mp_core::note_interrupt();
}

extern "C" fn note_first(signal: c_int) {
    if mp_core::note_interrupt() > 0 {
        // SAFETY: this may be called in a signal handler, and installs none.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
        // SAFETY: this may be called in a signal handler. It is delivered when that returns.
        unsafe { libc::raise(signal) };
    }
}

fn handle_interrupts(handler: extern "C" fn(c_int)) {
    // SAFETY: all zeroes is an action without flags, so that calls which wait are not begun anew.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as usize;
    // SAFETY: the action is initialised; its handler changes one word, or makes calls that are allowed there.
    unsafe { libc::sigaction(libc::SIGINT, &raw const action, ptr::null_mut()) };
}

/// From now on a SIGINT is noted, and does nothing else.
pub(crate) fn note_interrupts() {
    handle_interrupts(note);
}

/// If SIGINT would end this process: from now on the first one is noted, and the second one ends it.
pub(crate) fn note_first_interrupt() {
    if interrupt_action() == libc::SIG_DFL {
        handle_interrupts(note_first);
    }
}

fn interrupts() -> libc::sigset_t {
    let mut set = no_signals();
    // SAFETY: the set is initialised, and the number is a signal's.
    unsafe { libc::sigaddset(&raw mut set, libc::SIGINT) };
    set
}

/// What is blocked in a process that was made just now.
pub(crate) fn blocked_at_birth(interrupts_wait: bool) -> libc::sigset_t {
    if interrupts_wait { interrupts() } else { no_signals() }
}

/// Lets SIGINT through.
pub(crate) fn let_interrupts() {
    let set = interrupts();
    // SAFETY: as above.
    unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, ptr::null_mut()) };
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

/// Sets every signal to its default and unblocks all in the calling thread but, if they are to wait, interrupts: as
/// [`posix_spawn`] does.
pub(crate) fn forget_signal_handlers(interrupts_wait: bool) {
    for signal in 1..=libc::SIGRTMAX() {
        // SAFETY: this installs no handler. Of signals that can't be changed it is an error, which changes nothing.
        let before = unsafe { libc::signal(signal, libc::SIG_DFL) };
        if before == libc::SIG_IGN && HANDED_DOWN.contains(&signal) {
            // SAFETY: as above. All signals are blocked meanwhile.
            unsafe { libc::signal(signal, libc::SIG_IGN) };
        }
    }
    let_signals(&blocked_at_birth(interrupts_wait));
}

pub(super) fn all_signals() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the function initialises the set behind a valid pointer, and can't fail for one.
    unsafe { libc::sigfillset(set.as_mut_ptr()) };
    // SAFETY: initialised just now.
    unsafe { set.assume_init() }
}

pub(in crate::sys) fn no_signals() -> libc::sigset_t {
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
