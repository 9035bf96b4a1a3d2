//! Workers that are copies of this program: the start method `fork`.
//!
//! # Safety
//!
//! This file may hold `unsafe`: it calls [`allow_fork`](mp::process::allow_fork), for which its caller has to vouch.
//!
//! - The program has no threads but those of `mp`, which are said to leave nothing in a copy; its progress bar is drawn by the
//!   main thread.
//! - What it has of unsafe code is `mp`'s; it holds no devices, sessions or mappings of its own.
//! - A copy runs [`work`](crate::workloads::work::work) alone, with what comes as its arguments: it uses no handle, and nothing borrowed
//!   from shared memory, that was copied along. The structures of the round stay where they are in its memory, and are never
//!   dropped there, since the function of a copy doesn't return to where it was copied.
#![allow(unsafe_code)]

use mp::StartMethod;

/// From now on workers may be copies.
pub(crate) fn allow() {
    // SAFETY: the header says why a copy of this program may do what its workers do.
    unsafe { mp::process::allow_fork() };
}

/// By which methods processes are started, one as often as the other.
pub(crate) fn methods(copies: bool) -> &'static [StartMethod] {
    match copies {
        true => &[StartMethod::Spawn, StartMethod::Spawn, StartMethod::Fork, StartMethod::ForkServer],
        false => &[StartMethod::Spawn],
    }
}
