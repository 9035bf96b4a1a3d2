//! Worker process, which executes jobs one after the other. Each job is one side of a row.

use std::time::Duration;

use mp::cuda::{
    CudaEvent, CudaStream, CudaTensor, FrozenCudaTensor, SharedCudaTensor, empty_cache, ipc_collect,
    memory_stats,
};
use mp::{AnyResult, GetError, Message, PutError, Queue};
use serde::{Deserialize, Serialize};

use crate::cuda::gpu::{Gpu, now};

/// Maximum time that a process waits for another one.
pub(crate) const DEADLINE: Duration = Duration::from_secs(15);
/// Number of elements of 16 MiB.
const LARGE: usize = 4 << 20;

/// Tensor, and time of its put.
#[derive(Message)]
pub(crate) struct TimedTensor {
    at: u64,
    tensor: CudaTensor<f32>,
}

/// Queue of numbers for messages without tensors.
pub(crate) type Numbers = Queue<u64>;

/// Job of a worker.
#[derive(Serialize, Deserialize)]
pub(crate) enum Job {
    /// Creates a context, and runs a kernel in it.
    Start,
    /// Returns the free memory of the device.
    Free,
    /// Puts new tensors, each after the previous one was acknowledged. With `ready`, each tensor is put after
    /// its kernel has run.
    Make { to: Queue<TimedTensor>, acks: Numbers, elements: usize, warm: usize, count: usize, ready: bool },
    /// Runs a kernel over each tensor, and acknowledges the tensor.
    Take { from: Queue<TimedTensor>, acks: Numbers, warm: usize, count: usize },
    /// Runs the kernel of `Take` on private memory, without a message.
    Floor { warm: usize, count: usize },
    /// Runs a kernel for each number, and sends the number on when the kernel has run.
    Switch { from: Numbers, to: Numbers, count: usize },
    /// Sends clones of a frozen tensor. With `views`, sends one row of the tensor in each message instead.
    SendFrozen { to: Queue<FrozenCudaTensor<f32>>, rows: usize, columns: usize, count: usize, views: bool },
    /// Gets frozen tensors.
    GetFrozen { from: Queue<FrozenCudaTensor<f32>>, count: usize },
    /// Runs the first of three processes of a relay, which creates and sends tensors.
    RelayMake { to: Queue<CudaTensor<f32>>, count: usize },
    /// Runs the second process of a relay, which forwards tensors.
    Relay { from: Queue<CudaTensor<f32>>, to: Queue<CudaTensor<f32>>, count: usize },
    /// Runs the third process of a relay, which receives tensors. After each number of tensors in `marks`, it
    /// reports that number and waits for `go`.
    RelayTake {
        from: Queue<CudaTensor<f32>>,
        marks: Vec<usize>,
        reported: Numbers,
        go: Numbers,
        count: usize,
    },
    /// Waits for the other process's event, adds 1 by a kernel, records its own event, and notifies the other
    /// process. The process with the last hop reads the values.
    Hop {
        values: SharedCudaTensor<f32>,
        mine: CudaEvent,
        others: CudaEvent,
        from: Numbers,
        to: Numbers,
        hops: usize,
        reads: bool,
    },
    /// Sends the tensor that hops change.
    HopTensor { to: Queue<SharedCudaTensor<f32>> },
    /// Allocates and drops tensors.
    AllocFree { bytes: usize, rounds: usize, each: usize, driver: bool },
    /// Puts a new frozen tensor into all queues.
    Broadcast {
        to: Vec<Queue<FrozenCudaTensor<f32>>>,
        acks: Numbers,
        elements: usize,
        warm: usize,
        count: usize,
    },
    /// Reads each tensor by a kernel, and reports the time.
    Receive { from: Queue<FrozenCudaTensor<f32>>, acks: Numbers, count: usize },
    /// Measures an event between two streams of one process.
    TwoStreams { warm: usize, count: usize, driver: bool },
    /// Sends a number to a process that runs `Pong`, and waits for the answer.
    Ping { to: Numbers, from: Numbers, warm: usize, count: usize },
    /// Answers the numbers of a process that runs `Ping`.
    Pong { from: Numbers, to: Numbers, count: usize },
    /// Puts tensors until a message in `stop` arrives, and then frees everything.
    Stream { to: Queue<CudaTensor<f32>>, begun: Numbers, stop: Numbers },
    /// Gets, reads and writes tensors until a message in `stop` arrives, and then frees everything.
    Drain { from: Queue<CudaTensor<f32>>, begun: Numbers, stop: Numbers },
}

/// Figures by name.
pub(crate) type Figures = Vec<(String, Vec<f64>)>;
/// Answer of a worker.
pub(crate) type Reply = Result<Figures, String>;

/// Fails with a text if a condition doesn't hold.
macro_rules! ensure {
    ($what:expr, $($said:tt)*) => {
        if !$what {
            return Err(format!($($said)*).into());
        }
    };
}
pub(crate) use ensure;

/// Returns the next message, within the deadline.
pub(crate) fn taken<T: Message>(queue: &Queue<T>) -> AnyResult<T> {
    Ok(queue.get_timeout(DEADLINE)?.ok_or("the queue was closed")?)
}

/// Puts a value within the deadline.
pub(crate) fn put<T: Message>(queue: &Queue<T>, value: T) -> AnyResult<()> {
    queue.put_timeout(value, DEADLINE).map_err(PutError::forget)?;
    Ok(())
}

fn said<const N: usize>(all: [(&str, Vec<f64>); N]) -> Figures {
    all.into_iter().map(|(name, values)| (name.to_owned(), values)).collect()
}

/// Runs the process until the queue of jobs is closed.
pub(crate) fn worker((jobs, replies): (Queue<Job>, Queue<Reply>)) -> AnyResult<()> {
    let mut gpu = None;
    while let Some(job) = jobs.get()? {
        let reply = run(&mut gpu, job).map_err(|error| error.to_string());
        put(&replies, reply)?;
    }
    Ok(())
}

fn run(kept: &mut Option<Gpu>, job: Job) -> AnyResult<Figures> {
    if kept.is_none() {
        *kept = Some(Gpu::new()?);
    }
    let gpu = kept.as_ref().ok_or("no GPU")?;
    match job {
        Job::Start => {
            // The event needs a tick, for which the process table is registered with the device. This takes
            // at most two words of the device.
            let event = CudaEvent::new()?;
            event.record(&gpu.stream)?;
            event.synchronize()?;
            gpu.stream.synchronize()?;
            Ok(said([]))
        }
        Job::Free => Ok(said([("free", vec![gpu.device.free_memory()? as f64])])),
        Job::Make { to, acks, elements, warm, count, ready } => {
            make(gpu, &to, &acks, elements, warm + count, ready)
        }
        Job::Switch { from, to, count } => switch(gpu, &from, &to, count),
        Job::Take { from, acks, warm, count } => take(gpu, &from, &acks, warm, count),
        Job::Floor { warm, count } => floor(gpu, warm, count),
        Job::SendFrozen { to, rows, columns, count, views } => {
            send_frozen(gpu, &to, rows, columns, count, views)
        }
        Job::GetFrozen { from, count } => get_frozen(gpu, &from, count),
        Job::RelayMake { to, count } => {
            let began = now();
            for i in 0..count {
                put(&to, gpu.filled(1024, (i % 100) as f32)?)?;
            }
            Ok(said([("began", vec![began as f64])]))
        }
        Job::Relay { from, to, count } => {
            for _ in 0..count {
                put(&to, taken(&from)?)?;
            }
            Ok(said([]))
        }
        Job::RelayTake { from, marks, reported, go, count } => {
            relay_take(gpu, &from, &marks, &reported, &go, count)
        }
        Job::HopTensor { to } => {
            put(&to, gpu.filled(1024, 0.0)?.share())?;
            Ok(said([]))
        }
        Job::Hop { values, mine, others, from, to, hops, reads } => {
            hop(gpu, &values, (&mine, &others), (&from, &to), hops, reads)
        }
        Job::AllocFree { bytes, rounds, each, driver } => alloc_free(gpu, bytes, rounds, each, driver),
        Job::Broadcast { to, acks, elements, warm, count } => {
            broadcast(gpu, &to, &acks, elements, warm, count)
        }
        Job::Receive { from, acks, count } => receive(gpu, &from, &acks, count),
        Job::TwoStreams { warm, count, driver } => two_streams(gpu, warm, count, driver),
        Job::Ping { to, from, warm, count } => ping(&to, &from, warm, count),
        Job::Pong { from, to, count } => {
            for _ in 0..count {
                put(&to, taken(&from)?)?;
            }
            Ok(said([]))
        }
        Job::Stream { to, begun, stop } => stream(gpu, &to, &begun, &stop),
        Job::Drain { from, begun, stop } => drain(gpu, &from, &begun, &stop),
    }
}

fn reserved(gpu: &Gpu) -> f64 {
    memory_stats(&gpu.device).reserved as f64
}

fn make(
    gpu: &Gpu,
    to: &Queue<TimedTensor>,
    acks: &Numbers,
    elements: usize,
    count: usize,
    ready: bool,
) -> AnyResult<Figures> {
    // Memory of earlier rows must not affect this row.
    empty_cache();
    let (mut at, mut began) = (Vec::new(), Vec::new());
    for i in 0..count {
        began.push(now() as f64);
        let x = gpu.filled(elements, (i + 1) as f32)?;
        if ready {
            gpu.stream.synchronize()?;
        }
        put(to, TimedTensor { at: now(), tensor: x })?;
        ensure!(taken(acks)? == i as u64, "another acknowledgement than that of {i}");
        if [10, 100, count].contains(&(i + 1)) {
            at.push(reserved(gpu));
        }
    }
    Ok(said([("reserved", at), ("began", began)]))
}

fn take(
    gpu: &Gpu,
    from: &Queue<TimedTensor>,
    acks: &Numbers,
    warm: usize,
    count: usize,
) -> AnyResult<Figures> {
    let (mut got, mut done, mut launched, mut ends) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for i in 0..warm + count {
        let TimedTensor { at: t0, tensor: x } = taken(from)?;
        let t_got = now();
        let on = x.on(&gpu.stream)?;
        gpu.doubled(on.ptr())?;
        let t_launched = now();
        gpu.stream.synchronize()?;
        let t1 = now();
        drop(on);
        drop(x);
        if i >= warm {
            got.push((t_got - t0) as f64);
            launched.push((t_launched - t0) as f64);
            done.push((t1 - t0) as f64);
            ends.push(t1 as f64);
        }
        if i % 50 == 0 {
            let found = gpu.result()?;
            ensure!(found == 2.0 * (i + 1) as f32, "{found} instead of {}", 2 * (i + 1));
        }
        put(acks, i as u64)?;
    }
    Ok(said([("got", got), ("done", done), ("launched", launched), ("ends", ends)]))
}

fn floor(gpu: &Gpu, warm: usize, count: usize) -> AnyResult<Figures> {
    let mut all = Vec::new();
    for i in 0..warm + count {
        let t0 = now();
        gpu.doubled(gpu.scratch())?;
        gpu.stream.synchronize()?;
        if i >= warm {
            all.push((now() - t0) as f64);
        }
    }
    Ok(said([("ns", all)]))
}

fn send_frozen(
    gpu: &Gpu,
    to: &Queue<FrozenCudaTensor<f32>>,
    rows: usize,
    columns: usize,
    count: usize,
    views: bool,
) -> AnyResult<Figures> {
    let values: Vec<f32> = (0..rows * columns).map(|i| (i / columns) as f32).collect();
    let base = CudaTensor::from_slice(&values, [rows, columns], &gpu.stream)?.freeze();
    let began = now();
    for i in 0..count {
        let one = base.clone();
        put(to, if views { one.narrow(0, i % rows, 1)? } else { one })?;
    }
    Ok(said([("began", vec![began as f64])]))
}

/// Gets tensors. Returns the sum of the first 64 elements of each hundredth tensor, and the time of the end.
fn get_frozen(gpu: &Gpu, from: &Queue<FrozenCudaTensor<f32>>, count: usize) -> AnyResult<Figures> {
    let mut sums = Vec::new();
    for i in 0..count {
        let x = taken(from)?;
        if i % 100 == 99 {
            let on = x.on(&gpu.stream)?;
            sums.push(f64::from(gpu.sum(on.ptr())?));
        }
    }
    Ok(said([("ended", vec![now() as f64]), ("sums", sums)]))
}

fn relay_take(
    gpu: &Gpu,
    from: &Queue<CudaTensor<f32>>,
    marks: &[usize],
    reported: &Numbers,
    go: &Numbers,
    count: usize,
) -> AnyResult<Figures> {
    let mut paused = 0;
    for i in 0..count {
        let x = taken(from)?;
        if i % 100 == 99 {
            let on = x.on(&gpu.stream)?;
            let sum = gpu.sum(on.ptr())?;
            ensure!(sum == 64.0 * 99.0, "the sum of tensor {i} is {sum}");
        }
        drop(x);
        if marks.contains(&(i + 1)) {
            let t0 = now();
            put(reported, i as u64 + 1)?;
            taken(go)?;
            paused += now() - t0;
        }
    }
    Ok(said([("ended", vec![now() as f64]), ("paused", vec![paused as f64])]))
}

fn hop(
    gpu: &Gpu,
    values: &SharedCudaTensor<f32>,
    (mine, others): (&CudaEvent, &CudaEvent),
    (from, to): (&Numbers, &Numbers),
    hops: usize,
    reads: bool,
) -> AnyResult<Figures> {
    let one = gpu.filled(1024, 1.0)?;
    let mut times = vec![now() as f64];
    for i in 0..hops {
        taken(from)?;
        others.wait(&gpu.stream)?;
        {
            let (on, one) = (values.on_mut(&gpu.stream)?, one.on(&gpu.stream)?);
            gpu.add(on.ptr(), on.ptr(), one.ptr(), 1024)?;
        }
        mine.record(&gpu.stream)?;
        put(to, i as u64)?;
    }
    gpu.stream.synchronize()?;
    times.push(now() as f64);
    // The other process's last hop may still be pending, unless this process has the last one.
    let values = if reads { values.to_vec(&gpu.stream)? } else { Vec::new() };
    Ok(said([
        ("times", times),
        ("value", values.last().map(|value| f64::from(*value)).into_iter().collect()),
    ]))
}

fn alloc_free(gpu: &Gpu, bytes: usize, rounds: usize, each: usize, driver: bool) -> AnyResult<Figures> {
    let mut all = Vec::new();
    for round in 0..=rounds {
        let t0 = now();
        for _ in 0..each {
            if driver {
                gpu.alloc_free_async(bytes)?;
            } else {
                drop(CudaTensor::<u8>::empty([bytes], &gpu.stream)?);
            }
        }
        let time = (now() - t0) as f64 / each as f64;
        gpu.stream.synchronize()?;
        // The first one warms up.
        if round > 0 {
            all.push(time);
        }
    }
    Ok(said([("ns", all)]))
}

fn broadcast(
    gpu: &Gpu,
    to: &[Queue<FrozenCudaTensor<f32>>],
    acks: &Numbers,
    elements: usize,
    warm: usize,
    count: usize,
) -> AnyResult<Figures> {
    let mut all = Vec::new();
    for i in 0..warm + count {
        let x = gpu.filled(elements, i as f32)?.freeze();
        let t0 = now();
        for queue in to {
            put(queue, x.clone())?;
        }
        let mut last = 0;
        for _ in to {
            last = last.max(taken(acks)?);
        }
        if i >= warm {
            all.push((last - t0) as f64);
        }
    }
    Ok(said([("ns", all), ("reserved", vec![reserved(gpu)])]))
}

fn receive(
    gpu: &Gpu,
    from: &Queue<FrozenCudaTensor<f32>>,
    acks: &Numbers,
    count: usize,
) -> AnyResult<Figures> {
    for i in 0..count {
        let x = taken(from)?;
        let on = x.on(&gpu.stream)?;
        gpu.doubled(on.ptr())?;
        gpu.stream.synchronize()?;
        let t1 = now();
        drop(on);
        drop(x);
        if i % 20 == 0 {
            let found = gpu.result()?;
            ensure!(found == 2.0 * i as f32, "{found} instead of {}", 2 * i);
        }
        put(acks, t1)?;
    }
    Ok(said([]))
}

fn two_streams(gpu: &Gpu, warm: usize, count: usize, driver: bool) -> AnyResult<Figures> {
    let other = CudaStream::new(&gpu.device)?;
    let (event, of_driver) = (CudaEvent::new()?, gpu.driver_event()?);
    let mut all = Vec::new();
    for i in 0..warm + count {
        let t0 = now();
        if driver {
            gpu.driver_order(of_driver, &gpu.stream, &other)?;
        } else {
            event.record(&gpu.stream)?;
            event.wait(&other)?;
        }
        gpu.doubled_on(&other, gpu.scratch())?;
        other.synchronize()?;
        if i >= warm {
            all.push((now() - t0) as f64);
        }
    }
    gpu.driver_event_done(of_driver)?;
    Ok(said([("ns", all)]))
}

/// Measures the time for a device to switch between the kernels of two processes. The two processes run
/// kernels in turns.
fn switch(gpu: &Gpu, from: &Numbers, to: &Numbers, count: usize) -> AnyResult<Figures> {
    let mut all = Vec::new();
    for i in 0..count {
        taken(from)?;
        let t0 = now();
        gpu.doubled(gpu.scratch())?;
        gpu.stream.synchronize()?;
        all.push((now() - t0) as f64);
        put(to, i as u64)?;
    }
    // Drops the first tenth: which process used the device before the first kernel is unknown.
    Ok(said([("ns", all.split_off(count / 10))]))
}

fn ping(to: &Numbers, from: &Numbers, warm: usize, count: usize) -> AnyResult<Figures> {
    let mut all = Vec::new();
    for i in 0..warm + count {
        let t0 = now();
        put(to, i as u64)?;
        let back = taken(from)?;
        if i >= warm {
            all.push((now() - t0) as f64);
        }
        ensure!(back == i as u64, "{back} came back for {i}");
    }
    Ok(said([("ns", all)]))
}

/// Returns `true` if the server has asked this worker to stop.
fn stopped(stop: &Numbers) -> bool {
    matches!(stop.try_get(), Ok(Some(_)))
}

/// Frees all memory of this worker in the row `killed`, after the other process has ended. `errors` are the
/// errors so far.
fn give_back(gpu: &Gpu, exchanged: usize, errors: &[String]) -> Figures {
    // A stream that waits for a killed process may return an error.
    let synchronized = gpu.stream.synchronize().is_ok();
    let before = memory_stats(&gpu.device);
    ipc_collect();
    empty_cache();
    let after = memory_stats(&gpu.device);
    let mut all = said([
        ("exchanged", vec![exchanged as f64]),
        ("synchronized", vec![f64::from(u8::from(synchronized))]),
        ("errors", vec![errors.len() as f64]),
        ("reserved", vec![before.reserved as f64, after.reserved as f64]),
        ("retired", vec![before.retired as f64, after.retired as f64]),
        ("mapped", vec![before.mapped as f64, after.mapped as f64]),
        ("foreign", vec![before.foreign as f64, after.foreign as f64]),
        ("pieces", vec![before.pieces as f64, after.pieces as f64]),
    ]);
    if let Some(first) = errors.first() {
        all.push((format!("first error: {first}"), vec![]));
    }
    all
}

/// Records an error that a death may have caused. The caller retries.
fn note(errors: &mut Vec<String>, error: &dyn std::fmt::Display) -> AnyResult<()> {
    errors.push(error.to_string());
    ensure!(errors.len() < 1000, "1000 errors, at last: {error}");
    std::thread::sleep(Duration::from_millis(5));
    Ok(())
}

fn stream(gpu: &Gpu, to: &Queue<CudaTensor<f32>>, begun: &Numbers, stop: &Numbers) -> AnyResult<Figures> {
    let (mut count, mut errors) = (0, Vec::new());
    let mut next = None;
    while !stopped(stop) {
        let x = match next.take() {
            Some(x) => x,
            None => gpu.filled(LARGE, count as f32)?,
        };
        match to.put_timeout(x, Duration::from_millis(5)) {
            Ok(()) => {
                count += 1;
                if count == 3 {
                    put(begun, 0)?;
                }
            }
            Err(PutError::Full(x)) => next = Some(x),
            Err(error) => note(&mut errors, &error.forget())?,
        }
    }
    drop(next);
    while let Ok(Some(x)) = to.try_get() {
        drop(x);
    }
    Ok(give_back(gpu, count, &errors))
}

fn drain(gpu: &Gpu, from: &Queue<CudaTensor<f32>>, begun: &Numbers, stop: &Numbers) -> AnyResult<Figures> {
    let (mut count, mut errors) = (0, Vec::new());
    let read = |x: CudaTensor<f32>| -> AnyResult<()> {
        let mut x = x;
        {
            let on = x.on(&gpu.stream)?;
            gpu.doubled(on.ptr())?;
        }
        gpu.refill(&mut x, 7.0)?;
        Ok(())
    };
    while !stopped(stop) {
        match from.get_timeout(Duration::from_millis(5)) {
            Ok(Some(x)) => match read(x) {
                Ok(()) => {
                    count += 1;
                    if count == 3 {
                        put(begun, 0)?;
                    }
                }
                Err(error) => note(&mut errors, &error)?,
            },
            Ok(None) => break,
            Err(GetError::Empty) => {}
            Err(error) => note(&mut errors, &error)?,
        }
    }
    while let Ok(Some(x)) = from.try_get() {
        drop(x);
    }
    Ok(give_back(gpu, count, &errors))
}
