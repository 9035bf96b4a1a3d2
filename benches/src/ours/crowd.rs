//! Queues with several processes at each end, larger messages, and processes that wait.

use std::time::Duration;

use mp::{Event, FrozenTensor, Queue, SharedTensor, SpawnOptions, Tensor, start_processes};

use crate::Result;
use crate::process::DEADLINE;
use crate::work::record::{self, Reading, Record, reading, record};
use crate::work::{Outcome, Plan, now};

/// Capacity of the queue, which is the same in all rows of queues.
const CAPACITY: usize = 1024;

/// Distance of the counts of two processes, in `u64`s: two cache lines, so that no two processes write to the
/// same line.
const APART: usize = 16;

/// Arguments of the processes of one queue: the queue, the events that start and end the work, the counts,
/// the number of producers, and the number of messages of each producer. Ranks below the number of producers
/// put messages, and the other ranks take them. Each rank has a count, at a distance of [`APART`].
type Crowd = (Queue<u64>, Event, Event, SharedTensor<u64>, usize, u64);

/// If `rank` is a producer's, puts `each` messages, or fewer if `over` is set before. Otherwise takes
/// messages until the queue is closed, and checks the order of each producer's numbers. Stores the count of
/// this rank after each message.
fn member(rank: usize, (queue, go, over, counts, producers, each): Crowd) -> Result<()> {
    go.wait()?;
    if rank < producers {
        for number in 0..each {
            if number.is_multiple_of(64) && over.is_set() {
                return Ok(());
            }
            queue.put(number << 8 | rank as u64)?;
            counts.store(rank * APART, number + 1);
        }
        return Ok(());
    }
    let (mut taken, mut last) = (0, vec![None; producers]);
    while let Some(message) = queue.get()? {
        let (number, from) = (message >> 8, &mut last[(message & 0xff) as usize]);
        if from.is_some_and(|before| before >= number) {
            return Err("wrong result: messages of one producer out of order".into());
        }
        *from = Some(number);
        taken += 1;
        counts.store(rank * APART, taken);
    }
    Ok(())
}

/// Runs `side` producers and as many consumers, for a time or for `each` messages of each producer. Returns
/// the number of messages of each process, and the time in ns until all messages were taken, or the time
/// was over.
fn crowd(side: usize, each: u64, time: Option<Duration>) -> Result<(Vec<u64>, u64)> {
    let queue = Queue::bounded(CAPACITY)?;
    let (go, over) = (Event::new()?, Event::new()?);
    let counts = Tensor::zeros([2 * side * APART])?.share();
    let args = (queue.clone(), go.clone(), over.clone(), counts.clone(), side, each);
    let all = start_processes(member, args, SpawnOptions::nprocs(2 * side))?;
    let start = now();
    go.set()?;
    if let Some(time) = time {
        std::thread::sleep(time);
        over.set()?;
    }
    let count = |rank: usize| counts.load(rank * APART);
    while (side..2 * side).map(count).sum::<u64>() < each * side as u64 && !over.is_set() {
        if (0..2 * side).any(|rank| matches!(all.exit(rank), Ok(Some(exit)) if !exit.success())) {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let took = now() - start;
    // Producers have put all messages, or end now. Then the queue is drained, and the consumers end.
    while !(0..side).all(|rank| all.exit(rank).is_ok_and(|exit| exit.is_some())) {
        std::thread::sleep(Duration::from_millis(1));
    }
    queue.close();
    if !all.join_timeout(DEADLINE)? {
        return Err(format!("they didn't end within {DEADLINE:?}").into());
    }
    let counts: Vec<u64> = (0..2 * side).map(count).collect();
    let (put, got) = (counts[..side].iter().sum::<u64>(), counts[side..].iter().sum::<u64>());
    if put != got {
        return Err(format!("wrong result: {put} messages put, and {got} got").into());
    }
    Ok((counts, took))
}

/// Runs a round of the row `one_way_2p2c`: messages per second of two producers and two consumers.
pub(crate) fn one_way_2p2c(plan: &Plan) -> Outcome {
    let each = plan.repetitions(2_000_000);
    let (_, took) = crowd(2, each, None)?;
    Ok(Some(2.0 * each as f64 * 1e9 / took as f64))
}

/// Returns the shares of eight producers and of eight consumers, each in percent of the mean of its side.
fn shares(plan: &Plan) -> Result<Vec<f64>> {
    let time = Duration::from_millis(plan.repetitions(4000));
    let (counts, _) = crowd(8, u64::MAX >> 16, Some(time))?;
    let share = |side: &[u64]| -> Vec<f64> {
        let mean = side.iter().sum::<u64>() as f64 / side.len() as f64;
        side.iter().map(|&n| n as f64 * 100.0 / mean).collect()
    };
    Ok([share(&counts[..8]), share(&counts[8..])].concat())
}

/// Runs a round of the row `fair_8p8c_least`: the smallest share.
pub(crate) fn fair_least(plan: &Plan) -> Outcome {
    Ok(Some(shares(plan)?.into_iter().fold(f64::INFINITY, f64::min)))
}

/// Runs a round of the row `fair_8p8c_most`: the largest share.
pub(crate) fn fair_most(plan: &Plan) -> Outcome {
    Ok(Some(shares(plan)?.into_iter().fold(0.0, f64::max)))
}

/// Returns the CPU time of this process so far, in ms.
fn cpu_time() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 * 1e3 + time.tv_nsec as f64 / 1e6
}

fn wait_idle(_: usize, (queue, time): (Queue<u64>, u64)) -> Result<f64> {
    let before = cpu_time();
    match queue.get_timeout(Duration::from_millis(time)) {
        Err(error) if error.is_empty() => Ok(cpu_time() - before),
        other => Err(format!("wrong result: {other:?} from an empty queue").into()),
    }
}

/// Returns the total CPU time of `consumers` consumers of one idle queue, in ms for each 10 s.
fn idle(plan: &Plan, consumers: usize) -> Outcome {
    let time = plan.repetitions(10_000);
    let queue = Queue::bounded(1)?;
    let all = start_processes(wait_idle, (queue.clone(), time), SpawnOptions::nprocs(consumers))?;
    let spent: f64 = all.join()?.into_iter().sum();
    Ok(Some(spent * 10_000.0 / time as f64))
}

/// Runs a round of the row `idle_1`.
pub(crate) fn idle_1(plan: &Plan) -> Outcome {
    idle(plan, 1)
}

/// Runs a round of the row `idle_100`.
pub(crate) fn idle_100(plan: &Plan) -> Outcome {
    idle(plan, 100)
}

fn put_records(_: usize, (queue, count): (Queue<Record>, u64)) -> Result<()> {
    (0..count).try_for_each(|id| Ok(queue.put(record(id))?))
}

/// Runs a round of the row `struct_200b`: messages per second from one producer to one consumer. Each message
/// is a struct of 200 bytes, which is encoded and decoded.
pub(crate) fn struct_200b(plan: &Plan) -> Outcome {
    let count = record::count(plan, 1_000_000);
    let queue = Queue::bounded(CAPACITY)?;
    let producer = start_processes(put_records, (queue.clone(), count), SpawnOptions::nprocs(1))?;
    let rate = record::consume(count, || Ok(queue.get()?.ok_or("closed")?))?;
    producer.join()?;
    Ok(Some(rate))
}

fn put_readings(_: usize, (queue, count): (Queue<Reading>, u64)) -> Result<()> {
    (0..count).try_for_each(|id| queue.put(reading(id)).map_err(|e| e.to_string().into()))
}

/// Runs a round of the row `plain_200b`: plain data, which is sent as its bytes.
pub(crate) fn plain_200b(plan: &Plan) -> Outcome {
    let count = record::count(plan, 1_000_000);
    let queue = Queue::bounded(CAPACITY)?;
    let producer = start_processes(put_readings, (queue.clone(), count), SpawnOptions::nprocs(1))?;
    let rate = record::consume_plain(count, || Ok(queue.get()?.ok_or("closed")?))?;
    producer.join()?;
    Ok(Some(rate))
}

/// Number of tensors in a message.
const MANY: usize = 100;

fn take_many(_: usize, (queue, count): (Queue<Vec<FrozenTensor<u64>>>, u64)) -> Result<()> {
    let wanted: u64 = (0..MANY as u64).sum();
    for _ in 0..count {
        let tensors = queue.get()?.ok_or("closed")?;
        let sum: u64 = tensors.iter().filter_map(|t| t.get(&[3]).ok()).sum();
        if sum != wanted {
            return Err(format!("wrong result: {sum} instead of {wanted}").into());
        }
    }
    Ok(())
}

/// Runs a round of the row `tensors_100`: nanoseconds for each message of a stream. A message has a hundred
/// tensors, each of which is read.
pub(crate) fn tensors_100(plan: &Plan) -> Outcome {
    let batches = plan.batches(40_000);
    let count = batches.warm_up + batches.count * batches.each;
    let queue = Queue::bounded(16)?;
    let child = start_processes(take_many, (queue.clone(), count), SpawnOptions::nprocs(1))?;
    let tensors: Result<Vec<_>> = (0..MANY as u64).map(|n| Ok(Tensor::full([16], n)?.freeze())).collect();
    let tensors = tensors?;
    let time = batches.time(|_| Ok(queue.put(tensors.clone())?))?;
    child.join()?;
    Ok(Some(time))
}

/// Returns no figure, for a row without a limit.
pub(crate) fn no_limit(_: &Plan) -> Outcome {
    Ok(None)
}
