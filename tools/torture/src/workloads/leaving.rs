//! Workload with channels whose senders and receivers are dropped. Only the workers have handles of a
//! channel.
//!
//! | dropped side | guarantee |
//! |---|---|
//! | a sender, or a sender of a killed process | its earlier messages are received |
//! | the last sender | the receivers get `Disconnected`, after they have received all messages |
//! | the last receiver | the senders get `Disconnected`, with the unsent messages |
//! | a receiver of a killed process | the message that it was taking is lost, and the contents of the channel if it was the last receiver |

use mp::{GetError, PutError, Receiver, Sender, bounded_channel};

use crate::bookkeeping::board::Op;
use crate::bookkeeping::parcel::Parcel;
use crate::random::Random;
use crate::workloads::work::{LONG, Worker};

/// Channel whose handles are given to the workers, and held by no other process.
#[derive(Default, Debug)]
pub(crate) struct Sides {
    capacity: usize,
    sides: Option<(Sender<Parcel>, Receiver<Parcel>)>,
}

impl Sides {
    pub(crate) fn new(random: &mut Random) -> Self {
        Self { capacity: random.pick(&[1, 2, 8]), sides: None }
    }

    /// Returns the number of messages that the death of a receiver may lose.
    pub(crate) fn cost(&self) -> u64 {
        1 + self.capacity as u64
    }

    /// Returns handles of both sides for worker `i` of `of` workers, which are started together. The call for
    /// the last worker gives away the last handles.
    pub(crate) fn of(&mut self, i: usize, of: usize) -> mp::AnyResult<(Sender<Parcel>, Receiver<Parcel>)> {
        if i == 0 {
            self.sides = Some(bounded_channel(self.capacity)?);
        }
        let sides = if i + 1 == of { self.sides.take() } else { self.sides.clone() };
        sides.ok_or_else(|| "the sides of a channel are given away in order".into())
    }
}

impl Worker {
    /// Sends until the round has ended, this worker leaves, or no receiver is left.
    pub(crate) fn send_and_leave(&mut self, sender: &Sender<Parcel>) -> mp::AnyResult<()> {
        while let Some(parcel) = self.next(Op::Send)? {
            let number = parcel.job.number;
            match sender.send_timeout(parcel, LONG) {
                Err(PutError::Disconnected(back)) => {
                    self.row.note(Op::Leave, number);
                    self.ledger.refused(number)?;
                    if back.job.number != number || !sender.is_disconnected() {
                        return Err(format!("torn: {} came back for {number}", back.job.number).into());
                    }
                    return back.check();
                }
                end => self.was_put(number, end)?,
            }
            if self.random.below(1000) == 0 {
                self.row.note(Op::Leave, number);
                return Ok(());
            }
        }
        Ok(())
    }

    /// Receives until no sender is left.
    pub(crate) fn receive_all(&mut self, receiver: &Receiver<Parcel>) -> mp::AnyResult<()> {
        loop {
            self.row.note(Op::Receive, receiver.len() as u64);
            match receiver.recv_timeout(LONG) {
                Ok(parcel) => self.got(&parcel)?,
                Err(GetError::Disconnected) if receiver.is_empty() && receiver.is_disconnected() => {
                    return Ok(());
                }
                Err(error) => return Err(format!("from {receiver:?}: {error}").into()),
            }
        }
    }
}
