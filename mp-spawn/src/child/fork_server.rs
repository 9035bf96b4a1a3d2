//! Fork server: a process with one thread that copies itself on request.
//!
//! The server is this program, started again, and only waits for requests. Each copy is a child of the
//! process that requested it (see [`clone`](crate::child::clone)) and gets a socket to that process. The copy
//! waits for its start message there, and becomes a worker like any other. The server has no shared memory,
//! so a copy joins the shared memory like an executed process.
//!
//! The server ignores SIGINT, which a terminal sends to all processes of a program at Ctrl-C. It also ignores
//! SIGTERM from any process but its parent, because a service manager sends SIGTERM to all processes of a
//! program. The program decides whether to end, and the server ends with it. A copy ignores the same signals
//! until it has its start message. Then it handles both signals like any worker.

use std::io::{self, Write as _};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::OnceLock;

use mp_core::Arena;

use crate::child::clone::{self, CloneSide, PidCell, SingleThreadProof};
use crate::child::main::FrameReader;
use crate::error::{CallFailure, EXIT_USELESS, os_limit};
use crate::protocol::frame::{self, Frame, FrameKind};
use crate::protocol::function::{self, FunctionRef, PreloadFn};
use crate::protocol::lifeline;
use crate::protocol::message::ServerAnswer;
use crate::protocol::token::{Token, TokenTarget};
use crate::sys::{self, send_all};

/// Function that is called around each copy: see [`set_fork_hook`].
type ForkHook = fn(&mut dyn FnMut() -> bool);

/// Hook of this process. Set once, by a host that is loaded before it becomes a fork server.
// fork: a function of the program, which its copies have as well.
static HOOK: OnceLock<ForkHook> = OnceLock::new();

/// Sets a function that this process calls around each copy, if it is a [fork
/// server](crate::StartMethod::ForkServer). Only the first call in a process has an effect.
///
/// ```
/// mp_spawn::set_fork_hook(|copy| {
///     // ... whatever an interpreter does before it is copied
///     let is_copy = copy();
///     // ... and afterwards, in the server or in its copy
///     # let _ = is_copy;
/// });
/// ```
///
/// For hosts that have state of their own in each process, such as interpreters (`PyOS_BeforeFork` and
/// related functions). The hook must call its argument once. That call returns `true` in the copy, and
/// `false` in the server. The hook must not start threads, and must not unwind.
pub fn set_fork_hook(hook: fn(&mut dyn FnMut() -> bool)) {
    _ = HOOK.set(hook);
}

/// Copies this process, inside a call of the host's hook if one is set.
fn copy(single_thread: &SingleThreadProof, pid_cell: &PidCell) -> io::Result<CloneSide> {
    let Some(hook) = HOOK.get() else { return clone::make(single_thread, pid_cell) };
    let mut made = Err(io::Error::other("the hook around copies made none"));
    hook(&mut || {
        // The host has run code since the last check.
        made = SingleThreadProof::check().and_then(|checked| match checked {
            Some(single_thread) => clone::make(&single_thread, pid_cell),
            None => Err(io::Error::other("the hook around copies has started threads")),
        });
        matches!(made, Ok(CloneSide::Sibling))
    });
    made
}

/// Token and socket of a copy, which is to become a worker.
pub(crate) struct ForkedChild {
    pub(crate) token: Token,
    /// Socket to the process that requested the copy.
    pub(crate) socket: OwnedFd,
    /// `true` if the copy ignores interrupts, regardless of its start message.
    pub(crate) ignores_interrupts: bool,
}

/// Serves requests until the parent has ended. Then returns `None`. If the process is `unfit`, reports the
/// reason and returns `None`. In each copy, returns the copy's token and socket.
pub(crate) fn serve(
    parent: u32,
    socket: &OwnedFd,
    fds: &[OwnedFd],
    preload: Option<&FunctionRef>,
    unfit: Option<&String>,
) -> io::Result<Option<ForkedChild>> {
    // Interrupts are blocked since the start of the process. Its copies ignore them, too, until they have
    // their start message.
    let ignores_interrupts = sys::ignore_interrupts();
    sys::ignore_foreign_sigterm();
    sys::unblock_interrupts();
    let [pid_cell] = fds else { return Err(io::Error::other("the fork server got no pid cell")) };
    let pid_cell = PidCell::map(pid_cell.as_fd())?;
    // Shown by `ps`.
    sys::name_thread("mp-forkserver");
    let prepared = unfit.map_or_else(|| prepare(socket, preload), |why| Ok(Err(why.clone())))?;
    let single_thread = match prepared {
        Ok(single_thread) => single_thread,
        Err(message) => {
            send_answer(socket, &ServerAnswer::Failed(message))?;
            return Ok(None);
        }
    };
    send_answer(socket, &ServerAnswer::Done)?;
    let mut source = FrameReader::new(socket);
    let mut last = None;
    loop {
        let Frame { kind, payload } = match source.next() {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            frame => frame?,
        };
        match kind {
            FrameKind::Fork => {}
            FrameKind::Ask => {
                send_answer(socket, last.as_ref().ok_or_else(|| io::Error::other("nothing was asked for"))?)?;
                continue;
            }
            kind => {
                return Err(io::Error::other(format!(
                    "a fork server has no use for a frame of kind {kind:?}"
                )));
            }
        }
        let nonce = payload.try_into().map(u64::from_le_bytes);
        let mut fds = source.take_fds().into_iter();
        let (Ok(nonce), Some(mine)) = (nonce, fds.next()) else {
            return Err(io::Error::other("a request for a process has a number and a socket"));
        };
        last = Some(match copy(&single_thread, &pid_cell) {
            Ok(CloneSide::Sibling) => {
                if preload.is_none() {
                    // No code of the user has run.
                    mp_core::fork::record_clean_copy();
                }
                let token = name_next_worker(parent, nonce, &mine);
                if fds.next().is_some_and(|end| !lifeline::hold(end)) {
                    // The parent has ended already.
                    sys::exit_at_once(EXIT_USELESS);
                }
                return Ok(Some(ForkedChild { token, socket: mine, ignores_interrupts }));
            }
            Ok(CloneSide::Original) => ServerAnswer::Done,
            Err(error) => ServerAnswer::Refused(error.raw_os_error().unwrap_or(0)),
        });
    }
}

/// Calls the preloaded function, once for all copies. The inner error is the reason why this process can't be
/// copied.
fn prepare(socket: &OwnedFd, preload: Option<&FunctionRef>) -> io::Result<Result<SingleThreadProof, String>> {
    if let Some(preload) = preload {
        let desc = match function::resolve::<PreloadFn>(preload) {
            Ok(desc) => desc,
            Err(refusal) => return Ok(Err(refusal.to_string())),
        };
        send_answer(socket, &ServerAnswer::Preloading)?;
        // With a hook, attempts to create shared memory fail, so that the host can continue without the code
        // that needs it.
        let called = match HOOK.get() {
            Some(_) => mp_core::fork::with_creation_refused(|| CallFailure::catch(desc.entry)),
            None => CallFailure::catch(desc.entry),
        };
        if let Err(failure) = called {
            return Ok(Err(format!("{} panicked: {}", preload.name, failure.message())));
        }
        // Otherwise each copy would print the contents of the buffer.
        let _ = std::io::stdout().flush();
    }
    Ok(single_thread())
}

/// Checks that this process can be copied: one thread, and no shared memory.
fn single_thread() -> Result<SingleThreadProof, String> {
    let what = "the preloaded function must not do that: the processes would be copies of it";
    if Arena::get().is_some() {
        return Err(format!("it has made shared memory, and {what}"));
    }
    let single_thread = SingleThreadProof::check()
        .map_err(|error| format!("its threads can't be counted: {}", os_limit::of_proc(error)))?;
    single_thread.ok_or_else(|| format!("it has started threads, and {what}"))
}

/// Turns this copy into a process that waits for its start message. Returns the copy's token.
fn name_next_worker(parent: u32, nonce: u64, socket: &OwnedFd) -> Token {
    // Only the server calls the exit handlers that the program and the preloaded function have registered.
    sys::skip_exit_handlers_so_far();
    sys::name_thread("mp-next-worker");
    Token { fd: socket.as_raw_fd(), parent, nonce, taker: TokenTarget::Program }
}

fn send_answer(socket: &OwnedFd, answer: &ServerAnswer) -> io::Result<()> {
    let payload = rmp_serde::to_vec(answer).map_err(io::Error::other)?;
    let mut bytes = Vec::new();
    frame::append(&mut bytes, FrameKind::Answer, &payload).map_err(io::Error::other)?;
    send_all(socket, &bytes)
}
