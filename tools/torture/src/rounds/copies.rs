//! Workers that are forked from this program: the start method `fork`.
//!
//! # Safety
//!
//! This file may hold `unsafe`: it calls [`allow_fork`](mp::process::allow_fork), for which its caller has to
//! vouch.
//!
//! - The program has no threads except those of `mp`, which are documented to leave nothing in a forked
//!   child; its progress bar is drawn by the main thread.
//! - Its unsafe code is `mp`'s; it holds no devices, sessions or mappings of its own.
//! - A child runs [`work`](crate::workloads::work::work) alone, with its arguments: it uses no inherited
//!   handle, and nothing borrowed from shared memory. The structures of the round stay in its memory, and are
//!   never dropped there, since the function of a child doesn't return to the place of the fork.
#![allow(unsafe_code)]

use mp::StartMethod;

/// Allows workers to be forked from now on.
pub(crate) fn allow() {
    // SAFETY: the header explains why a forked copy of this program may run a worker.
    unsafe { mp::process::allow_fork() };
}

/// Returns the start methods. A method that is used more often is repeated.
pub(crate) fn methods(copies: bool) -> &'static [StartMethod] {
    match copies {
        true => &[StartMethod::Spawn, StartMethod::Spawn, StartMethod::Fork, StartMethod::ForkServer],
        false => &[StartMethod::Spawn],
    }
}
