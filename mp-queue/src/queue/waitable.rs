//! Implementations of `Waitable` for queues and channels.

use std::fmt;
use std::sync::Arc;

use mp_core::{Envelopes, Message, Parking, SharedWaitable, WaitPoint, Waitable};

use crate::queue::Queue;
use crate::queue::channel::{Receiver, Sender};
use crate::raw::RawQueue;
use crate::raw::handles::WaitPurpose;

/// Waitable for a condition of a queue, used by futures.
struct RawReady<F> {
    raw: RawQueue,
    parking: Parking,
    is_ready: F,
}

impl<F: Fn(&RawQueue) -> bool> Waitable for RawReady<F> {
    fn wait_point(&self) -> WaitPoint<'_> {
        WaitPoint::Parking(self.parking.into())
    }

    fn is_ready(&self) -> bool {
        self.raw.memory().is_accessible() && (self.is_ready)(&self.raw)
    }
}

impl RawQueue {
    /// Returns a waitable, for futures, that sleeps at `parking` until `is_ready` returns `true`.
    pub(crate) fn ready_at(
        &self,
        parking: Parking,
        is_ready: impl Fn(&Self) -> bool + Send + Sync + 'static,
    ) -> SharedWaitable {
        Arc::new(RawReady { raw: self.clone(), parking, is_ready })
    }

    /// Returns `true` if a get would not wait: there is a message, or the queue is at its end or deserted.
    pub(crate) fn has_message(&self) -> bool {
        self.memory().is_accessible()
            && (self.memory().is_ready() || self.peer_gone(WaitPurpose::Message).is_some())
    }

    /// Returns `true` if a put of a message of `bytes` bytes would not wait.
    pub(crate) fn has_room(&self, bytes: u64) -> bool {
        self.memory().is_accessible()
            && (self.memory().has_room(bytes) || self.peer_gone(WaitPurpose::Room).is_some())
    }

    /// Returns `true` if there is an envelope for a message of this queue, or the queue is closed.
    pub(crate) fn has_envelope(&self) -> bool {
        Envelopes(self.arena()).has_envelopes(self.hold().block()) || self.memory().is_put_closed()
    }

    /// Returns the wait point at which consumers sleep.
    pub(crate) fn message_wait_point(&self) -> WaitPoint<'static> {
        WaitPoint::Parking(self.memory().not_empty().into())
    }

    /// Returns the wait point at which producers sleep.
    pub(crate) fn room_wait_point(&self) -> WaitPoint<'static> {
        WaitPoint::Parking(self.memory().not_full().into())
    }
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
        self.raw().message_wait_point()
    }

    fn is_ready(&self) -> bool {
        self.raw().has_message()
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
        self.queue.raw().room_wait_point()
    }

    fn is_ready(&self) -> bool {
        self.queue.raw().has_room(self.bytes)
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

/// Ready when [`try_recv`](Receiver::try_recv) would not return [`Empty`](crate::GetError::Empty): there is a
/// message, or there are no senders.
impl<T: Message> Waitable for Receiver<T> {
    fn wait_point(&self) -> WaitPoint<'_> {
        self.end().raw().message_wait_point()
    }

    fn is_ready(&self) -> bool {
        self.end().raw().has_message()
    }
}

/// Ready when [`try_send`](Sender::try_send) would not return [`Full`](crate::PutError::Full): there is room,
/// or there are no receivers.
impl<T: Message> Waitable for Sender<T> {
    fn wait_point(&self) -> WaitPoint<'_> {
        self.end().raw().room_wait_point()
    }

    fn is_ready(&self) -> bool {
        self.end().raw().has_room(1)
    }
}

/// Waitable for consumers that take messages with acknowledgement: see [`Queue::lease_ready`].
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
        if raw.memory().is_accessible() && raw.memory().is_at_end() {
            WaitPoint::Parking(raw.memory().finished().into())
        } else {
            raw.message_wait_point()
        }
    }

    pub(crate) fn ready_of(raw: &RawQueue) -> bool {
        let memory = raw.memory();
        raw.has_message() && (!memory.is_at_end() || memory.any_returned() || !raw.has_other_leases())
    }
}

/// Waitable for a process that leases messages for several consumers: see [`Queue::encoded_lease_ready`].
#[doc(hidden)]
#[derive(Clone)]
pub struct EncodedLeaseReady(pub(crate) RawQueue);

impl fmt::Debug for EncodedLeaseReady {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EncodedLeaseReady").field("ready", &self.is_ready()).finish()
    }
}

impl Waitable for EncodedLeaseReady {
    fn wait_point(&self) -> WaitPoint<'_> {
        LeaseReady::place_of(&self.0)
    }

    fn is_ready(&self) -> bool {
        let memory = self.0.memory();
        self.0.has_message() && (!memory.is_at_end() || memory.any_returned() || !self.0.has_leases())
    }
}

/// Ready when [`try_get_lease`](Queue::try_get_lease) would not wait: there is a message, or the queue is at
/// its end. A queue is at its end when it is closed and no other process has leased a message that might be
/// given back.
impl Waitable for LeaseReady {
    fn wait_point(&self) -> WaitPoint<'_> {
        Self::place_of(&self.0)
    }

    fn is_ready(&self) -> bool {
        Self::ready_of(&self.0)
    }
}
