//! The start method `fork`: a copy of this process that becomes a worker.
//!
//! # Safety
//!
//! This file may hold `unsafe`: it forks a process that may have other threads, and makes the copy a process of its own.
//! The caller of [`allow_fork`] vouches that the function which runs there does with what a copy has; the table says how
//! this crate and those below it do.
//!
//! | what would be wrong in a copy | what is done |
//! |---|---|
//! | the original's place in the arena, its mapping, its files and their locks | see [`mp_core::fork`] |
//! | variables of this crate, behind locks that other threads may have held: supervisor, reader of output, fork server, family, line to the parent, name and rank | fresh ones: [`PerProcess`](mp_core::fork::PerProcess) |
//! | settings: start method, command | taken over, as in any process |
//! | the preloaded function | taken over: read before, written in the copy |
//! | sockets to the original's children and parent, the pipe that ends those with it, pidfds (or what stands in for them), the supervisor's epoll | closed; the supervisor's lock is held meanwhile, so that all are known |
//! | what has a number under which the copy inherits a file | closed, if it is the original's; what is the copy's own, which is its socket only so far, gets another number |
//! | the original's end of the copy's own socket | closed, so that the end of the original shows |
//! | the standard streams: what is in the buffer, their locks | held by the thread that forks, and written out, if it is the main thread |
//! | handlers of signals, which may write into pipes of the original's; blocked signals | none, as after `posix_spawn`; signals wait while the copy gets there |
//! | functions to be called at exit, which remove what the original still needs | not called: the first one that the copy registers is called after all others of its own, and ends the process (glibc) |
//! | that a thread is exiting: `exit` lets no other one exit, here as in the original | the copy waits for that, and ends with the original, as it has asked before; if that had ended already, at once |
//! | locks of the allocator and of the C library | `fork(3)` of glibc puts them in order; hence it, and no bare `clone3` |
//! | the stack: a thread's, where it isn't the main thread that forks | the function gets a thread with a stack of the usual size |
//! | a panic that leaves the copy's function | caught in [`main::main`], which never returns: the frames of the original above are never reached |
//! | which thread's end ends the copy | the one that forks: the main thread or the supervisor's, as for all methods |
//! | read ends of pipes from the original's other children; sockets to the fork server and to the process that it has made ahead | stay open until the copy ends, which is before the original's end, or with it: only a copy that has detached itself keeps a worker that was made ahead, and is detached as well, from seeing that no process takes its result |
//!
//! | killed | what happens |
//! |---|---|
//! | the original, at any time | the copy first asks the kernel to end with it, and checks whether it has gone before: it ends |
//! | the copy, before it says hello | it is known to be no other program: `ProcessExited`, as at any other time |
//!
//! [`allow_fork`]: crate::allow_fork
#![allow(unsafe_code)]

use std::io::{self, Write as _};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::panic::{self, AssertUnwindSafe};

use mp_core::fork::Fork;

use crate::child::entry;
use crate::child::main;
use crate::error::{Result, SpawnError};
use crate::error::{USELESS, failed};
use crate::io::setup::ProcessOptions;
use crate::parent::fork_server;
use crate::parent::launch::{self, Launched, Particulars};
use crate::protocol::function::FunctionRef;
use crate::protocol::inherited_files;
use crate::protocol::outbox::Outbox;
use crate::protocol::token::{Taker, Token};
use crate::start_method;
use crate::sys;
use crate::sys::process_handle::Handle;

/// An error if this process is not to be copied.
pub(crate) fn check() -> Result<()> {
    let why = if start_method::chosen().fork { mp_core::fork::forbidden() } else { Some(NOT_ALLOWED) };
    why.map_or(Ok(()), |why| Err(SpawnError::ForkRefused(why)))
}

const NOT_ALLOWED: &str = "the program has not called `allow_fork`, because a copy inherits the locks that other threads hold \
     and whatever they have half done: read its documentation and call it, or use another start method";

/// Starts a process: copies this one. `files` are those that the copy has no use for; no thread closes them meanwhile. The
/// calling thread becomes the one whose end ends the process.
pub(crate) fn launch(
    particulars: Particulars,
    setup: &ProcessOptions,
    outbox: &mut Outbox,
    files: &[RawFd],
) -> Result<Launched> {
    let refused = |what| move |error: io::Error| failed(what, None, error);
    let (ours, theirs) = launch::socket_pair().map_err(refused("socketpair"))?;
    let nonce = launch::nonce();
    // The copy finds it when it first reads. What doesn't fit is sent later.
    outbox.flush(ours.as_fd()).map_err(refused("sendmsg"))?;
    let taken = Taken {
        token: Token { fd: theirs.as_raw_fd(), parent: std::process::id(), nonce, taker: Taker::Program },
        preload: fork_server::preload(),
        thread: !sys::on_main_thread(),
    };
    // Another thread would deadlock here with a thread that prints and waits for it.
    let mut printing = (!taken.thread).then(|| (io::stdout().lock(), io::stderr().lock()));
    if let Some((out, _)) = &mut printing {
        // What can't be written now can't be written later either.
        let _ = out.flush();
    }
    let memory =
        Fork::prepare().map_err(|error| refused("a copy of the process")(io::Error::other(error)))?;
    let signals = sys::hold_signals().map_err(refused("pthread_sigmask"))?;
    // SAFETY: the program has called `allow_fork`, else `start` had refused. What this file does in the copy is said above.
    match unsafe { sys::fork() } {
        Ok(Some(pid)) => {
            sys::let_signals(&signals);
            drop((memory, printing, particulars));
            Ok(Launched { pid, handle: Handle::of(pid)?, socket: ours, nonce })
        }
        Ok(None) => {
            // First of all: what follows waits for ever if the original was exiting, for that one holds the locks of `exit`.
            // If that is refused, the worker reports it, like any other.
            if main::has_parent(taken.token.parent) == Ok(false) {
                sys::exit_at_once(USELESS);
            }
            let code = panic::catch_unwind(AssertUnwindSafe(|| {
                // SAFETY: this is the copy, made by this thread just now; the caller holds what keeps those files open, and
                // the code that uses them is behind a variable that the copy has another one of.
                let fit = unsafe { memory.begin(files) };
                drop((printing, ours));
                taken.become_worker(theirs, particulars, setup, fit.map_err(|error| error.to_string()))
            }));
            // Nothing of the original's is to be undone here.
            code.unwrap_or_else(|_| sys::exit_at_once(USELESS))
        }
        Err(error) => {
            sys::let_signals(&signals);
            Err(failed("fork", None, error))
        }
    }
}

/// What a copy takes over, read before.
struct Taken {
    token: Token,
    preload: Option<FunctionRef>,
    /// Whether another thread than the main thread has forked.
    thread: bool,
}

impl Taken {
    /// In the copy: arranges what was asked for, and becomes the worker.
    fn become_worker(
        self,
        mut socket: OwnedFd,
        particulars: Particulars,
        setup: &ProcessOptions,
        fit: std::result::Result<(), String>,
    ) -> ! {
        let Taken { token, preload, thread } = self;
        sys::skip_exit_handlers_so_far();
        sys::forget_signal_handlers(particulars.interrupts_wait);
        main::note_stack(thread);
        fork_server::inherit_preload(preload);
        entry::change_environment(setup.environment.iter().cloned());
        let Particulars { ends, files, .. } = particulars;
        let streams = ends.take().map_err(|error| format!("setting its streams failed: {error}"));
        // The streams come first: their files may have numbers that are to be those of others.
        let fit = fit.and(streams).and_then(|()| inherited_files::replace(&files, &mut socket));
        main::main(token, socket, fit)
    }
}
