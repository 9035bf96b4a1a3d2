//! Ledger of the messages of a queue, in shared memory that outlives the workers. A word for each message
//! records the operations of its producer and its consumers.
//!
//! | bit | set by | when |
//! |---|---|---|
//! | `BEGUN` | the producer | before the put |
//! | `PUT` | the producer | after the put |
//! | `REFUSED` | the producer | after the message was returned |
//! | `LOST` | this program | after the queue has reported the message as lost |
//! | `DOUBTED` | the consumer | when the consumer can't know whether the acknowledgement has reached the queue's home |
//! | from 8: number of gets | the consumer | after the get |
//! | from 20: number of completions | the consumer | after its work on the message is done |

use mp::{SharedTensor, Tensor};
use serde::{Deserialize, Serialize};

const BEGUN: u32 = 1;
const PUT: u32 = 2;
const REFUSED: u32 = 4;
const LOST: u32 = 8;
const DOUBTED: u32 = 16;
const GOT: u32 = 1 << 8;
const DONE: u32 = 1 << 20;

/// Largest number of messages that a queue transfers in a round.
const MOST: u64 = 1 << 19;

/// Ledger of one queue.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Ledger {
    next: SharedTensor<u64>,
    messages: SharedTensor<u32>,
}

/// Numbers of messages by state, counted after all workers have ended.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Account {
    /// Number of operations on a structure without messages.
    pub(crate) done: u64,
    /// Number of messages whose put has succeeded.
    pub(crate) put: u64,
    /// Number of messages that a consumer got.
    pub(crate) got: u64,
    /// Number of messages that were got more than once.
    pub(crate) again: u64,
    /// Number of messages that were put, but neither got nor reported as lost.
    pub(crate) missing: u64,
    /// Number of messages that were got, but are neither done nor lost nor doubted.
    pub(crate) undone: u64,
    /// Number of messages that were reported as lost.
    pub(crate) lost: u64,
}

impl Ledger {
    pub(crate) fn new() -> mp::AnyResult<Self> {
        Ok(Self { next: Tensor::zeros([1])?.share(), messages: Tensor::zeros([MOST as usize])?.share() })
    }

    /// Returns the number of the next message to put, and records that its put has begun. Returns `None` if
    /// the ledger is full.
    pub(crate) fn begin(&self) -> Option<u64> {
        if self.next.load(0) >= MOST {
            return None;
        }
        let number = self.next.fetch_add(0, 1);
        (number < MOST).then(|| {
            self.messages.fetch_or(number as usize, BEGUN);
            number
        })
    }

    /// Returns the number of messages whose put has begun.
    pub(crate) fn begun(&self) -> u64 {
        self.next.load(0).min(MOST)
    }

    pub(crate) fn put(&self, number: u64) {
        self.messages.fetch_or(number as usize, PUT);
    }

    /// Records that a failed put has returned a message to its producer. Returns an error if a consumer got
    /// the message.
    pub(crate) fn refused(&self, number: u64) -> mp::AnyResult<()> {
        match self.messages.fetch_or(number as usize, REFUSED) {
            was if was >= GOT => Err(format!("duplicated: message {number} was got, and given back").into()),
            _ => Ok(()),
        }
    }

    pub(crate) fn lost(&self, number: u64) -> mp::AnyResult<()> {
        match self.messages.fetch_or(self.place(number)?, LOST) {
            was if was & LOST != 0 => Err(format!("duplicated: task {number} was lost twice").into()),
            was if was >= DONE => Err(format!("duplicated: task {number} is lost, and done").into()),
            _ => Ok(()),
        }
    }

    fn place(&self, number: u64) -> mp::AnyResult<usize> {
        match number < MOST && self.messages.load(number as usize) & BEGUN != 0 {
            true => Ok(number as usize),
            false => Err(format!("torn: message {number}, which no producer has put").into()),
        }
    }

    /// Records that a message was got. If `once` is set, returns an error if the message was got before.
    pub(crate) fn got(&self, number: u64, once: bool) -> mp::AnyResult<()> {
        let was = self.messages.fetch_add(self.place(number)?, GOT);
        match was {
            _ if was & REFUSED != 0 => {
                Err(format!("duplicated: message {number} was refused, and got").into())
            }
            _ if was >= GOT && once => Err(format!("duplicated: message {number} was got twice").into()),
            _ if was >= DONE => Err(format!("duplicated: message {number} was got after it was done").into()),
            _ => Ok(()),
        }
    }

    /// Records that a message was got. Unlike [`got`](Self::got), accepts that another consumer has got or
    /// finished the message, because this consumer may have been stopped for long.
    pub(crate) fn got_late(&self, number: u64) -> mp::AnyResult<()> {
        match self.messages.fetch_add(self.place(number)?, GOT) {
            was if was & REFUSED != 0 => {
                Err(format!("duplicated: message {number} was refused, and got").into())
            }
            _ => Ok(()),
        }
    }

    /// Records that a message is done.
    pub(crate) fn done(&self, number: u64) -> mp::AnyResult<()> {
        match self.messages.fetch_add(self.place(number)?, DONE) {
            was if was >= DONE => Err(format!("duplicated: message {number} was done twice").into()),
            _ => Ok(()),
        }
    }

    /// Records that the consumer of a message doesn't know whether its acknowledgement has reached the
    /// queue's home.
    pub(crate) fn doubted(&self, number: u64) {
        self.messages.fetch_or(number as usize, DOUBTED);
    }

    /// Returns the numbers of messages by state. Called after all workers have ended.
    pub(crate) fn account(&self) -> Account {
        let mut sums = Account::default();
        for word in self.messages.iter().take(self.begun() as usize) {
            let got = (word & (DONE - 1)) / GOT;
            sums.put += u64::from(word & PUT != 0);
            sums.got += u64::from(got > 0);
            sums.again += u64::from(got > 1);
            sums.lost += u64::from(word & LOST != 0);
            sums.missing += u64::from(word & PUT != 0 && got == 0 && word & LOST == 0);
            sums.undone += u64::from(got > 0 && word < DONE && word & (LOST | DOUBTED) == 0);
        }
        sums
    }
}
