//! What all workers see: whether the round is over, and for each of them a count of what it has done and its last
//! operations. It outlives them.

use std::fmt::Write;

use mp::{SharedTensor, Tensor};
use serde::{Deserialize, Serialize};

/// Operations that are kept for each worker.
const KEPT: u64 = 12;
/// Words of a worker: its count, then an operation and what it was about, `KEPT` times.
const ROW: usize = 1 + 2 * KEPT as usize;

/// What a worker is about to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub(crate) enum Op {
    Begin = 1,
    Put,
    PutMany,
    Get,
    GetMany,
    Lease,
    Done,
    GiveBack,
    Send,
    Receive,
    Lock,
    Recover,
    Read,
    Write,
    Acquire,
    Notify,
    WaitFor,
    Barrier,
    Event,
    Relock,
    Pair,
    Deadlock,
    Once,
    Wait,
    Ring,
    Child,
    Poll,
    Cancel,
    Connect,
    Accept,
    Answer,
    Leave,
    Submit,
    Collect,
    End,
}

const NAMES: [&str; 36] = [
    "-",
    "begin",
    "put",
    "put_many",
    "get",
    "get_many",
    "get_ack",
    "done",
    "give_back",
    "send",
    "recv",
    "lock",
    "recover",
    "read",
    "write",
    "acquire",
    "notify",
    "wait_for",
    "barrier",
    "event",
    "rlock",
    "pair",
    "deadlock",
    "call_once",
    "wait",
    "ring",
    "child",
    "poll",
    "cancel",
    "connect",
    "accept",
    "answer",
    "leave",
    "submit",
    "collect",
    "end",
];

/// The board.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Board {
    words: SharedTensor<u64>,
}

/// A worker's row of it.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Row {
    board: Board,
    slot: usize,
}

impl Board {
    pub(crate) fn new(slots: usize) -> mp::AnyResult<Self> {
        Ok(Self { words: Tensor::zeros([1 + slots * ROW])?.share() })
    }

    /// Tells all workers that the round is over.
    pub(crate) fn stop(&self) {
        self.words.store(0, 1);
    }

    pub(crate) fn row(&self, slot: usize) -> Row {
        Row { board: self.clone(), slot }
    }

    /// How many operations a worker has begun.
    pub(crate) fn beats(&self, slot: usize) -> u64 {
        self.words.load(1 + slot * ROW)
    }

    /// The last operations of a worker, the last one last.
    pub(crate) fn last(&self, slot: usize) -> String {
        let beats = self.beats(slot);
        let mut text = format!("{beats} operations:");
        for beat in beats.saturating_sub(KEPT)..beats {
            let at = 2 + slot * ROW + 2 * (beat % KEPT) as usize;
            let name = NAMES.get(self.words.load(at) as usize).unwrap_or(&"?");
            _ = write!(text, " {name} {}", self.words.load(at + 1));
        }
        text
    }
}

impl Row {
    /// Notes what is about to be done.
    pub(crate) fn note(&self, op: Op, about: u64) {
        let (words, row) = (&self.board.words, 1 + self.slot * ROW);
        let beat = words.load(row);
        let at = row + 1 + 2 * (beat % KEPT) as usize;
        words.store(at, op as u64);
        words.store(at + 1, about);
        words.store(row, beat + 1);
    }

    /// Whether the round is over.
    pub(crate) fn over(&self) -> bool {
        self.board.words.load(0) != 0
    }

    /// A number of one's own, not 0.
    pub(crate) fn mark(&self) -> u64 {
        u64::from(std::process::id()) << 16 | self.slot as u64
    }
}
