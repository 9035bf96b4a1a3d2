//! # Safety
//! Signal that wakes a thread. Unsafe, because a handler is installed. Sound, because the handler adds to an
//! atomic and makes one system call, both of which are allowed in a handler (`signal-safety(7)`), and it is a
//! function of the program, which is never unloaded.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr;
use std::time::Duration;

use crate::sync::Ordering;
use crate::sync::shared::AtomicU32;
use crate::sys::futex;

/// Number of received signals.
// fork: a copy has its own counter, which continues from the original's value.
static COUNT: AtomicU32 = AtomicU32::new(0);

extern "C" fn on_signal(_: c_int) {
    COUNT.fetch_add(1, Ordering::Release);
    futex::wake(&COUNT, 1);
}

/// Installs a handler that counts this signal, in place of the previous disposition. Returns `true` on
/// success. Interrupted calls are restarted.
pub(crate) fn install(signal: c_int) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    let handler: extern "C" fn(c_int) = on_signal;
    // SAFETY: all zeros are a valid `sigaction`: an empty set, no flags, the default.
    let action = unsafe { action.assume_init_mut() };
    action.sa_sigaction = handler as libc::sighandler_t;
    action.sa_flags = libc::SA_RESTART | libc::SA_ONSTACK;
    // SAFETY: the action is initialized, with a handler of the kind given by its flags; a null pointer means
    // that the old action isn't returned.
    unsafe { libc::sigaction(signal, action, ptr::null_mut()) == 0 }
}

/// Returns the number of received signals.
pub(crate) fn count() -> u32 {
    COUNT.load(Ordering::Acquire)
}

/// Sleeps while the number of received signals is `before`. May return early.
pub(crate) fn wait_for_change(before: u32) {
    futex::wait(&COUNT, before, Duration::from_secs(3600));
}

/// Returns the number of the signal with this name (`USR1`, `SIGUSR1`) or number. Returns `None` for an
/// unknown signal, for one that can't be caught or reports a crash, and for `SIGCHLD` and `SIGPIPE`.
pub(crate) fn number(name: &str) -> Option<c_int> {
    let name = name.trim().to_ascii_uppercase();
    match name.strip_prefix("SIG").unwrap_or(&name) {
        "USR1" => Some(libc::SIGUSR1),
        "USR2" => Some(libc::SIGUSR2),
        "HUP" => Some(libc::SIGHUP),
        "QUIT" => Some(libc::SIGQUIT),
        "ALRM" => Some(libc::SIGALRM),
        "URG" => Some(libc::SIGURG),
        "WINCH" => Some(libc::SIGWINCH),
        other => {
            let number: c_int = other.parse().ok()?;
            let refused = [
                libc::SIGKILL,
                libc::SIGSTOP,
                libc::SIGSEGV,
                libc::SIGBUS,
                libc::SIGFPE,
                libc::SIGILL,
                libc::SIGABRT,
                libc::SIGTRAP,
                libc::SIGSYS,
                libc::SIGCHLD,
                libc::SIGPIPE,
            ];
            let possible =
                (1..32).contains(&number) || (libc::SIGRTMIN()..=libc::SIGRTMAX()).contains(&number);
            (possible && !refused.contains(&number)).then_some(number)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_parsed_by_name_or_number() {
        assert_eq!(number("USR1"), Some(libc::SIGUSR1));
        assert_eq!(number("sigusr2"), Some(libc::SIGUSR2));
        assert_eq!(number("12"), Some(12));
        for wrong in ["", "KILL", "9", "11", "0", "65", "-1", "32", "yes"] {
            assert_eq!(number(wrong), None, "{wrong}");
        }
    }
}
