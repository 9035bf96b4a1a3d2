//! Worker processes that start in a millisecond: the process layer of `mp`.
//!
//! ```
//! use mp_spawn::{Options, SpawnError, start_processes};
//!
//! fn worker(rank: usize, limits: (u64, u64)) -> Result<(), String> {
//!     if (limits.0..limits.1).contains(&41) { Ok(()) } else { Err(format!("rank {rank} sees no 41")) }
//! }
//!
//! // Two processes run `worker`; an error or a panic in one of them arrives here.
//! mp_spawn::spawn(worker, (0, 100), 2)?;
//!
//! let error = start_processes(worker, (0, 10), Options::nprocs(1))?.join().unwrap_err();
//! assert!(error.to_string().contains("rank 0 sees no 41"));
//! # Ok::<(), SpawnError>(())
//! ```
//!
//! A worker is the running program, executed anew, that calls a function instead of `main`. On Linux with glibc
//! that needs nothing in `main`, so it works in binaries, examples, benches (criterion's as well), tests and doc tests
//! alike, and in programs that are linked statically (static-pie; what is local to their main thread is not dropped at its
//! end, in workers as in any of them). What runs by the loader (`ld.so ./program`) has workers that do. Elsewhere `main`
//! begins with [`init`].
//!
//! # What holds
//!
//! - **No process outlives the one that started it,** however that ends. It does outlive the *thread* that
//!   started it.
//! - **Errors arrive whole:** message, sources, location, backtrace; exit code or signal; and for a crash whether
//!   the stack was used up.
//! - **A function is called only if it is the one:** same build, same place, same types.
//! - **Nothing is left:** every process is reaped, whether it is joined or not.
//!
//! # In a shared library
//!
//! Whoever loads a library that is made with this crate, a program in C or an interpreter, can use it without knowing of
//! workers: they are the library's own. The host's program is executed anew, but the loader loads the library first (see
//! `LD_PRELOAD` in `ld.so(8)`), which becomes the worker then, and nothing of the host's code runs.
//!
//! ```no_run
//! #[unsafe(no_mangle)]
//! pub extern "C" fn sum_of_squares(count: usize) -> usize {
//!     let square = |rank: usize, (): ()| Ok::<_, String>(rank * rank);
//!     mp_spawn::spawn(square, (), count).map_or(0, |squares| squares.into_iter().sum())
//! }
//! ```
//!
//! ```text
//! $ python3 -c 'import ctypes; print(ctypes.CDLL("./libjob.so").sum_of_squares(4))'
//! 14
//! ```
//!
//! Where workers need their host, because they call back into an interpreter for example, it has to make them:
//! [`set_command`] says how it is started for that, and [`export_child_main!`] makes the function that it calls then. Both
//! kinds of workers find functions and closures in the library, and call them only if it is the same build; one that was
//! replaced while programs use it is an error. A library that has started a process is never unloaded.
//!
//! All start methods work there. With [`StartMethod::Fork`] the host is copied as well, its interpreter included, and what
//! [`allow_fork`] vouches for, it vouches for the host, too: the function must not call back into it.
//!
//! # Under valgrind
//!
//! Programs under valgrind start workers, which run without it, or under it with `--trace-children=yes`:
//!
//! ```text
//! $ valgrind --trace-children=yes ./program
//! ```
//!
//! Shared memory has 256 MiB there: memcheck reads all of it when a process ends. What memcheck reports of the inside of
//! `rustix` (`ret_owned_fd`, `getppid`) is none.
//!
//! # What does not
//!
//! A worker does not run `main`, so what `main` sets up (logging, allocators' options, a random seed) is to be set
//! up in the function. Other threads of the parent do not exist in a worker. Its open files don't either, but for the standard
//! streams and those that [`Options::inherit_fds`] names, close-on-exec or not; only in a copy by [`StartMethod::Fork`] they do,
//! as all that a copy has. (Where the kernel has no `close_range(2)` that marks files, or a filter refuses it, a file that
//! another thread opens without close-on-exec in the moment of a start is in the worker as well.)

#![cfg_attr(docsrs, feature(doc_cfg))]

mod backtrace;
mod cause;
mod child;
mod clock;
mod closure;
mod command;
mod context;
mod crash;
mod current;
mod doing;
mod elf;
mod embed;
mod entry;
mod environment;
mod error;
mod event;
mod exec;
mod exit;
mod family;
mod fields;
mod fork;
mod forkserver;
mod function;
mod gains;
mod group;
mod handle;
mod handoff;
mod identity;
mod inherit;
mod launch;
mod lifeline;
mod line;
#[cfg(feature = "log")]
mod log_to_stderr;
mod message;
mod method;
mod myself;
mod object;
mod oom;
mod options;
mod outbox;
mod outcome;
mod output;
mod panics;
mod patience;
mod process;
mod raise;
mod rank;
mod reader;
mod room;
mod server;
mod setup;
mod sibling;
mod start;
mod supervisor;
mod sys;
mod tee;
mod token;
mod verdict;
mod watch;
mod who;
mod wire;
mod zygote;

/// How many processes of this program can run at once: the processors that this process may use, as its affinity and its
/// cgroup allow. 1 if nobody knows.
///
/// ```
/// assert!(mp_spawn::cpu_count() >= 1);
/// ```
#[must_use]
pub fn cpu_count() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

pub use closure::{Capture, Closure};
#[doc(hidden)]
pub use closure::{Captures, list_in_the_brackets_what_the_body_uses, parts};
pub use command::{set_command, set_executable};
pub use context::{ProcessContext, spawn, start_closure, start_processes};
pub use current::{
    CurrentProcess, ParentProcess, current_process, is_child, name, parent_pid, parent_process, rank,
    set_thread_name, thread_name,
};
#[doc(hidden)]
pub use doing::is_stopped;
#[doc(hidden)]
pub use entry::child_main;
pub use entry::init;
pub use error::{Launch, ProcessExited, ProcessRaised, RaisedKind, Result, SpawnError};
pub use exit::{End, Exit, Note, Signal};
pub use family::{ActiveChild, active_children};
pub use forkserver::set_forkserver_preload;
pub use function::Refusal;
pub use lifeline::detach;
#[cfg(feature = "log")]
pub use log_to_stderr::log_to_stderr;
pub use method::{
    Context, StartMethod, UnknownStartMethod, allow_fork, get_all_start_methods, get_context,
    get_start_method, set_start_method,
};
#[cfg(feature = "authkey")]
pub use mp_core::AuthKey;
pub use mp_core::{Descriptor, Waitable, select, wait};
pub use options::{OnFailure, Options};
pub use outcome::Outcome;
pub use output::Captured;
pub use process::{Process, ProcessBuilder};
#[doc(hidden)]
pub use raise::Raise;
pub use rank::Status;
pub use setup::{Output, Setup};
pub use who::Who;
