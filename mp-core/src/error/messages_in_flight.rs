//! Distribution of messages in flight over the queues, for the error returned when no envelope is free.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::words::BlockId;

/// Queues and processes that hold the messages in flight.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MessagesInFlight {
    /// Queue to which the message was to be added, by the number that its `Debug` shows.
    pub asked: BlockId,
    /// Number of messages in that queue.
    pub asked_has: u64,
    /// Maximum number of messages in flight: see [`ArenaOptions::messages`](crate::ArenaOptions::messages).
    pub limit: u32,
    /// Number of envelopes reserved for queues with few messages.
    pub kept: u32,
    /// The queues with the most messages, in descending order: up to four.
    pub queues: Vec<QueuedMessages>,
    /// Number of messages in all other queues.
    pub others: u64,
    /// Number of envelopes that belong to processes: being written or read, or kept for the next messages of
    /// a process.
    pub owned: u64,
}

/// Messages of one queue, including leased ones.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct QueuedMessages {
    /// Number that the queue's `Debug` shows.
    pub block: BlockId,
    /// Number of messages.
    pub messages: u64,
    /// Processes that hold the queue: up to four.
    pub pids: Vec<u32>,
}

impl fmt::Display for MessagesInFlight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { asked, asked_has, limit, kept, queues, others, owned } = self;
        write!(
            f,
            "the queue in block {asked}, which was to get one more, has {asked_has}; of {limit} messages \
            that can be in flight at once, {kept} of which are kept for queues that have few"
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
