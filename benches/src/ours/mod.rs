//! mp itself: one function for each row, which runs one round and returns its figure. The work is in
//! [`crate::work`]. These functions only provide mp as the carrier of messages.

pub(crate) mod alloc;
pub(crate) mod backlog;
pub(crate) mod crowd;
pub(crate) mod failure;
pub(crate) mod lock;
pub(crate) mod manager;
pub(crate) mod pool;
pub(crate) mod retained;
pub(crate) mod socket;

use std::time::Duration;

use mp::queue::Spin;
use mp::{FrozenTensor, Queue, SpawnOptions, StartMethod, Tensor, start_processes};
use serde::{Deserialize, Serialize};

use crate::process::{DEADLINE, pin};
use crate::work::tensor::{self, Amount, Receiver, Sender, Times};
use crate::work::{Link, Outcome, Plan, now, small};
use crate::{Result, stats};

/// Number of messages that a queue holds, as in iceoryx2's buffer.
const CAPACITY: usize = 1024;

/// Arguments of a child: a queue in each direction, the processor to run on, and the amount of work.
#[derive(Serialize, Deserialize)]
#[serde(bound = "")]
struct Ends<Out: mp::Message, In: mp::Message> {
    out: Queue<Out>,
    into: Queue<In>,
    cpu: Option<usize>,
    count: u64,
}

impl<Out: mp::Message, In: mp::Message> Ends<Out, In> {
    /// Pins the child to its processor.
    fn settle(self) -> Result<Self> {
        if let Some(cpu) = self.cpu {
            pin(cpu)?;
        }
        Ok(self)
    }

    /// Returns the ends with queues that don't spin before they sleep.
    fn asleep(self) -> Self {
        Self { out: self.out.spinning(Spin::Never), into: self.into.spinning(Spin::Never), ..self }
    }
}

/// Runs one round: starts `child`, does `work` at the other end, and waits until the child ends.
fn round<Out, In, F, R>(
    plan: &Plan,
    count: u64,
    child: F,
    work: impl FnOnce(Ends<Out, In>) -> Result<R>,
) -> Result<Option<R>>
where
    Out: mp::Message,
    In: mp::Message,
    F: Fn(usize, Ends<In, Out>) -> Result<()> + Copy + Send + 'static,
{
    let (there, back) = (Queue::bounded(CAPACITY)?, Queue::bounded(CAPACITY)?);
    let cpu = plan.cores.map(|cores| cores.child);
    let ends = Ends { out: back.clone(), into: there.clone(), cpu, count };
    let process = start_processes(child, ends, SpawnOptions::nprocs(1))?;
    let figure = work(Ends { out: there, into: back, cpu: None, count })?;
    if process.join_timeout(DEADLINE)? {
        return Ok(Some(figure));
    }
    Err(format!("the child didn't end within {DEADLINE:?}").into())
}

fn closed() -> crate::Failure {
    "wrong result: the queue was closed".into()
}

impl Link for Ends<u64, u64> {
    #[inline]
    fn send(&mut self, message: u64) -> Result<()> {
        Ok(self.out.put(message)?)
    }

    #[inline]
    fn receive(&mut self) -> Result<u64> {
        self.into.get()?.ok_or_else(closed)
    }
}

/// Runs a round of the row `rtt_awake`: see [`small::round_trips`].
pub(crate) fn rtt_awake(plan: &Plan) -> Outcome {
    let child = |_, ends: Ends<u64, u64>| small::answer_round_trips(&mut ends.settle()?);
    round(plan, 0, child, |mut ends| small::round_trips(&mut ends, plan, 500_000))
}

/// Runs a round of the row `rtt_asleep`: see [`small::sleepy_round_trips`].
pub(crate) fn rtt_asleep(plan: &Plan) -> Outcome {
    let child = |_, ends: Ends<u64, u64>| small::answer_sleepy_round_trips(&mut ends.settle()?.asleep());
    round(plan, 0, child, |ends| small::sleepy_round_trips(&mut ends.asleep(), plan, 3_000))
}

/// Runs a round of the row `one_way_1p1c`: see [`small::consume`].
pub(crate) fn one_way(plan: &Plan) -> Outcome {
    let child = |_, ends: Ends<u64, u64>| small::produce(&mut ends.settle()?);
    round(plan, 0, child, |mut ends| small::consume(&mut ends, plan, 3_000_000))
}

/// Sending end of tensors, and the tensor that is sent again.
struct Source<T: mp::Message> {
    ends: Ends<T, u64>,
    kept: Option<FrozenTensor<u64>>,
}

fn answer<T: mp::Message>(ends: &Ends<T, u64>) -> Result<u64> {
    ends.into.get()?.ok_or_else(closed)
}

const WRONG_KIND: &str = "this sender sends the other kind of tensor";

impl Sender for Source<Tensor<u64>> {
    fn send_fresh(&mut self, source: &[u64]) -> Result<()> {
        Ok(self.ends.out.put(Tensor::from_slice(source, [source.len()])?)?)
    }

    fn send_again(&mut self) -> Result<()> {
        Err(WRONG_KIND.into())
    }

    fn keep(&mut self, _: &[u64]) -> Result<()> {
        Err(WRONG_KIND.into())
    }

    fn answer(&mut self) -> Result<u64> {
        answer(&self.ends)
    }
}

impl Sender for Source<FrozenTensor<u64>> {
    fn send_fresh(&mut self, _: &[u64]) -> Result<()> {
        Err(WRONG_KIND.into())
    }

    fn send_again(&mut self) -> Result<()> {
        let tensor = self.kept.clone().ok_or("nothing was kept")?;
        Ok(self.ends.out.put(tensor)?)
    }

    fn keep(&mut self, source: &[u64]) -> Result<()> {
        self.kept = Some(Tensor::from_slice(source, [source.len()])?.freeze());
        Ok(())
    }

    fn answer(&mut self) -> Result<u64> {
        answer(&self.ends)
    }
}

impl Receiver for Ends<u64, Tensor<u64>> {
    fn receive(&mut self, look: impl FnOnce(&[u64]) -> u64) -> Result<u64> {
        let tensor = self.into.get()?.ok_or_else(closed)?;
        Ok(look(tensor.as_slice()?))
    }

    fn answer(&mut self, message: u64) -> Result<()> {
        Ok(self.out.put(message)?)
    }
}

impl Receiver for Ends<u64, FrozenTensor<u64>> {
    fn receive(&mut self, look: impl FnOnce(&[u64]) -> u64) -> Result<u64> {
        let tensor = self.into.get()?.ok_or_else(closed)?;
        Ok(look(tensor.as_slice()?))
    }

    fn answer(&mut self, message: u64) -> Result<()> {
        Ok(self.out.put(message)?)
    }
}

/// Runs a round of the row `tensor_again_64m`: see [`tensor::again`].
pub(crate) fn tensor_again(plan: &Plan) -> Outcome {
    let full = 200_000;
    let count = Amount::again(plan, full).total();
    let child = |_, ends: Ends<u64, FrozenTensor<u64>>| {
        let count = ends.count;
        tensor::answer_again(&mut ends.settle()?, count)
    };
    round(plan, count, child, |ends| tensor::again(&mut Source { ends, kept: None }, plan, full))
}

/// Returns the time in ns of each message with the same tensor.
#[cfg(feature = "grow")]
pub(crate) fn again_times(plan: &Plan, elements: usize, amount: Amount) -> Times {
    let child = |_, ends: Ends<u64, FrozenTensor<u64>>| {
        let count = ends.count;
        tensor::answer_again(&mut ends.settle()?, count)
    };
    round(plan, amount.total(), child, |ends| {
        tensor::again_times(&mut Source { ends, kept: None }, elements, amount)
    })
}

/// Returns a queue as a link that receives its own messages.
#[cfg(feature = "grow")]
pub(crate) fn looped() -> Result<impl Link> {
    let queue = Queue::bounded(CAPACITY)?;
    Ok(Ends { out: queue.clone(), into: queue, cpu: None, count: 0 })
}

/// Runs a round of a row `tensor_fresh_…`: see [`tensor::fresh_times`].
fn fresh(plan: &Plan, elements: usize) -> Outcome {
    tensor::median(fresh_times(plan, elements, Amount::fresh(plan, elements)))
}

/// Returns the latency of each tensor: the time from its creation to its answer, in ns.
pub(crate) fn fresh_times(plan: &Plan, elements: usize, amount: Amount) -> Times {
    let child = |_, ends: Ends<u64, Tensor<u64>>| {
        let count = ends.count;
        tensor::answer_fresh(&mut ends.settle()?, count)
    };
    round(plan, amount.total(), child, |ends| {
        tensor::fresh_times(&mut Source { ends, kept: None }, elements, amount)
    })
}

/// Runs a round of the row `tensor_fresh_1k`.
pub(crate) fn tensor_fresh_1k(plan: &Plan) -> Outcome {
    fresh(plan, tensor::SMALL)
}

/// Runs a round of the row `tensor_stream_1k`: see [`tensor::stream`].
pub(crate) fn tensor_stream_1k(plan: &Plan) -> Outcome {
    let amount = Amount::stream(plan);
    let child = |_, ends: Ends<u64, Tensor<u64>>| {
        let count = ends.count;
        tensor::answer_stream(&mut ends.settle()?, count)
    };
    round(plan, amount.total(), child, |ends| {
        tensor::stream(&mut Source { ends, kept: None }, tensor::SMALL, amount)
    })
}

/// Runs a round of the row `tensor_fresh_1m`.
pub(crate) fn tensor_fresh_1m(plan: &Plan) -> Outcome {
    fresh(plan, tensor::MEDIUM)
}

/// Runs a round of the row `tensor_fresh_64m`.
pub(crate) fn tensor_fresh_64m(plan: &Plan) -> Outcome {
    fresh(plan, tensor::LARGE)
}

/// Runs a round of the row `spawn_exec`: the median time in ns to start and join one process that does
/// nothing.
pub(crate) fn spawn_exec(plan: &Plan) -> Outcome {
    spawn_one(plan, StartMethod::Spawn)
}

/// Runs a round of the row `spawn_forkserver`: like [`spawn_exec`], with a running fork server.
pub(crate) fn spawn_forkserver(plan: &Plan) -> Outcome {
    spawn_one(plan, StartMethod::ForkServer)
}

/// Runs a round of the row `spawn_forkserver_2g`: like [`spawn_forkserver`], with 2 GiB resident in this
/// process.
pub(crate) fn spawn_forkserver_2g(plan: &Plan) -> Outcome {
    crate::limits::exec::with_2g(|| spawn_forkserver(plan))
}

/// Runs a round of the row `spawn_fork`: like [`spawn_exec`], by forking this process.
pub(crate) fn spawn_fork(plan: &Plan) -> Outcome {
    crate::process::allow_fork();
    spawn_one(plan, StartMethod::Fork)
}

/// Runs a round of the row `spawn_fork_2g`: like [`spawn_fork`], with 2 GiB resident in this process.
pub(crate) fn spawn_fork_2g(plan: &Plan) -> Outcome {
    crate::limits::exec::with_2g(|| spawn_fork(plan))
}

fn spawn_one(plan: &Plan, method: StartMethod) -> Outcome {
    Ok(Some(stats::median(&spawn_times(method, plan.repetitions(30))?)))
}

/// Returns the time to start and join each of `count` processes.
pub(crate) fn spawn_times(method: StartMethod, count: u64) -> Result<Vec<f64>> {
    let mut times = Vec::new();
    for number in 0..count + 5 {
        let start = now();
        let process = start_processes(|_, (): ()| {}, (), SpawnOptions::nprocs(1).start_method(method))?;
        if !process.join_timeout(Duration::from_secs(30))? {
            return Err("the child didn't end".into());
        }
        // The first few warm up.
        if number >= 5 {
            times.push((now() - start) as f64);
        }
    }
    Ok(times)
}

/// Runs a round of the row `spawn_exec_2g`: like [`spawn_exec`], with 2 GiB resident in this process.
pub(crate) fn spawn_exec_2g(plan: &Plan) -> Outcome {
    crate::limits::exec::with_2g(|| spawn_exec(plan))
}

/// Runs a round of the row `spawn_64`: the median time in ns to start and join many processes that do
/// nothing.
pub(crate) fn spawn_64(plan: &Plan) -> Outcome {
    let mut times = Vec::new();
    for _ in 0..plan.repetitions(10) {
        let start = now();
        let all = start_processes(|_, (): ()| {}, (), SpawnOptions::nprocs(crate::limits::exec::MANY))?;
        if !all.join_timeout(Duration::from_secs(30))? {
            return Err("the children didn't end".into());
        }
        times.push((now() - start) as f64);
    }
    Ok(Some(stats::median(&times)))
}
