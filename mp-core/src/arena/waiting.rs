//! Which queues have how many messages on their way: for the error when there are no more envelopes.

use std::collections::HashMap;
use std::fmt;

use super::Arena;
use crate::mem::Mem;
use crate::words::{BlockId, Holder, Owner, Place, Seat};

/// How many queues are named, and how many processes of each.
const NAMED: usize = 4;

/// Which queues and processes have the messages that are on their way.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct OnTheirWay {
    /// The queue that was to get one more, by the number that its `Debug` shows.
    pub asked: BlockId,
    /// How many it has.
    pub asked_has: u64,
    /// How many there can be in all: see [`ArenaOptions::messages`](super::ArenaOptions::messages).
    pub limit: u32,
    /// How many of these are kept for queues that have few.
    pub kept: u32,
    /// The queues that have most of them, the one with most first: up to four.
    pub queues: Vec<QueuedMessages>,
    /// How many all others have.
    pub others: u64,
    /// How many belong to processes, which write or read them, or keep them for their next messages.
    pub owned: u64,
}

/// The messages of one queue, those included that are leased.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct QueuedMessages {
    /// The number that the queue's `Debug` shows.
    pub block: BlockId,
    /// How many messages.
    pub messages: u64,
    /// Processes that have the queue: up to four.
    pub pids: Vec<u32>,
}

impl fmt::Display for OnTheirWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { asked, asked_has, limit, kept, queues, others, owned } = self;
        write!(
            f,
            "the queue in block {asked}, which was to get one more, has {asked_has}; of {limit} messages that can be on their way at once, {kept} of which are kept for queues that have few"
        )?;
        for QueuedMessages { block, messages, pids } in queues {
            write!(f, ", {messages} are in the queue in block {block}")?;
            for (i, pid) in pids.iter().enumerate() {
                write!(f, "{}{pid}", if i == 0 { " (of process " } else { ", " })?;
            }
            f.write_str(if pids.is_empty() { "" } else { ")" })?;
        }
        if *others > 0 {
            write!(f, ", {others} in other queues")?;
        }
        write!(f, ", {owned} with processes")
    }
}

impl Arena {
    /// Which queues and processes have the messages that are on their way, at this moment. It reads all
    /// envelopes.
    pub fn on_their_way(&self, asked: BlockId, asked_has: u64) -> OnTheirWay {
        let (map, layout) = (self.map(), self.layout());
        let (mut by_queue, mut owned) = (HashMap::<BlockId, u64>::new(), 0);
        for e in self.envelopes_in_use(0) {
            match Owner::unpack(map.load(self.owner_words().of(e))).holder {
                Holder::Free => {}
                Holder::Member(_) => owned += 1,
                Holder::Queued | Holder::Leased(_) | Holder::Returned | Holder::Undeliverable => {
                    let place = Place::unpack(map.load_relaxed(self.place_words().of(e)));
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
        OnTheirWay {
            asked,
            asked_has,
            limit: layout.envelopes,
            kept,
            queues: queues.collect(),
            others,
            owned,
        }
    }

    /// Processes that hold a block.
    fn pids_with(&self, block: BlockId) -> Vec<u32> {
        if !self.block_exists(block) {
            return Vec::new();
        }
        let members = self.members();
        let mut pids = Vec::new();
        self.each_seat(block, |word| {
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
