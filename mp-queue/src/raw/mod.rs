//! The untyped queue on which all public queue types are built.

pub(crate) mod handles;
pub(crate) mod header;
pub(crate) mod memory;
pub(crate) mod options;
pub(crate) mod pace;
pub(crate) mod payload;
pub(crate) mod pending;
pub(crate) mod waiting;

use std::sync::Arc;

use mp_core::sync::Ordering;
use mp_core::sync::shared::AtomicU32;
use mp_core::waits::BlockingCall;
use mp_core::words::EnvelopeId;
use mp_core::{AdaptiveSpin, Arena, Envelope, Hold, Members, Messages, Spin, Wait};
use mp_reduce::Error;

use crate::error::{GetError, PutError};
use crate::raw::handles::{Capabilities, CountedHandle, LocalHandles};
use crate::raw::header::{CreateParams, Size};
use crate::raw::memory::pinned_read::slots_for;
use crate::raw::memory::{LAYER, RingMemory};
use crate::raw::options::{DesertedWhen, QueueOptions};
use crate::raw::pace::Pace;
use crate::raw::payload::Payload;
use crate::raw::pending::PendingMessage;
use crate::raw::waiting::WaitSite;
use crate::ring::{Content, GetOutcome, Link, PutOutcome, RingAt};

/// Hints of this process for puts or gets of a queue. Correctness does not depend on them. Each `Side` has
/// its own cache lines.
#[derive(Debug)]
#[repr(align(128))]
struct Side {
    spin: AdaptiveSpin,
    pace: Pace,
    /// Segment of the last put or get.
    segment: AtomicU32,
}

impl Side {
    fn new(spin: AdaptiveSpin) -> Self {
        Self { spin, pace: Pace::default(), segment: AtomicU32::new(0) }
    }
}

/// State of a queue that is local to this process.
#[derive(Debug)]
pub(crate) struct LocalState {
    get: Side,
    put: Side,
    /// Envelope of the returned message that this process took last, where the next scan for returned
    /// messages starts.
    last_returned: AtomicU32,
    handles: Arc<LocalHandles>,
}

impl LocalState {
    fn new(spin: impl Fn() -> AdaptiveSpin, handles: Arc<LocalHandles>) -> Arc<Self> {
        let last_returned = AtomicU32::new(0);
        Arc::new(Self { get: Side::new(spin()), put: Side::new(spin()), last_returned, handles })
    }
}

/// Untyped handle to a queue. A clone can only be used for waiting, unless it is created with
/// [`counted`](Self::counted).
///
/// `handle` and `local` are dropped before `hold`: see [`handles`](crate::raw::handles).
#[derive(Debug)]
pub(crate) struct RawQueue {
    handle: Option<Box<CountedHandle>>,
    local: Arc<LocalState>,
    hold: Hold,
    memory: RingMemory,
    /// For a handle of one side of a channel: [mark](mp_core::Hold::mark) of the token that all handles of
    /// the other side hold.
    peer: Option<u64>,
    /// Condition for `Deserted` that this handle uses instead of the queue's condition.
    deserted: Option<DesertedWhen>,
}

impl Clone for RawQueue {
    fn clone(&self) -> Self {
        self.clone_with(None)
    }
}

/// Advice in the error for a capacity of 0. The caller may have meant a queue without a limit, as in Python,
/// or a rendezvous channel.
const CAPACITY_ADVICE: &str = ". For a queue without a limit, use `Queue::unbounded()` or `channel()`. To \
                               wait until a message was taken, use a `JoinableQueue` and its `join()`";

impl RawQueue {
    /// Creates a queue in the current arena. `small_slots` allows small messages in slots, and requires that
    /// all messages have the type `type_of`.
    pub(crate) fn create(
        options: QueueOptions,
        type_of: (u64, &str),
        small_slots: bool,
    ) -> Result<Self, Error> {
        let most = RingAt::MAX_SLOTS;
        let wanted = options.capacity.unwrap_or(most as usize);
        if !(1..=most as usize).contains(&wanted) {
            let advice = if wanted == 0 { CAPACITY_ADVICE } else { "" };
            let why = format!("a queue for {wanted} messages: 1 to {most} are possible{advice}");
            return Err(mp_core::Error::out_of_range(wanted > 0, why).into());
        }
        let (arena, slots) = (Self::arena_for_rings()?, wanted as u32);
        let size = match options.growing {
            // A queue never holds more messages than the arena has room for.
            true => Size::Growing(slots.min(arena.most_messages())),
            false => Size::Fixed(slots),
        };
        let params = CreateParams { size, options, type_of, small_slots, retain: 0 };
        let (hold, memory) = RingMemory::create(arena, params)?;
        Ok(Self::of(hold, memory, Some(Capabilities::BOTH)))
    }

    /// Creates a ring that keeps the newest `retain` messages.
    pub(crate) fn create_retained(retain: u32, type_of: (u64, &str)) -> Result<Self, Error> {
        let options = QueueOptions::new().capacity(retain as usize).deliveries(0);
        let size = Size::Fixed(slots_for(retain));
        let params = CreateParams { size, options, type_of, small_slots: true, retain };
        let (hold, memory) = RingMemory::create(Self::arena_for_rings()?, params)?;
        Ok(Self::of(hold, memory, None))
    }

    /// Returns this process's arena. Returns an error if the arena can't contain rings.
    fn arena_for_rings() -> Result<Arena, Error> {
        let arena = Arena::current()?;
        Members(arena).set_ring_layer(&LAYER)?;
        if !Content::can_name(arena.most_messages()) {
            let why = format!("an arena for {} messages is too large for queues", arena.most_messages());
            return Err(mp_core::Error::LimitExceeded(why).into());
        }
        Ok(arena)
    }

    fn of(hold: Hold, memory: RingMemory, capabilities: Option<Capabilities>) -> Self {
        let handles = LocalHandles::of(hold.block());
        let handle =
            capabilities.map(|capabilities| CountedHandle::new(handles.clone(), capabilities, memory));
        let spin = memory.spin();
        let local = LocalState::new(|| AdaptiveSpin::with(spin), handles);
        // Registered last: a hold that is not registered yet keeps waits going.
        local.handles.register(&local);
        Self { handle, local, hold, memory, peer: None, deserted: None }
    }

    fn clone_with(&self, capabilities: Option<Capabilities>) -> Self {
        // For the order, see `LocalHandles::register`.
        let handle = capabilities
            .map(|capabilities| CountedHandle::new(self.local.handles.clone(), capabilities, self.memory));
        let hold = self.hold.clone();
        let (peer, deserted) = (self.peer, self.deserted);
        Self { handle, local: self.local.clone(), hold, memory: self.memory, peer, deserted }
    }

    /// Opens the queue in a block that arrived in a message. With `capabilities`, the new handle is counted.
    pub(crate) fn open(hold: Hold, capabilities: Option<Capabilities>) -> Result<Self, Error> {
        Members(hold.arena()).set_ring_layer(&LAYER)?;
        let memory = RingMemory::open(hold.arena(), hold.block())
            .ok_or_else(|| mp_core::Error::Malformed("the attachment is not a queue".into()))?;
        Ok(Self::of(hold, memory, capabilities))
    }

    /// Returns another handle to this queue, which is counted with these capabilities.
    pub(crate) fn counted(&self, capabilities: Capabilities) -> Self {
        self.clone_with(Some(capabilities))
    }

    /// Returns this handle with another spin policy. Its clones have the same policy.
    pub(crate) fn spinning(self, spin: Spin) -> Self {
        let local = LocalState::new(|| AdaptiveSpin::with(spin), self.local.handles.clone());
        if self.memory.is_accessible() {
            local.handles.register(&local);
        }
        Self { local, ..self }
    }

    /// Returns this handle with another condition for `Deserted`. Its clones have the same condition.
    pub(crate) fn deserted_when(self, deserted: DesertedWhen) -> Self {
        Self { deserted: Some(deserted), ..self }
    }

    /// Makes this a handle of one side of a channel. `peer` is the mark of the other side's token.
    pub(crate) fn with_peer(self, peer: u64) -> Self {
        Self { peer: Some(peer), ..self }
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

    /// Returns the segment in which this process last put a message.
    pub(crate) fn tail_segment(&self) -> u32 {
        self.local.put.segment.load(Ordering::Relaxed)
    }
    /// Returns the segment from which this process last took a message.
    pub(crate) fn head_segment(&self) -> u32 {
        self.local.get.segment.load(Ordering::Relaxed)
    }

    /// Records the segment from which this process took a message.
    pub(crate) fn record_head_segment(&self, segment: u32) {
        if segment != 0 {
            self.local.get.segment.fetch_max(segment, Ordering::Relaxed);
        }
    }

    /// Returns the envelope of the returned message that this process took last.
    pub(crate) fn last_returned(&self) -> EnvelopeId {
        self.local.last_returned.load(Ordering::Relaxed)
    }

    /// Records the envelope of a returned message that this process took.
    pub(crate) fn record_returned(&self, message: EnvelopeId) {
        self.local.last_returned.store(message, Ordering::Relaxed);
    }

    /// Takes a returned message, or a dead letter if `undeliverable` is `true`.
    pub(crate) fn take_returned(&self, undeliverable: bool) -> Result<Option<Envelope>, Error> {
        let taken = self.memory.take_returned(undeliverable, self.last_returned())?;
        taken.iter().for_each(|envelope| self.record_returned(envelope.id()));
        Ok(taken)
    }

    pub(crate) fn get_spin(&self) -> &AdaptiveSpin {
        &self.local.get.spin
    }
    pub(crate) fn get_pace(&self) -> &Pace {
        &self.local.get.pace
    }

    /// Returns the number of messages in the queue: a snapshot.
    pub(crate) fn len(&self) -> usize {
        // A forked copy must not access the queue.
        if self.arena().me().is_ok() { self.memory.len_with_returned() } else { 0 }
    }

    /// Returns `true` if the queue has no room. Returned messages use no room.
    pub(crate) fn is_full(&self) -> bool {
        // A growing queue may exceed its limit by one message per producer.
        self.arena().me().is_ok() && self.memory.len() >= self.capacity()
    }

    /// Closes the queue. Returns `true` if it was open.
    pub(crate) fn close(&self) -> bool {
        if self.arena().me().is_err() {
            return false;
        }
        let closed = self.memory.close();
        self.memory.wake_all();
        closed
    }

    /// Tries once to put a message. The caller still owns the message unless the result is `Done`. Wakes no
    /// waiters.
    #[inline]
    fn attempt_put(&self, payload: &mut Payload) -> Result<PutOutcome<(), ()>, Error> {
        // Sufficient for a queue that has not grown.
        if self.local.put.segment.load(Ordering::Relaxed) == 0 {
            let end = self.memory.put(0, payload)?;
            if matches!(end, PutOutcome::Done(())) || self.memory.segments() == 1 {
                return Ok(end);
            }
        }
        self.put_in_chain(payload)
    }

    fn put_in_chain(&self, payload: &mut Payload) -> Result<PutOutcome<(), ()>, Error> {
        let mut i = self.local.put.segment.load(Ordering::Relaxed);
        loop {
            // Messages that are still in earlier segments count, too.
            let last = i + 1 == self.memory.segments();
            if last && self.memory.len() >= self.capacity() {
                return Ok(if self.memory.is_closed(i) {
                    PutOutcome::Closed(())
                } else {
                    PutOutcome::Full(())
                });
            }
            match self.memory.put(i, payload)? {
                end if last || matches!(end, PutOutcome::Done(_)) => return Ok(end),
                _ => match self.memory.extend(&self.hold, i)? {
                    Link::Open => {
                        i += 1;
                        self.local.put.segment.fetch_max(i, Ordering::Relaxed);
                    }
                    Link::End => return Ok(PutOutcome::Closed(())),
                    Link::None => {}
                },
            }
        }
    }

    /// Takes a message, if there is one. Wakes no waiters.
    #[inline]
    fn attempt_get(&self, into: &mut Option<Payload>) -> Result<GetOutcome<()>, Error> {
        // A forked copy must not access the words.
        self.arena().me()?;
        self.memory.record_get();
        if self.memory.any_returned()
            && let Some(envelope) = self.take_returned(false)?
        {
            *into = Some(Payload::Envelope(envelope));
            return Ok(GetOutcome::Done(()));
        }
        // As in `attempt_put`.
        if self.local.get.segment.load(Ordering::Relaxed) == 0 {
            let end = self.memory.get(0, into)?;
            if !matches!(end, GetOutcome::Closed) || self.memory.segments() == 1 {
                return Ok(end);
            }
        }
        self.get_from_chain(into)
    }

    fn get_from_chain(&self, into: &mut Option<Payload>) -> Result<GetOutcome<()>, Error> {
        let mut i = self.local.get.segment.load(Ordering::Relaxed);
        loop {
            match self.memory.get(i, into)? {
                GetOutcome::Closed if i + 1 < self.memory.segments() => match self.memory.link(i) {
                    Link::None => return Ok(GetOutcome::Empty),
                    Link::End => return Ok(GetOutcome::Closed),
                    Link::Open => {
                        i += 1;
                        self.local.get.segment.fetch_max(i, Ordering::Relaxed);
                    }
                },
                end => return Ok(end),
            }
        }
    }

    /// Puts a message and wakes waiting consumers. On error, the caller still owns the message.
    #[inline]
    #[track_caller]
    pub(crate) fn put(&self, payload: &mut Payload, wait: Wait) -> Result<(), PutError<()>> {
        let limit = self.memory.byte_bound();
        if limit != 0 && payload.weight() > limit {
            return Err(PutError::TooLarge { value: (), bytes: payload.weight(), limit });
        }
        match self.attempt_put(payload) {
            Ok(PutOutcome::Done(())) => {}
            end => self.put_later(end, payload, wait)?,
        }
        self.local.put.pace.record_message();
        self.memory.not_empty().wake_one();
        Ok(())
    }

    /// Continues a put whose first attempt was not successful.
    #[inline(never)]
    #[track_caller]
    fn put_later(
        &self,
        first: Result<PutOutcome<(), ()>, Error>,
        payload: &mut Payload,
        wait: Wait,
    ) -> Result<(), PutError<()>> {
        let ended = |end| {
            Some(match end {
                Ok(PutOutcome::Done(())) => Ok(()),
                Ok(PutOutcome::Closed(())) => Err(PutError::Closed(())),
                Ok(PutOutcome::Full(())) if self.memory.is_unbounded() => {
                    Err(PutError::Failed { value: (), error: self.too_many() })
                }
                Ok(PutOutcome::Full(())) => return None,
                Err(error) => Err(PutError::Failed { value: (), error }),
            })
        };
        let spin = (&self.local.put.spin, Some(&self.local.put.pace));
        let at = WaitSite::for_room(self, BlockingCall::QueuePut);
        let attempt = || ended(self.attempt_put(payload));
        match ended(first) {
            Some(end) => end,
            None => self.wait(wait, spin, at, attempt),
        }
    }

    /// Returns the error for a put into a full queue without a bound. The error lists the queues with
    /// messages.
    #[cold]
    pub(crate) fn too_many(&self) -> Error {
        let (block, len) = (self.hold.block(), self.len() as u64);
        mp_core::Error::TooManyMessages(Box::new(Messages(self.arena()).on_their_way(block, len))).into()
    }

    /// Waits for a free envelope: calls `attempt` until it returns a result or the wait ends. Consumers of
    /// this queue wake the waiter. Consumers of other queues also free envelopes, but don't wake the waiter.
    /// The waiter detects such an envelope within [`POLL_INTERVAL`](mp_core::POLL_INTERVAL).
    #[cold]
    #[track_caller]
    pub(crate) fn wait_for_envelope(
        &self,
        wait: Wait,
        attempt: &mut dyn FnMut() -> Option<Result<PendingMessage, PutError<()>>>,
    ) -> Result<PendingMessage, PutError<()>> {
        let at = WaitSite::for_room(self, BlockingCall::Envelope);
        self.attempt_until(wait, (&self.local.put.spin, None), at, attempt)
    }

    /// Takes a message into `into`, which must be empty, and wakes waiting producers. If `into` stays empty,
    /// the queue is closed and drained.
    #[inline]
    #[track_caller]
    pub(crate) fn get(&self, into: &mut Option<Payload>, wait: Wait) -> Result<(), GetError> {
        match self.attempt_get(into) {
            Ok(GetOutcome::Done(())) => {}
            end => self.get_later(end, into, wait)?,
        }
        if into.is_some() {
            self.local.get.pace.record_message();
            self.memory.wake_producers(1);
        }
        Ok(())
    }

    /// Continues a get whose first attempt was not successful.
    #[inline(never)]
    #[track_caller]
    fn get_later(
        &self,
        first: Result<GetOutcome<()>, Error>,
        into: &mut Option<Payload>,
        wait: Wait,
    ) -> Result<(), GetError> {
        let ended = |end| match end {
            Ok(GetOutcome::Done(()) | GetOutcome::Closed) => Some(Ok(())),
            Ok(GetOutcome::Empty) => None,
            Err(error) => Some(Err(GetError::Failed(error))),
        };
        let spin = (&self.local.get.spin, Some(&self.local.get.pace));
        let at = WaitSite::for_message(self, BlockingCall::QueueGet);
        let attempt = || ended(self.attempt_get(into));
        match ended(first) {
            Some(end) => end,
            None => self.wait(wait, spin, at, attempt),
        }
    }
}
