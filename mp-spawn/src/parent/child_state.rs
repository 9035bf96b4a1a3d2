//! One process as the supervisor sees it: what is still to be sent to it, what it reports, how it ends.

use std::collections::VecDeque;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::RecvFlags;
use rustix::process::Signal;

use crate::error::SpawnError;
use crate::error::exit_status::ExitStatus;
use crate::error::failed;
use crate::error::process_name::ProcessName;
use crate::io::setup::ProcessOptions;
use crate::parent::diagnosis::{self, Seen, Subject};
use crate::parent::group::Group;
use crate::parent::launch::Launched;
use crate::parent::rank::Running;
use crate::protocol::frame::{Inbox, Kind};
use crate::protocol::message::{FromChild, Hello, Joined, Report};
use crate::protocol::outbox::Outbox;
use crate::protocol::payload::{self, Received};
use crate::start_method::StartMethod;
use crate::sys::clock::{deadline, now, now_is_late};
use crate::sys::log_event::event;
use crate::sys::oom;
use crate::sys::proc_stat::Doing;
use crate::sys::process_handle::Handle;
use mp_core::{Promise, children};
use mp_reduce::Unread;

const CHUNK: usize = 64 << 10;
/// How long a process that may be short-lived is left alone: see [`supervisor`](crate::parent::supervisor).
const YOUTH: Duration = Duration::from_millis(50);
/// After this time it is listened to, if a caller asks.
const INFANCY: Duration = Duration::from_millis(4);
/// Chunks that are read from one process before the others get their turn.
const CHUNKS_A_TURN: usize = 16;
/// Chunks that are read after a process has ended: more than it can have left in its socket.
const CHUNKS_AT_END: usize = 256;

/// One process.
#[derive(Debug)]
pub(crate) struct Watch {
    group: Arc<Group>,
    rank: usize,
    who: ProcessName,
    program: Arc<PathBuf>,
    method: StartMethod,
    function: Arc<str>,
    nonce: u64,
    pub(crate) handle: Arc<Handle>,
    /// Open while something may come from it.
    pub(crate) socket: Option<OwnedFd>,
    /// Whether it has reported: what may follow is read when it has ended.
    pub(crate) reported: bool,
    inbox: Inbox,
    outbox: Outbox,
    /// Its arguments, until it has taken them.
    parcel: Option<Promise>,
    member: Option<u32>,
    /// How many crashed processes had their memory released after its end.
    swept: usize,
    seen: Seen,
    timeout: Duration,
    returns: bool,
    /// When its time to say hello is over.
    pub(crate) hello_until: Option<Instant>,
    /// While the supervisor doesn't listen to it yet: from when on it does.
    pub(crate) young_until: Option<Instant>,
}

/// What goes to a process at its start, and what its parent keeps about it.
#[derive(Debug)]
pub(crate) struct Order {
    pub(crate) rank: usize,
    pub(crate) outbox: Outbox,
    pub(crate) parcel: Option<Promise>,
    pub(crate) setup: ProcessOptions,
}

/// What the processes of one start have in common.
#[derive(Debug, Clone)]
pub(crate) struct Common {
    pub(crate) group: Arc<Group>,
    pub(crate) program: Arc<PathBuf>,
    pub(crate) function: Arc<str>,
    /// How long a process may take until it says hello.
    pub(crate) timeout: Duration,
    /// Whether a function that returns sends a value.
    pub(crate) returns: bool,
    pub(crate) method: StartMethod,
}

impl Watch {
    pub(crate) fn new(common: Common, order: Order, launched: Launched, id: u64) -> Watch {
        let Common { group, program, function, timeout, returns, method } = common;
        let handle = Arc::new(launched.handle);
        // Others of its start are waited for together, by way of the supervisor; and what a function returns may have
        // to be taken while the process lives. And one that is started again is missed at once.
        let young = group.len() == 1 && !returns && group.attempt().is_none();
        let [alone_until, young_until] =
            [INFANCY, YOUTH].map(|time| if young { deadline(time) } else { None });
        group.started(order.rank, launched.pid, Running { handle: Arc::clone(&handle), id, alone_until });
        Watch {
            rank: order.rank,
            who: group.who(order.rank),
            nonce: launched.nonce,
            socket: Some(launched.socket),
            reported: false,
            inbox: Inbox::default(),
            outbox: order.outbox,
            parcel: order.parcel,
            member: None,
            swept: 0,
            seen: Seen { cpu_seconds: order.setup.limits.cpu_seconds(), ..Seen::default() },
            hello_until: deadline(timeout),
            young_until,
            handle,
            group,
            program,
            method,
            function,
            timeout,
            returns,
        }
    }

    pub(crate) fn has_joined(&self) -> bool {
        self.member.is_some()
    }

    fn subject(&self) -> Subject<'_> {
        Subject {
            who: &self.who,
            program: self.program.as_path(),
            method: self.method,
            function: &self.function,
            returns: self.returns,
        }
    }

    /// Sends what is left to send; true when nothing is.
    pub(crate) fn send(&mut self) -> bool {
        let Some(socket) = &self.socket else { return true };
        match self.outbox.flush(socket.as_fd()) {
            Ok(done) => done,
            Err(error) => {
                self.outbox = Outbox::default();
                // A peer that is gone will be reported by its sentinel, with the reason.
                let gone = matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset);
                if !gone {
                    self.fail(failed("sendmsg", None, error));
                }
                true
            }
        }
    }

    /// Reads what has arrived; false when nothing more will.
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
            self.reported |= matches!(frame.kind, Kind::Report | Kind::Done);
            match FromChild::from_frame(&frame)? {
                FromChild::Hello(Hello { nonce, member }) => {
                    if nonce != self.nonce {
                        return Err("it is not the process that was started".to_string());
                    }
                    self.seen.hello = true;
                    self.member = member;
                    self.hello_until = None;
                }
                _ if !self.seen.hello => return Err("something came before the hello".to_string()),
                FromChild::Joined(Joined { member }) => self.member = Some(member),
                FromChild::Panic(note) => self.seen.note_panic(note),
                FromChild::Crash(crash) => self.seen.crash = Some(crash),
                FromChild::Report(Report::Done) => self.seen.done = true,
                FromChild::Report(Report::Plain(value)) => {
                    self.group.returned(self.rank, Received::Plain(value));
                    self.seen.done = true;
                    self.seen.returned = true;
                }
                FromChild::Report(Report::Value(ticket)) => {
                    self.group.returned(self.rank, Received::Shared(payload::claim(ticket)?));
                    self.seen.done = true;
                    self.seen.returned = true;
                    self.say_taken()?;
                }
                FromChild::Report(Report::Unread(message, ticket)) => {
                    let unread = payload::claim(ticket).ok().and_then(|args| Unread::of(args).ok());
                    let who = Some(self.who.clone().into());
                    self.group.failed(self.rank, now(), SpawnError::Arguments { who, message, unread });
                    self.say_taken()?;
                }
                FromChild::Report(report) => {
                    if let Some((at, error)) = diagnosis::of_report(self.subject(), report, now()) {
                        self.group.failed(self.rank, at, error);
                    }
                }
            }
        }
        Ok(())
    }

    /// What the child has left to this process is here.
    fn say_taken(&mut self) -> Result<(), String> {
        self.outbox.append(Kind::Taken, &[]).map_err(|e| e.to_string())?;
        // The child reads nothing else, so there is room for it.
        let _ = self.send();
        Ok(())
    }

    /// When something is to be done about it, if nothing happens.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.young_until.into_iter().chain(self.hello_until).min()
    }

    /// Its time to say hello is over.
    pub(crate) fn hello_is_overdue(&mut self) {
        // Its hello may have arrived unread: this process may have been stopped meanwhile.
        self.receive();
        let Some(until) = self.hello_until.take() else { return };
        let doing = Doing::of(self.who.pid);
        // This process was stopped, and so was the child, if all of the program was.
        let paused = now_is_late(until);
        if paused || doing.as_ref().is_some_and(|doing| doing.is_excused(self.timeout)) {
            self.hello_until = deadline(self.timeout);
            return;
        }
        self.fail(SpawnError::Timeout {
            who: self.who.clone().into(),
            program: self.program.as_ref().clone(),
            method: self.method,
            waited: self.timeout,
            doing: doing.map_or_else(String::new, |doing| doing.to_string()),
        });
    }

    /// Gives up on it: what it sends or does from now on is ignored.
    pub(crate) fn fail(&mut self, error: SpawnError) {
        self.hello_until = None;
        self.group.failed(self.rank, now(), error);
        self.kill();
    }

    /// Ends it at once.
    pub(crate) fn kill(&self) {
        // This fails only if it has ended already.
        let _ = self.handle.signal(Signal::KILL);
    }

    /// Ends it and waits until it is gone, for it can't be watched.
    pub(crate) fn abandon(self) {
        self.handle.end();
        payload::child_died(self.member);
        self.close();
    }

    /// Reaps it if it has ended; true if it has. Everything that it has sent is read first.
    pub(crate) fn reap(&mut self) -> bool {
        self.read(CHUNKS_AT_END);
        let Some(exit) = self.handle.reap() else { return false };
        self.swept = payload::child_died(self.member);
        self.group.exited(self.rank, exit, self.seen.hello);
        let asked = self.group.asked(self.rank);
        let mut seen = std::mem::take(&mut self.seen);
        seen.last_words = self.group.drain(self.rank);
        let sent_by_us = asked == Some(crate::error::exit_status::Signal::KILL);
        seen.out_of_memory = exit.is_kill() && !sent_by_us && oom::killed_a_process();
        if let Some((at, error)) = diagnosis::of_exit(self.subject(), seen, exit, asked, now()) {
            self.group.failed(self.rank, at, error);
        }
        true
    }

    /// Logs how it ended. While no lock is held.
    pub(crate) fn tell_end(&self) {
        let ProcessName { name, pid, .. } = &self.who;
        if self.swept > 0 {
            event!(Debug, "what {} processes held, {name} (pid {pid}) the last, was released", self.swept);
        }
        match self.group.outcome(self.rank) {
            (_, Some(error)) => event!(Warn, "{error}"),
            (exit, None) => event!(Info, "{name} (pid {pid}) {}", exit.unwrap_or(ExitStatus::Unknown)),
        }
    }

    /// Tells all waiters that it is gone, when nothing of it is left here; or it is to be started again.
    pub(crate) fn close(mut self) {
        let (group, rank) = (Arc::clone(&self.group), self.rank);
        children::ended(self.who.pid);
        // After its failure is known: a waiter that this wakes names it.
        if let Some(parcel) = self.parcel.take() {
            parcel.lose(self.who.pid);
        }
        drop(self);
        group.process_over(rank);
    }
}

/// The processes that wait to be started, start by start.
pub(crate) type Orders = VecDeque<Order>;
