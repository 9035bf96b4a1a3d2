//! Messages that no process will receive: each envelope that is dropped with a message in it.
//!
//! A queue whose handle is in such a message has one holder less, and a waiter of that queue has to learn of it as of a process that
//! ended: by the queue's word for the last process that is gone ([`giving_up`](crate::arena::waiting::giving_up)).
//!
//! In order: this process takes the message's seat in the queue over (or gives it up, if it has one of its own), notes
//! [`Gone::NeverJoined`], wakes the sleepers, and drops its handle. When all queues are noted and all else is released, it counts
//! *noticed* up: a waiter of this process finds its handles counted right only then.
//!
//! | killed | left |
//! |---|---|
//! | before a seat is taken over | a message of a dead member: a visitor notes the loss |
//! | after that, before the loss is noted | a seat of a dead member in the queue: a visitor notes its death |
//! | later | sleepers, who look again within a poll interval |

use std::mem::ManuallyDrop;

use crate::arena::layout::envelope as field;
use crate::arena::messages::envelope::{Envelope, Meta};
use crate::arena::messages::incoming::OBJECT;
use crate::arena::waiting::giving_up::Gone;
use crate::mem::Mem;
use crate::words::{Attach, Kind};

impl Envelope {
    /// Discards a message that process `pid` never received. In queues whose handles are in it, that process
    /// counts as one that is gone. Dropping the envelope does the same for a process that is unknown.
    pub fn lose(self, pid: u32) {
        ManuallyDrop::new(self).discard(|envelope| envelope.note_loss(pid));
    }

    /// Discards a message without a loss: this process has other handles for all that is attached.
    pub fn received(self) {
        ManuallyDrop::new(self).discard(|_| false);
    }

    /// Notes the loss of a message in each queue that has a handle in it. Returns `true` if there is one.
    #[cold]
    pub(in crate::arena) fn note_loss(&self, pid: u32) -> bool {
        let (arena, id) = (self.arena, self.id());
        let map = arena.map();
        let meta = Meta::of_any_version(map.load_relaxed(arena.envelope_word(id, field::META)));
        let (entries, n) = arena.attachments_at(id, meta);
        let mut any = false;
        for k in 0..n {
            let ring = Attach::unpack(map.load_relaxed(entries.plus(k)))
                .filter(|attach| attach.grant == OBJECT && arena.block_exists(attach.block))
                .filter(|attach| arena.kind_of(attach.block) == Kind::Ring);
            let Some(hold) = ring.and_then(|attach| arena.adopt(id, attach).ok()) else { continue };
            map.store(entries.plus(k), 0);
            arena.ring_holder_gone(hold.block(), Gone::NeverJoined, pid);
            any = true;
        }
        any
    }
}
