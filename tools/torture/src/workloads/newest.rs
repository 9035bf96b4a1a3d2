//! Workloads with a watched value, which workers replace, and with broadcast messages. All workers use them
//! concurrently.
//!
//! | subject | guarantee |
//! |---|---|
//! | a value, a message | is not torn, no matter which process was killed while the value or message was sent or read |
//! | the count of changes in a value | never decreases: a change is atomic |
//! | messages of one worker | reach each receiver in order, except messages that are reported as missed |
//! | a worker that was killed while it changed a value | has made at most one change that it has not recorded; all recorded changes are in the count |

use std::collections::HashMap;
use std::time::Duration;

use mp::queue::broadcast::{self, RecvError};
use mp::queue::watch;
use mp::{FrozenTensor, PutError, SharedTensor, Tensor};
use serde::{Deserialize, Serialize};

use crate::bookkeeping::board::{Op, Row};
use crate::random::Random;

/// Time-out of waits for messages or changes that might never arrive.
const SHORT: Duration = Duration::from_millis(20);
/// Number of elements of a tensor, and of repetitions in a text. Such a value is too long for an envelope.
const LEN: usize = 100;
/// Number of low bits of a message's number that count the messages of one worker.
const NUMBERS: u32 = 24;

/// Value that is computed from a number, so that a torn value is detected.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum Whole {
    /// Small value, which needs no envelope. Two thirds of the values are small.
    Small(u64),
    Large(u64, FrozenTensor<u64>, String),
}

/// Returns the text of the large value with this number.
fn text(number: u64) -> String {
    number.to_string().repeat(LEN)
}

fn whole(number: u64) -> mp::AnyResult<Whole> {
    Ok(match number.is_multiple_of(3) {
        true => Whole::Large(number, Tensor::full([LEN], number)?.freeze(), text(number)),
        false => Whole::Small(number),
    })
}

fn number(value: &Whole) -> mp::AnyResult<u64> {
    match value {
        Whole::Small(number) if !number.is_multiple_of(3) => Ok(*number),
        Whole::Large(number, tensor, there)
            if number.is_multiple_of(3) && tensor.iter().all(|v| v == *number) && *there == text(*number) =>
        {
            Ok(*number)
        }
        torn => Err(format!("torn: {torn:?}").into()),
    }
}

/// Watched value that counts its changes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Watched {
    sender: watch::Sender<Whole>,
    receiver: watch::Receiver<Whole>,
    /// Number of changes that workers have recorded after completing them.
    known: SharedTensor<u64>,
}

impl Watched {
    pub(crate) fn new() -> mp::AnyResult<Self> {
        let (sender, receiver) = watch::channel(whole(0)?)?;
        Ok(Self { sender, receiver, known: Tensor::zeros([1])?.share() })
    }

    /// Changes and reads the value at random, until the round has ended.
    pub(crate) fn work(&self, row: &Row, random: &mut Random) -> mp::AnyResult<()> {
        let mut seen = 0;
        while !row.over() {
            if random.percent(40) {
                row.note(Op::Put, seen);
                self.count()?;
                continue;
            }
            row.note(Op::Get, seen);
            let known = self.known.load(0);
            let now = number(&*self.receiver.borrow_and_update()?)?;
            if now < seen || now < known {
                return Err(format!("lost: {now} changes, {seen} were seen and {known} known before").into());
            }
            seen = now;
            match self.receiver.wait_changed_timeout(SHORT) {
                Err(error) if !error.is_empty() => return Err(error.into()),
                _ => {}
            }
        }
        Ok(())
    }

    /// Makes one change of the value: increments its count.
    fn count(&self) -> mp::AnyResult<()> {
        let mut failed = None;
        let changed = self.sender.send_if_modified(|value| {
            match number(value).and_then(|n| whole(n + 1)) {
                Ok(next) => *value = next,
                Err(error) => failed = Some(error),
            }
            failed.is_none()
        })?;
        if let Some(error) = failed {
            return Err(error);
        }
        if changed {
            self.known.fetch_add(0, 1);
        }
        Ok(())
    }

    /// Checks, after all workers have ended, that no recorded change was lost.
    pub(crate) fn settle(&self) -> mp::AnyResult<()> {
        let (now, known) = (number(&*self.receiver.borrow()?)?, self.known.load(0));
        if now < known { Err(format!("lost: {now} changes, of {known}").into()) } else { Ok(()) }
    }
}

/// Broadcast channel of all workers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ToAll {
    sender: broadcast::Sender<Whole>,
    receiver: broadcast::Receiver<Whole>,
}

impl ToAll {
    pub(crate) fn new(random: &mut Random) -> mp::AnyResult<Self> {
        let (sender, receiver) = broadcast::channel(random.pick(&[1, 4, 64]))?;
        Ok(Self { sender, receiver })
    }

    /// Sends and receives messages at random, until the round has ended.
    pub(crate) fn work(&self, row: &Row, random: &mut Random) -> mp::AnyResult<()> {
        let receiver = self.receiver.resubscribe()?;
        let (mut sent, mut last) = (0_u64, HashMap::new());
        while !row.over() {
            if random.percent(40) {
                sent += 1;
                row.note(Op::Put, sent);
                self.sender.send(whole(row.mark() << NUMBERS | sent)?).map_err(PutError::forget)?;
                continue;
            }
            row.note(Op::Get, sent);
            match receiver.recv_timeout(SHORT) {
                Ok(message) => {
                    let number = number(&message)?;
                    let before = last.insert(number >> NUMBERS, number);
                    if before.is_some_and(|before| before >= number) {
                        return Err(format!("out of order: {number:#x} after {before:x?}").into());
                    }
                }
                Err(RecvError::Lagged(_) | RecvError::Empty) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}
