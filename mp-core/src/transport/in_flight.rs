//! Numbers of messages in flight by queue, for the error when no envelopes are left.

use std::collections::HashMap;

use crate::blocks::Blocks;
use crate::envelopes::Envelopes;
use crate::error::{MessagesInFlight, QueuedMessages};
use crate::mem::Mem;
use crate::members::Members;
use crate::transport::Messages;
use crate::words::{BlockId, Holder, Owner, RingPlace, Seat};

/// Maximum number of queues named, and of processes named for each.
const NAMED: usize = 4;

impl Messages {
    /// Returns the present numbers of messages in flight, by queue, with the processes that hold the queues.
    /// Reads all envelopes.
    pub fn on_their_way(self, asked: BlockId, asked_has: u64) -> MessagesInFlight {
        let (map, layout) = (self.map(), self.layout());
        let (mut by_queue, mut owned) = (HashMap::<BlockId, u64>::new(), 0);
        for e in Envelopes(self.0).envelopes_in_use(0) {
            match Owner::unpack(map.load(Envelopes(self.0).owner_words().of(e))).holder {
                Holder::Free => {}
                Holder::Member(_) => owned += 1,
                Holder::Queued | Holder::Leased(_) | Holder::Returned | Holder::Undeliverable => {
                    let place = RingPlace::unpack(map.load_relaxed(Envelopes(self.0).place_words().of(e)));
                    *by_queue.entry(place.ring).or_default() += 1;
                }
            }
        }
        let mut all: Vec<_> = by_queue.into_iter().collect();
        all.sort_unstable_by_key(|&(block, messages)| (std::cmp::Reverse(messages), block));
        let others = all.iter().skip(NAMED).map(|&(_, messages)| messages).sum();
        let queues = all.iter().take(NAMED).map(|&(block, messages)| {
            let pids = self.pids_with(block);
            QueuedMessages { block, messages, pids }
        });
        let kept = layout.envelopes - layout.ordinary();
        MessagesInFlight {
            asked,
            asked_has,
            limit: layout.envelopes,
            kept,
            queues: queues.collect(),
            others,
            owned,
        }
    }

    /// Returns the processes that hold a block.
    fn pids_with(self, block: BlockId) -> Vec<u32> {
        if !Blocks(self.0).block_exists(block) {
            return Vec::new();
        }
        let members = Members(self.0).members();
        let mut pids = Vec::new();
        Blocks(self.0).each_seat(block, |word| {
            if let Seat::Member(m) = Seat::unpack(self.map().load(word)) {
                pids.extend(members.iter().find(|info| info.member == m).map(|info| info.pid));
            }
        });
        pids.sort_unstable();
        pids.dedup();
        pids.truncate(NAMED);
        pids
    }
}
