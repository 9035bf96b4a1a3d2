//! Start method `fork`: a copy of this process that becomes a worker.
//!
//! # Safety
//!
//! This file may hold `unsafe`: it forks a process that may have other threads, and detaches the copy from
//! the resources of the original. The caller of [`allow_fork`] vouches for the function that runs in the
//! copy. The table covers this crate and the crates below it.
//!
//! | problem in a copy | solution |
//! |---|---|
//! | the original's membership in the arena, its mapping, its files and their locks | see [`mp_core::fork`] |
//! | variables of this crate whose locks other threads may have held: supervisor, reader of output, fork server, family, line to the parent, name and rank | fresh ones: [`PerProcess`](mp_core::fork::PerProcess) |
//! | settings: start method, command | inherited, as in any process |
//! | the preloaded function | inherited: read before the fork, written in the copy |
//! | sockets to the original's children and parent, the pipe that ends the children with it, pidfds (or their substitutes), the supervisor's epoll | closed; the supervisor's lock is held during the fork, so that all of these files are known |
//! | files of the original whose number is needed for an inherited file | closed; the copy's socket, its only own file at that point, moves to another number |
//! | the original's end of the copy's own socket | closed, so that the end of the original is detected |
//! | the standard streams: their buffers, their locks | held by the thread that forks, and written out, if it is the main thread |
//! | handlers of signals, which may write into pipes of the original; blocked signals | reset, as after `posix_spawn`; signals are blocked until then |
//! | functions to be called at exit, which remove objects that the original still needs | not called: the first function that the copy registers is called after all others of its own, and ends the process (glibc) |
//! | an exiting thread of the original: its `exit` blocks every other `exit`, in the copy too | the copy blocks in `exit`, and ends with the original, because the copy has requested its parent-death signal before; if the original had ended already, the copy ends at once |
//! | locks of the allocator and of the C library | `fork(3)` of glibc makes them consistent; therefore it is used instead of a bare `clone3` |
//! | the stack is that of a thread other than the main thread, if such a thread forks | the function gets a thread with a stack of the usual size |
//! | a panic that leaves the copy's function | caught in [`main::main`], which never returns: the frames of the original above are never reached |
//! | the thread whose end ends the copy | the thread that forks: the main thread or the supervisor's, as for all methods |
//! | read ends of pipes from the original's other children; sockets to the fork server and to the process that it has made in advance | stay open until the copy ends, at the latest with the original. A copy that has detached itself lives longer: while it holds such a socket, a detached worker that was made in advance can't detect that no process takes its result |
//!
//! | killed | result |
//! |---|---|
//! | the original, at any time | the copy ends: it first requests its parent-death signal, and checks whether the original has already ended |
//! | the copy, before it sends its hello | `ProcessExited`, as at any other time, because a copy can't be another program |
//!
//! [`allow_fork`]: crate::allow_fork
#![allow(unsafe_code)]

use std::io::{self, Write as _};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::panic::{self, AssertUnwindSafe};

use mp_core::fork::Fork;

use crate::child::{entry, main};
use crate::error::{EXIT_USELESS, Result, SpawnError, launch_error};
use crate::io::setup::ProcessOptions;
use crate::parent::launch::command::LaunchOptions;
use crate::parent::launch::{LaunchedProcess, nonce, preload, set_preload, socket_pair};
use crate::protocol::inherited_files;
use crate::protocol::outbox::Outbox;
use crate::protocol::token::{Token, TokenTarget};
use crate::start_method;
use crate::sys::{self, ProcessHandle};

/// Returns an error if this process must not be copied.
pub(crate) fn check() -> Result<()> {
    let why =
        if start_method::current_settings().fork { mp_core::fork::forbidden() } else { Some(NOT_ALLOWED) };
    why.map_or(Ok(()), |why| Err(SpawnError::ForkRefused(why)))
}

const NOT_ALLOWED: &str = "the program has not called `allow_fork`, because a copy inherits the locks that \
                           other threads hold and whatever they have half done: read its documentation and \
                           call it, or use another start method";

/// Starts a process by copying this one. `files` are the files that the copy does not need. No thread closes
/// them during the call. The kernel ends the copy when the calling thread ends.
pub(crate) fn launch(
    launch_options: LaunchOptions,
    setup: &ProcessOptions,
    outbox: &mut Outbox,
    files: &[RawFd],
) -> Result<LaunchedProcess> {
    let refused = |what| move |error: io::Error| launch_error(what, None, error);
    let (ours, theirs) = socket_pair().map_err(refused("socketpair"))?;
    let nonce = nonce();
    // The copy finds the data at its first read. The supervisor sends the rest later.
    outbox.flush(ours.as_fd()).map_err(refused("sendmsg"))?;
    let (parent, taker) = (std::process::id(), TokenTarget::Program);
    let token = Token { fd: theirs.as_raw_fd(), parent, nonce, taker };
    let (preloaded, of_a_thread) = (preload(), !sys::on_main_thread());
    // Only on the main thread: another thread would deadlock with a thread that prints while it waits for
    // this one.
    let mut printing = (!of_a_thread).then(|| (io::stdout().lock(), io::stderr().lock()));
    if let Some((out, _)) = &mut printing {
        // Output that can't be written now can't be written later either.
        let _ = out.flush();
    }
    let memory =
        Fork::prepare().map_err(|error| refused("a copy of the process")(io::Error::other(error)))?;
    let signals = sys::block_all_signals().map_err(refused("pthread_sigmask"))?;
    // SAFETY: the program has called `allow_fork`, otherwise `start` would have refused. The documentation of
    // this file describes its actions in the copy.
    match unsafe { sys::fork() } {
        Ok(Some(pid)) => {
            sys::restore_signal_mask(&signals);
            drop((memory, printing, launch_options));
            Ok(LaunchedProcess { pid, handle: ProcessHandle::open(pid)?, socket: ours, nonce })
        }
        Ok(None) => {
            // Done first, because an exiting original holds the locks of `exit`, and the following code would
            // wait for them forever. If the request is refused, the worker reports that, like any other.
            if main::has_parent(parent) == Ok(false) {
                sys::exit_at_once(EXIT_USELESS);
            }
            let code = panic::catch_unwind(AssertUnwindSafe(|| {
                // SAFETY: this is the copy, made by this thread just now. The caller holds the lock and
                // the references that keep those files open. The code that uses them accesses a variable of
                // which the copy has another instance.
                let fit = unsafe { memory.begin(files) };
                drop((printing, ours));
                sys::skip_exit_handlers_so_far();
                sys::reset_signal_handlers(launch_options.interrupts_wait);
                main::set_on_thread_stack(of_a_thread);
                set_preload(preloaded);
                entry::change_environment(setup.environment.iter().cloned());
                let LaunchOptions { ends, files, .. } = launch_options;
                let streams = ends.install().map_err(|error| format!("setting its streams failed: {error}"));
                // The streams come first, because their files may have numbers that other files must get.
                let mut socket = theirs;
                let fit = fit.map_err(|error| error.to_string()).and(streams);
                let fit = fit.and_then(|()| inherited_files::replace(&files, &mut socket));
                main::main(token, socket, fit)
            }));
            // Destructors of the original must not run here.
            code.unwrap_or_else(|_| sys::exit_at_once(EXIT_USELESS))
        }
        Err(error) => {
            sys::restore_signal_mask(&signals);
            Err(launch_error("fork", None, error))
        }
    }
}
