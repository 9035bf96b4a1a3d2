//! Parent side of the fork server.
//!
//! The process for the next start is made in advance: as soon as a process has got its start message, the
//! server makes another process, which waits for the next start message. So a caller that starts a process
//! waits neither for the kernel to copy the server nor for the server to be woken.
//!
//! | ends or is killed | result |
//! |---|---|
//! | the server, idle | the server is reaped at once; the next start begins another server, and logs that |
//! | the server, killed before it is ready | the start that waits for it begins another server |
//! | the server, exited by itself before it is ready | the start that waits for it fails with the server's exit status: another server would do the same |
//! | the server, while it calls the preloaded function | the start that waits for it fails with the server's exit status; the next start begins another server |
//! | the server, asked for a process | the start that asked (for a request in advance, the next start) begins another server; a process that was made already is ended and reaped |
//! | the server, while a process waits that was made in advance | the process waits until the next start, which replaces the server: then the process is ended and reaped |
//! | several servers in one start | after the fifth, the start fails with the exit status of that server |
//! | a process that was made in advance and waits | if it has ended by the next start, that start reaps it and requests another process; otherwise its end is the failure of a started process |
//! | a started process | reported like the end of any child of this process; its sentinel is exact |
//! | this process | the server and all of its copies end with this process, including a waiting copy |
//!
//! Ctrl-C ends neither the server nor the process that waits: see
//! [`child::fork_server`](crate::child::fork_server).
//!
//! A server that is stopped delays the starts that need it, at most for [`SpawnOptions::handshake_timeout`]
//! each. After that it is ended, like a process that does not report. (A server that waits for a disk, or has
//! had no processor, gets that time a few more times: its successor would have to wait as well.) A new server
//! must report that it is ready in that time, too. Then it calls its preloaded function, and a start waits
//! for that as long as the server lives, because preloading is meant for slow loading. Such a server is ended
//! only if it is stopped at two successive deadlines, and has not run between them. A start that waits logs
//! the reason, once.
//!
//! [`SpawnOptions::handshake_timeout`]: crate::SpawnOptions::handshake_timeout

pub(crate) mod connection;
pub(crate) mod deadline;
mod pending_child;

use std::time::Duration;

use mp_core::fork::PerProcess;
use mp_core::mutex::Mutex;

use crate::bounds::CapturesNothing;
use crate::error::{ExitStatus, Result};
use crate::parent::fork_server::connection::{EndedServer, ForkServer, ServerFailure};
use crate::parent::launch::command::LaunchCommand;
use crate::parent::launch::{LaunchedProcess, preload, set_preload};
use crate::protocol::function::PreloadFunction;
use crate::protocol::outbox::Outbox;
use crate::sys::log_event::event;

/// Name of the failed step in errors about fork servers.
const WHAT: &str = "the fork server";

static SERVER: PerProcess<Mutex<Option<ForkServer>>> = mp_core::per_process!(Mutex::new(None));

/// Sets the function that fork servers call once when they start, before they create processes. The setting
/// takes effect at the next start by [`StartMethod::ForkServer`](crate::StartMethod::ForkServer). A running
/// server is ended, and so is the process that it keeps ready for the next start. Started processes continue.
///
/// ```
/// use mp_spawn::{SpawnOptions, StartMethod, set_forkserver_preload, start_processes};
/// use std::sync::OnceLock;
///
/// static TABLE: OnceLock<Vec<u64>> = OnceLock::new();
///
/// // Computed once, and present in every process.
/// set_forkserver_preload(|| _ = TABLE.set((0..1000).map(|n| n * n).collect()))?;
/// let worker = |rank: usize, (): ()| Ok::<_, String>(TABLE.get().ok_or("it is not there")?[rank]);
/// let options = SpawnOptions::nprocs(3).start_method(StartMethod::ForkServer);
/// assert_eq!(start_processes(worker, (), options)?.join()?, [0, 1, 4]);
/// # Ok::<(), mp_spawn::SpawnError>(())
/// ```
///
/// Each process has a copy of the data that the function leaves in memory. The function must leave no thread
/// running, make no shared memory (tensors, queues) and not use a GPU. A thread or shared memory makes the
/// start fail with an error that names the reason. If the function panics, the start fails with its message.
/// If the function ends the server, the start fails with the exit status of the server.
///
/// # Blocking
///
/// The first start by a server blocks until the preloaded function has returned, however long that takes.
/// Meanwhile other starts by the server block, and so does `set_forkserver_preload`.
/// [`SpawnOptions::handshake_timeout`](crate::SpawnOptions::handshake_timeout) bounds only the time before
/// the server calls the function, and the time for which the server may be stopped during the call. If the
/// function takes longer than that time, the log gets a warning (feature `log`) with the server's process id:
/// killing that process makes the start fail.
///
/// # Errors
///
/// Returns [`SpawnError::Launch`](crate::SpawnError::Launch) if this program's build can't be identified.
pub fn set_forkserver_preload<F: Fn() + CapturesNothing>(function: F) -> Result<()> {
    // Only the type of `function` is needed: it identifies the function.
    let _ = function;
    set_preload(Some(PreloadFunction::<F>::DESC.start_reference()?));
    let old = SERVER.lock().take();
    drop(old);
    Ok(())
}

/// Number of dead servers in succession that one start replaces. After that the start fails, because
/// something kills the servers.
const MAX_DEAD: usize = 4;

/// Starts a process: takes the process that was made in advance, or requests one from the server. If there is
/// no server, or it has died, starts a server first. May be called from any thread.
pub(crate) fn launch(
    command: &LaunchCommand,
    outbox: &mut Outbox,
    timeout: Duration,
) -> Result<LaunchedProcess> {
    let mut slot = SERVER.lock();
    let mut dead: Vec<EndedServer> = Vec::new();
    let (server, begun, launched) = loop {
        let (mut server, begun) = match slot.take().filter(|server| server.is_started_by(command)) {
            Some(server) if server.has_ended() => {
                dead.push(server.shut_down(WHAT, &ServerFailure::Gone));
                continue;
            }
            Some(server) => (server, None),
            None => match ForkServer::start(command, preload(), timeout)? {
                Ok(server) => {
                    let pid = server.pid();
                    (server, Some(pid))
                }
                Err(buried) if buried.is_replaceable && dead.len() < MAX_DEAD => {
                    dead.push(buried);
                    continue;
                }
                Err(buried) => return Err(buried.error),
            },
        };
        // If this fails, no process has got the start message.
        match server.start_process(outbox, timeout) {
            Ok(launched) => break (server, begun, launched),
            Err(why) => {
                let buried = server.shut_down(WHAT, &why);
                if !buried.is_replaceable || dead.len() == MAX_DEAD {
                    return Err(buried.error);
                }
                dead.push(buried);
            }
        }
    };
    let server = slot.insert(server);
    let lost = server.take_lost();
    drop(slot);
    for EndedServer { pid, exit, .. } in dead {
        let exit = exit.unwrap_or(ExitStatus::Unknown);
        event!(Warn, "a fork server (pid {pid}) {exit}, and another one takes its place");
    }
    if let Some(pid) = lost {
        event!(Warn, "a process that was made ahead (pid {pid}) had ended before it was needed");
    }
    if let Some(pid) = begun {
        event!(Debug, "a fork server (pid {pid}) was started");
    }
    launched
}
