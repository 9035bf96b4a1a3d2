//! crossbeam-channel: threads of one process, which encode no messages and end together.

use crossbeam_channel::{Receiver, Sender, TryRecvError, bounded};

use crate::process::{self, DEADLINE};
use crate::work::{Link, Outcome, Plan, now, small};
use crate::{Failure, Result};

/// Number of messages that a channel holds, as in our queues.
const CAPACITY: usize = 1024;

/// A channel in each direction.
struct Channels {
    out: Sender<u64>,
    into: Receiver<u64>,
    /// `true` if a receiver polls and never sleeps.
    polls: bool,
}

impl Link for Channels {
    #[inline]
    fn send(&mut self, message: u64) -> Result<()> {
        Ok(self.out.send(message)?)
    }

    #[inline]
    fn receive(&mut self) -> Result<u64> {
        if !self.polls {
            return Ok(self.into.recv_timeout(DEADLINE)?);
        }
        let mut found = Err(TryRecvError::Empty);
        process::spin_until(|| {
            found = self.into.try_recv();
            found != Err(TryRecvError::Empty)
        })?;
        Ok(found?)
    }
}

/// Returns a link that receives its own messages, and polls.
#[cfg(feature = "grow")]
pub(crate) fn looped() -> Result<impl Link> {
    let (out, into) = bounded(CAPACITY);
    Ok(Channels { out, into, polls: true })
}

/// Runs one round with a thread that does `other`.
fn round(
    plan: &Plan,
    polls: bool,
    other: impl FnOnce(&mut Channels) -> Result<()> + Send,
    work: impl FnOnce(&mut Channels) -> Result<f64>,
) -> Outcome {
    let ((there, at), (back, from)) = (bounded(CAPACITY), bounded(CAPACITY));
    let cpu = plan.cores.map(|cores| cores.child);
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            cpu.map_or(Ok(()), process::pin)?;
            other(&mut Channels { out: back, into: at, polls })
        });
        let figure = work(&mut Channels { out: there, into: from, polls });
        thread.join().map_err(|_| Failure::from("the other thread has panicked"))??;
        figure.map(Some)
    })
}

/// Runs a round of the row `rtt_awake`.
pub(crate) fn rtt_awake(plan: &Plan) -> Outcome {
    round(plan, true, |link| small::answer_round_trips(link), |link| small::round_trips(link, plan, 500_000))
}

/// Runs a round of the row `rtt_asleep`.
pub(crate) fn rtt_asleep(plan: &Plan) -> Outcome {
    round(
        plan,
        false,
        |link| small::answer_sleepy_round_trips(link),
        |link| small::sleepy_round_trips(link, plan, 3_000),
    )
}

/// Runs a round of the row `one_way_1p1c`.
pub(crate) fn one_way(plan: &Plan) -> Outcome {
    round(plan, true, |link| small::produce(link), |link| small::consume(link, plan, 3_000_000))
}

/// Runs a round of the row `one_way_2p2c`.
pub(crate) fn one_way_2p2c(plan: &Plan) -> Outcome {
    const SIDE: u64 = 2;
    let each = plan.repetitions(2_000_000);
    let (sender, receiver) = bounded(CAPACITY);
    let start = now();
    let sum = std::thread::scope(|scope| {
        for _ in 0..SIDE {
            let sender = sender.clone();
            scope.spawn(move || (0..each).all(|number| sender.send(number).is_ok()));
        }
        drop(sender);
        let consumers: Vec<_> = (0..SIDE).map(|_| scope.spawn(|| receiver.iter().sum::<u64>())).collect();
        consumers.into_iter().map(|thread| thread.join().unwrap_or(0)).sum::<u64>()
    });
    if sum != SIDE * (each * (each - 1) / 2) {
        return Err(format!("wrong result: the messages sum to {sum}").into());
    }
    Ok(Some((SIDE * each) as f64 * 1e9 / (now() - start) as f64))
}
