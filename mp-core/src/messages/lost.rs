//! Messages that no process will receive: each envelope that is dropped with a message in it.
//!
//! A queue whose handle is in such a message loses a holder. A waiter of that queue must be notified as if a
//! process had ended, by the queue's word for the last process that is gone
//! ([`detach_notice`](crate::parking::detach_notice)).
//!
//! In order: this process takes over the message's seat in the queue (or releases it, if it already has one),
//! notes [`DetachedProcess::NeverJoined`], wakes the sleepers, and drops its handle. When all queues are
//! noted and everything else is released, it increments *noticed*: only then does a waiter of this process
//! count the handles right.
//!
//! | killed | state left behind |
//! |---|---|
//! | before a seat is taken over | a message of a dead member: a process that recovers the member notes the loss |
//! | after that, before the loss is noted | a seat of a dead member in the queue: a process that recovers the member notes its death |
//! | later | sleepers, which check again within a poll interval |

use std::mem::ManuallyDrop;

use crate::alloc::Allocator;
use crate::blocks::Blocks;
use crate::envelopes::Envelopes;
use crate::envelopes::grants::OBJECT;
use crate::envelopes::meta::Meta;
use crate::layout::envelope as field;
use crate::mem::Mem;
use crate::messages::envelope::Envelope;
use crate::parking::detach_notice::DetachedProcess;
use crate::words::{Attachment, BlockKind};

impl Envelope {
    /// Discards a message that process `pid` never received. Queues whose handles are in the message count
    /// that process as gone. Dropping the envelope does the same for an unknown process.
    pub fn lose(self, pid: u32) {
        ManuallyDrop::new(self).discard(|envelope| envelope.note_loss(pid));
    }

    /// Discards a message without recording a loss: this process has other handles for all attachments.
    pub fn received(self) {
        ManuallyDrop::new(self).discard(|_| false);
    }

    /// Records the loss of a message in each queue whose handle it contains. Returns `true` if there is such
    /// a queue.
    #[cold]
    pub(crate) fn note_loss(&self, pid: u32) -> bool {
        let (arena, id) = (self.arena, self.id());
        let map = arena.map();
        let meta = Meta::of_any_version(map.load_relaxed(Envelopes(arena).envelope_word(id, field::META)));
        let (entries, n) = Allocator(arena).attachments_at(id, meta);
        let mut any = false;
        for k in 0..n {
            let ring = Attachment::unpack(map.load_relaxed(entries.plus(k)))
                .filter(|attach| attach.grant == OBJECT && Blocks(arena).block_exists(attach.block))
                .filter(|attach| Blocks(arena).kind_of(attach.block) == BlockKind::Ring);
            let Some(hold) = ring.and_then(|attach| Allocator(arena).adopt(id, attach).ok()) else {
                continue;
            };
            map.store(entries.plus(k), 0);
            Blocks(arena).ring_holder_gone(hold.block(), DetachedProcess::NeverJoined, pid);
            any = true;
        }
        any
    }
}
