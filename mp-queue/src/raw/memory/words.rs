//! Access to the words of a queue's header. The table of these words is in [`header`](crate::raw::header).

use mp_core::detach_notice::{DetachedProcess, LastDetached};
use mp_core::mem::{Mem, Word};
use mp_core::{Blocks, Spin};

use super::RingMemory;
use crate::raw::header::{NAME, NAME_MAX, UNBOUNDED, name_words};
use crate::raw::options::DesertedWhen;

impl RingMemory {
    /// Returns a header word that the queue's creator has written, at byte offset `byte`.
    fn header_word(&self, byte: u64) -> u64 {
        Self::words(self.arena).load_relaxed(self.header.word(byte))
    }

    pub(crate) fn fingerprint(&self) -> u64 {
        self.header_word(16)
    }

    /// Returns `true` if the queue's messages have this type. Two type names may have the same fingerprint,
    /// so the stored part of the name is compared, too.
    pub(crate) fn is_of_type(&self, (fingerprint, name): (u64, &str)) -> bool {
        let same = |(i, word)| self.header_word(NAME + 8 * i) == word;
        self.fingerprint() == fingerprint
            && (self.header_word(40) == name.len().min(NAME_MAX) as u64 && name_words(name).all(same))
    }

    /// Returns the name of the message type.
    pub(crate) fn type_name(&self) -> String {
        let len = (self.header_word(40) as usize).min(NAME_MAX);
        let words = (0..len.div_ceil(8) as u64).map(|i| self.header_word(NAME + 8 * i));
        let mut bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        bytes.truncate(len);
        mp_core::printable(&String::from_utf8_lossy(&bytes))
    }

    /// Returns the limit on deliveries of a message. 0 means no limit.
    pub(crate) fn deliveries(&self) -> u32 {
        self.header_word(184) as u32
    }

    pub(crate) fn spin(&self) -> Spin {
        Spin::unpack(self.header_word(208))
    }

    pub(crate) fn deserted_when(&self) -> DesertedWhen {
        DesertedWhen::unpack(self.header_word(248))
    }

    /// Returns `true` if a put returns an error instead of waiting.
    pub(crate) fn is_unbounded(&self) -> bool {
        self.header_word(240) & UNBOUNDED != 0
    }

    /// Returns the number of messages that the ring retains, or 0 for a queue whose messages are taken.
    pub(super) fn retained_limit(&self) -> u32 {
        (self.header_word(240) >> 32) as u32
    }

    /// Returns the mark of the token of receivers or senders. Returns 0 if the queue is not a channel.
    pub(crate) fn token(&self, receivers: bool) -> u64 {
        Self::words(self.arena).load(self.token_at(receivers))
    }

    /// Stores the mark of the token of receivers or senders, which makes the queue a channel. Called before
    /// another process has the queue.
    pub(crate) fn set_token(&self, receivers: bool, mark: u64) {
        Self::words(self.arena).store(self.token_at(receivers), mark);
    }

    fn token_at(&self, receivers: bool) -> Word {
        self.header.word(if receivers { 224 } else { 216 })
    }

    /// Returns the header word that records the last process that detached from the queue.
    pub(crate) fn gone(&self) -> LastDetached {
        LastDetached(self.header.word(24))
    }

    /// Records that a process has detached from the queue: it ended, dropped its last handle, or never
    /// received the queue.
    pub(super) fn record_detached(&self, gone: DetachedProcess, pid: u32) {
        let m = Self::words(self.arena);
        // An unknown process is less useful to readers than the process that was recorded before it.
        if gone == DetachedProcess::NeverJoined && pid == 0 && self.gone().read(m).is_some() {
            return;
        }
        m.store(self.header.word(32), u64::from(pid));
        let has = |member| Blocks(self.arena).ring_is_held_by(self.chain.block(), member);
        self.gone().note(m, gone, has);
    }

    /// Returns the last process that detached from the queue and its process id, or `None` if no process has
    /// detached.
    pub(crate) fn last_gone(&self) -> Option<(DetachedProcess, u32)> {
        let m = Self::words(self.arena);
        Some((self.gone().read(m)?, m.load(self.header.word(32)) as u32))
    }
}
