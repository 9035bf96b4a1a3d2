//! Which queues have how many messages on their way: what the error says when there are no more envelopes.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::words::BlockId;

/// Which queues and processes have the messages that are on their way.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MessagesInFlight {
    /// The queue that was to get one more, by the number that its `Debug` shows.
    pub asked: BlockId,
    /// How many it has.
    pub asked_has: u64,
    /// How many there can be in all: see [`ArenaOptions::messages`](crate::ArenaOptions::messages).
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
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct QueuedMessages {
    /// The number that the queue's `Debug` shows.
    pub block: BlockId,
    /// How many messages.
    pub messages: u64,
    /// Processes that have the queue: up to four.
    pub pids: Vec<u32>,
}

impl fmt::Display for MessagesInFlight {
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
