//! Implementations of `Waitable` for queues and channels.

use std::fmt;

use mp_core::{Envelopes, Message, WaitPoint, Waitable};

use crate::queue::Queue;
use crate::queue::channel::{Receiver, Sender};
use crate::raw::RawQueue;
use crate::raw::handles::WaitPurpose;
use crate::raw::waiting::PeerGone;

/// Returns the wait point of consumers.
pub(crate) fn message_wait_point(raw: &RawQueue) -> WaitPoint<'static> {
    WaitPoint::Parking(raw.memory().not_empty().into())
}

/// Returns the wait point of producers.
pub(crate) fn room_wait_point(raw: &RawQueue) -> WaitPoint<'static> {
    WaitPoint::Parking(raw.memory().not_full().into())
}

/// Returns `true` if a get would not wait.
pub(crate) fn has_message(raw: &RawQueue, peer_gone: impl FnOnce() -> Option<PeerGone>) -> bool {
    raw.arena().me().is_ok() && (raw.memory().is_ready() || peer_gone().is_some())
}

/// Returns `true` if a put of this many bytes would not wait.
fn has_room(raw: &RawQueue, bytes: u64, peer_gone: impl FnOnce() -> Option<PeerGone>) -> bool {
    raw.arena().me().is_ok() && (raw.memory().has_room(bytes) || peer_gone().is_some())
}

/// Ready when [`get`](Queue::get) would not wait: there is a message, or the queue is at its end or
/// [deserted](crate::GetError::Deserted). For a deserted queue, [`try_get`](Queue::try_get) returns `Empty`,
/// since it does not check which processes are left. After a wait, call `get` or
/// [`get_timeout`](Queue::get_timeout). To wait for room, see [`put_ready`](Queue::put_ready). For messages
/// that are taken with acknowledgement and may be given back after the end, see
/// [`lease_ready`](Queue::lease_ready).
///
/// ```
/// use mp_queue::{Queue, wait};
///
/// let (jobs, stop) = (Queue::<u32>::bounded(4)?, Queue::<()>::bounded(1)?);
/// jobs.put(7)?;
/// assert_eq!(wait(&[&jobs, &stop], None)?, [0]);
/// stop.close();
/// assert_eq!(wait(&[&jobs, &stop], None)?, [0, 1]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
impl<T: Message> Waitable for Queue<T> {
    fn wait_point(&self) -> WaitPoint<'_> {
        message_wait_point(self.raw())
    }

    fn is_ready(&self) -> bool {
        has_message(self.raw(), || self.raw().deserted(WaitPurpose::Message))
    }
}

/// Waitable for room in a queue: see [`Queue::put_ready`] and [`Queue::put_ready_for`].
pub struct PutReady<T: Message> {
    pub(crate) queue: Queue<T>,
    pub(crate) bytes: u64,
}

/// Ready when [`try_put`](Queue::try_put) would not return [`Full`](crate::PutError::Full).
impl<T: Message> Waitable for PutReady<T> {
    fn wait_point(&self) -> WaitPoint<'_> {
        room_wait_point(self.queue.raw())
    }

    fn is_ready(&self) -> bool {
        has_room(self.queue.raw(), self.bytes, || self.queue.raw().deserted(WaitPurpose::Room))
    }
}

impl<T: Message> Clone for PutReady<T> {
    fn clone(&self) -> Self {
        Self { queue: self.queue.for_waiting(), bytes: self.bytes }
    }
}

impl<T: Message> fmt::Debug for PutReady<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PutReady").field(&self.queue).finish()
    }
}

/// Waitable for an envelope for one more message, used by futures.
pub(crate) struct EnvelopeReady(pub(crate) RawQueue);

impl Waitable for EnvelopeReady {
    fn wait_point(&self) -> WaitPoint<'_> {
        room_wait_point(&self.0)
    }

    fn is_ready(&self) -> bool {
        let raw = &self.0;
        raw.arena().me().is_ok()
            && (Envelopes(raw.arena()).has_envelopes(raw.hold().block()) || raw.memory().is_put_closed())
    }
}

/// Ready when [`try_recv`](Receiver::try_recv) would not return [`Empty`](crate::GetError::Empty): there is a
/// message, or the channel is at its end.
impl<T: Message> Waitable for Receiver<T> {
    fn wait_point(&self) -> WaitPoint<'_> {
        message_wait_point(self.end().raw())
    }

    fn is_ready(&self) -> bool {
        has_message(self.end().raw(), || self.end().peer_gone())
    }
}

/// Ready when [`try_send`](Sender::try_send) would not return [`Full`](crate::PutError::Full): there is room,
/// or there are no receivers.
impl<T: Message> Waitable for Sender<T> {
    fn wait_point(&self) -> WaitPoint<'_> {
        room_wait_point(self.end().raw())
    }

    fn is_ready(&self) -> bool {
        has_room(self.end().raw(), 1, || self.end().peer_gone())
    }
}

/// Waitable for messages that are taken with acknowledgement: see [`Queue::lease_ready`].
#[derive(Clone)]
pub struct LeaseReady(pub(crate) RawQueue);

impl fmt::Debug for LeaseReady {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseReady").field("ready", &self.is_ready()).finish()
    }
}

impl LeaseReady {
    pub(crate) fn place_of(raw: &RawQueue) -> WaitPoint<'static> {
        // After the end, a message may be given back. A forked copy must not read the memory.
        if raw.arena().me().is_ok() && raw.memory().is_at_end() {
            WaitPoint::Parking(raw.memory().finished().into())
        } else {
            message_wait_point(raw)
        }
    }

    pub(crate) fn ready_of(raw: &RawQueue) -> bool {
        let memory = raw.memory();
        has_message(raw, || raw.deserted(WaitPurpose::Message))
            && (!memory.is_at_end() || memory.any_returned() || !raw.has_other_leases())
    }
}

/// Ready when [`try_get_lease`](Queue::try_get_lease) would not wait: there is a message, or the queue is at
/// its end. The end is reached when the queue is closed and no other process works on a message that might
/// be given back.
impl Waitable for LeaseReady {
    fn wait_point(&self) -> WaitPoint<'_> {
        Self::place_of(&self.0)
    }

    fn is_ready(&self) -> bool {
        Self::ready_of(&self.0)
    }
}
