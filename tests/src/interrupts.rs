//! Signals whose only effect is to interrupt system calls (EINTR).
#![allow(unsafe_code)]

use std::os::unix::thread::JoinHandleExt;
use std::thread::JoinHandle;

extern "C" fn nothing(_: libc::c_int) {}

/// Installs a handler for SIGUSR2 that does nothing, so that [`send`] can interrupt system calls of this
/// process.
pub fn allow() {
    // SAFETY: plain data, for which zeros are valid: no flags, no mask, no handler.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = nothing as *const () as usize;
    // SAFETY: the handler does nothing, and the action is otherwise empty: no SA_RESTART, so that sleeps end
    // early.
    assert_eq!(unsafe { libc::sigaction(libc::SIGUSR2, &raw const action, std::ptr::null_mut()) }, 0);
}

/// Interrupts the system call of a thread of this process, by SIGUSR2.
pub fn send<T>(thread: &JoinHandle<T>) {
    // SAFETY: the thread has not been joined, so its handle is valid.
    unsafe { libc::pthread_kill(thread.as_pthread_t(), libc::SIGUSR2) };
}
