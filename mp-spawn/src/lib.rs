//! Worker processes that start in a millisecond: the process layer of `mp`.
//!
//! ```
//! use mp_spawn::{SpawnOptions, SpawnError, start_processes};
//!
//! fn worker(rank: usize, limits: (u64, u64)) -> Result<(), String> {
//!     if (limits.0..limits.1).contains(&41) { Ok(()) } else { Err(format!("rank {rank} sees no 41")) }
//! }
//!
//! // Two processes run `worker`; an error or a panic in one of them arrives here.
//! mp_spawn::spawn(worker, (0, 100), 2)?;
//!
//! let error = start_processes(worker, (0, 10), SpawnOptions::nprocs(1))?.join().unwrap_err();
//! assert!(error.to_string().contains("rank 0 sees no 41"));
//! # Ok::<(), SpawnError>(())
//! ```
//!
//! The main types are [`ProcessContext`], a handle to several processes that run one function, [`Process`], a
//! handle to a single process, and [`SpawnError`], the failure of a process.
//!
//! A worker is the running program, executed again, that calls a function instead of `main`. On Linux with
//! glibc this needs no call in `main`, so it works in binaries, examples, benches (criterion's as well),
//! tests and doc tests. It also works in statically linked programs (static-pie). In such a program and its
//! workers, thread-local values of the main thread are not dropped when that thread ends. Workers of a
//! program that runs through the loader (`ld.so ./program`) run through the loader, too. On other systems
//! `main` must begin with [`init`].
//!
//! # Guarantees
//!
//! - **No process outlives the process that started it,** even if that process is killed. A process does
//!   outlive the *thread* that started it.
//! - **Errors are complete:** message, sources, location, backtrace; exit code or signal; and for a crash
//!   whether the stack was used up.
//! - **A worker calls only the function that its parent named:** its build, its position in the program and
//!   its types are verified.
//! - **No zombies:** every process is reaped, whether it is joined or not.
//!
//! # In a shared library
//!
//! A library made with this crate works in a host that does not support workers, such as a C program or an
//! interpreter: the workers belong to the library. The host's program is executed again, but the loader loads
//! the library first (see `LD_PRELOAD` in `ld.so(8)`). The library then becomes the worker, and none of the
//! host's code runs.
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
//! If workers need their host, for example to call back into an interpreter, the host must become the worker:
//! [`set_command`] sets the command that starts the host, and [`export_child_main!`] defines the function
//! that the host then calls. Both kinds of workers find functions and closures in the library, and call them
//! only if the library is the same build. Replacing a library while programs use it causes an error. A
//! library that has started a process is never unloaded.
//!
//! All start methods work in a library. [`StartMethod::Fork`] also copies the host, including its
//! interpreter, so the caller of [`allow_fork`] vouches for the host, too: the function must not call back
//! into it.
//!
//! # Under valgrind
//!
//! Programs under valgrind can start workers. With `--trace-children=yes` the workers run under valgrind too,
//! otherwise without it:
//!
//! ```text
//! $ valgrind --trace-children=yes ./program
//! ```
//!
//! Under valgrind, shared memory is limited to 256 MiB, because memcheck reads all of it when a process ends.
//! Errors that memcheck reports inside of `rustix` (`ret_owned_fd`, `getppid`) are false positives.
//!
//! # Limits
//!
//! A worker does not run `main`, so the function must do the set-up that `main` does (logging, allocators'
//! options, a random seed). Other threads of the parent do not exist in a worker. A worker has only the
//! standard streams and the files that [`SpawnOptions::inherit_fds`] names, close-on-exec or not. Only a copy
//! by [`StartMethod::Fork`] has all open files. (If the kernel has no `close_range(2)` that marks files, or a
//! seccomp filter refuses it, a worker also gets a file that another thread opens without close-on-exec at
//! the moment of the start.)

#![cfg_attr(docsrs, feature(doc_cfg))]

mod api;
mod bounds;
mod child;
mod error;
#[cfg(all(any(test, feature = "fuzz"), not(mp_loom)))]
#[doc(hidden)]
pub mod fuzz;
mod io;
mod parent;
mod protocol;
mod start_method;
mod sys;

/// Returns the number of processors that this process may use, limited by its affinity and its cgroup: a
/// sensible number of processes to run at once. Returns 1 if the number is unknown.
///
/// ```
/// assert!(mp_spawn::cpu_count() >= 1);
/// ```
#[must_use]
pub fn cpu_count() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

#[doc(hidden)]
pub use api::borrowed_state::{BorrowedState, StateSlot, with_borrowed_state};
pub use api::builder::{ProcessBuilder, Supervised, Unsupervised};
pub use api::closure::{Capture, Closure, StateClosure};
#[doc(hidden)]
pub use api::closure::{Captures, Code, LazyClosure, list_in_the_brackets_what_the_body_uses, parts};
pub use api::context::{StartContext, get_context};
pub use api::process::Process;
pub use api::spawn::{ProcessContext, spawn, start_closure, start_processes};
pub use bounds::{Argument, CapturesNothing};
pub use child::current::{
    CurrentProcess, ParentProcess, current_process, is_child, name, parent_pid, parent_process, rank,
    set_thread_name, thread_name,
};
#[doc(hidden)]
pub use child::entry::child_main;
pub use child::entry::init;
pub use child::fork_server::set_fork_hook;
#[doc(hidden)]
pub use child::guest::guest_by;
pub use child::guest::{GuestError, guest};
#[cfg(feature = "log")]
pub use child::log_to_stderr::log_to_stderr;
#[doc(hidden)]
pub use child::panic_hook::{CaughtPanic, record_panics, set_panic_callbacks, with_panics_recorded};
#[doc(hidden)]
pub use error::{CallFailure, launch_error};
pub use error::{
    ExitDetail, ExitReport, ExitStatus, FailedAttempt, FunctionError, GaveUp, GaveUpReason, LaunchError,
    ProcessExited, ProcessName, ProcessRaised, RaisedKind, Result, Signal, SpawnError,
};
pub use io::captured::CapturedOutput;
pub use io::setup::{ProcessOptions, Stdio};
#[cfg(feature = "authkey")]
pub use mp_core::AuthKey;
pub use mp_core::message::IntoOutcome;
pub use mp_core::{Descriptor, Waitable, select, wait};
#[doc(no_inline)]
pub use mp_core::{interrupted, take_interrupt};
pub use parent::active::{ActiveChild, active_children};
pub use parent::fork_server::set_forkserver_preload;
pub use parent::options::{OnFailure, SpawnOptions};
pub use parent::restart::Backoff;
pub use parent::restart::Restart;
pub use parent::restart::event::{ProcessEvent, ProcessStatus};
#[doc(hidden)]
pub use parent::restart::supervision::FailureReports;
pub use protocol::command::{set_command, set_executable};
#[doc(hidden)]
pub use protocol::function::build_number;
pub use protocol::interrupt::{Interrupt, InterruptSignals};
pub use protocol::lifeline::detach;
pub use protocol::resource_limits::{Limits, ResourceLimit};
pub use start_method::{
    StartMethod, UnknownStartMethod, allow_fork, get_all_start_methods, get_start_method, set_start_method,
};
#[doc(hidden)]
pub use sys::proc_stat::is_stopped;
#[doc(hidden)]
pub use sys::processors::usable_processors;

/// Program of the README, as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
