//! Board in shared memory, which outlives the workers. It contains the end mark of the round and, for each
//! worker, the number of operations and the last operations.

use std::fmt::Write;

use mp::{SharedTensor, Tensor};
use serde::{Deserialize, Serialize};

/// Number of last operations that are stored for each worker.
const KEPT: u64 = 12;
/// Number of words of a worker's row: the number of its operations, and two words for each stored operation.
const ROW: usize = 1 + 2 * KEPT as usize;

/// Operation that a worker is about to perform.
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
    "get_lease",
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

/// Board in shared memory.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Board {
    words: SharedTensor<u64>,
}

/// Row of the board that belongs to a worker.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Row {
    board: Board,
    slot: usize,
}

impl Board {
    pub(crate) fn new(slots: usize) -> mp::AnyResult<Self> {
        Ok(Self { words: Tensor::zeros([1 + slots * ROW])?.share() })
    }

    /// Ends the round for all workers.
    pub(crate) fn stop(&self) {
        self.words.store(0, 1);
    }

    pub(crate) fn row(&self, slot: usize) -> Row {
        Row { board: self.clone(), slot }
    }

    /// Returns the number of operations that a worker has begun.
    pub(crate) fn beats(&self, slot: usize) -> u64 {
        self.words.load(1 + slot * ROW)
    }

    /// Returns `true` if the last operation of a worker is `op`.
    pub(crate) fn is_at(&self, slot: usize, op: Op) -> bool {
        let beats = self.beats(slot);
        beats > 0 && self.words.load(2 + slot * ROW + 2 * ((beats - 1) % KEPT) as usize) == op as u64
    }

    /// Returns the last operations of a worker, the latest one last.
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
    /// Records that the worker begins operation `op` on the subject `about`.
    pub(crate) fn note(&self, op: Op, about: u64) {
        let (words, row) = (&self.board.words, 1 + self.slot * ROW);
        let beat = words.load(row);
        let at = row + 1 + 2 * (beat % KEPT) as usize;
        words.store(at, op as u64);
        words.store(at + 1, about);
        words.store(row, beat + 1);
    }

    /// Returns `true` if the round has ended.
    pub(crate) fn over(&self) -> bool {
        self.board.words.load(0) != 0
    }

    /// Returns a unique nonzero number of this worker.
    pub(crate) fn mark(&self) -> u64 {
        u64::from(std::process::id()) << 16 | self.slot as u64
    }
}
