//! Reading side of a watch channel.

use std::sync::Arc;
use std::time::Instant;

use mp_core::message::Outgoing;
use mp_core::mutex::Mutex;
use mp_core::waits::BlockingCall;
use mp_core::{Wait, WaitPoint, Waitable};
use mp_reduce::{Error, TypeFingerprint};
use serde::de::{DeserializeOwned, Error as _};
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{empty, type_of};
use crate::error::GetError;
use crate::queue::retained_end::{FoundMessage, RetainedEnd};
use crate::raw::RawQueue;
use crate::raw::memory::pinned_read::{RetainedRing, TURNS};
use crate::ring::Position;

/// Reading side of a [`channel`](super::channel()). Any number of processes can have any number of receivers.
///
/// Each receiver tracks which value it has seen. A clone has seen the same value as the cloned receiver. A
/// receiver that arrives in another process has seen the same value as the receiver that was sent.
pub struct Receiver<T> {
    end: RetainedEnd,
    fingerprint: TypeFingerprint<T>,
    state: Mutex<ReceiverState<T>>,
}

/// State of a receiver. While its lock is held, no code of the value's type runs.
struct ReceiverState<T> {
    seen: Position,
    /// Value that this receiver has read last, and its position.
    value: Option<(Position, Arc<T>)>,
}

impl<T> Receiver<T> {
    pub(super) fn of(end: RetainedEnd, seen: Position) -> Self {
        Self {
            end,
            fingerprint: TypeFingerprint::of_rust_name(),
            state: Mutex::new(ReceiverState { seen, value: None }),
        }
    }

    fn seen(&self) -> Position {
        self.state.lock().seen
    }

    /// Returns the position of the newest value if that value was not seen.
    fn unseen(&self) -> Result<Option<Position>, Error> {
        let (_, newest) = self.end.retained()?.newest().ok_or_else(empty)?;
        Ok(Some(newest).filter(|&newest| newest != self.seen()))
    }
}

impl<T: Serialize + DeserializeOwned + 'static> Receiver<T> {
    /// Returns the newest value. Each value is decoded once: while it is the newest value, each further call
    /// returns the same `Arc` within nanoseconds. The returned value stays valid while it is held, also when
    /// newer values are sent.
    ///
    /// The value does not count as seen. See [`borrow_and_update`](Self::borrow_and_update).
    ///
    /// # Errors
    /// Returns [`GetError::Failed`] if the value can't be decoded or this process was forked.
    pub fn borrow(&self) -> Result<Arc<T>, GetError> {
        let (_position, value) = self.read()?;
        Ok(value)
    }

    /// Returns the newest value and marks it as seen.
    ///
    /// # Errors
    /// Returns the same errors as [`borrow`](Self::borrow).
    pub fn borrow_and_update(&self) -> Result<Arc<T>, GetError> {
        let (position, value) = self.read()?;
        self.state.lock().seen = position;
        Ok(value)
    }

    fn read(&self) -> Result<(Position, Arc<T>), Error> {
        for _ in 0..TURNS {
            let at = self.end.retained()?.newest().ok_or_else(empty)?;
            if let Some((position, value)) = &self.state.lock().value
                && (*position == at.1)
            {
                return Ok((*position, value.clone()));
            }
            if let Some(value) = self.end.read(self.fingerprint, FoundMessage::InSlot(at.0, at.1), || {})? {
                let value = Arc::new(value);
                // The previous value may have a user-defined `Drop`, which must not run under the lock.
                let before = self.state.lock().value.replace((at.1, value.clone()));
                drop(before);
                return Ok((at.1, value));
            }
        }
        Err(empty())
    }

    /// Waits until the newest value satisfies `wanted`. Marks that value as seen and returns it. Returns at
    /// once if the current value satisfies `wanted`.
    ///
    /// ```
    /// let (sender, receiver) = mp_queue::watch::channel(0_u32)?;
    /// std::thread::spawn(move || (1..=5).try_for_each(|n| sender.send(n)));
    /// assert_eq!(*receiver.wait_for(|n| *n >= 5)?, 5);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns [`GetError::Disconnected`] if there are no senders and the last value does not satisfy
    /// `wanted`. Otherwise returns the same errors as [`borrow`](Self::borrow).
    #[track_caller]
    pub fn wait_for(&self, wanted: impl FnMut(&T) -> bool) -> Result<Arc<T>, GetError> {
        self.block_until_value(wanted, Wait::Forever)
    }

    mp_core::forms! {
        "Waits until a value satisfies `wanted`":
            wait_for[P: FnMut(&T) -> bool](; wanted: P) -> Result<Arc<T>, GetError>, or "[`GetError::Empty`]";
        |receiver, wait| receiver.block_until_value(wanted, wait);
        at_most wait_for_timeout;
        until wait_for_deadline;
    }

    #[track_caller]
    fn block_until_value(&self, mut wanted: impl FnMut(&T) -> bool, wait: Wait) -> Result<Arc<T>, GetError> {
        loop {
            let value = self.borrow_and_update()?;
            if wanted(&value) {
                return Ok(value);
            }
            drop(value);
            // A sender may be faster than this thread.
            if wait.is_over_at(Instant::now()) {
                return Err(GetError::Empty);
            }
            self.block_until_changed(wait)?;
        }
    }
}

impl<T> Receiver<T> {
    /// Returns `true` if the newest value was not seen. The call costs two loads from memory.
    ///
    /// # Errors
    /// Returns [`GetError::Disconnected`] if the newest value was seen and there are no senders. Returns
    /// [`GetError::Failed`] in a forked copy of the process.
    pub fn has_changed(&self) -> Result<bool, GetError> {
        match self.end.poll(|| self.change()) {
            None => Ok(false),
            Some(end) => end.map(|_| true),
        }
    }

    fn change(&self) -> Option<Result<Position, GetError>> {
        self.unseen().map_err(GetError::Failed).transpose()
    }

    /// Waits until there is a value that was not seen, and marks it as seen. Returns at once if there already
    /// is one.
    ///
    /// ```
    /// use std::time::Duration;
    /// use mp_queue::watch;
    ///
    /// let (sender, receiver) = watch::channel(0_u32)?;
    /// assert!(receiver.wait_changed_timeout(Duration::ZERO).unwrap_err().is_empty());
    /// std::thread::spawn(move || sender.send(1));
    /// receiver.wait_changed()?;
    /// assert_eq!(*receiver.borrow()?, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns [`GetError::Disconnected`] if the newest value was seen and there are no senders: they were
    /// dropped, or their processes died. The last value can still be read. Returns [`GetError::Failed`] in a
    /// forked copy of the process.
    #[track_caller]
    pub fn wait_changed(&self) -> Result<(), GetError> {
        self.block_until_changed(Wait::Forever)
    }

    mp_core::forms! {
        "Waits until there is an unseen value": wait_changed() -> Result<(), GetError>,
        or "[`GetError::Empty`]";
        |receiver, wait| receiver.block_until_changed(wait);
        at_most wait_changed_timeout;
        until wait_changed_deadline;
    }

    #[track_caller]
    fn block_until_changed(&self, wait: Wait) -> Result<(), GetError> {
        let position = self.end.wait((wait, BlockingCall::WatchChanged), || self.change())?;
        self.state.lock().seen = position;
        Ok(())
    }

    /// Waits asynchronously until there is a value that was not seen, on any runtime: see
    /// [`wait_changed`](Self::wait_changed). A future that is dropped before it is ready has marked nothing
    /// as seen.
    ///
    /// # Errors
    /// Returns the same errors as [`wait_changed`](Self::wait_changed).
    pub async fn changed(&self) -> Result<(), GetError> {
        let (ring, seen) = (*self.end.retained()?, self.seen());
        let what = || {
            let raw = self.end.raw();
            raw.ready_at(self.end.raw().memory().not_empty(), move |raw| is_ready(raw, &ring, seen))
        };
        let position = mp_core::until(what, || Ok::<_, Error>(self.end.poll(|| self.change()))).await??;
        self.state.lock().seen = position;
        Ok(())
    }

    /// Waits asynchronously for a value that was not seen, marks it as seen, and returns it without decoding
    /// it. A future that is dropped before it is ready has marked nothing as seen.
    ///
    /// # Errors
    /// Returns the same errors as [`wait_changed`](Self::wait_changed).
    #[doc(hidden)]
    pub async fn changed_encoded(&self) -> Result<Outgoing, GetError> {
        self.changed().await?;
        for _ in 0..TURNS {
            let at = self.end.retained()?.newest().ok_or_else(empty)?;
            if let Some(value) = self.end.read_encoded(FoundMessage::InSlot(at.0, at.1), || {})? {
                self.state.lock().seen = at.1;
                return Ok(value);
            }
        }
        Err(empty().into())
    }

    /// Returns a clone of this receiver that does not retain the value that this receiver has read last.
    #[doc(hidden)]
    pub fn without_value(&self) -> Self {
        let state = ReceiverState { seen: self.seen(), value: None };
        Self { end: self.end.clone(), fingerprint: self.fingerprint, state: Mutex::new(state) }
    }

    /// Marks the current value as not seen.
    pub fn mark_changed(&self) {
        self.state.lock().seen = Position::NONE;
    }

    /// Marks the current value as seen.
    pub fn mark_unchanged(&self) {
        if let Ok(Some(newest)) = self.unseen() {
            self.state.lock().seen = newest;
        }
    }

    /// Returns `true` if there are no senders left, neither in a process nor in a message in transit. The
    /// last value can still be read.
    pub fn is_closed(&self) -> bool {
        self.end.is_peer_gone()
    }

    /// Returns `true` if both receivers read the same cell.
    pub fn same_channel(&self, other: &Self) -> bool {
        self.end.raw().hold().block() == other.end.raw().hold().block()
    }
}

/// Returns `true` if the newest value is not at the position `seen`, or there are no senders left.
fn is_ready(raw: &RawQueue, ring: &RetainedRing, seen: Position) -> bool {
    ring.newest().is_some_and(|(_, newest)| newest != seen) || raw.is_disconnected()
}

/// Ready when [`wait_changed`](Receiver::wait_changed) would not wait.
///
/// ```
/// use mp_queue::{Queue, select, watch};
///
/// let (sender, weights) = watch::channel(0_u64)?;
/// let stop = Queue::<()>::bounded(1)?;
/// sender.send(1)?;
/// assert_eq!(select(&[&stop, &weights], None)?, Some(1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
impl<T> Waitable for Receiver<T> {
    fn wait_point(&self) -> WaitPoint<'_> {
        WaitPoint::Parking(self.end.raw().memory().not_empty().into())
    }

    fn is_ready(&self) -> bool {
        self.end.retained().is_ok_and(|ring| is_ready(self.end.raw(), ring, self.seen()))
    }
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Self {
        let state = self.state.lock();
        let seen = state.seen;
        let state = ReceiverState { seen, value: state.value.clone() };
        Self { end: self.end.clone(), fingerprint: self.fingerprint, state: Mutex::new(state) }
    }
}

crate::queue::channel::sides!(Receiver: "watch::Receiver");

impl<T: 'static> Serialize for Receiver<T> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let attachments = self.end.attach("a watch::Receiver").map_err(S::Error::custom)?;
        (attachments, self.seen().pack()).serialize(s)
    }
}

impl<'de, T: 'static> Deserialize<'de> for Receiver<T> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let (attachments, seen) = <((u32, u32), u64)>::deserialize(d)?;
        let end = RetainedEnd::take("a watch::Receiver", attachments, true, type_of::<T>());
        Ok(Self::of(end.map_err(D::Error::custom)?, Position::unpack(seen)))
    }
}
