//! The reading side.

use std::fmt;
use std::sync::Arc;

use mp_core::mutex::Mutex;
use mp_core::waits::Call;
use mp_core::{SharedWaitable, Wait, WaitPoint, Waitable};
use mp_reduce::{Error, TypeFingerprint};
use serde::de::{DeserializeOwned, Error as _};
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{empty, type_of};
use crate::error::GetError;
use crate::queue::kept::KeptEnd;
use crate::ring::Ticket;

/// The reading side of a [`channel`](super::channel()): any number of them, in any number of processes.
///
/// Each has its own idea of which value it has seen. A clone, and what another process receives, begin with that of the receiver that they
/// were made of.
pub struct Receiver<T> {
    end: KeptEnd,
    fingerprint: TypeFingerprint<T>,
    state: Mutex<State<T>>,
}

/// What a receiver knows. No code of the value runs under its lock.
struct State<T> {
    seen: Ticket,
    /// What it has read last.
    value: Option<(Ticket, Arc<T>)>,
}

impl<T> Receiver<T> {
    pub(super) fn of(end: KeptEnd, seen: Ticket) -> Self {
        Self { end, fingerprint: TypeFingerprint::new(), state: Mutex::new(State { seen, value: None }) }
    }

    fn seen(&self) -> Ticket {
        self.state.lock().seen
    }

    /// The ticket of the newest value, if it is not the one that was seen.
    fn unseen(&self) -> Result<Option<Ticket>, Error> {
        let (_, newest) = self.end.kept()?.newest().ok_or_else(empty)?;
        Ok(Some(newest).filter(|&newest| newest != self.seen()))
    }
}

impl<T: Serialize + DeserializeOwned + 'static> Receiver<T> {
    /// The newest value. It is decoded once: as long as it is the newest, each further call returns the same one, which takes some
    /// nanoseconds. It stays as long as it is held, whatever is sent meanwhile.
    ///
    /// It is not counted as seen: for that, there is [`borrow_and_update`](Self::borrow_and_update).
    ///
    /// # Errors
    /// [`GetError::Failed`] when the value can't be decoded, or this process was forked.
    pub fn borrow(&self) -> Result<Arc<T>, GetError> {
        let (_ticket, value) = self.read()?;
        Ok(value)
    }

    /// The newest value, which counts as seen from now on.
    ///
    /// # Errors
    /// As [`borrow`](Self::borrow).
    pub fn borrow_and_update(&self) -> Result<Arc<T>, GetError> {
        let (ticket, value) = self.read()?;
        self.state.lock().seen = ticket;
        Ok(value)
    }

    fn read(&self) -> Result<(Ticket, Arc<T>), Error> {
        loop {
            let at = self.end.kept()?.newest().ok_or_else(empty)?;
            if let Some((ticket, value)) = &self.state.lock().value
                && (*ticket == at.1)
            {
                return Ok((*ticket, value.clone()));
            }
            if let Some(value) = self.end.read(self.fingerprint, at, || {})? {
                let value = Arc::new(value);
                // The one before may have a `Drop` of the user's: not under the lock.
                let before = self.state.lock().value.replace((at.1, value.clone()));
                drop(before);
                return Ok((at.1, value));
            }
        }
    }

    /// Waits until a value satisfies `wanted`, which may be the present one; that value, which counts as seen.
    ///
    /// ```
    /// let (sender, receiver) = mp_queue::watch::channel(0_u32)?;
    /// std::thread::spawn(move || (1..=5).try_for_each(|n| sender.send(n)));
    /// assert_eq!(*receiver.wait_for(|n| *n >= 5)?, 5);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`GetError::Disconnected`] when there is no sender any more and the last value doesn't; and as [`borrow`](Self::borrow).
    pub fn wait_for(&self, wanted: impl FnMut(&T) -> bool) -> Result<Arc<T>, GetError> {
        self.wait_for_within(wanted, Wait::Forever)
    }

    mp_core::forms! {
        "Waits until a value satisfies `wanted`":
            wait_for[P: FnMut(&T) -> bool](; wanted: P) -> Result<Arc<T>, GetError>, or "[`GetError::Empty`]";
        |receiver, wait| receiver.wait_for_within(wanted, wait);
        at_most wait_for_timeout;
        until wait_for_deadline;
    }

    fn wait_for_within(&self, mut wanted: impl FnMut(&T) -> bool, wait: Wait) -> Result<Arc<T>, GetError> {
        loop {
            let value = self.borrow_and_update()?;
            if wanted(&value) {
                return Ok(value);
            }
            drop(value);
            self.wait_changed_within(wait)?;
        }
    }
}

impl<T> Receiver<T> {
    /// Whether there is a value that was not seen: two loads.
    ///
    /// # Errors
    /// [`GetError::Disconnected`] when there is none, and no sender any more; [`GetError::Failed`] in a forked copy of the process.
    pub fn has_changed(&self) -> Result<bool, GetError> {
        match self.end.look(|| self.change()) {
            None => Ok(false),
            Some(end) => end.map(|_| true),
        }
    }

    fn change(&self) -> Option<Result<Ticket, GetError>> {
        self.unseen().map_err(GetError::Failed).transpose()
    }

    /// Waits until there is a value that was not seen, and counts it as seen. If there is one already, it returns at once.
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
    /// [`GetError::Disconnected`] when there is none, and no sender any more: they were dropped, or their processes are dead. The last
    /// value can still be read. [`GetError::Failed`] in a forked copy of the process.
    pub fn wait_changed(&self) -> Result<(), GetError> {
        self.wait_changed_within(Wait::Forever)
    }

    mp_core::forms! {
        "Waits until there is a value that was not seen": wait_changed() -> Result<(), GetError>, or "[`GetError::Empty`]";
        |receiver, wait| receiver.wait_changed_within(wait);
        at_most wait_changed_timeout;
        until wait_changed_deadline;
    }

    fn wait_changed_within(&self, wait: Wait) -> Result<(), GetError> {
        let ticket = self.end.wait((wait, Call::WatchChanged), || self.change(), GetError::is_empty)?;
        self.state.lock().seen = ticket;
        Ok(())
    }

    /// As [`wait_changed`](Self::wait_changed), as a future, for whatever runtime. One that is dropped before it is ready has
    /// counted nothing as seen.
    ///
    /// # Errors
    /// As [`wait_changed`](Self::wait_changed).
    pub async fn changed(&self) -> Result<(), GetError> {
        let what = || Arc::new(Changed { end: self.end.clone(), seen: self.seen() }) as SharedWaitable;
        let ticket = mp_core::until(what, || Ok::<_, Error>(self.end.look(|| self.change()))).await??;
        self.state.lock().seen = ticket;
        Ok(())
    }

    /// Counts the present value as not seen.
    pub fn mark_changed(&self) {
        // No ticket has this lap: they begin with 1.
        self.state.lock().seen = Ticket { lap: 0, index: 0 };
    }

    /// Counts the present value as seen.
    pub fn mark_unchanged(&self) {
        if let Ok(Some(newest)) = self.unseen() {
            self.state.lock().seen = newest;
        }
    }

    /// Whether there is no sender any more, in any process and in any message. The last value can still be read.
    pub fn is_closed(&self) -> bool {
        self.end.is_alone()
    }

    /// Whether both read the same cell.
    pub fn same_channel(&self, other: &Self) -> bool {
        self.end.raw().hold().block() == other.end.raw().hold().block()
    }
}

/// Whether there is something that was not seen, or no sender.
fn is_ready(end: &KeptEnd, seen: Ticket) -> bool {
    let newest = end.kept().ok().and_then(|kept| kept.newest());
    newest.is_some_and(|(_, newest)| newest != seen) || end.is_alone()
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
    fn place(&self) -> WaitPoint<'_> {
        WaitPoint::Parking(self.end.news().into())
    }

    fn is_ready(&self) -> bool {
        is_ready(&self.end, self.seen())
    }
}

/// A change, as something that futures wait for.
struct Changed {
    end: KeptEnd,
    seen: Ticket,
}

impl Waitable for Changed {
    fn place(&self) -> WaitPoint<'_> {
        WaitPoint::Parking(self.end.news().into())
    }

    fn is_ready(&self) -> bool {
        self.end.kept().is_err() || is_ready(&self.end, self.seen)
    }
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Self {
        let state = self.state.lock();
        let seen = state.seen;
        let state = State { seen, value: state.value.clone() };
        Self { end: self.end.clone(), fingerprint: self.fingerprint, state: Mutex::new(state) }
    }
}

crate::queue::kept::named!(Receiver);

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "watch::Receiver<{}>{:?}", std::any::type_name::<T>(), self.end)
    }
}

impl<T: 'static> Serialize for Receiver<T> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let attachments = self.end.attach("a watch::Receiver").map_err(S::Error::custom)?;
        let _nothing = Ticket { lap: 0, index: 0 };
        let seen = self.seen();
        (attachments, seen.pack()).serialize(s)
    }
}

impl<'de, T: 'static> Deserialize<'de> for Receiver<T> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let (attachments, seen) = <((u32, u32), u64)>::deserialize(d)?;
        let end = KeptEnd::take("a watch::Receiver", attachments, true, type_of::<T>());
        Ok(Self::of(end.map_err(D::Error::custom)?, Ticket::unpack(seen)))
    }
}
