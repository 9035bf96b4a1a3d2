//! The fork server as the process that started it sees it.
//!
//! The process for the next start is made ahead: as soon as one has got its orders, the server is asked for another, which
//! waits for its own while the first one works. So who starts a process waits neither for the kernel to copy the server nor
//! for the server to be woken.
//!
//! | dies | what happens |
//! |---|---|
//! | the server, idle | it is reaped at once; the next start fails and says how it ended, the one after begins another |
//! | the server, while it calls what is preloaded | the start that waits for it fails and says how it ended, the next one begins another |
//! | the server, asked for a process | that start, or the next one if it was asked ahead, fails; if the process was made already, it is ended and reaped |
//! | the server, and one waits that was made ahead | the latter waits until the next start fails, or the server is replaced: then it is ended and reaped |
//! | a process that was made ahead and waits | the next start finds it, if it has ended by then, reaps it and asks for another; else it fails as any other |
//! | a process that was started | as any other: it is a child of this process, and its sentinel is exact |
//! | this process | the server and all processes end with it, also the one that waits |
//!
//! A server that is stopped delays the starts that need it, at most for [`Options::handshake_timeout`] each; then it is
//! ended, as a process that does not report is. (One that waits for a disk, or has had no processor, gets that time a few times
//! more: its successor would have to wait as well.) That it is a server, a new one has to say in that time, too. What it is to
//! preload it calls then, and that is waited for as long as it lives: loading what takes long is what preloading is for. Only one
//! that is found stopped when that time is over, and has still not moved when it is over again, is ended. Whoever waits has the
//! log told what it waits for, once.
//!
//! [`Options::handshake_timeout`]: crate::Options::handshake_timeout

use std::time::Duration;

use mp_core::fork::{GENERATIONS, PerProcess};
use mp_core::mutex::Mutex;

use crate::error::Result;
use crate::event::event;
use crate::function::{FunctionRef, Preloaded};
use crate::launch::{Command, Launched, failed};
use crate::outbox::Outbox;
use crate::server::{GONE, Server};
use crate::start;

static SERVER: PerProcess<Mutex<Option<Server>>> = PerProcess::new([const { Mutex::new(None) }; GENERATIONS]);
static PRELOAD: PerProcess<Mutex<Option<FunctionRef>>> =
    PerProcess::new([const { Mutex::new(None) }; GENERATIONS]);

/// What fork servers call once when they start, before they make processes. It takes effect at the next start by
/// [`StartMethod::ForkServer`](crate::StartMethod::ForkServer): a server that runs already is ended, and the process that it has made
/// ahead; those that were started are not.
///
/// ```
/// use mp_spawn::{Options, StartMethod, set_forkserver_preload, start_processes};
/// use std::sync::OnceLock;
///
/// static TABLE: OnceLock<Vec<u64>> = OnceLock::new();
///
/// // Computed once, and there in every process.
/// set_forkserver_preload(|| _ = TABLE.set((0..1000).map(|n| n * n).collect()))?;
/// let worker = |rank: usize, (): ()| Ok::<_, String>(TABLE.get().ok_or("it is not there")?[rank]);
/// let options = Options::nprocs(3).start_method(StartMethod::ForkServer);
/// assert_eq!(start_processes(worker, (), options)?.join()?, [0, 1, 4]);
/// # Ok::<(), mp_spawn::SpawnError>(())
/// ```
///
/// What it leaves in memory, each process has a copy of. It must leave no thread running, make no shared memory (tensors,
/// queues) and not use a GPU: the first two make the start fail, and say so. If it panics, the start fails with its
/// message; if it ends the server, with how that ended.
///
/// # Blocking
///
/// The first start by a server waits until what it preloads has returned, however long that takes, and other starts by it wait
/// with that one; so does this function, if one waits. [`Options::handshake_timeout`](crate::Options::handshake_timeout) bounds
/// only how long the server may take before it, and how long it may be stopped meanwhile. If it takes longer than that time,
/// the log is told so (feature `log`), with the server's process id: whoever kills that process has the start fail.
///
/// # Errors
///
/// [`SpawnError::Launch`](crate::SpawnError::Launch) if nothing tells this program's build from others.
pub fn set_forkserver_preload<F: Fn() + Copy + Send + 'static>(function: F) -> Result<()> {
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

/// Starts a process: takes the one that was made ahead, or asks the server, which is started first if there is none. From any
/// thread.
pub(crate) fn launch(command: &Command, outbox: &mut Outbox, patience: Duration) -> Result<Launched> {
    let mut slot = SERVER.lock();
    let Found { mut server, is_new } = running(slot.take(), command, patience)?;
    let begun = is_new.then_some(server.pid());
    let launched = match server.start(outbox, patience) {
        Ok(launched) => launched,
        Err(why) => return Err(failed("the fork server", None, server.bury(&why))),
    };
    let lost = server.lost();
    *slot = Some(server);
    drop(slot);
    if let Some(pid) = lost {
        event!(Warn, "a process that was made ahead (pid {pid}) had ended before it was needed");
    }
    if let Some(pid) = begun {
        event!(Debug, "a fork server (pid {pid}) was started");
    }
    launched
}

/// A server to ask.
struct Found {
    server: Server,
    is_new: bool,
}

/// The server of this program, or a new one.
fn running(server: Option<Server>, command: &Command, patience: Duration) -> Result<Found> {
    if let Some(server) = server.filter(|server| server.is_of(command)) {
        return if server.has_ended() {
            Err(failed("the fork server", None, server.bury(GONE)))
        } else {
            Ok(Found { server, is_new: false })
        };
    }
    Ok(Found { server: Server::begin(command, preload(), patience)?, is_new: true })
}
