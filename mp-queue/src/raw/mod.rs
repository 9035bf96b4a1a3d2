//! A queue of messages of any type: what all the queues that users see are made of. Waiting is here.

pub(crate) mod handles;
pub(crate) mod header;
pub(crate) mod memory;
pub(crate) mod pace;
pub(crate) mod payload;

use std::sync::Arc;
use std::time::{Duration, Instant};

use mp_core::words::Member;
use mp_core::{AdaptiveSpin, Arena, Blocking, Hold, POLL_INTERVAL, Parking, Wait, block_on};
use mp_reduce::Error;

use crate::error::{GetError, PutError};
use crate::raw::handles::{Able, Blocked, DesertedWhen, For, Handle, Handles};
use crate::raw::header::{Made, Size};
use crate::raw::memory::{RingMemory, Rings};
use crate::raw::pace::Pace;
use crate::raw::payload::Payload;
use crate::ring::{Content, GetEnd, Link, PutEnd, RingAt};
use mp_core::sync::Ordering;
use mp_core::sync::shared::AtomicU32;

/// Why a wait ended without what was waited for.
#[derive(Debug)]
pub(crate) enum Unmet {
    /// The time is over.
    Waited,
    /// It will never come: no other process or handle could bring it.
    Alone(Alone),
    /// Waiting itself failed.
    Failed(Error),
}

impl From<Unmet> for PutError<()> {
    #[cold]
    fn from(unmet: Unmet) -> Self {
        match unmet {
            Unmet::Waited => PutError::Full(()),
            Unmet::Alone(Alone::Deserted(last, pid)) => PutError::Deserted { value: (), last, pid },
            Unmet::Alone(Alone::Disconnected) => PutError::Disconnected(()),
            Unmet::Failed(error) => PutError::Failed { value: (), error },
        }
    }
}

impl From<Unmet> for GetError {
    #[cold]
    fn from(unmet: Unmet) -> Self {
        match unmet {
            Unmet::Waited => GetError::Empty,
            Unmet::Alone(Alone::Deserted(last, pid)) => GetError::Deserted { last, pid },
            Unmet::Alone(Alone::Disconnected) => GetError::Disconnected,
            Unmet::Failed(error) => GetError::Failed(error),
        }
    }
}

/// Which side is gone.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Alone {
    /// No other process has the queue; the last that had it.
    Deserted(Member, u32),
    /// The other side of the channel has no handle any more.
    Disconnected,
}

/// How long a waiter sleeps first where a process may be about to give up the queue; twice as long then, and
/// so on.
const NAP: Duration = Duration::from_millis(1);

/// What this process knows of one side of a queue: hints, on which nothing depends. Threads at the other side
/// write other cache lines.
#[derive(Debug)]
#[repr(align(128))]
struct Side {
    patience: AdaptiveSpin,
    pace: Pace,
    /// The segment that was last taken from, or put into.
    segment: AtomicU32,
}

impl Side {
    fn new(patience: AdaptiveSpin) -> Self {
        Self { patience, pace: Pace::default(), segment: AtomicU32::new(0) }
    }
}

/// What this process knows of a queue.
#[derive(Debug)]
pub(crate) struct Local {
    get: Side,
    put: Side,
    handles: Arc<Handles>,
}

impl Local {
    fn new(patience: impl Fn() -> AdaptiveSpin, handles: Arc<Handles>) -> Arc<Self> {
        Arc::new(Self { get: Side::new(patience()), put: Side::new(patience()), handles })
    }
}

/// A handle to a queue of messages. A clone is only to wait with, unless it is made to
/// [count](Self::counted).
///
/// `handle` and `local` are dropped before `hold`: see [`handles`](crate::raw::handles).
#[derive(Debug)]
pub(crate) struct Raw {
    handle: Option<Box<Handle>>,
    local: Arc<Local>,
    hold: Hold,
    memory: RingMemory,
}

impl Clone for Raw {
    fn clone(&self) -> Self {
        self.another(None)
    }
}

impl Raw {
    /// Makes a queue in the current arena.
    pub(crate) fn create(
        size: Option<usize>,
        growing: bool,
        deliveries: u32,
        type_of: (u64, &str),
        smalls: bool,
    ) -> Result<Self, Error> {
        let wanted = size.unwrap_or(usize::MAX);
        let slots = match u32::try_from(wanted) {
            Ok(n) if n > 0 && n <= RingAt::MAX_SLOTS => Some(n),
            _ if size.is_none() => Some(RingAt::MAX_SLOTS),
            _ => None,
        };
        let Some(slots) = slots else {
            let why = format!("a queue for {wanted} messages: 1 to {} are possible", RingAt::MAX_SLOTS);
            return Err(mp_core::Error::not_within(wanted > 0, why).into());
        };
        let arena = Arena::current()?;
        arena.set_ring_layer(&Rings)?;
        if !Content::can_name(arena.most_messages()) {
            let why = format!("an arena for {} messages is too large for queues", arena.most_messages());
            return Err(mp_core::Error::LimitExceeded(why).into());
        }
        // More messages than the arena has room for can't be in it.
        let unbounded = size.is_none();
        let size = if growing { Size::Growing(slots.min(arena.most_messages())) } else { Size::Fixed(slots) };
        let (fingerprint, type_name) = type_of;
        let (hold, memory) =
            RingMemory::create(arena, Made { size, deliveries, fingerprint, type_name, smalls, unbounded })?;
        Ok(Self::of(hold, memory, Some(Able::BOTH)))
    }

    fn of(hold: Hold, memory: RingMemory, able: Option<Able>) -> Self {
        let handles = Handles::of(hold.block());
        let handle = able.map(|able| Handle::new(handles.clone(), able, memory));
        let local = Local::new(AdaptiveSpin::new, handles);
        // Last: what is not counted yet keeps waits going.
        local.handles.knows(&local);
        Self { handle, local, hold, memory }
    }

    fn another(&self, able: Option<Able>) -> Self {
        // In this order: see `Handles::knows`.
        let handle = able.map(|able| Handle::new(self.local.handles.clone(), able, self.memory));
        let hold = self.hold.clone();
        Self { handle, local: self.local.clone(), hold, memory: self.memory }
    }

    /// The queue in a block that arrived in a message; as a handle that counts, if it is able to do something.
    pub(crate) fn open(hold: Hold, able: Option<Able>) -> Result<Self, Error> {
        hold.arena().set_ring_layer(&Rings)?;
        let memory = RingMemory::open(hold.arena(), hold.block())
            .ok_or_else(|| mp_core::Error::Malformed("the attachment is no queue".into()))?;
        Ok(Self::of(hold, memory, able))
    }

    /// One more handle that counts.
    pub(crate) fn counted(&self, able: Able) -> Self {
        self.another(Some(able))
    }

    /// The same queue; this handle and its clones sleep at once instead of spinning first.
    pub(crate) fn without_spinning(self) -> Self {
        let local = Local::new(AdaptiveSpin::none, self.local.handles.clone());
        if self.memory.is_here() {
            local.handles.knows(&local);
        }
        Self { local, ..self }
    }

    /// Bounds the bytes that may be in it. Called before another process has it; it does not grow.
    pub(crate) fn bound_bytes(&mut self, bytes: u64) {
        self.memory.bound_bytes(bytes);
    }

    /// When a wait is deserted. Called before another process has it.
    pub(crate) fn set_deserted_when(&self, when: DesertedWhen) {
        self.memory.set_deserted_when(when);
    }

    #[inline]
    pub(crate) fn arena(&self) -> Arena {
        self.hold.arena()
    }
    pub(crate) fn hold(&self) -> &Hold {
        &self.hold
    }
    pub(crate) fn memory(&self) -> &RingMemory {
        &self.memory
    }
    pub(crate) fn capacity(&self) -> usize {
        self.memory.capacity() as usize
    }

    /// The segment that was last put into.
    pub(crate) fn tail_segment(&self) -> u32 {
        self.local.put.segment.load(Ordering::Relaxed)
    }
    /// The segment that was last taken from.
    pub(crate) fn head_segment(&self) -> u32 {
        self.local.get.segment.load(Ordering::Relaxed)
    }

    /// Notes which segment was taken from.
    pub(crate) fn at_head(&self, segment: u32) {
        if segment != 0 {
            self.local.get.segment.fetch_max(segment, Ordering::Relaxed);
        }
    }
    pub(crate) fn getting(&self) -> &AdaptiveSpin {
        &self.local.get.patience
    }

    /// How many messages are in it: a moment's picture.
    pub(crate) fn len(&self) -> usize {
        // In a forked copy there is no queue to look at.
        if self.arena().me().is_ok() { self.memory.len() } else { 0 }
    }

    /// Closes it; whether it was open.
    pub(crate) fn close(&self) -> bool {
        if self.arena().me().is_err() {
            return false;
        }
        let closed = self.memory.close();
        self.wake_everybody();
        closed
    }

    pub(crate) fn wake_everybody(&self) {
        self.memory.wake_all();
    }

    /// Puts a message; an envelope is emptied only if it is put. Wakes no waiter.
    #[inline]
    fn attempt_put(&self, payload: &mut Payload) -> Result<PutEnd<()>, Error> {
        if self.memory.segments() == 1 {
            return Ok(self.memory.put(0, payload)?);
        }
        self.put_in_chain(payload)
    }

    fn put_in_chain(&self, payload: &mut Payload) -> Result<PutEnd<()>, Error> {
        let mut i = self.local.put.segment.load(Ordering::Relaxed);
        loop {
            // What is still in earlier segments counts, too.
            let last = i + 1 == self.memory.segments();
            if last && self.memory.len() >= self.capacity() {
                return Ok(if self.memory.is_closed(i) { PutEnd::Closed(()) } else { PutEnd::Full(()) });
            }
            match self.memory.put(i, payload)? {
                end if last || matches!(end, PutEnd::Done(_)) => return Ok(end),
                _ => match self.memory.extend(&self.hold, i)? {
                    Link::Open => {
                        i += 1;
                        self.local.put.segment.fetch_max(i, Ordering::Relaxed);
                    }
                    Link::End => return Ok(PutEnd::Closed(())),
                    Link::None => {}
                },
            }
        }
    }

    /// Takes a message, if there is one. Wakes no waiter.
    #[inline]
    fn attempt_get(&self, into: &mut Option<Payload>) -> Result<GetEnd<()>, Error> {
        // In a forked copy there are no words to look at.
        self.arena().me()?;
        self.memory.gets();
        if self.memory.any_returned()
            && let Some(envelope) = self.memory.take_returned(false)?
        {
            *into = Some(Payload::Envelope(envelope));
            return Ok(GetEnd::Done(()));
        }
        if self.memory.segments() == 1 {
            return Ok(self.memory.get(0, into)?);
        }
        self.get_from_chain(into)
    }

    fn get_from_chain(&self, into: &mut Option<Payload>) -> Result<GetEnd<()>, Error> {
        let mut i = self.local.get.segment.load(Ordering::Relaxed);
        loop {
            match self.memory.get(i, into)? {
                GetEnd::Closed if i + 1 < self.memory.segments() => match self.memory.link(i) {
                    Link::None => return Ok(GetEnd::Empty),
                    Link::End => return Ok(GetEnd::Closed),
                    Link::Open => {
                        i += 1;
                        self.local.get.segment.fetch_max(i, Ordering::Relaxed);
                    }
                },
                end => return Ok(end),
            }
        }
    }

    /// Puts a message, and wakes consumers that wait for it. It stays the caller's unless it is put.
    #[inline]
    pub(crate) fn put(
        &self,
        payload: &mut Payload,
        wait: Wait,
        alone: impl Fn() -> Option<Alone>,
    ) -> Result<(), PutError<()>> {
        let limit = self.memory.bytes_bound();
        if limit != 0 && payload.weight() > limit {
            return Err(PutError::TooLarge { value: (), bytes: payload.weight(), limit });
        }
        let attempt = || {
            Some(match self.attempt_put(payload) {
                Ok(PutEnd::Done(_)) => Ok(()),
                Ok(PutEnd::Closed(())) => Err(PutError::Closed(())),
                Ok(PutEnd::Full(())) if self.memory.is_unbounded() => {
                    Err(PutError::Failed { value: (), error: self.too_many() })
                }
                Ok(PutEnd::Full(())) => return None,
                Err(error) => Err(PutError::Failed { value: (), error }),
            })
        };
        let how = (&self.local.put.patience, Some(&self.local.put.pace));
        self.within(wait, how, (self.memory.not_full(), Some(For::Room)), attempt, alone)?;
        self.local.put.pace.moves();
        self.memory.not_empty().wake_one();
        Ok(())
    }

    /// Why nothing more can be put into a queue that never waits.
    #[cold]
    pub(crate) fn too_many(&self) -> Error {
        let (block, len) = (self.hold.block(), self.memory.len() as u64);
        mp_core::Error::TooManyMessages(Box::new(self.arena().on_their_way(block, len))).into()
    }

    /// Attempts until it ends, looking again when there may be an envelope for one more message.
    /// Consumers of this queue wake it; consumers of other queues, which free envelopes too, do not: those
    /// are noticed within [`POLL_INTERVAL`].
    #[cold]
    pub(crate) fn wait_for_envelope<R>(
        &self,
        wait: Wait,
        attempt: impl FnMut() -> Option<Result<R, PutError<()>>>,
        alone: impl Fn() -> Option<Alone>,
    ) -> Result<R, PutError<()>> {
        let at = (self.memory.not_full(), Some(For::Room));
        self.within(wait, (&self.local.put.patience, None), at, attempt, alone)
    }

    /// Takes a message into `into`, which is empty, and wakes producers that wait for room. If it stays empty
    /// after all, the queue is closed and drained.
    #[inline]
    pub(crate) fn get(
        &self,
        into: &mut Option<Payload>,
        wait: Wait,
        alone: impl Fn() -> Option<Alone>,
    ) -> Result<(), GetError> {
        let attempt = || match self.attempt_get(into) {
            Ok(GetEnd::Done(()) | GetEnd::Closed) => Some(Ok(())),
            Ok(GetEnd::Empty) => None,
            Err(error) => Some(Err(GetError::Failed(error))),
        };
        let how = (&self.local.get.patience, Some(&self.local.get.pace));
        let end = self.within(wait, how, (self.memory.not_empty(), Some(For::Message)), attempt, alone);
        if into.is_some() {
            self.local.get.pace.moves();
            self.memory.made_room(1);
        }
        end
    }

    /// Attempts until it ends, or the wait does: spinning first, at the pace of the messages if there is
    /// one, then asleep in slices. Once a slice it looks for dead members, and after each sleep whether
    /// another process or handle is left.
    #[inline]
    pub(crate) fn within<R, E: From<Unmet>>(
        &self,
        wait: Wait,
        (patience, pace): (&AdaptiveSpin, Option<&Pace>),
        at: (Parking, Option<For>),
        mut attempt: impl FnMut() -> Option<Result<R, E>>,
        alone: impl Fn() -> Option<Alone>,
    ) -> Result<R, E> {
        if let Some(end) = attempt() {
            return end;
        }
        if wait == Wait::Never {
            return Err(Unmet::Waited.into());
        }
        if let Some(pace) = pace
            && patience.looks()
            && self.memory.capacity() >= Pace::LEAST_SLOTS
        {
            pace.hold_off();
        }
        self.wait(wait, patience, at, attempt, alone)
    }

    fn wait<R, E: From<Unmet>>(
        &self,
        wait: Wait,
        patience: &AdaptiveSpin,
        (parking, what): (Parking, Option<For>),
        attempt: impl FnMut() -> Option<Result<R, E>>,
        alone: impl Fn() -> Option<Alone>,
    ) -> Result<R, E> {
        let mut waiter = Waiter {
            raw: self,
            parking,
            what,
            wait,
            attempt,
            alone,
            blocked: None,
            nap: NAP,
            about_to_go: false,
            unswept: None,
        };
        block_on(&mut waiter, patience, wait).unwrap_or_else(|| Err(Unmet::Waited.into()))
    }

    /// Whether the process that last noted that it gives the queue up has it still.
    fn one_is_going(&self) -> bool {
        let last = self.memory.last_gone();
        last.is_some_and(|(member, _)| self.arena().ring_is_held_by(self.hold.block(), member))
    }

    /// Whether some process that had the queue is gone, and nothing that a call waits for can come any more:
    /// which one went last.
    pub(crate) fn deserted(&self, what: For) -> Option<Alone> {
        let (last, pid) = self.memory.last_gone()?;
        let gone = || self.arena().other_holders(&self.hold) == 0;
        let deserted = match self.memory.deserted_when() {
            DesertedWhen::Never => false,
            DesertedWhen::NoOtherProcess => gone(),
            // In this order: a process that takes a handle out of a message holds the queue before the
            // message gives it up.
            DesertedWhen::NoHandleIsLeft => {
                let handles = &self.local.handles;
                gone() && handles.knows_all(&self.hold) && !handles.others_bring(self.handle.as_deref(), what)
            }
        };
        deserted.then_some(Alone::Deserted(last, pid))
    }
}

/// A thread that waits at a queue.
struct Waiter<'a, Attempt, Gone> {
    raw: &'a Raw,
    parking: Parking,
    what: Option<For>,
    wait: Wait,
    attempt: Attempt,
    alone: Gone,
    /// That it waits without a time-out.
    blocked: Option<Blocked<'a>>,
    /// How long it sleeps next, if some process is about to give up the queue.
    nap: Duration,
    about_to_go: bool,
    /// Since when it has slept without a sweep.
    unswept: Option<Instant>,
}

impl<R, E, Attempt, Gone> Waiter<'_, Attempt, Gone>
where
    E: From<Unmet>,
    Attempt: FnMut() -> Option<Result<R, E>>,
    Gone: Fn() -> Option<Alone>,
{
    /// The end, if what it waits for will never come. What the others put before they were gone comes first.
    fn deserted(&mut self) -> Option<Result<R, E>> {
        let alone = (self.alone)()?;
        Some((self.attempt)().unwrap_or_else(|| Err(Unmet::Alone(alone).into())))
    }
}

impl<R, E, Attempt, Gone> Blocking for Waiter<'_, Attempt, Gone>
where
    E: From<Unmet>,
    Attempt: FnMut() -> Option<Result<R, E>>,
    Gone: Fn() -> Option<Alone>,
{
    type Found = Result<R, E>;

    fn attempt(&mut self) -> Option<Self::Found> {
        (self.attempt)()
    }

    fn on_interval(&mut self, now: Instant, over: bool) -> Option<Self::Found> {
        // By the clock, not by how the sleep ended: a signal every 10 ms ends each of them early.
        if self.unswept.is_some_and(|since| now.saturating_duration_since(since) >= POLL_INTERVAL) {
            if let Err(e) = self.raw.arena().sweep_if_due() {
                return Some(Err(Unmet::Failed(e.into()).into()));
            }
            self.unswept = None;
            // Something may have come back.
            if let Some(found) = (self.attempt)() {
                return Some(found);
            }
        }
        if over { self.deserted() } else { None }
    }

    fn announce(&mut self) -> Option<u64> {
        // Before it looks which handles are left: of several that are blocked, the last one sees that all are.
        if self.wait == Wait::Forever && self.blocked.is_none() {
            let handle = self.raw.handle.as_deref();
            self.blocked = handle.zip(self.what).map(|(handle, what)| handle.blocked(what));
        }
        Some(self.parking.announce())
    }

    fn last_look(&mut self) -> Option<Self::Found> {
        if let Some(found) = (self.attempt)() {
            return Some(found);
        }
        // A process notes that it gives the queue up while it still has it; the release, a little later, wakes no waiter. Checked
        // before the holders are: a release in between is seen there.
        self.about_to_go = self.nap < POLL_INTERVAL && self.raw.one_is_going();
        // After it was announced: the last handle that is dropped wakes the sleepers.
        self.deserted()
    }

    fn sleep(&mut self, announced: u64, now: Instant) -> bool {
        self.unswept.get_or_insert(now);
        let mut until = match self.wait {
            Wait::Until(deadline) => Some(deadline),
            Wait::Never | Wait::Forever => None,
        };
        if self.about_to_go {
            let nap = now + self.nap;
            until = Some(until.map_or(nap, |deadline| deadline.min(nap)));
        }
        self.nap = if self.about_to_go { self.nap * 2 } else { POLL_INTERVAL };
        self.parking.sleep(announced, until)
    }

    fn woken(&mut self) -> Option<Self::Found> {
        self.nap = NAP;
        (self.attempt)()
    }
}
