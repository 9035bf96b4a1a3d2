//! State of one process in the supervisor: data to be sent to it, its reports, its end.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mp_core::{Promise, children};
use mp_reduce::Unread;
use rustix::io::Errno;
use rustix::net::RecvFlags;
use rustix::process::Signal;

use crate::error::{ExitStatus, ProcessName, SpawnError, launch_error};
use crate::io::setup::ProcessOptions;
use crate::parent::group::ChildGroup;
use crate::parent::group::rank::{RankState, RunningProcess};
use crate::parent::launch::LaunchedProcess;
use crate::parent::supervisor::crash_report::CrashReport;
use crate::parent::supervisor::diagnosis::{self, Evidence, StartProperties};
use crate::protocol::frame::{FrameKind, Inbox};
use crate::protocol::message::{FromChild, Hello};
use crate::protocol::outbox::{Outbox, is_gone};
use crate::protocol::payload::{ReceivedValue, shared_memory};
use crate::protocol::report::Report;
use crate::sys::log_event::event;
use crate::sys::proc_stat::ProcessActivity;
use crate::sys::start_span::StartSpan;
use crate::sys::{ProcessHandle, deadline, now, now_is_late, oom};

const CHUNK: usize = 64 << 10;
/// Time for which the supervisor does not watch a process that may be short-lived: see
/// [`supervisor`](crate::parent::supervisor).
const MAX_UNWATCHED: Duration = Duration::from_millis(50);
/// Minimum time before a query by a caller makes the supervisor watch a process that may be short-lived.
const MIN_UNWATCHED: Duration = Duration::from_millis(4);
/// Maximum number of chunks that are read from one process at a time.
const CHUNKS_A_TURN: usize = 16;
/// Maximum number of chunks that are read after the end of a process: more than its socket can hold.
const CHUNKS_AT_END: usize = 256;

/// State of one process.
pub(crate) struct WatchedChild {
    group: Arc<ChildGroup>,
    rank: usize,
    who: ProcessName,
    properties: Arc<StartProperties>,
    nonce: u64,
    pub(crate) handle: Arc<ProcessHandle>,
    /// Socket to the process, open while messages may arrive.
    pub(crate) socket: Option<OwnedFd>,
    /// `true` if the process has reported. Later messages are read after its end.
    pub(crate) reported: bool,
    inbox: Inbox,
    outbox: Outbox,
    /// Owner of the arguments' envelope, until the process has taken the arguments.
    promise: Option<Promise>,
    member: Option<u32>,
    /// Number of crashed processes whose memory was reclaimed after the end of this child.
    reclaimed: usize,
    evidence: Evidence,
    /// Time until which the process must send its hello.
    pub(crate) hello_until: Option<Instant>,
    /// Time at which the supervisor begins to watch the process. `None` if the supervisor watches it.
    pub(crate) unwatched_deadline: Option<Instant>,
    /// `tracing` span of the start, open until the process is ready.
    pub(crate) span: StartSpan,
}

/// Data and setup that the parent needs for the start of one process.
pub(crate) struct LaunchOrder {
    pub(crate) rank: usize,
    pub(crate) outbox: Outbox,
    pub(crate) promise: Option<Promise>,
    pub(crate) setup: ProcessOptions,
    pub(crate) span: StartSpan,
}

impl WatchedChild {
    pub(crate) fn new(
        group: Arc<ChildGroup>,
        properties: Arc<StartProperties>,
        order: LaunchOrder,
        launched: LaunchedProcess,
        id: u64,
    ) -> WatchedChild {
        let handle = Arc::new(launched.handle);
        // Processes of the same start are waited for together, through the supervisor. A return value may
        // have to be taken while the process lives. A supervised process must be restarted at once. The span
        // of a start must end as soon as the process is ready.
        let is_alone = group.len() == 1 && !properties.returns && group.attempt().is_none();
        let is_short_lived = is_alone && !order.span.is_enabled();
        let [unwatched_until, unwatched_deadline] =
            [MIN_UNWATCHED, MAX_UNWATCHED].map(|time| if is_short_lived { deadline(time) } else { None });
        group.record_start(
            order.rank,
            launched.pid,
            RunningProcess { handle: Arc::clone(&handle), id, unwatched_until },
        );
        WatchedChild {
            rank: order.rank,
            who: group.process_name(order.rank),
            nonce: launched.nonce,
            socket: Some(launched.socket),
            reported: false,
            inbox: Inbox::default(),
            outbox: order.outbox,
            promise: order.promise,
            member: None,
            reclaimed: 0,
            evidence: Evidence { cpu_seconds: order.setup.limits.cpu_seconds(), ..Evidence::default() },
            hello_until: deadline(properties.timeout),
            unwatched_deadline,
            handle,
            group,
            properties,
            span: order.span,
        }
    }

    pub(crate) fn has_joined(&self) -> bool {
        self.member.is_some()
    }

    /// Sends pending data. Returns `true` if nothing is left to send.
    pub(crate) fn send(&mut self) -> bool {
        let Some(socket) = &self.socket else { return true };
        match self.outbox.flush(socket.as_fd()) {
            Ok(done) => done,
            Err(error) => {
                self.outbox = Outbox::default();
                // The end of the peer is reported through its sentinel, with the reason.
                if !is_gone(&error) {
                    self.fail(launch_error("sendmsg", None, error));
                }
                true
            }
        }
    }

    /// Reads messages that have arrived. Returns `false` if no more can arrive.
    pub(crate) fn receive(&mut self) -> bool {
        self.read(CHUNKS_A_TURN)
    }

    fn read(&mut self, chunks: usize) -> bool {
        let mut chunk = [MaybeUninit::<u8>::uninit(); CHUNK];
        for _ in 0..chunks {
            let Some(socket) = &self.socket else { return false };
            match rustix::net::recv(socket, &mut chunk, RecvFlags::DONTWAIT) {
                Ok((([], _), _)) => return false,
                Ok(((bytes, _), _)) => self.inbox.push(bytes),
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => return true,
                Err(_) => return false,
            }
            if let Err(message) = self.take_frames() {
                self.fail(SpawnError::Protocol { who: self.who.clone().into(), message });
                return false;
            }
        }
        true
    }

    fn take_frames(&mut self) -> Result<(), String> {
        while let Some(frame) = self.inbox.next().map_err(|error| error.to_string())? {
            self.reported |= matches!(frame.kind, FrameKind::Report | FrameKind::Done);
            match FromChild::from_frame(&frame)? {
                FromChild::Hello(Hello { nonce, member }) => {
                    if nonce != self.nonce {
                        return Err("it is not the process that was started".to_string());
                    }
                    self.evidence.hello = true;
                    self.span.set_ready();
                    self.member = member;
                    self.hello_until = None;
                }
                _ if !self.evidence.hello => return Err("something came before the hello".to_string()),
                FromChild::Joined(member) => self.member = Some(member),
                FromChild::Panic(note) => self.evidence.record_panic(note),
                FromChild::Crash(crash) => self.evidence.crash = Some(crash),
                FromChild::Report(Report::Done) => self.evidence.done = true,
                FromChild::Report(Report::Plain(value)) => {
                    self.record_value(ReceivedValue::Plain(value));
                }
                FromChild::Report(Report::Value(ticket)) => {
                    self.record_value(ReceivedValue::Shared(shared_memory::claim(ticket)?));
                    self.send_taken()?;
                }
                FromChild::Report(Report::Unread(message, ticket)) => {
                    let unread = shared_memory::claim(ticket).ok().and_then(|args| Unread::of(args).ok());
                    let who = Some(self.who.clone().into());
                    self.group.record_failure(
                        self.rank,
                        now(),
                        SpawnError::Arguments { who, message, unread },
                    );
                    self.send_taken()?;
                }
                FromChild::Report(report) => {
                    let function = &self.properties.function;
                    if let Some((at, error)) = diagnosis::report_failure(&self.who, function, report, now()) {
                        self.group.record_failure(self.rank, at, error);
                    }
                }
            }
        }
        Ok(())
    }

    /// Stores the value that the child's function returned.
    fn record_value(&mut self, value: ReceivedValue) {
        self.group.with_rank(self.rank, |rank| rank.value = Some(value));
        self.evidence.done = true;
        self.evidence.returned = true;
    }

    fn send_taken(&mut self) -> Result<(), String> {
        self.outbox.append(FrameKind::Taken, &[]).map_err(|e| e.to_string())?;
        // The child has read all earlier data, so its socket has room.
        let _ = self.send();
        Ok(())
    }

    /// Returns the time of the next timeout.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.unwatched_deadline.into_iter().chain(self.hello_until).min()
    }

    /// Handles the end of the time for the hello.
    pub(crate) fn handle_hello_timeout(&mut self) {
        // The hello may have arrived without being read, because this process may have been stopped
        // meanwhile.
        self.receive();
        let Some(until) = self.hello_until.take() else { return };
        let activity = ProcessActivity::read(self.who.pid);
        // This thread runs late: the whole program may have been stopped, the child included.
        let paused = now_is_late(until);
        if paused || activity.as_ref().is_some_and(|activity| activity.is_excused(self.properties.timeout)) {
            self.hello_until = deadline(self.properties.timeout);
            return;
        }
        self.fail(SpawnError::Timeout {
            who: self.who.clone().into(),
            program: self.properties.program.clone(),
            method: self.properties.method,
            guest: self.properties.guest,
            waited: self.properties.timeout,
            activity: activity.map_or_else(String::new, |activity| activity.to_string()),
        });
    }

    /// Records a failure of the process, and kills it. Its later messages and its end are ignored.
    pub(crate) fn fail(&mut self, error: SpawnError) {
        self.hello_until = None;
        self.group.record_failure(self.rank, now(), error);
        self.kill();
    }

    /// Kills the process.
    pub(crate) fn kill(&self) {
        // Fails only if the process has ended.
        let _ = self.handle.signal(Signal::KILL);
    }

    /// Kills the process and waits for its end, because it can't be watched.
    pub(crate) fn abandon(self) {
        self.handle.end(None);
        shared_memory::declare_dead_child(self.member, self.who.pid);
        self.close();
    }

    /// Reaps the process if it has ended, and returns `true` if it has. All its messages are read first.
    pub(crate) fn reap(&mut self) -> bool {
        self.read(CHUNKS_AT_END);
        let Some(exit) = self.handle.reap() else { return false };
        let fails = |rank: &mut RankState| {
            let asked = matches!((exit, rank.requested_signal),
                (ExitStatus::Signal { signal, .. }, Some(asked)) if signal == asked);
            rank.failure.is_some() || !(exit.success() || asked)
        };
        let has_failed = self.group.with_rank(self.rank, fails).unwrap_or_default();
        let report = if has_failed { CrashReport::begin() } else { None };
        self.reclaimed = shared_memory::declare_dead_child(self.member, self.who.pid);
        let begun = self.evidence.hello;
        let asked = self.group.with_rank(self.rank, |rank| {
            (rank.exit, rank.begun) = (Some(exit), begun);
            rank.requested_signal
        });
        let asked = asked.flatten();
        let mut evidence = std::mem::take(&mut self.evidence);
        evidence.last_stderr_lines = self.group.drain(self.rank);
        let sent_by_us = asked == Some(crate::error::Signal::KILL);
        evidence.out_of_memory = exit.is_kill() && !sent_by_us && oom::has_killed_process();
        if let Some((at, error)) =
            diagnosis::exit_failure(&self.who, &self.properties, evidence, exit, asked, now())
        {
            self.group.record_failure(self.rank, at, error);
        }
        if let Some(report) = report
            && let Some((_, error)) = self.group.with_rank(self.rank, |rank| rank.failure.clone()).flatten()
        {
            report.write(&self.who, &error);
        }
        true
    }

    /// Logs the end of the process. Called without locks.
    pub(crate) fn log_end(&self) {
        let ProcessName { name, pid, .. } = &self.who;
        if self.reclaimed > 0 {
            event!(
                Debug,
                "released the memory of {}; the last one was {name} (pid {pid})",
                mp_core::quantity(self.reclaimed, "process")
            );
        }
        let outcome = |rank: &mut RankState| (rank.exit, rank.failure.clone());
        match self.group.with_rank(self.rank, outcome).unwrap_or_default() {
            (_, Some((_, error))) => event!(Warn, "{error}"),
            (exit, None) => event!(Info, "{name} (pid {pid}) {}", exit.unwrap_or(ExitStatus::Unknown)),
        }
    }

    /// Reports to all waiters that the process has ended, or schedules its restart. Called after this state
    /// was removed from the supervisor.
    pub(crate) fn close(mut self) {
        let (group, rank) = (Arc::clone(&self.group), self.rank);
        shared_memory::report_reclaimed();
        children::record_end(self.who.pid);
        // Done after the failure is recorded, because a waiter that is woken here reports that failure.
        if let Some(promise) = self.promise.take() {
            promise.lose(self.who.pid);
        }
        drop(self);
        group.handle_end(rank);
    }
}
