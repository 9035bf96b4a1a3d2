//! Signals: blocked, ignored, and default actions.
//!
//! # Safety
//! Unsafe, because it passes libc pointers to sets and actions. Sound, because the pointers refer to values
//! on the stack, and every action is `SIG_IGN`, `SIG_DFL`, or a handler that makes only calls that are
//! allowed in handlers.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::{io, ptr};

use crate::sys::check;
use crate::sys::exec::INHERITED_IGNORED;

/// Signals that are at their default in an executed program. (Real-time signals that are ignored stay
/// ignored.)
pub(crate) const STANDARD_SIGNALS: std::ops::Range<c_int> = 1..32;

/// Signals that ask a program to stop.
const INTERRUPTS: [c_int; 2] = [libc::SIGINT, libc::SIGTERM];

/// Blocks every signal in the calling thread.
pub(crate) fn block_signals() -> io::Result<()> {
    let all = all_signals();
    // SAFETY: `all` is an initialised set. A null pointer means that the old set is not requested.
    check(unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, ptr::null_mut()) })
}

/// Makes a write to a closed pipe an error, as the standard library does before `main`.
#[inline]
pub(crate) fn ignore_sigpipe() {
    // SAFETY: this installs no handler, so there is no code whose safety could matter.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
}

/// Ignores SIGINT from now on. Returns `true` if it was ignored before.
pub(crate) fn ignore_interrupts() -> bool {
    // SAFETY: this installs no handler, so there is no code whose safety could matter.
    unsafe { libc::signal(libc::SIGINT, libc::SIG_IGN) == libc::SIG_IGN }
}

/// Makes a signal end this process, as it does by default.
pub(crate) fn restore_default(signal: c_int) {
    // SAFETY: as above.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

/// Action for a signal: a handler's address, or one of the constants `SIG_DFL`, `SIG_IGN`.
fn action_for(signal: c_int) -> libc::sighandler_t {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: a null pointer means that nothing is changed. The present action is written to a valid place.
    unsafe { libc::sigaction(signal, ptr::null(), action.as_mut_ptr()) };
    // SAFETY: all zeroes are an action, and the call can't have written another kind of value.
    unsafe { action.assume_init() }.sa_sigaction
}

/// Returns `true` if this process ignores SIGINT.
pub(crate) fn ignores_interrupts() -> bool {
    action_for(libc::SIGINT) == libc::SIG_IGN
}

type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

/// In a handler: returns `true` if the signal is a SIGTERM from the parent. Any process may send SIGTERM, but
/// only the parent's is a request by `terminate`. A parent in another process namespace has the number 0
/// here, like all senders in other namespaces.
fn is_terminate(signal: c_int, info: *mut libc::siginfo_t) -> bool {
    // SAFETY: the kernel passes a valid record to handlers that are installed with SA_SIGINFO, as all here
    // are.
    let info = unsafe { &*info };
    // Codes up to 0 come from processes, which have a number.
    let by_process = signal == libc::SIGTERM && info.si_code <= 0;
    // SAFETY: the field is set for these codes.
    let sender = || unsafe { info.si_pid() };
    // This only makes a system call, which is allowed in a handler.
    by_process && sender() == rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get())
}

/// In a handler: makes the handled signal end this process when the handler returns.
fn end_by(signal: c_int) {
    // SAFETY: this may be called in a signal handler, and installs none.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
    // SAFETY: this may be called in a signal handler. The signal is delivered when the handler returns.
    unsafe { libc::raise(signal) };
}

extern "C" fn on_sigterm(signal: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    if is_terminate(signal, info) {
        end_by(signal);
    }
}

extern "C" fn on_interrupt(signal: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    if is_terminate(signal, info) {
        end_by(signal);
    } else {
        mp_core::record_interrupt();
    }
}

extern "C" fn on_first_interrupt(signal: c_int, _: *mut libc::siginfo_t, _: *mut c_void) {
    if mp_core::record_interrupt() > 0 {
        end_by(signal);
    }
}

extern "C" fn on_first_interrupt_in_worker(signal: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    if is_terminate(signal, info) || mp_core::record_interrupt() > 0 {
        end_by(signal);
    }
}

fn handle(signal: c_int, handler: Handler, flags: c_int) {
    // SAFETY: all zeroes is an action without flags.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_flags = libc::SA_SIGINFO | flags;
    action.sa_sigaction = handler as usize;
    // SAFETY: the action is initialised. Its handler changes one word, or makes calls that are allowed there.
    unsafe { libc::sigaction(signal, &raw const action, ptr::null_mut()) };
}

/// Ignores SIGTERM unless the parent sends it. A program that this process executes does not inherit this
/// setting.
pub(crate) fn ignore_foreign_sigterm() {
    handle(libc::SIGTERM, on_sigterm, libc::SA_RESTART);
}

/// Installs a handler that records this signal, which then has no other effect. Installed without SA_RESTART,
/// so that waiting calls end.
pub(crate) fn record_interrupts(signal: c_int) {
    handle(signal, on_interrupt, 0);
}

/// Installs handlers that record the first of these signals. A second signal ends this process. Signals whose
/// action is not the default stay unchanged.
pub(crate) fn record_first_interrupt(signals: &[c_int], is_worker: bool) {
    let handler = if is_worker { on_first_interrupt_in_worker } else { on_first_interrupt };
    for signal in signals.iter().filter(|signal| action_for(**signal) == libc::SIG_DFL) {
        handle(*signal, handler, 0);
    }
}

/// Returns SIGINT and SIGTERM as a set in the kernel's format.
pub(crate) fn interrupts_mask() -> u64 {
    INTERRUPTS.iter().fold(0, |mask, signal| mask | 1 << (signal - 1))
}

fn interrupts() -> libc::sigset_t {
    let mut set = no_signals();
    for signal in &INTERRUPTS {
        // SAFETY: the set is initialised, and the number is a signal's.
        unsafe { libc::sigaddset(&raw mut set, *signal) };
    }
    set
}

/// Returns the set of signals that are blocked in a new process.
pub(crate) fn initial_signal_mask(interrupts_wait: bool) -> libc::sigset_t {
    if interrupts_wait { interrupts() } else { no_signals() }
}

/// Unblocks SIGINT and SIGTERM.
pub(crate) fn unblock_interrupts() {
    let set = interrupts();
    // SAFETY: as above.
    unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, ptr::null_mut()) };
}

/// Blocks every signal in the calling thread, and returns the set of signals that were blocked before.
pub(crate) fn block_all_signals() -> io::Result<libc::sigset_t> {
    let (all, mut before) = (all_signals(), no_signals());
    // SAFETY: both sets are initialised.
    check(unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before) })?;
    Ok(before)
}

/// Blocks these signals and no others in the calling thread.
pub(crate) fn restore_signal_mask(blocked: &libc::sigset_t) {
    // SAFETY: the set is initialised. A null pointer means that the old set is not requested. The call can't
    // fail for a valid set.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, blocked, ptr::null_mut()) };
}

/// Sets every signal to its default and unblocks all signals in the calling thread, as [`posix_spawn`] does.
/// With `interrupts_wait`, SIGINT and SIGTERM are blocked.
pub(crate) fn reset_signal_handlers(interrupts_wait: bool) {
    for signal in 1..=libc::SIGRTMAX() {
        // SAFETY: this installs no handler. For signals that can't be changed, the call returns an error and
        // changes nothing.
        let before = unsafe { libc::signal(signal, libc::SIG_DFL) };
        if before == libc::SIG_IGN && INHERITED_IGNORED.contains(&signal) {
            // SAFETY: as above. All signals are blocked meanwhile.
            unsafe { libc::signal(signal, libc::SIG_IGN) };
        }
    }
    restore_signal_mask(&initial_signal_mask(interrupts_wait));
}

pub(super) fn all_signals() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the function initialises the set at a valid pointer, and can't fail for one.
    unsafe { libc::sigfillset(set.as_mut_ptr()) };
    // SAFETY: initialised just now.
    unsafe { set.assume_init() }
}

pub(in crate::sys) fn no_signals() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the function initialises the set at a valid pointer, and can't fail for one.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: initialised just now.
    unsafe { set.assume_init() }
}

/// Makes a call while the calling thread receives a sequence of signals whose handler does nothing: a system
/// call that is interrupted returns `EINTR`. The argument of the call returns the number of signals so far.
#[cfg(test)]
pub(crate) fn interrupted<R>(call: impl FnOnce(&dyn Fn() -> u32) -> R) -> R {
    use mp_core::sync::shared::{AtomicBool, AtomicU32, Ordering};

    // fork: used by tests, which copy no process here.
    static HANDLED: AtomicU32 = AtomicU32::new(0);

    extern "C" fn count(_: c_int) {
        HANDLED.fetch_add(1, Ordering::Relaxed);
    }

    // SAFETY: all zeroes is an action without flags, so calls are not restarted.
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
                // SAFETY: numbers of this process and of a thread that waits for this one. The signal has a
                // handler.
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
