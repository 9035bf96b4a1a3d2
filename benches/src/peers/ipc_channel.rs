//! ipc-channel: channels over Unix sockets. A one-shot server brings the two processes together, then each
//! direction has a channel of its own. Both processes block in `recv`, or both poll with `try_recv`, each of
//! which is a system call.

use std::sync::Arc;

use ipc_channel::TryRecvError;
use ipc_channel::ipc::{self, IpcOneShotServer, IpcReceiver, IpcSender, IpcSharedMemory};
use serde::{Deserialize, Serialize};

use super::{round, word};
use crate::Result;
use crate::process;
use crate::work::record::{self, Record};
use crate::work::tensor::{self, Amount, Times};
use crate::work::{Link, Outcome, Plan, small};

/// Names in the roles of children that block and of children that poll.
pub(super) const NAME: &str = "ipc-channel";
pub(super) const POLLING_NAME: &str = "ipc-channel-polling";

/// Values of the parameter `POLLS`: `false` if both processes block in `recv`, and `true` if both poll.
pub(crate) const BLOCKING: bool = false;
pub(crate) const POLLING: bool = true;

/// A channel in each direction, for messages of two types.
struct Channels<Out, In> {
    out: IpcSender<Out>,
    into: IpcReceiver<In>,
    polls: bool,
}

/// Ends that the child offers the parent, for sending and for receiving.
type Offer<Out, In> = (IpcSender<Out>, IpcReceiver<In>);

impl<Out, In> Channels<Out, In>
where
    Out: Serialize + for<'de> Deserialize<'de>,
    In: Serialize + for<'de> Deserialize<'de>,
{
    /// Connects to the parent, in the child.
    fn offer(server: &str, polls: bool) -> Result<Self> {
        let (to_child, into) = ipc::channel::<In>()?;
        let (out, from_child) = ipc::channel::<Out>()?;
        let offer: Offer<In, Out> = (to_child, from_child);
        IpcSender::connect(server.to_owned())?.send(offer)?;
        Ok(Self { out, into, polls })
    }

    /// Waits for a message.
    fn next(&self) -> Result<In> {
        if !self.polls {
            return Ok(self.into.recv()?);
        }
        let mut found = Err(TryRecvError::Empty);
        process::spin_until(|| {
            found = self.into.try_recv();
            !matches!(found, Err(TryRecvError::Empty))
        })?;
        Ok(found?)
    }
}

/// Runs a round with the child that does `work`.
fn with<Out, In, R>(
    polls: bool,
    work: &str,
    words: &[String],
    plan: &Plan,
    measure: impl FnOnce(Channels<Out, In>) -> Result<R>,
) -> Result<Option<R>>
where
    Out: Serialize + for<'de> Deserialize<'de>,
    In: Serialize + for<'de> Deserialize<'de>,
{
    let (server, name) = IpcOneShotServer::<Offer<Out, In>>::new()?;
    let mut all = vec![name];
    all.extend_from_slice(words);
    let accept = || {
        let (_, (out, into)) = server.accept()?;
        Ok(Channels { out, into, polls })
    };
    let name = if polls { POLLING_NAME } else { NAME };
    round(&format!("{name}/{work}"), &all, plan, accept, measure)
}

impl Link for Channels<u64, u64> {
    fn send(&mut self, message: u64) -> Result<()> {
        Ok(self.out.send(message)?)
    }

    fn receive(&mut self) -> Result<u64> {
        self.next()
    }
}

/// Sending end of tensors, and the tensor that is sent again. Tensors are in an `Arc`, because sending takes
/// a value and a clone of shared memory would map it again.
struct Tensors {
    channels: Channels<Arc<IpcSharedMemory>, u64>,
    kept: Option<Arc<IpcSharedMemory>>,
}

impl tensor::Sender for Tensors {
    fn send_fresh(&mut self, source: &[u64]) -> Result<()> {
        let tensor = IpcSharedMemory::from_bytes(bytemuck::cast_slice(source));
        Ok(self.channels.out.send(Arc::new(tensor))?)
    }

    fn send_again(&mut self) -> Result<()> {
        let kept = self.kept.as_ref().ok_or("no tensor is kept")?;
        Ok(self.channels.out.send(Arc::clone(kept))?)
    }

    fn keep(&mut self, source: &[u64]) -> Result<()> {
        self.kept = Some(Arc::new(IpcSharedMemory::from_bytes(bytemuck::cast_slice(source))));
        Ok(())
    }

    fn answer(&mut self) -> Result<u64> {
        self.channels.next()
    }
}

impl tensor::Receiver for Channels<u64, Arc<IpcSharedMemory>> {
    fn receive(&mut self, look: impl FnOnce(&[u64]) -> u64) -> Result<u64> {
        let tensor = self.next()?;
        let values =
            bytemuck::try_cast_slice(&tensor).map_err(|error| format!("a tensor's bytes: {error}"))?;
        Ok(look(values))
    }

    fn answer(&mut self, message: u64) -> Result<()> {
        Ok(self.out.send(message)?)
    }
}

/// Returns a link that receives its own messages, and polls.
#[cfg(feature = "grow")]
pub(crate) fn looped() -> Result<impl Link> {
    let (out, into) = ipc::channel::<u64>()?;
    Ok(Channels { out, into, polls: POLLING })
}

/// Runs a round of the row `rtt_awake`.
pub(crate) fn rtt_awake<const POLLS: bool>(plan: &Plan) -> Outcome {
    with(POLLS, "awake", &[], plan, |mut link: Channels<u64, u64>| {
        small::round_trips(&mut link, plan, 20_000)
    })
}

/// Runs a round of the row `rtt_asleep`.
pub(crate) fn rtt_asleep(plan: &Plan) -> Outcome {
    with(BLOCKING, "asleep", &[], plan, |mut link: Channels<u64, u64>| {
        small::sleepy_round_trips(&mut link, plan, 3_000)
    })
}

/// Runs a round of the row `one_way_1p1c`.
pub(crate) fn one_way<const POLLS: bool>(plan: &Plan) -> Outcome {
    with(POLLS, "one-way", &[], plan, |mut link: Channels<u64, u64>| small::consume(&mut link, plan, 200_000))
}

/// Runs a round of the row `struct_200b`.
pub(crate) fn struct_200b<const POLLS: bool>(plan: &Plan) -> Outcome {
    let count = record::count(plan, 100_000);
    with(POLLS, "records", &[count.to_string()], plan, |channels: Channels<u64, Record>| {
        record::consume(count, || channels.next())
    })
}

/// Runs a round of the row `tensor_again_64m`, with the same shared memory in each message.
pub(crate) fn tensor_again<const POLLS: bool>(plan: &Plan) -> Outcome {
    let full = 4_000;
    let words = [Amount::again(plan, full).total().to_string()];
    with(POLLS, "again", &words, plan, |channels| {
        tensor::again(&mut Tensors { channels, kept: None }, plan, full)
    })
}

/// Runs a round of a row `tensor_fresh_…`, with new shared memory for each tensor.
fn fresh(plan: &Plan, elements: usize, polls: bool) -> Outcome {
    tensor::median(fresh_times(plan, elements, Amount::fresh(plan, elements), polls))
}

/// Returns the latency of each tensor: the time from its creation to its answer, in ns.
pub(crate) fn fresh_times(plan: &Plan, elements: usize, amount: Amount, polls: bool) -> Times {
    with(polls, "fresh", &[amount.total().to_string()], plan, |channels| {
        tensor::fresh_times(&mut Tensors { channels, kept: None }, elements, amount)
    })
}

/// Returns the time in ns of each message with the same shared memory.
#[cfg(feature = "grow")]
pub(crate) fn again_times(plan: &Plan, elements: usize, amount: Amount) -> Times {
    with(POLLING, "again", &[amount.total().to_string()], plan, |channels| {
        tensor::again_times(&mut Tensors { channels, kept: None }, elements, amount)
    })
}

/// Runs a round of the row `tensor_fresh_1k`.
pub(crate) fn tensor_fresh_1k<const POLLS: bool>(plan: &Plan) -> Outcome {
    fresh(plan, tensor::SMALL, POLLS)
}

/// Runs a round of the row `tensor_stream_1k`.
pub(crate) fn tensor_stream_1k<const POLLS: bool>(plan: &Plan) -> Outcome {
    let amount = Amount::stream(plan);
    with(POLLS, "stream", &[amount.total().to_string()], plan, |channels| {
        tensor::stream(&mut Tensors { channels, kept: None }, tensor::SMALL, amount)
    })
}

/// Runs a round of the row `tensor_fresh_1m`.
pub(crate) fn tensor_fresh_1m(plan: &Plan) -> Outcome {
    fresh(plan, tensor::MEDIUM, BLOCKING)
}

/// Runs a round of the row `tensor_fresh_64m`.
pub(crate) fn tensor_fresh_64m(plan: &Plan) -> Outcome {
    fresh(plan, tensor::LARGE, BLOCKING)
}

/// Runs the child that does `work`.
///
/// # Errors
/// Returns an error for unknown work, or the error of the work.
pub(super) fn be_child(polls: bool, work: &str, words: &[String]) -> Result<()> {
    let server = word(words, 0)?;
    match work {
        "again" | "fresh" | "stream" => {
            let mut receiver = Channels::<u64, Arc<IpcSharedMemory>>::offer(server, polls)?;
            let tensors = word(words, 1)?.parse()?;
            match work {
                "again" => tensor::answer_again(&mut receiver, tensors)?,
                "stream" => tensor::answer_stream(&mut receiver, tensors)?,
                _ => tensor::answer_fresh(&mut receiver, tensors)?,
            }
            process::linger()
        }
        "records" => {
            let channels = Channels::<Record, u64>::offer(server, polls)?;
            let count: u64 = word(words, 1)?.parse()?;
            (0..count).try_for_each(|id| channels.out.send(record::record(id)))?;
            process::linger()
        }
        _ => {
            let mut link = Channels::<u64, u64>::offer(server, polls)?;
            match work {
                "awake" => small::answer_round_trips(&mut link)?,
                "asleep" => small::answer_sleepy_round_trips(&mut link)?,
                "one-way" => small::produce(&mut link)?,
                _ => return Err(format!("{NAME} does no work called {work:?}").into()),
            }
            process::linger()
        }
    }
}
