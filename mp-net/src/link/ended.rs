//! Ended sessions of a link, and receipts that a home has not confirmed. A receipt is a list of messages that
//! this process has received.

use mp_core::mutex::Mutex;

use crate::error::PeerLost;
use crate::sync::{AtomicU64, Ordering};

/// Sessions of a link that have ended.
#[derive(Debug, Default)]
pub(crate) struct EndedSessions {
    /// Number of the last call of the latest ended session.
    last: AtomicU64,
    /// Loss of a home that may have given back messages which this process has received since its last flush.
    unflushed: Mutex<Option<PeerLost>>,
}

impl EndedSessions {
    /// Records the end of a session, by its last call.
    pub(crate) fn add(&self, last: u64) {
        self.last.store(last, Ordering::Relaxed);
    }

    /// Returns `true` if the session of a call has ended.
    pub(crate) fn contains(&self, id: u64) -> bool {
        id <= self.last.load(Ordering::Relaxed)
    }

    /// Records a loss after which received messages may return to their queues.
    pub(crate) fn add_unflushed(&self, lost: PeerLost) {
        *self.unflushed.lock() = Some(lost);
    }

    /// Takes the recorded loss.
    pub(crate) fn take_unflushed(&self) -> Option<PeerLost> {
        self.unflushed.lock().take()
    }
}

/// Receipts that were sent to a home in a session.
#[derive(Default)]
pub(crate) struct SentReceipts {
    /// Number of receipts sent.
    pub(crate) sent: u64,
    /// Number of receipts that the home has read, because it has answered a later call.
    known: u64,
}

impl SentReceipts {
    /// Records the answer to a call before which `sent` receipts were sent.
    pub(crate) fn answered(&mut self, sent: u64) {
        self.known = self.known.max(sent);
    }

    /// Returns `true` if the home has read all receipts.
    pub(crate) fn are_known(&self) -> bool {
        self.known == self.sent
    }
}
