//! Blocking waits at a queue: for a message, for room, for an envelope, or for tasks to be finished.

use std::time::{Duration, Instant};

use mp_core::waits::{BlockingCall, Subject};
use mp_core::words::Member;
use mp_core::{
    AdaptiveSpin, Blocking, Blocks, Notices, POLL_INTERVAL, Parking, Recovery, Wait, block_on, children,
    quantity,
};
use mp_reduce::Error;

use crate::error::{GetError, PutError};
use crate::raw::RawQueue;
use crate::raw::handles::{BlockedGuard, WaitPurpose};
use crate::raw::header::PIPE;
use crate::raw::options::DesertedWhen;
use crate::raw::pace::Pace;

/// Reason why a wait ended without success.
#[derive(Debug)]
pub(crate) enum WaitError {
    /// The time has expired.
    TimedOut,
    /// No other process has the queue, so the wait can never succeed. Contains the last process that had the
    /// queue or to which the queue was sent, and its process id.
    Deserted(Option<Member>, u32),
    /// The other side of the channel has no handles.
    Disconnected,
    /// This process was interrupted.
    Interrupted,
    /// The wait failed with an error.
    Failed(Error),
}

impl From<WaitError> for PutError<()> {
    #[cold]
    fn from(unmet: WaitError) -> Self {
        match unmet {
            WaitError::TimedOut => PutError::Full(()),
            WaitError::Interrupted => PutError::Interrupted(()),
            WaitError::Deserted(last, pid) => PutError::Deserted { value: (), last, pid },
            WaitError::Disconnected => PutError::Disconnected(()),
            WaitError::Failed(error) => PutError::Failed { value: (), error },
        }
    }
}

impl From<WaitError> for GetError {
    #[cold]
    fn from(unmet: WaitError) -> Self {
        match unmet {
            WaitError::TimedOut => GetError::Empty,
            WaitError::Interrupted => GetError::Interrupted,
            WaitError::Deserted(last, pid) => GetError::Deserted { last, pid },
            WaitError::Disconnected => GetError::Disconnected,
            WaitError::Failed(error) => GetError::Failed(error),
        }
    }
}

/// Wait point, purpose and name of a waiting call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitSite {
    pub(crate) parking: Parking,
    /// Purpose of the wait. `None` if the wait continues even when no other process or handle can end it.
    pub(crate) purpose: Option<WaitPurpose>,
    /// Waiting call, as reports name it. For a handle of a channel or pipe, the report contains the
    /// corresponding call of the channel or pipe.
    pub(crate) call: BlockingCall,
}

impl RawQueue {
    /// Returns the description of a waiting call, for reports.
    fn subject(&self, call: BlockingCall) -> Subject {
        let is_channel = self.peer.is_some();
        let type_name = self.memory.type_name();
        let is_pipe = is_channel && type_name == PIPE;
        let call = match call {
            BlockingCall::QueueGet if is_pipe => BlockingCall::ConnectionRecv,
            BlockingCall::QueuePut if is_pipe => BlockingCall::ConnectionSend,
            BlockingCall::QueueGet if is_channel => BlockingCall::ReceiverRecv,
            BlockingCall::QueuePut if is_channel => BlockingCall::SenderSend,
            call => call,
        };
        let (len, most) = (self.memory.len(), self.memory.capacity());
        let messages = if self.memory.is_unbounded() {
            quantity(len, "message")
        } else {
            format!("{len} of {}", quantity(most, "message"))
        };
        let mut subject = Subject::block(call, self.arena(), self.hold.block());
        subject.state = messages;
        if !is_pipe {
            subject.type_name = type_name;
        }
        subject
    }
}

impl WaitSite {
    /// Returns the wait site for a message. A put by another handle ends the wait.
    pub(crate) fn for_message(raw: &RawQueue, call: BlockingCall) -> Self {
        Self { parking: raw.memory.not_empty(), purpose: Some(WaitPurpose::Message), call }
    }

    /// Returns the wait site for room. A get by another handle ends the wait.
    pub(crate) fn for_room(raw: &RawQueue, call: BlockingCall) -> Self {
        Self { parking: raw.memory.not_full(), purpose: Some(WaitPurpose::Room), call }
    }
}

/// Length of the first sleep of a waiter while a process is about to release the queue. The length is doubled
/// after each such sleep.
const NAP: Duration = Duration::from_millis(1);

impl RawQueue {
    /// Calls `attempt` until it returns a result or the wait ends.
    #[track_caller]
    pub(crate) fn attempt_until<R, E: From<WaitError>>(
        &self,
        wait: Wait,
        spin: (&AdaptiveSpin, Option<&Pace>),
        at: WaitSite,
        mut attempt: impl FnMut() -> Option<Result<R, E>>,
    ) -> Result<R, E> {
        match attempt() {
            Some(end) => end,
            None => self.wait(wait, spin, at, attempt),
        }
    }

    /// Waits after a first attempt. Backs off according to `pace`, spins, and then sleeps. Recovers and
    /// reclaims dead members once per poll interval. At the end of the wait and before each sleep, checks
    /// whether another process or handle is left.
    #[track_caller]
    pub(super) fn wait<R, E: From<WaitError>>(
        &self,
        wait: Wait,
        (spin, pace): (&AdaptiveSpin, Option<&Pace>),
        at: WaitSite,
        attempt: impl FnMut() -> Option<Result<R, E>>,
    ) -> Result<R, E> {
        if wait == Wait::Never {
            // A call that does not wait checks the other side of a channel, but not which processes have a
            // queue.
            let purpose = at.purpose.filter(|_| self.peer.is_some());
            let end = self.end_if_gone(purpose, wait, attempt);
            return end.unwrap_or_else(|| Err(WaitError::TimedOut.into()));
        }
        if let Some(pace) = pace
            && spin.spins()
            && self.memory.capacity() >= Pace::MIN_SLOTS
        {
            pace.back_off();
        }
        let mut waiter = QueueWaiter {
            raw: self,
            at,
            wait,
            attempt,
            blocked: None,
            nap: NAP,
            detach_pending: false,
            noticed: None,
            unreclaimed_since: None,
        };
        block_on(&mut waiter, spin, wait).unwrap_or_else(|| Err(WaitError::TimedOut.into()))
    }

    /// Returns `true` if the process that has most recently announced its release of the queue still has the
    /// queue.
    fn is_detach_pending(&self) -> bool {
        let last = self.memory.last_gone();
        let member = last.and_then(|(gone, _)| gone.member());
        member.is_some_and(|member| Blocks(self.arena()).ring_is_held_by(self.hold.block(), member))
    }

    /// Returns the error for a wait that no other process or handle can end, or `None` if the wait may still
    /// succeed. Returns `None` in a forked copy, where the attempt itself returns the error.
    pub(crate) fn peer_gone(&self, purpose: WaitPurpose) -> Option<WaitError> {
        match self.peer {
            Some(_) => self.is_disconnected().then_some(WaitError::Disconnected),
            None => self.deserted(purpose),
        }
    }

    /// Returns `true` if this is a handle of a channel whose other side has no handles.
    #[inline]
    pub(crate) fn is_disconnected(&self) -> bool {
        self.peer.is_some_and(|peer| self.memory.is_accessible() && !Blocks(self.arena()).lives(peer))
    }

    /// Returns the result of a wait that no other process or handle can end, or `None` if the wait may still
    /// succeed. The result is that of a last `attempt`, since other processes may have put messages before
    /// they ended or dropped their handles. If `attempt` returns `None`, the result is the error. If the last
    /// process failed, waits for its report, unless `wait` is `Never`.
    pub(crate) fn end_if_gone<R, E: From<WaitError>>(
        &self,
        purpose: Option<WaitPurpose>,
        wait: Wait,
        attempt: impl FnOnce() -> Option<Result<R, E>>,
    ) -> Option<Result<R, E>> {
        let gone = self.peer_gone(purpose?)?;
        if let Some(end) = attempt() {
            return Some(end);
        }
        if let WaitError::Deserted(_, pid) = gone
            && wait != Wait::Never
        {
            let until = if let Wait::Until(deadline) = wait { Some(deadline) } else { None };
            children::wait_for_failure(pid, until);
        }
        Some(Err(gone.into()))
    }

    /// Returns the error `Deserted` if some process has detached from the queue and no other process or
    /// handle can end a wait for this purpose. The error contains the last detached process.
    fn deserted(&self, purpose: WaitPurpose) -> Option<WaitError> {
        let (last, pid) = self.memory.last_gone()?;
        // A process that is about to release the queue wakes its waiters, perhaps before this waiter was
        // announced.
        let gone = || self.hold.is_alone_at(self.memory.gone());
        let deserted = match self.deserted.unwrap_or_else(|| self.memory.deserted_when()) {
            DesertedWhen::Never => false,
            DesertedWhen::NoOtherProcess => gone(),
            // The order matters: a process that takes a handle out of a message holds the queue before the
            // message releases it.
            DesertedWhen::NoHandleIsLeft => {
                let handles = &self.local.handles;
                gone()
                    && handles.has_registered_all(&self.hold)
                    && !handles.others_can_end(self.handle.as_deref(), purpose)
            }
        };
        deserted.then_some(WaitError::Deserted(last.member(), pid))
    }
}

/// State of a thread that waits at a queue.
struct QueueWaiter<'a, Attempt> {
    raw: &'a RawQueue,
    at: WaitSite,
    wait: Wait,
    attempt: Attempt,
    /// Guard that counts the thread's handle as blocked, in a wait without a time-out.
    blocked: Option<BlockedGuard<'a>>,
    /// Length of the next sleep while a process is about to release the queue.
    nap: Duration,
    detach_pending: bool,
    /// Number of deaths and releases in the program at the last check, if a process has detached from the
    /// queue.
    noticed: Option<u32>,
    /// Time at which the thread began to sleep without reclaiming dead members.
    unreclaimed_since: Option<Instant>,
}

impl<R, E: From<WaitError>, Attempt: FnMut() -> Option<Result<R, E>>> QueueWaiter<'_, Attempt> {
    /// Returns the result of the wait if no other process or handle can end it.
    fn deserted(&mut self) -> Option<Result<R, E>> {
        self.raw.end_if_gone(self.at.purpose, self.wait, &mut self.attempt)
    }
}

impl<R, E: From<WaitError>, Attempt: FnMut() -> Option<Result<R, E>>> Blocking for QueueWaiter<'_, Attempt> {
    type Found = Result<R, E>;

    fn attempt(&mut self) -> Option<Self::Found> {
        (self.attempt)()
    }

    fn on_interval(&mut self, now: Instant, over: bool) -> Option<Self::Found> {
        // Measured by the clock, since a signal every 10 ms would end each sleep early.
        if self.unreclaimed_since.is_some_and(|since| now.saturating_duration_since(since) >= POLL_INTERVAL) {
            if let Err(e) = Recovery(self.raw.arena()).reclaim_if_due() {
                return Some(Err(WaitError::Failed(e.into()).into()));
            }
            self.unreclaimed_since = None;
            // A message may have been given back.
            if let Some(found) = (self.attempt)() {
                return Some(found);
            }
        }
        if over { self.deserted() } else { None }
    }

    fn interrupted(&mut self) -> Option<Self::Found> {
        Some(Err(WaitError::Interrupted.into()))
    }

    fn announce(&mut self) -> Option<u64> {
        // Counted before the handles are checked: of several blocked threads, the last one detects that all
        // are blocked.
        if self.wait == Wait::Forever && self.blocked.is_none() {
            let handle = self.raw.handle.as_deref();
            self.blocked = handle.zip(self.at.purpose).map(|(handle, purpose)| handle.blocked(purpose));
        }
        Some(self.at.parking.announce())
    }

    fn last_look(&mut self) -> Option<Self::Found> {
        if let Some(found) = (self.attempt)() {
            return Some(found);
        }
        // A process records that it will release the queue, and releases it shortly afterwards without waking
        // waiters. This check precedes the check of the holders, which detects a release in between.
        self.detach_pending = self.nap < POLL_INTERVAL && self.raw.is_detach_pending();
        self.noticed = self.raw.memory.last_gone().map(|_| Notices(self.raw.arena()).noticed());
        // After the announcement: dropping the last handle wakes the sleepers.
        self.deserted()
    }

    fn sleep(&mut self, announced: u64, now: Instant) -> bool {
        self.unreclaimed_since.get_or_insert(now);
        let mut until = match self.wait {
            Wait::Until(deadline) => Some(deadline),
            Wait::Never | Wait::Forever => None,
        };
        if self.detach_pending {
            let nap = now + self.nap;
            until = Some(until.map_or(nap, |deadline| deadline.min(nap)));
        }
        self.nap = if self.detach_pending { self.nap * 2 } else { POLL_INTERVAL };
        match self.noticed {
            // A sleep on two words. It is rarely needed, and a sleep on one word is cheaper.
            Some(noticed) => self.at.parking.sleep_unless_noticed(announced, noticed, until),
            None => self.at.parking.sleep(announced, until),
        }
    }

    fn subject(&self) -> Subject {
        self.raw.subject(self.at.call)
    }

    fn ended(&mut self, found: &Self::Found, since: Instant) {
        let memory = &self.raw.memory;
        match self.at.purpose {
            Some(WaitPurpose::Room) if found.is_ok() && self.at.call != BlockingCall::Envelope => {
                memory.record_wait(true, since);
                if mp_core::waits::IS_TRACED {
                    // Wakes consumers before a subscriber of traces is called.
                    memory.not_empty().wake_one();
                }
            }
            // The end of the queue is not counted as a message.
            Some(WaitPurpose::Message) if found.is_ok() && !(memory.is_put_closed() && memory.len() == 0) => {
                memory.record_wait(false, since);
                if mp_core::waits::IS_TRACED {
                    memory.wake_producers(1);
                }
            }
            _ => {}
        }
    }

    fn between(&mut self, now: Instant) -> Option<Self::Found> {
        self.unreclaimed_since.get_or_insert(now);
        self.deserted()
    }

    fn woken(&mut self) -> Option<Self::Found> {
        self.nap = NAP;
        (self.attempt)()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::channel::channel;

    /// The last sender puts a value and is dropped between the check for messages and the check for senders.
    #[test]
    fn channel_receiver_gets_last_message_before_the_end() {
        let (sender, receiver) = channel::<u32>().unwrap();
        let raw = receiver.end().raw();
        let end =
            |purpose, found: Option<Result<u32, GetError>>| raw.end_if_gone(purpose, Wait::Never, || found);
        let purpose = Some(WaitPurpose::Message);
        assert!(end(purpose, Some(Ok(5))).is_none(), "there is a sender");
        drop(sender);
        assert!(matches!(end(purpose, Some(Ok(5))), Some(Ok(5))));
        assert!(matches!(end(purpose, None), Some(Err(GetError::Disconnected))));
        assert!(end(None, None).is_none(), "a wait without a purpose continues");
    }
}
