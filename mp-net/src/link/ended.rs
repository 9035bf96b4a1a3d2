//! Ended sessions of a link, and unconfirmed receipts. A receipt is a list of messages that this process has
//! received. The home confirms that it has read the list.

use mp_core::mutex::Mutex;

use crate::error::PeerLost;
use crate::sync::{AtomicU64, Ordering};

/// Sessions of a link that have ended.
#[derive(Debug, Default)]
pub(crate) struct EndedSessions {
    /// Number of the last call of the latest ended session.
    last: AtomicU64,
    /// Loss of a home, if the home may have given back messages that this process has received since the last
    /// flush.
    unflushed: Mutex<Option<PeerLost>>,
}

impl EndedSessions {
    /// Records the end of a session. `last` is the number of its last call.
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

    /// Removes and returns the recorded loss.
    pub(crate) fn take_unflushed(&self) -> Option<PeerLost> {
        self.unflushed.lock().take()
    }
}

/// Receipts that were sent to a home in a session.
#[derive(Default)]
pub(crate) struct SentReceipts {
    /// Number of receipts that were sent in this session.
    pub(crate) sent: u64,
    /// Number of receipts that the home has read: it has answered a call that was sent after them.
    known: u64,
}

impl SentReceipts {
    /// Records that the home has answered a call, before which `sent` receipts were sent.
    pub(crate) fn answered(&mut self, sent: u64) {
        self.known = self.known.max(sent);
    }

    /// Returns `true` if the home has read all receipts.
    pub(crate) fn are_known(&self) -> bool {
        self.known == self.sent
    }
}
