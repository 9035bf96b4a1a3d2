//! ipc-channel: channels over Unix sockets. A one-shot server brings the two processes together, then each
//! direction has a channel of its own.

use std::sync::Arc;

use ipc_channel::ipc::{self, IpcOneShotServer, IpcReceiver, IpcSender, IpcSharedMemory};
use serde::{Deserialize, Serialize};

use super::{round, word};
use crate::Result;
use crate::process;
use crate::work::record::{self, Record};
use crate::work::tensor::{self, Amount};
use crate::work::{Link, Outcome, Plan, small};

/// Name in the roles of children.
pub(super) const NAME: &str = "ipc-channel";

/// A channel in each direction, for messages of two types.
struct Channels<Out, In> {
    out: IpcSender<Out>,
    into: IpcReceiver<In>,
}

/// Ends that the child offers the parent: for sending, and for receiving.
type Offer<Out, In> = (IpcSender<Out>, IpcReceiver<In>);

impl<Out, In> Channels<Out, In>
where
    Out: Serialize + for<'de> Deserialize<'de>,
    In: Serialize + for<'de> Deserialize<'de>,
{
    /// Connects to the parent, in the child.
    fn offer(server: &str) -> Result<Self> {
        let (to_child, into) = ipc::channel::<In>()?;
        let (out, from_child) = ipc::channel::<Out>()?;
        let offer: Offer<In, Out> = (to_child, from_child);
        IpcSender::connect(server.to_owned())?.send(offer)?;
        Ok(Self { out, into })
    }
}

/// A round with the child that does `work`.
fn with<Out, In>(
    work: &str,
    words: &[String],
    plan: &Plan,
    measure: impl FnOnce(Channels<Out, In>) -> Result<f64>,
) -> Outcome
where
    Out: Serialize + for<'de> Deserialize<'de>,
    In: Serialize + for<'de> Deserialize<'de>,
{
    let (server, name) = IpcOneShotServer::<Offer<Out, In>>::new()?;
    let mut all = vec![name];
    all.extend_from_slice(words);
    let accept = || {
        let (_, (out, into)) = server.accept()?;
        Ok(Channels { out, into })
    };
    round(&format!("{NAME}/{work}"), &all, plan, accept, measure)
}

impl Link for Channels<u64, u64> {
    fn send(&mut self, message: u64) -> Result<()> {
        Ok(self.out.send(message)?)
    }

    fn receive(&mut self) -> Result<u64> {
        Ok(self.into.recv()?)
    }
}

/// The sending side of tensors, and the tensor that is sent again. In an `Arc`, because sending takes a
/// value, and cloning shared memory would map it once more.
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
        Ok(self.channels.into.recv()?)
    }
}

impl tensor::Receiver for Channels<u64, Arc<IpcSharedMemory>> {
    fn receive(&mut self, look: impl FnOnce(&[u64]) -> u64) -> Result<u64> {
        let tensor = self.into.recv()?;
        let values =
            bytemuck::try_cast_slice(&tensor).map_err(|error| format!("a tensor's bytes: {error}"))?;
        Ok(look(values))
    }

    fn answer(&mut self, message: u64) -> Result<()> {
        Ok(self.out.send(message)?)
    }
}

/// Blocking receives, as there is nothing else to recommend.
pub(crate) fn rtt_awake(plan: &Plan) -> Outcome {
    with("awake", &[], plan, |mut link: Channels<u64, u64>| small::round_trips(&mut link, plan, 20_000))
}

/// Blocking receives.
pub(crate) fn rtt_asleep(plan: &Plan) -> Outcome {
    with("asleep", &[], plan, |mut link: Channels<u64, u64>| {
        small::sleepy_round_trips(&mut link, plan, 3_000)
    })
}

/// Rate at which the socket accepts messages.
pub(crate) fn one_way(plan: &Plan) -> Outcome {
    with("one-way", &[], plan, |mut link: Channels<u64, u64>| small::consume(&mut link, plan, 200_000))
}

/// Rate at which the socket accepts records.
pub(crate) fn struct_200b(plan: &Plan) -> Outcome {
    let count = record::count(plan, 100_000);
    let words = [count.to_string()];
    with("records", &words, plan, |channels: Channels<u64, Record>| {
        record::consume(count, || Ok(channels.into.recv()?))
    })
}

/// The same shared memory again and again.
pub(crate) fn tensor_again(plan: &Plan) -> Outcome {
    let full = 4_000;
    let words = [Amount::again(plan, full).total().to_string()];
    with("again", &words, plan, |channels| tensor::again(&mut Tensors { channels, kept: None }, plan, full))
}

/// New shared memory each time.
fn fresh(plan: &Plan, elements: usize) -> Outcome {
    let amount = Amount::fresh(plan, elements);
    let words = [amount.total().to_string()];
    with("fresh", &words, plan, |channels| {
        tensor::fresh(&mut Tensors { channels, kept: None }, elements, amount)
    })
}

/// 1 KiB at a time.
pub(crate) fn tensor_fresh_1k(plan: &Plan) -> Outcome {
    fresh(plan, tensor::SMALL)
}

/// A stream of 1 KiB.
pub(crate) fn tensor_stream_1k(plan: &Plan) -> Outcome {
    let amount = Amount::stream(plan);
    let words = [amount.total().to_string()];
    with("stream", &words, plan, |channels| {
        tensor::stream(&mut Tensors { channels, kept: None }, tensor::SMALL, amount)
    })
}

/// 1 MiB at a time.
pub(crate) fn tensor_fresh_1m(plan: &Plan) -> Outcome {
    fresh(plan, tensor::MEDIUM)
}

/// 64 MiB at a time.
pub(crate) fn tensor_fresh_64m(plan: &Plan) -> Outcome {
    fresh(plan, tensor::LARGE)
}

/// Does the work of the child called `work`.
///
/// # Errors
/// Unknown work, or what goes wrong in it.
pub(super) fn be_child(work: &str, words: &[String]) -> Result<()> {
    let server = word(words, 0)?;
    match work {
        "again" | "fresh" | "stream" => {
            let mut receiver = Channels::<u64, Arc<IpcSharedMemory>>::offer(server)?;
            let tensors = word(words, 1)?.parse()?;
            match work {
                "again" => tensor::answer_again(&mut receiver, tensors)?,
                "stream" => tensor::answer_stream(&mut receiver, tensors)?,
                _ => tensor::answer_fresh(&mut receiver, tensors)?,
            }
            process::linger()
        }
        "records" => {
            let channels = Channels::<Record, u64>::offer(server)?;
            let count: u64 = word(words, 1)?.parse()?;
            (0..count).try_for_each(|id| channels.out.send(record::record(id)))?;
            process::linger()
        }
        _ => {
            let mut link = Channels::<u64, u64>::offer(server)?;
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
