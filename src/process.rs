//! Worker processes: start, arguments and results, and termination.
//!
//! ```
//! use mp::process::Stdio;
//! use mp::{Process, SpawnError, SpawnOptions};
//!
//! let double = |rank: usize, n: u32| Ok::<_, String>(n * 2 + rank as u32);
//! let workers = mp::start_processes(double, 20, SpawnOptions::nprocs(2))?;
//! assert_eq!(workers.join()?, [40, 41]); // the returned values
//!
//! let loader = Process::builder().name("loader").stdout(Stdio::Capture);
//! let child = loader.spawn(|n: u32| println!("{n} files"), 3)?;
//! child.join()?;
//! assert_eq!(child.stdout().text(), "3 files\n");
//!
//! let error = Process::spawn(|(): ()| std::process::exit(3), ())?.join().unwrap_err();
//! assert!(matches!(error, SpawnError::ProcessExited(_)));
//! # Ok::<(), SpawnError>(())
//! ```
//!
//! Start with three types: [`ProcessContext`] is the group of processes of one start. [`Process`] is a single
//! process. [`SpawnError`] is the error of a start or a process, and its documentation has a table of all
//! causes.
//!
//! | task | items |
//! |---|---|
//! | options of a start | [`SpawnOptions`], for a group; [`ProcessOptions`], for one process; [`ProcessBuilder`]; [`Stdio`], [`OnFailure`] |
//! | restart after an exit | [`ProcessBuilder::restart`], [`Restart`], [`Backoff`], [`ProcessEvent`], [`GaveUp`] |
//! | Ctrl-C, SIGTERM | [`Interrupt`], [`InterruptSignals`], [`interrupted`], [`take_interrupt`] |
//! | start methods | [`StartMethod`], [`set_start_method`], [`get_context`], [`allow_fork`], [`set_forkserver_preload`], [`set_fork_hook`] |
//! | functions with captures | [`closure!`](crate::closure), [`Closure`], [`start_closure`] |
//! | captures and arguments of functions | no captures ([`CapturesNothing`]); arguments that can be copied to each process ([`Argument`]) |
//! | return types of functions | [`IntoOutcome`](crate::message::IntoOutcome) |
//! | inside a worker | [`rank`], [`name`], [`current_process`], [`parent_process`], [`is_child`] |
//! | exit of a process | [`ExitStatus`], [`Signal`], [`ExitDetail`]; [`ProcessStatus`], while it runs |
//! | another program, in any language, that shares memory | [`ProcessBuilder::guest`], [`guest`], [`GuestError`] |
//! | processes started by a shared library, in any program that loads it | [`set_command`], [`export_child_main!`] |
//!
//! # Ctrl-C and SIGTERM
//! A terminal sends SIGINT to all processes of a program at once, and a service manager SIGTERM.
//! [`Interrupt`] is an option of a worker's start that sets the effect of both signals, or of one of them
//! ([`InterruptSignals`]):
//!
//! | | worker | parent |
//! |---|---|---|
//! | [`Default`](Interrupt::Default) | killed by the signal | killed too; or it handles the signal, and `join` reports that the signal killed the worker |
//! | [`Ignore`](Interrupt::Ignore) | continues | decides: it closes a queue, terminates the worker, or ends together with it |
//! | [`Graceful`](Interrupt::Graceful) | [`interrupted`] is true, and blocking calls return `Interrupted`; the worker finishes and returns | as in the worker; `join` returns values, or one error; a second signal kills all |
//!
//! A SIGTERM that the parent sends (`terminate`) always kills a worker. docs/production.md contains a
//! service that stops gracefully.
//!
//! `PoolBuilder::interrupt` sets the effect on the workers of a pool. With `Graceful`, tasks that have not
//! begun return an error, and the pool continues with workers that were not interrupted.
//!
//! With these settings, a pipeline drains: its source is interrupted and stops, and its other stages ignore
//! Ctrl-C and work until their queue is closed. The example `ctrl_c` in a terminal:
//!
//! ```text
//! $ cargo run --release --example ctrl_c
//! making squares; Ctrl-C ends it
//! 330429 squares ^C
//! Ctrl-C: draining
//! 330496 numbers made, 330496 squares taken, nothing lost
//! $ echo $?
//! 0
//! ```
//!
//! A signal that is sent while a worker starts is delivered after the worker has applied its [`Interrupt`].
//! (A fork server ignores the signal, and so do its children until that moment.) `Ctrl-\` sends SIGQUIT,
//! which kills all processes at once.

#[doc(no_inline)]
pub use crate::{
    Closure, Process, ProcessContext, SpawnError, SpawnOptions, StartMethod, active_children, closure,
    cpu_count, current_process, get_context, init, is_child, parent_process, rank, set_start_method, spawn,
    start_processes,
};
#[cfg(feature = "authkey")]
pub use mp_core::AuthKey;
#[doc(hidden)]
pub use mp_spawn::guest_by;
#[cfg(feature = "log")]
pub use mp_spawn::log_to_stderr;
pub use mp_spawn::{
    ActiveChild, Argument, Backoff, Capture, CapturedOutput, CapturesNothing, CurrentProcess, ExitDetail,
    ExitStatus, FailedAttempt, FunctionError, GaveUp, GaveUpReason, GuestError, Interrupt, InterruptSignals,
    LaunchError, Limits, OnFailure, ParentProcess, ProcessBuilder, ProcessEvent, ProcessExited, ProcessName,
    ProcessOptions, ProcessRaised, ProcessStatus, RaisedKind, ResourceLimit, Restart, Signal, StartContext,
    StateClosure, Stdio, Supervised, UnknownStartMethod, Unsupervised, allow_fork, detach, export_child_main,
    get_all_start_methods, get_start_method, guest, interrupted, name, parent_pid, set_command,
    set_executable, set_fork_hook, set_forkserver_preload, set_thread_name, start_closure, take_interrupt,
    thread_name,
};
