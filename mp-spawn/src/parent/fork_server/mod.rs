//! The fork server as the process that started it sees it.
//!
//! The process for the next start is made ahead: as soon as one has got its start message, the server is asked for another,
//! which waits for its own while the first one works. So a caller that starts a process waits neither for the kernel to copy
//! the server nor for the server to be woken.
//!
//! | ends or is killed | what happens |
//! |---|---|
//! | the server, idle | it is reaped at once; the next start begins another, and logs it |
//! | the server, killed before it is one | the start that waits for it begins another |
//! | the server, ended by itself before it is one | the start that waits for it fails and says how it ended: another would do the same |
//! | the server, while it calls what is preloaded | the start that waits for it fails and says how it ended, the next one begins another |
//! | the server, asked for a process | that start, or the next one if it was asked ahead, begins another; if the process was made already, it is ended and reaped |
//! | the server, and one waits that was made ahead | the latter waits until the next start, which replaces the server: then it is ended and reaped |
//! | several servers in one start | after the fifth, the start fails and says how that one ended |
//! | a process that was made ahead and waits | the next start finds it, if it has ended by then, reaps it and asks for another; else it fails as any other |
//! | a process that was started | as any other: it is a child of this process, and its sentinel is exact |
//! | this process | the server and all processes end with it, also the one that waits |
//!
//! Ctrl-C ends neither the server nor the process that waits: see [`child::fork_server`](crate::child::fork_server).
//!
//! A server that is stopped delays the starts that need it, at most for [`SpawnOptions::handshake_timeout`] each; then it is
//! ended, as a process that does not report is. (One that waits for a disk, or has had no processor, gets that time a few
//! times more: its successor would have to wait as well.) A new server has to report that it is one in that time, too. Then
//! it calls what it is to preload, and a start waits for that as long as the server lives: slow loading is what preloading is
//! for. Only a server that is found stopped when that time is over, and has still not moved when it is over again, is ended.
//! A start that waits logs, once, what it waits for.
//!
//! [`SpawnOptions::handshake_timeout`]: crate::SpawnOptions::handshake_timeout

pub(crate) mod connection;
pub(crate) mod deadline;

use std::time::Duration;

use mp_core::fork::{GENERATIONS, PerProcess};
use mp_core::mutex::Mutex;

use crate::bounds::CapturesNothing;
use crate::error::Result;
use crate::error::exit_status::ExitStatus;
use crate::parent::fork_server::connection::{Buried, Server, Trouble};
use crate::parent::launch::{Command, Launched};
use crate::parent::start;
use crate::protocol::function::{FunctionRef, Preloaded};
use crate::protocol::outbox::Outbox;
use crate::sys::log_event::event;

/// What was attempted, as errors say it.
const WHAT: &str = "the fork server";

static SERVER: PerProcess<Mutex<Option<Server>>> = PerProcess::new([const { Mutex::new(None) }; GENERATIONS]);
static PRELOAD: PerProcess<Mutex<Option<FunctionRef>>> =
    PerProcess::new([const { Mutex::new(None) }; GENERATIONS]);

/// What fork servers call once when they start, before they make processes. It takes effect at the next start by
/// [`StartMethod::ForkServer`](crate::StartMethod::ForkServer): a server that runs already is ended, and the process that it
/// has made ahead; those that were started are not.
///
/// ```
/// use mp_spawn::{SpawnOptions, StartMethod, set_forkserver_preload, start_processes};
/// use std::sync::OnceLock;
///
/// static TABLE: OnceLock<Vec<u64>> = OnceLock::new();
///
/// // Computed once, and there in every process.
/// set_forkserver_preload(|| _ = TABLE.set((0..1000).map(|n| n * n).collect()))?;
/// let worker = |rank: usize, (): ()| Ok::<_, String>(TABLE.get().ok_or("it is not there")?[rank]);
/// let options = SpawnOptions::nprocs(3).start_method(StartMethod::ForkServer);
/// assert_eq!(start_processes(worker, (), options)?.join()?, [0, 1, 4]);
/// # Ok::<(), mp_spawn::SpawnError>(())
/// ```
///
/// Each process has a copy of what it leaves in memory. It must leave no thread running, make no shared memory (tensors,
/// queues) and not use a GPU: the first two make the start fail with an error that says so. If it panics, the start fails
/// with its message; if it ends the server, with how that ended.
///
/// # Blocking
///
/// The first start by a server waits until what it preloads has returned, however long that takes, and other starts by
/// it wait with that one; so does this function, if one waits.
/// [`SpawnOptions::handshake_timeout`](crate::SpawnOptions::handshake_timeout) bounds only how long the server may take
/// before it, and how long it may be stopped meanwhile. If it takes longer than that time, the log gets a warning
/// (feature `log`) with the server's process id: killing that process makes the start fail.
///
/// # Errors
///
/// [`SpawnError::Launch`](crate::SpawnError::Launch) if this program's build can't be told from others.
pub fn set_forkserver_preload<F: Fn() + CapturesNothing>(function: F) -> Result<()> {
    // Only its type is needed, which says which function it is.
    let _ = function;
    *PRELOAD.lock() = Some(start::reference(Preloaded::<F>::DESC)?);
    let old = SERVER.lock().take();
    drop(old);
    Ok(())
}

/// What [`set_forkserver_preload`] has set.
pub(crate) fn preload() -> Option<FunctionRef> {
    PRELOAD.lock().clone()
}

/// In a copy of the process that has set it.
pub(crate) fn inherit_preload(preload: Option<FunctionRef>) {
    *PRELOAD.lock() = preload;
}

/// How many servers in succession one start may find or see crashed: then something kills them, and the start fails.
const MOST_DEAD: usize = 4;

/// Starts a process: takes the one that was made ahead, or asks the server, which is started first if there is none, and anew
/// if it has died. From any thread.
pub(crate) fn launch(command: &Command, outbox: &mut Outbox, timeout: Duration) -> Result<Launched> {
    let mut slot = SERVER.lock();
    let mut dead: Vec<Buried> = Vec::new();
    let (server, begun, launched) = loop {
        let (mut server, begun) = match slot.take().filter(|server| server.is_of(command)) {
            Some(server) if server.has_ended() => {
                dead.push(server.bury(WHAT, &Trouble::Gone));
                continue;
            }
            Some(server) => (server, None),
            None => match Server::begin(command, preload(), timeout)? {
                Ok(server) => {
                    let pid = server.pid();
                    (server, Some(pid))
                }
                Err(buried) if buried.is_replaceable && dead.len() < MOST_DEAD => {
                    dead.push(buried);
                    continue;
                }
                Err(buried) => return Err(buried.error),
            },
        };
        // If this fails, no process has got the start message.
        match server.start(outbox, timeout) {
            Ok(launched) => break (server, begun, launched),
            Err(why) => {
                let buried = server.bury(WHAT, &why);
                if !buried.is_replaceable || dead.len() == MOST_DEAD {
                    return Err(buried.error);
                }
                dead.push(buried);
            }
        }
    };
    let server = slot.insert(server);
    let lost = server.lost();
    drop(slot);
    for Buried { pid, exit, .. } in dead {
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
