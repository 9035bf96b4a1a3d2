//! Writing side of a watch channel.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mp_core::Wait;
use mp_core::message::Outgoing;
use mp_reduce::{Error, TypeFingerprint};
use serde::de::{DeserializeOwned, Error as _};
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{read_newest, type_of};
use crate::error::PutError;
use crate::queue::retained_end::{RetainedEnd, SendOutcome};
use crate::raw::RawQueue;

/// Writing side of a [`channel`](super::channel()). Any number of processes can have any number of senders.
pub struct Sender<T> {
    end: RetainedEnd,
    fingerprint: TypeFingerprint<T>,
}

impl<T> Sender<T> {
    pub(super) fn of(end: RetainedEnd) -> Self {
        Self { end, fingerprint: TypeFingerprint::of_rust_name() }
    }
}

impl<T: Serialize + DeserializeOwned + 'static> Sender<T> {
    /// Replaces the value. Never waits for readers or other senders.
    ///
    /// ```
    /// use mp_queue::{PutError, watch};
    ///
    /// let (sender, receiver) = watch::channel(1_u64)?;
    /// sender.send(2)?;
    /// assert_eq!(*receiver.borrow()?, 2);
    /// drop(receiver);
    /// let Err(PutError::NoReceivers { value: 3, .. }) = sender.send(3) else { panic!("no reader") };
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns [`PutError::NoReceivers`] if there are no receivers, [`PutError::Full`] if the arena has no
    /// envelope left, or [`PutError::Failed`] if the value can't be encoded or there is not enough memory.
    /// The error contains the value.
    pub fn send(&self, value: T) -> Result<(), PutError<T>> {
        if self.end.is_peer_gone() {
            return Err(PutError::NoReceivers { value, channel: self.given_name().unwrap_or_default() });
        }
        self.end.send(self.fingerprint, value, None).map(drop)
    }

    /// Replaces the value and returns the previous value. Succeeds even if there are no receivers. No other
    /// value is sent between the previous value and the new one.
    ///
    /// ```
    /// let (sender, _receiver) = mp_queue::watch::channel(1_u64)?;
    /// assert_eq!(sender.send_replace(2)?, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns the same errors as [`send`](Self::send), except `NoReceivers`. Also returns `Failed` if the
    /// previous value can't be decoded.
    pub fn send_replace(&self, value: T) -> Result<T, PutError<T>> {
        let mut value = value;
        loop {
            let (before, position) = match read_newest(&self.end, self.fingerprint) {
                Ok(newest) => newest,
                Err(error) => return Err(PutError::Failed { value, error }),
            };
            let after = Some(position);
            match self.end.send(self.fingerprint, value, after)? {
                SendOutcome::Done(_) => return Ok(before),
                SendOutcome::Superseded(back) => value = back,
            }
        }
    }

    /// Changes the value if `modify` returns `true`. Returns `true` if the value was changed. If another
    /// sender is faster, `modify` is called again with that sender's value.
    ///
    /// ```
    /// let (sender, receiver) = mp_queue::watch::channel(vec![1, 2])?;
    /// assert!(sender.send_if_modified(|list| { list.push(3); true })?);
    /// assert!(!sender.send_if_modified(|list| list.is_empty())?);
    /// assert_eq!(*receiver.borrow()?, [1, 2, 3]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// The change is atomic with respect to senders of all processes: no other value is sent between the
    /// value that `modify` gets and the changed value. `modify` gets a copy, and no process waits while it
    /// runs.
    ///
    /// # Errors
    /// Returns an error if the value can't be decoded or encoded, or if there is not enough memory. The value
    /// is then unchanged.
    pub fn send_if_modified(&self, mut modify: impl FnMut(&mut T) -> bool) -> Result<bool, Error> {
        loop {
            let (mut value, position) = read_newest(&self.end, self.fingerprint)?;
            if !modify(&mut value) {
                return Ok(false);
            }
            match self.end.send(self.fingerprint, value, Some(position)) {
                Ok(SendOutcome::Done(_)) => return Ok(true),
                Ok(SendOutcome::Superseded(_)) => {}
                Err(PutError::Failed { error, .. }) => return Err(error),
                Err(error) => return Err(mp_core::Error::NotPut(error.to_string()).into()),
            }
        }
    }

    /// Decodes and returns the newest value.
    ///
    /// # Errors
    /// Returns an error if the value can't be decoded.
    pub fn borrow(&self) -> Result<Arc<T>, Error> {
        read_newest(&self.end, self.fingerprint).map(|(value, _)| Arc::new(value))
    }
}

impl<T: Serialize + DeserializeOwned + 'static> Sender<T> {
    /// Replaces the value with a value that is already encoded. Succeeds even if there are no receivers. The
    /// caller must have checked that the value has the channel's type.
    ///
    /// # Errors
    /// Returns [`PutError::Full`] if the arena has no envelope left. The message is then unchanged.
    #[doc(hidden)]
    pub fn send_encoded(&self, out: &mut Outgoing) -> Result<(), PutError<()>> {
        self.end.send_encoded(self.fingerprint, out)
    }
}

impl<T> Sender<T> {
    /// Returns `true` if there are no receivers left, neither in a process nor in a message in transit.
    pub fn is_closed(&self) -> bool {
        self.end.is_peer_gone()
    }

    /// Waits until there are no receivers: they were dropped, or their processes died. A crashed process is
    /// recovered at once by its parent, and within about 100 ms by other processes that wait.
    ///
    /// # Errors
    /// Returns an error if this process was forked.
    #[track_caller]
    pub fn wait_closed(&self) -> Result<(), Error> {
        self.end.wait_peer_gone(Wait::Forever).map(drop)
    }

    /// Waits like [`wait_closed`](Self::wait_closed), for at most `timeout`. Returns `true` if there are no
    /// receivers.
    ///
    /// # Errors
    /// Returns the same errors as [`wait_closed`](Self::wait_closed).
    #[track_caller]
    pub fn wait_closed_timeout(&self, timeout: Duration) -> Result<bool, Error> {
        self.end.wait_peer_gone(Wait::at_most(timeout))
    }

    /// Waits like [`wait_closed`](Self::wait_closed), until `deadline` at most. Returns `true` if there are
    /// no receivers.
    ///
    /// # Errors
    /// Returns the same errors as [`wait_closed`](Self::wait_closed).
    #[track_caller]
    pub fn wait_closed_deadline(&self, deadline: Instant) -> Result<bool, Error> {
        self.end.wait_peer_gone(Wait::Until(deadline))
    }

    /// Waits asynchronously until there are no receivers: see [`wait_closed`](Self::wait_closed).
    ///
    /// # Errors
    /// Returns the same errors as [`wait_closed`](Self::wait_closed).
    pub async fn closed(&self) -> Result<(), Error> {
        let poll = || {
            self.end.retained()?;
            Ok::<_, Error>(self.end.is_peer_gone().then_some(()))
        };
        let ready = || self.end.raw().ready_at(self.end.raw().memory().not_full(), RawQueue::is_disconnected);
        mp_core::until(ready, poll).await
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Self { end: self.end.clone(), fingerprint: self.fingerprint }
    }
}

crate::queue::channel::sides!(Sender: "watch::Sender");

impl<T: 'static> Serialize for Sender<T> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        self.end.attach("a watch::Sender").map_err(S::Error::custom)?.serialize(s)
    }
}

impl<'de, T: 'static> Deserialize<'de> for Sender<T> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let attachments = <(u32, u32)>::deserialize(d)?;
        let end = RetainedEnd::take("a watch::Sender", attachments, false, type_of::<T>());
        end.map(Self::of).map_err(D::Error::custom)
    }
}
