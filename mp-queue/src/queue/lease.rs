//! Messages with acknowledgement: if a consumer dies before it acknowledges a message, another consumer gets
//! the message.

use std::fmt;
use std::ops::Deref;

use mp_core::message::{Incoming, Outgoing};
use mp_core::waits::BlockingCall;
use mp_core::words::{Holder, Member};
use mp_core::{AdaptiveSpin, Leased, Members, Message, Wait};
use mp_reduce::{Error, TypeFingerprint, unpack_as, unpack_with};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{GetError, Leaseholder};
use crate::queue::Queue;
use crate::queue::waitable::{EncodedLeaseReady, LeaseReady};
use crate::raw::RawQueue;
use crate::raw::handles::WaitPurpose;
use crate::raw::waiting::{WaitError, WaitSite};
use crate::ring::{GetOutcome, Link};

/// Message that a consumer has leased. [`ack`](Self::ack) removes the message from the queue. If the lease is
/// dropped before that, for example by a panic, or the process dies, another consumer gets the message.
pub struct Lease<T> {
    value: T,
    deliveries: u32,
    of: LeaseToken,
}

/// Lease without its value. Dropping the token gives the message back, unless it was acknowledged.
struct LeaseToken {
    raw: RawQueue,
    leased: Option<Leased>,
}

impl Drop for LeaseToken {
    fn drop(&mut self) {
        // A forked copy has no leases.
        if let Some(leased) = self.leased.take()
            && self.raw.arena().me().is_ok()
        {
            self.raw.memory().give_back(&leased);
        }
    }
}

impl LeaseToken {
    fn finish(mut self) {
        if let Some(leased) = self.leased.take()
            && let Ok(Some(envelope)) = self.raw.memory().finish(&leased)
        {
            envelope.received();
            self.raw.memory().finished().wake_some(u32::MAX >> 1);
        }
    }
}

impl<T> Lease<T> {
    /// Acknowledges the message: removes it from the queue and returns its value.
    #[doc(alias("task_done", "done"))]
    pub fn ack(self) -> T {
        let Self { value, of, .. } = self;
        of.finish();
        value
    }

    /// Separates the value from the lease. The returned lease can acknowledge the message or give it back.
    ///
    /// ```
    /// use mp_queue::Queue;
    ///
    /// let queue = Queue::bounded(4)?;
    /// queue.put("resize image 7".to_string())?;
    /// let (job, lease) = queue.get_lease()?.expect("it is not closed").split();
    /// assert_eq!(job, "resize image 7");
    /// lease.ack();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn split(self) -> (T, Lease<()>) {
        let Self { value, deliveries, of } = self;
        (value, Lease { value: (), deliveries, of })
    }

    /// Returns how many times the message was delivered, including this time. 1 means the first delivery.
    pub fn deliveries(&self) -> u32 {
        self.deliveries
    }

    /// Gives the message to another consumer, or again to this consumer. Dropping the lease does the same.
    #[doc(alias("nack", "requeue"))]
    pub fn give_back(self) {}
}

impl<T> Deref for Lease<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: fmt::Debug> fmt::Debug for Lease<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").field("value", &self.value).field("deliveries", &self.deliveries).finish()
    }
}

impl RawQueue {
    /// Tries once to lease a message into `into`. Returns `None` if the queue is empty and not closed. If the
    /// queue is closed and drained, succeeds and leaves `into` empty. Other processes may still give messages
    /// back after that.
    fn attempt_lease(&self, into: &mut Option<Leased>) -> Option<Result<(), GetError>> {
        match self.lease_next(into) {
            Ok(GetOutcome::Done(()) | GetOutcome::Closed) => Some(Ok(())),
            Ok(GetOutcome::Empty) => None,
            Err(error) => Some(Err(GetError::Failed(error))),
        }
    }

    /// Tries once to lease a message, for a future. Returns `None` if the future must wait, and
    /// `Some(Ok(None))` if the queue is closed, drained, and not leased by another process.
    pub(crate) fn poll_lease(&self) -> Option<Result<Option<Leased>, GetError>> {
        let mut leased = None;
        let mut attempt = || self.attempt_lease(&mut leased);
        let end = attempt().or_else(|| self.end_if_gone(Some(WaitPurpose::Message), Wait::Never, attempt));
        match end? {
            Ok(()) if leased.is_some() => {
                self.memory().wake_producers(1);
                Some(Ok(leased))
            }
            Ok(()) => (!self.has_other_leases()).then_some(Ok(None)),
            Err(error) => Some(Err(error)),
        }
    }

    /// Tries once to lease a message: a returned message, or else the oldest message.
    fn lease_next(&self, into: &mut Option<Leased>) -> Result<GetOutcome<()>, Error> {
        self.arena().me()?;
        self.memory().enable_redelivery();
        if self.memory().any_returned()
            && let Some(leased) = self.memory().lease_returned(self.last_returned())?
        {
            self.record_returned(leased.id());
            *into = Some(leased);
            return Ok(GetOutcome::Done(()));
        }
        let mut i = self.head_segment();
        loop {
            match self.memory().lease(i, into)? {
                GetOutcome::Closed => match self.memory().link(i) {
                    Link::None => return Ok(GetOutcome::Empty),
                    Link::End => return Ok(GetOutcome::Closed),
                    Link::Open => i += 1,
                },
                end => {
                    self.record_head_segment(i);
                    return Ok(end);
                }
            }
        }
    }

    /// Returns the processes that have leased messages of this queue, except the member `without`.
    pub(crate) fn leaseholders(&self, without: Option<Member>) -> Vec<Leaseholder> {
        let mut holders: Vec<Leaseholder> = Vec::new();
        self.memory().each_leaseholder(|member| match holders.iter_mut().find(|h| h.member == member) {
            Some(holder) => holder.messages += 1,
            None if Some(member) == without => {}
            None => {
                holders.push(Leaseholder { member, pid: Members(self.arena()).pid_of(member), messages: 1 })
            }
        });
        holders
    }

    /// Returns `true` if a message of this closed and drained queue may still be given back: another process
    /// has leased the message, or the message is returned. A message whose owner word is still `QUEUED`
    /// counts, too. Either a process has just taken it and not yet become its owner, or its put is about to
    /// fail.
    pub(crate) fn has_other_leases(&self) -> bool {
        let me = self.arena().me().ok();
        let others = |h| match h {
            Holder::Leased(m) => Some(m) != me,
            Holder::Queued | Holder::Returned => true,
            Holder::Free | Holder::Member(_) | Holder::Undeliverable => false,
        };
        self.memory().count(others) > 0
    }

    /// Returns `true` if any process, including this one, has leased a message of this closed and drained
    /// queue, or a message is returned or still `QUEUED`.
    pub(crate) fn has_leases(&self) -> bool {
        let is_undone = |h| matches!(h, Holder::Leased(_) | Holder::Queued | Holder::Returned);
        self.memory().count(is_undone) > 0
    }

    /// Leases a message. Returns `Ok(None)` if the queue is closed and drained, and no other process has a
    /// lease.
    #[track_caller]
    fn lease(&self, wait: Wait) -> Result<Option<Leased>, GetError> {
        let asleep = AdaptiveSpin::none();
        loop {
            let mut leased = None;
            let attempt = || self.attempt_lease(&mut leased);
            let at = WaitSite::for_message(self, BlockingCall::QueueGet);
            self.attempt_until(wait, (self.get_spin(), None), at, attempt)?;
            if leased.is_some() {
                self.memory().wake_producers(1);
                return Ok(leased);
            }
            let over = || {
                (!self.has_other_leases() || self.memory().any_returned()).then_some(Ok::<_, WaitError>(()))
            };
            let (parking, call) = (self.memory().finished(), BlockingCall::QueueLeases);
            let at = WaitSite { parking, purpose: None, call };
            self.attempt_until(wait, (&asleep, None), at, over)?;
            if !self.has_other_leases() {
                return Ok(None);
            }
        }
    }
}

/// Decodes a leased message.
pub(crate) fn read<T: Message>(
    raw: &RawQueue,
    fingerprint: TypeFingerprint<T>,
    leased: Leased,
) -> Result<Lease<T>, GetError> {
    let deliveries = leased.deliver();
    // From here on, the message is given back on every path unless it is acknowledged.
    let of = LeaseToken { raw: raw.clone(), leased: Some(leased) };
    let open = |inc: &mut Incoming| match &of.leased {
        Some(leased) => leased.read(inc),
        None => Ok(()),
    };
    let value = unpack_with(fingerprint, open)?;
    Ok(Lease { value, deliveries, of })
}

impl<T: Serialize + DeserializeOwned + 'static> Queue<T> {
    /// Takes the oldest message, which stays in the queue until it is [acknowledged](Lease::ack). Waits while
    /// there is no message. Returns `None` if the queue is closed and drained and no other process has leased
    /// one of its messages.
    ///
    /// ```
    /// use mp_queue::Queue;
    ///
    /// let queue = Queue::bounded(4)?;
    /// queue.put("resize image 7".to_string())?;
    ///
    /// let job = queue.get_lease()?.expect("it is not closed");
    /// drop(job); // as if this process had died, or panicked
    /// let job = queue.get_lease()?.expect("it came back");
    /// assert_eq!((job.as_str(), job.deliveries()), ("resize image 7", 2));
    /// job.ack();
    /// assert!(queue.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// A message that was given back is delivered before other messages, so it may be delivered after a later
    /// one. A message is delivered **at least once**: its effects before its consumer died may be repeated.
    /// Plain [`get`](Self::get) delivers *at most once*: if a consumer dies, its message is lost, even a
    /// message that was given back before. A message that has been delivered as often as the queue allows
    /// ([`QueueOptions::deliveries`](crate::QueueOptions::deliveries), by default five times) is set aside:
    /// see [`dead_letter`](Self::dead_letter).
    ///
    /// The queue keeps the message until it is acknowledged. Tensors in it are not copied: all consumers that
    /// get the message see the same memory. Only serde types can be taken in this way, since they can't own
    /// memory exclusively.
    ///
    /// # Errors
    /// Returns the same errors as [`get`](Self::get). A message that can't be decoded is given back, and set
    /// aside after its last delivery.
    #[doc(alias("get_ack", "acknowledge"))]
    #[track_caller]
    pub fn get_lease(&self) -> Result<Option<Lease<T>>, GetError> {
        self.lease_wait(Wait::Forever)
    }

    mp_core::forms! {
        "Takes the oldest message as a [`Lease`]":
        get_lease() -> Result<Option<Lease<T>>, GetError>,
        or "[`GetError::Empty`], or [`GetError::Leased`] with the leaseholders if the queue is closed and \
            their messages may be given back";
        |queue, wait| queue.lease_wait(wait);
        never try_get_lease;
        at_most get_lease_timeout;
        until get_lease_deadline;
    }

    #[track_caller]
    pub(crate) fn lease_wait(&self, wait: Wait) -> Result<Option<Lease<T>>, GetError> {
        match self.raw().lease(wait) {
            Ok(Some(leased)) => read(self.raw(), self.fingerprint(), leased).map(Some),
            Ok(None) => Ok(None),
            Err(GetError::Empty) if self.raw().memory().is_at_end() => {
                Err(GetError::Leased { holders: self.raw().leaseholders(self.raw().arena().me().ok()) })
            }
            Err(e) => Err(e),
        }
    }

    /// Takes a message that was delivered as often as the queue allows and never acknowledged. Returns `None`
    /// if there is none.
    ///
    /// ```
    /// use mp_queue::QueueOptions;
    ///
    /// let queue = QueueOptions::new().deliveries(1).create::<String>()?;
    /// queue.put("a job that kills".to_string())?;
    /// drop(queue.get_lease()?);
    /// assert!(queue.try_get_lease().is_err()); // it is not delivered again
    /// assert_eq!(queue.dead_letter()?.as_deref(), Some("a job that kills"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns [`GetError::Failed`] if the message can't be decoded. That message is lost.
    #[doc(alias = "dead letter queue")]
    pub fn dead_letter(&self) -> Result<Option<T>, GetError> {
        match self.raw().take_returned(true)? {
            Some(envelope) => Ok(Some(unpack_as(self.fingerprint(), envelope)?)),
            None => Ok(None),
        }
    }
}

/// Leased message that is not decoded, for a relay to another arena. Dropping it gives the message back.
#[doc(hidden)]
pub struct EncodedLease {
    of: LeaseToken,
    deliveries: u32,
}

impl EncodedLease {
    /// Returns how many times the message was delivered, including this time.
    pub fn deliveries(&self) -> u32 {
        self.deliveries
    }

    /// Returns the encoded message. The queue keeps the message, and shares its attachments with this
    /// process.
    ///
    /// # Errors
    /// Returns an error if the message has an exclusive tensor, or its words are invalid.
    pub fn read(&self) -> Result<Outgoing, Error> {
        let mut incoming = Incoming::default();
        if let Some(leased) = &self.of.leased {
            leased.read(&mut incoming)?;
        }
        Ok(incoming.into_outgoing().unwrap_or_default())
    }

    /// Acknowledges the message.
    pub fn ack(self) {
        self.of.finish();
    }
}

impl fmt::Debug for EncodedLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EncodedLease").field("deliveries", &self.deliveries).finish_non_exhaustive()
    }
}

impl<T: Message> Queue<T> {
    /// Returns a `Waitable` for consumers that take messages with acknowledgement. The `Waitable` is ready
    /// when [`try_get_lease`](Self::try_get_lease) would return a message or the end. The queue itself
    /// becomes ready earlier: as soon as it is closed and drained, even if other processes have leased
    /// messages that may be given back.
    ///
    /// ```
    /// use std::time::Duration;
    /// use mp_queue::{Queue, select};
    ///
    /// let (jobs, stop) = (Queue::<u32>::bounded(4)?, Queue::<()>::bounded(1)?);
    /// let tasks = jobs.lease_ready();
    /// assert_eq!(select(&[&tasks, &stop], Some(Duration::ZERO))?, None);
    /// jobs.put(7)?;
    /// assert_eq!(select(&[&tasks, &stop], None)?, Some(0));
    /// assert_eq!(jobs.try_get_lease()?.expect("it is open").ack(), 7);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn lease_ready(&self) -> LeaseReady {
        LeaseReady(self.raw().clone())
    }

    /// Leases a message without waiting, for a future. Returns `None` if the future must wait. Returns
    /// `Some(Ok(None))` if the queue is closed and drained, and no process has a lease.
    ///
    /// Leases of this process count, too, because the caller leases messages for several consumers.
    #[doc(hidden)]
    pub fn poll_encoded_lease(&self) -> Option<Result<Option<EncodedLease>, GetError>> {
        let lease = |leased: Leased| {
            let deliveries = leased.deliver();
            EncodedLease { of: LeaseToken { raw: self.raw().clone(), leased: Some(leased) }, deliveries }
        };
        match self.raw().poll_lease()? {
            Ok(None) if self.raw().has_leases() => None,
            end => Some(end.map(|leased| leased.map(lease))),
        }
    }

    /// Returns a `Waitable` for [`poll_encoded_lease`](Self::poll_encoded_lease).
    #[doc(hidden)]
    pub fn encoded_lease_ready(&self) -> EncodedLeaseReady {
        EncodedLeaseReady(self.raw().clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ack_of_a_returned_lease_has_no_effect() {
        let queue = Queue::bounded(1).unwrap();
        queue.put(5_u32).unwrap();
        let lease = queue.get_lease().unwrap().unwrap();
        let given_back = lease.of.leased.as_ref().is_some_and(|l| queue.raw().memory().give_back(l));
        assert!(given_back);
        assert_eq!(lease.ack(), 5);
        let again = queue.try_get_lease().unwrap().unwrap();
        assert_eq!((*again, again.deliveries()), (5, 2));
        again.ack();
        assert!(queue.try_get_lease().unwrap_err().is_empty());
    }
}
