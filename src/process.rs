//! Worker processes: how they are started, what they are started with, and how they end.
//!
//! ```
//! use mp::process::Stdio;
//! use mp::{Process, SpawnError, SpawnOptions};
//!
//! let double = |rank: usize, n: u32| Ok::<_, String>(n * 2 + rank as u32);
//! let workers = mp::start_processes(double, 20, SpawnOptions::nprocs(2))?;
//! assert_eq!(workers.join()?, [40, 41]); // what they returned
//!
//! let child = Process::builder().name("loader").stdout(Stdio::Capture).spawn(|n: u32| println!("{n} files"), 3)?;
//! child.join()?;
//! assert_eq!(child.stdout().text(), "3 files\n");
//!
//! let error = Process::spawn(|(): ()| std::process::exit(3), ())?.join().unwrap_err();
//! assert!(matches!(error, SpawnError::ProcessExited(_)));
//! # Ok::<(), SpawnError>(())
//! ```
//!
//! The three types to know: [`ProcessContext`], the processes of one start; [`Process`], a single one; [`SpawnError`], how one
//! failed, with a table of all the ways.
//!
//! | | |
//! |---|---|
//! | what to start them with | [`SpawnOptions`], for all; [`ProcessOptions`], for one; [`ProcessBuilder`]; [`Stdio`], [`OnFailure`] |
//! | again, when one has ended | [`ProcessBuilder::restart`], [`Restart`], [`Backoff`], [`ProcessEvent`], [`GaveUp`] |
//! | Ctrl-C, SIGTERM | [`Interrupt`], [`InterruptSignals`], [`interrupted`], [`take_interrupt`] |
//! | how | [`StartMethod`], [`set_start_method`], [`get_context`], [`allow_fork`], [`set_forkserver_preload`] |
//! | functions with captures | [`closure!`](crate::closure), [`Closure`], [`start_closure`] |
//! | what functions may capture and take | nothing ([`CapturesNothing`]); what each process can get a copy of ([`Argument`]) |
//! | what functions may return | [`IntoOutcome`](crate::message::IntoOutcome) |
//! | in a worker | [`rank`], [`name`], [`current_process`], [`parent_process`], [`is_child`] |
//! | how one ended | [`ExitStatus`], [`Signal`], [`ExitDetail`]; [`ProcessStatus`], while it runs |
//! | in a shared library, for any host | [`set_command`], [`export_child_main!`] |
//!
//! # Ctrl-C and SIGTERM
//! A terminal sends SIGINT to all processes of a program at once, a service manager SIGTERM. The start of a worker sets their
//! effect ([`Interrupt`]), for both or one of them ([`InterruptSignals`]):
//!
//! | | worker | parent |
//! |---|---|---|
//! | [`Default`](Interrupt::Default) | ends, by the signal | ends too; or it handles the signal, and `join` says that the worker was killed by it |
//! | [`Ignore`](Interrupt::Ignore) | goes on | decides: it closes a queue, ends the worker, or ends, and the worker with it |
//! | [`Graceful`](Interrupt::Graceful) | [`interrupted`] is true, waits for what isn't there end with `Interrupted`; it finishes and returns | likewise; `join` returns values, or one error; a second signal ends all |
//!
//! A SIGTERM that the parent sends is `terminate`, and ends a worker always. docs/production.md has a service that stops gracefully.
//!
//! The workers of a pool likewise, by `PoolBuilder::interrupt`: with `Graceful` its tasks that have not begun end with an error, and it
//! goes on with workers that were not interrupted.
//!
//! So a pipeline drains: its source is told and stops, its other stages ignore Ctrl-C and work until their queue is closed. This is
//! the example `ctrl_c` in a terminal:
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
//! No signal is too early: one that comes while a worker is being started waits until that has set its effect. (A fork
//! server, and what it starts, ignore it until then.) (`Ctrl-\` sends SIGQUIT, which ends all of them, at once.)

#[doc(no_inline)]
pub use crate::{
    Closure, Process, ProcessContext, SpawnError, SpawnOptions, StartMethod, active_children, closure,
    cpu_count, current_process, get_context, init, is_child, parent_process, rank, set_start_method, spawn,
    start_processes,
};
#[cfg(feature = "authkey")]
pub use mp_core::AuthKey;
#[cfg(feature = "log")]
pub use mp_spawn::log_to_stderr;
pub use mp_spawn::{
    ActiveChild, Argument, Backoff, Capture, CapturedOutput, CapturesNothing, CurrentProcess, ExitDetail,
    ExitStatus, FailedAttempt, FunctionError, GaveUp, GaveUpReason, Interrupt, InterruptSignals, LaunchError,
    Limits, OnFailure, ParentProcess, ProcessBuilder, ProcessEvent, ProcessExited, ProcessName,
    ProcessOptions, ProcessRaised, ProcessStatus, RaisedKind, ResourceLimit, Restart, Signal, StartContext,
    StateClosure, Stdio, Supervised, UnknownStartMethod, Unsupervised, allow_fork, detach, export_child_main,
    get_all_start_methods, get_start_method, interrupted, name, parent_pid, set_command, set_executable,
    set_forkserver_preload, set_thread_name, start_closure, take_interrupt, thread_name,
};
