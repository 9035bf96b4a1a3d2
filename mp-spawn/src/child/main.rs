//! Execution of a child, from its first message to its exit code.
//!
//! A short-lived child spends most of its time on page faults in the program's code. At the first use of each
//! part, the kernel maps 64 KiB of the file, and unmaps them at the end, which takes as long as a dozen
//! system calls. In addition, each page of variables with initial values other than zero is copied. So
//! functions that are called before the user's function are `#[inline]`: the compiler then places them next
//! to their caller, instead of with the rest of their module. For the same reason some code replaces library
//! functions ([`fields`](crate::protocol::fields), `sys::receive`), reserves the capacity that a vector will
//! need, and stores its state in a [`SetOnce`](mp_core::fork::SetOnce).

use std::fs::File;
use std::os::fd::{IntoRawFd, OwnedFd};
use std::panic::{self, AssertUnwindSafe};
use std::{io, thread};

use mp_core::fork::PerProcess;
use mp_core::sync::shared::{AtomicBool, Ordering};
use mp_core::words::Member;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::{Resource, Signal};
use rustix::thread::CpuSet;

use crate::child::current::{self, CurrentProcess, WorkerIdentity};
use crate::child::fork_server::{self, ForkedChild};
use crate::child::{crash_handler, entry, limits, panic_hook, shared_library};
use crate::error::{CallFailure, EXIT_USELESS, os_limit};
use crate::protocol::control_socket::{self, ParentSocket};
use crate::protocol::fields::{from_bytes, to_bytes};
use crate::protocol::frame::{Frame, FrameKind, Inbox};
use crate::protocol::function::{self, FunctionRef};
use crate::protocol::interrupt::{Interrupt, InterruptSignals};
use crate::protocol::message::{EnvironmentChanges, Hello, InheritedSettings, StartMessage};
use crate::protocol::outbox::ReceivedFiles;
use crate::protocol::payload::{ParentPayload, shared_memory};
use crate::protocol::report::Report;
use crate::protocol::token::Token;
use crate::protocol::{command, inherited_files, lifeline};
use crate::start_method;
use crate::sys::log_event::event;
use crate::sys::{self, OWN_FDS, pid_number};

/// Exit code after a failure that was reported.
const FAILED: i32 = 1;

/// Becomes the worker that the token names. If `fit` is an error, reports the error to the parent instead.
/// Ends the process by `exit`.
#[inline]
pub(crate) fn main(token: Token, socket: OwnedFd, fit: Result<(), String>) -> ! {
    let code = panic::catch_unwind(|| run_child(token, socket, fit, None)).unwrap_or(EXIT_USELESS);
    std::process::exit(code)
}

/// Prints the reason why this process ends without having become a worker.
pub(crate) fn exit_useless(why: &dyn std::fmt::Display) -> ! {
    eprintln!("mp: process {} was started as a worker and can't be one: {why}", std::process::id());
    std::process::exit(EXIT_USELESS)
}

/// Runs the child and returns its exit code. In a copy of a fork server, which ignores SIGINT at first,
/// `server_ignores` is `Some`: `true` if SIGINT was already ignored when the server started.
#[inline]
fn run_child(
    token: Token,
    mut socket: OwnedFd,
    mut fit: Result<(), String>,
    server_ignores: Option<bool>,
) -> i32 {
    match has_parent(token.parent) {
        Ok(true) => {}
        // The parent was probably killed a moment ago, so there is no parent to report to.
        Ok(false) => return EXIT_USELESS,
        Err(error) => fit = fit.and(Err(os_limit::of_prctl(error))),
    }
    let prepared = occupy_standard_streams().and_then(|()| receive(&socket));
    let (files, changes, start, args) = match prepared {
        Ok(Assignment::Work(work)) => *work,
        Ok(Assignment::Serve(preload, pid_cell)) => {
            match fork_server::serve(token.parent, &socket, &pid_cell, preload.as_ref(), fit.as_ref().err()) {
                // Runs in each copy.
                Ok(Some(ForkedChild { token, socket: mine, ignores_interrupts })) => {
                    drop((socket, pid_cell));
                    return run_child(token, mine, fit, Some(ignores_interrupts));
                }
                Ok(None) => return 0,
                Err(error) => exit_useless(&error),
            }
        }
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return EXIT_USELESS,
        Err(error) => exit_useless(&error),
    };
    handle_interrupts(start.interrupt, start.interrupt_signals, server_ignores);
    let ReceivedFiles { mut memory, mut lifeline, mut ends, inherited } = files;
    if !inherited.is_empty() {
        let own = [&mut memory, &mut lifeline, &mut ends.stdout, &mut ends.stderr].into_iter().flatten();
        let mut own: Vec<_> = own.chain([&mut socket]).collect();
        fit = fit.and(inherited_files::place(inherited, &mut own));
    }
    if lifeline.is_some_and(|end| !lifeline::hold(end)) {
        return EXIT_USELESS;
    }
    entry::change_environment(changes.into_iter());
    if let Err(error) = ends.install() {
        exit_useless(&error);
    }
    sys::ignore_sigpipe();
    let line = match control_socket::open(socket) {
        Ok(line) => line,
        Err(error) => exit_useless(&error),
    };
    let attached = fit.and_then(|()| limits::apply(&start.limits)).and_then(|()| {
        // A process of another user could not join later.
        let now = args.need_memory() || start.limits.changes_user();
        let attached = shared_memory::child_attach(memory, now, report_joined);
        attached.map_err(|error| format!("joining the shared memory failed: {error}"))
    });
    let attached = attached.and_then(|member| limits::change_user(&start.limits).map(|()| member));
    // When the user of a process changes, the kernel clears its parent-death signal.
    if start.limits.changes_user() && has_parent(token.parent) != Ok(true) {
        return EXIT_USELESS;
    }
    let member = attached.as_ref().ok().copied().flatten();
    let hello = Hello { nonce: token.nonce, member };
    if line.send_bytes(FrameKind::Hello, &to_bytes(&hello)).is_err() {
        return EXIT_USELESS;
    }
    match attached {
        Ok(_) => work(line, token.parent, start, args),
        Err(why) => send_report(line, &Report::Unable(why)),
    }
}

/// Sets the effect of SIGINT and SIGTERM. A signal that arrived before this call takes effect during the
/// call.
#[inline]
pub(super) fn handle_interrupts(
    interrupt: Interrupt,
    signals: InterruptSignals,
    server_ignores: Option<bool>,
) {
    if interrupt == Interrupt::Default && server_ignores.is_none() {
        return;
    }
    if !server_ignores.unwrap_or_else(sys::ignores_interrupts) {
        match interrupt.effect_on(libc::SIGINT, signals) {
            Interrupt::Default => sys::restore_default(libc::SIGINT),
            Interrupt::Ignore => _ = sys::ignore_interrupts(),
            Interrupt::Graceful => sys::record_interrupts(libc::SIGINT),
        }
    }
    match interrupt.effect_on(libc::SIGTERM, signals) {
        Interrupt::Default => sys::restore_default(libc::SIGTERM),
        Interrupt::Ignore => sys::ignore_foreign_sigterm(),
        Interrupt::Graceful => sys::record_interrupts(libc::SIGTERM),
    }
    sys::unblock_interrupts();
}

/// Reports to the parent that this process has joined the shared memory. When this process ends, the parent
/// then declares it dead. If the parent has ended, nothing is reported.
pub(super) fn report_joined(me: Member) {
    if let Some(line) = control_socket::get() {
        _ = line.send_bytes(FrameKind::Joined, &to_bytes(&(me.raw() as u32)));
    }
}

/// Sends the report, and returns the exit code. If the parent does not read the report, it still gets the
/// exit code.
#[inline]
fn send_report(line: &ParentSocket, report: &Report) -> i32 {
    let sent = match report {
        Report::Done => line.send_bytes(FrameKind::Done, &[]),
        report => line.send(FrameKind::Report, report),
    };
    match report {
        Report::Done => 0,
        // If the report is lost, the value is lost: the parent must not take this for a success.
        Report::Plain(_) => sent.map_or(FAILED, |()| 0),
        // The returned value, or arguments that are sent back, are lost if this process ends before the
        // parent has taken them.
        Report::Value(_) | Report::Unread(..) => {
            let taken = sent.and_then(|()| line.wait()).is_ok();
            if taken && matches!(report, Report::Value(_)) { 0 } else { FAILED }
        }
        _ => FAILED,
    }
}

/// Requests the parent-death signal. Returns `false` if the parent has ended already.
///
/// # Errors
/// Returns an error if the system refuses the request.
#[inline]
pub(crate) fn has_parent(parent: u32) -> Result<bool, Errno> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    Ok(rustix::process::getppid().map(pid_number) == Some(parent))
}

/// Opens `/dev/null` for each standard stream that is closed, as the standard library does before `main`.
/// Otherwise the next file to be opened would become the standard output.
#[inline]
fn occupy_standard_streams() -> io::Result<()> {
    let mut streams = [rustix::stdio::stdin(), rustix::stdio::stdout(), rustix::stdio::stderr()]
        .map(|stream| PollFd::from_borrowed_fd(stream, PollFlags::empty()));
    retry_on_intr(|| rustix::event::poll(&mut streams, Some(&Timespec::default())))?;
    let closed = |stream: &&PollFd<'_>| stream.revents().contains(PollFlags::NVAL);
    for _ in streams.iter().filter(closed) {
        // A new file gets the lowest free number.
        let file = File::options().read(true).write(true).open("/dev/null")?;
        let _stays_open = file.into_raw_fd();
    }
    Ok(())
}

/// Task of a process, as its start message defines it.
#[derive(Debug)]
enum Assignment {
    Work(Box<(ReceivedFiles, EnvironmentChanges, StartMessage, ParentPayload)>),
    /// Runs as a fork server. The fields are the function to preload and the file of the pid cell.
    Serve(Option<FunctionRef>, Vec<OwnedFd>),
}

/// Receives the complete start message, and the file descriptors that belong to it.
#[inline]
fn receive(socket: &OwnedFd) -> io::Result<Assignment> {
    let malformed = |what: &str| io::Error::other(format!("the start message is malformed: {what}"));
    let mut source = FrameReader::new(socket);
    let (mut promised, mut changes, mut start) = (Vec::new(), Vec::new(), None);
    loop {
        let Frame { kind, payload } = source.next()?;
        match kind {
            FrameKind::Fds => promised = payload,
            FrameKind::Environment => {
                changes = from_bytes(&payload).ok_or_else(|| malformed("changes to the environment"))?;
            }
            FrameKind::Start => {
                start = Some(from_bytes(&payload).ok_or_else(|| malformed("its fields"))?);
            }
            FrameKind::Args => {
                let files = ReceivedFiles::assign(&promised, source.take_fds());
                let files = files.ok_or_else(|| malformed("other file descriptors than were announced"))?;
                let start = start.ok_or_else(|| malformed("no function"))?;
                let args = ParentPayload { bytes: payload };
                return Ok(Assignment::Work(Box::new((files, changes, start, args))));
            }
            FrameKind::Serve => {
                let preload = from_bytes(&payload).ok_or_else(|| malformed("the preloaded function"))?;
                return Ok(Assignment::Serve(preload, source.take_fds()));
            }
            _ => return Err(malformed("an unexpected frame")),
        }
    }
}

/// Receives the start message of a guest.
///
/// # Errors
/// The errors of [`receive`], and an error if the message is for a fork server.
pub(super) fn receive_work(
    socket: &OwnedFd,
) -> io::Result<(ReceivedFiles, EnvironmentChanges, StartMessage, ParentPayload)> {
    match receive(socket)? {
        Assignment::Work(work) => Ok(*work),
        Assignment::Serve(..) => Err(io::Error::other("the start message is for another kind of process")),
    }
}

/// Reader of frames and file descriptors from a socket.
#[derive(Debug)]
pub(crate) struct FrameReader<'a> {
    socket: &'a OwnedFd,
    inbox: Inbox,
    fds: Vec<OwnedFd>,
}

impl<'a> FrameReader<'a> {
    #[inline]
    pub(crate) fn new(socket: &'a OwnedFd) -> FrameReader<'a> {
        FrameReader { socket, inbox: Inbox::default(), fds: Vec::with_capacity(OWN_FDS) }
    }

    /// Takes the file descriptors that have arrived.
    pub(crate) fn take_fds(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.fds)
    }

    #[inline]
    pub(crate) fn next(&mut self) -> io::Result<Frame> {
        // Enough for most messages. Longer ones are read faster in larger pieces.
        let mut small = [0; 1 << 10];
        let mut large = Vec::new();
        let mut chunk = small.as_mut_slice();
        loop {
            if let Some(frame) = self.inbox.next().map_err(io::Error::other)? {
                return Ok(frame);
            }
            let received = sys::receive(self.socket, chunk, &mut self.fds)?;
            match chunk.get(..received) {
                None | Some([]) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Some(bytes) => self.inbox.push(bytes),
            }
            if received == chunk.len() {
                large.resize(64 << 10, 0);
                chunk = &mut large;
            }
        }
    }
}

/// Runs the function, and returns the exit code.
///
/// The function runs on the calling thread if that thread is the main thread, and the limit of its stack is
/// from 256 KiB to 1 GiB. Otherwise the function runs on a new thread, which doubles the time of the start.
#[inline]
fn work(line: &'static ParentSocket, parent: u32, start: StartMessage, args: ParentPayload) -> i32 {
    if let Err(error) = apply_setup(&start) {
        return send_report(line, &Report::Unable(error));
    }
    let StartMessage { rank, ranked, name, function, library, daemon, attempt, settings, .. } = start;
    // Shown by `ps`.
    sys::name_thread(&name);
    apply_settings(settings);
    let rank_of = ranked.then_some(rank);
    let process = CurrentProcess { name: name.clone(), pid: 0, rank: rank_of, daemon, attempt };
    current::set(WorkerIdentity { process, parent });
    panic_hook::install_hook();
    if let Some(report) = library.and_then(|library| shared_library::load(&library, &function.object).err()) {
        return send_report(line, &report);
    }
    let run = move || send_report(line, &call(line, rank, &function, args));
    let Some(size) = separate_stack_size() else { return run() };
    // That thread calls `exit` itself: `exit` runs the destructors of the calling thread's locals, and waking
    // the main thread just to have it do the same would take longer.
    match thread::Builder::new().name(name).stack_size(size).spawn(move || std::process::exit(run())) {
        Ok(worker) => worker.join().unwrap_or(FAILED),
        Err(error) => send_report(
            line,
            &Report::Unable(format!("could not start the thread for the function: {error}")),
        ),
    }
}

/// Sets the working directory and the processors.
#[inline]
pub(super) fn apply_setup(start: &StartMessage) -> Result<(), String> {
    if let Some(directory) = &start.directory {
        std::env::set_current_dir(directory)
            .map_err(|error| format!("changing to the directory {} failed: {error}", directory.display()))?;
    }
    if start.processors.is_empty() {
        return Ok(());
    }
    let wanted = &start.processors;
    let mut set = CpuSet::new();
    for &number in wanted {
        if number >= CpuSet::MAX_CPU {
            return Err(format!("there is no processor {number} (at most {})", CpuSet::MAX_CPU - 1));
        }
        set.set(number);
    }
    rustix::thread::sched_setaffinity(None, &set)
        .map_err(|error| format!("choosing the processors {wanted:?} failed: {error}"))
}

#[inline]
fn call(line: &ParentSocket, rank: usize, function: &FunctionRef, args: ParentPayload) -> Report {
    if let Err(error) = crash_handler::install(line) {
        return Report::Unable(format!("could not install the handlers for crashes: {error}"));
    }
    event!(Debug, "calls {}", function.name);
    let desc = match function::resolve::<function::StartFn>(function) {
        Ok(desc) => desc,
        Err(refusal) => return Report::Refused(refusal),
    };
    panic::catch_unwind(AssertUnwindSafe(|| (desc.entry)(rank, args))).unwrap_or_else(|payload| {
        let report = Report::raised(CallFailure::panicked(&*payload));
        // Dropping the payload may panic again, and the process ends anyway.
        std::mem::forget(payload);
        report
    })
}

/// Returns the size of the separate stack that the function needs, or `None` if the main thread's stack
/// suffices.
#[inline]
fn separate_stack_size() -> Option<usize> {
    const LEAST: usize = 256 << 10;
    const MOST: usize = 1 << 30;
    let limit = rustix::process::getrlimit(Resource::Stack).current;
    let limit = limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    let fits = (LEAST..=MOST).contains(&limit) && sys::on_main_thread() && !is_on_thread_stack();
    (!fits).then(|| limit.clamp(LEAST, MOST))
}

/// Applies the parent's settings, in a process that was just started.
#[inline]
fn apply_settings(settings: InheritedSettings) {
    start_method::set_settings(settings.start);
    command::inherit(settings.command);
    #[cfg(feature = "authkey")]
    if let Some(key) = settings.key {
        mp_core::set_authkey(key);
    }
    #[cfg(feature = "log")]
    crate::child::log_to_stderr::inherit(settings.log);
}

/// `true` in a forked copy whose only thread runs on the stack of a thread that was not the first thread of
/// the original process.
static STACK_OF_A_THREAD: PerProcess<AtomicBool> = mp_core::per_process!(AtomicBool::new(false));

#[inline]
fn is_on_thread_stack() -> bool {
    STACK_OF_A_THREAD.load(Ordering::Relaxed)
}

/// Sets [`STACK_OF_A_THREAD`] in a forked copy. `of_a_thread` is `true` if the copy's thread was not the
/// first thread of the original process.
pub(crate) fn set_on_thread_stack(of_a_thread: bool) {
    STACK_OF_A_THREAD.store(of_a_thread, Ordering::Relaxed);
}
