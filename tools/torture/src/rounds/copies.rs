//! Workers that are forked from this program: the start method `fork`.
//!
//! # Safety
//!
//! Unsafe, because it calls [`allow_fork`](mp::process::allow_fork), whose conditions the caller must
//! guarantee. Sound, because
//!
//! - the program has no threads except those of `mp`, which are documented to leave no state in a forked
//!   child; its progress bar is drawn by the main thread;
//! - the program has no unsafe code except that of `mp`, and holds no devices, sessions or mappings of its
//!   own;
//! - a forked child runs only [`work`](crate::workloads::work::work), with its arguments. The child uses no
//!   inherited handle, and no borrowed data in shared memory. The inherited structures of the round are never
//!   dropped in the child, because its function doesn't return to the caller of the fork.
#![allow(unsafe_code)]

use mp::StartMethod;

/// Permits to fork workers from now on.
pub(crate) fn allow() {
    // SAFETY: the header explains why a forked copy of this program may run a worker.
    unsafe { mp::process::allow_fork() };
}

/// Returns the start methods from which one is picked. A method that is repeated is picked more often.
pub(crate) fn methods(copies: bool) -> &'static [StartMethod] {
    match copies {
        true => &[StartMethod::Spawn, StartMethod::Spawn, StartMethod::Fork, StartMethod::ForkServer],
        false => &[StartMethod::Spawn],
    }
}
