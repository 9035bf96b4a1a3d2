//! Roles that measure round trips and throughput, with and without a cluster.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use mp_net::RemoteQueue;
use mp_queue::Queue;
use mp_reduce::Message;
use mp_tensor::FrozenTensor;

use crate::message::{Numbered, numbered};
use crate::options::Options;
use crate::{RoleResult, join, say, wait_for_end_of_input};

/// Size of the messages whose round trips are measured.
const SMALL: usize = 64;
const ROUNDS: usize = 3000;
const PIPELINED: u64 = 50_000;
/// Number of messages in each queue.
const CAPACITY: usize = 4096;
/// Sizes of messages whose throughput is measured. [`BYTES`] bytes are sent of each size.
const LARGE: [usize; 2] = [1 << 20, 16 << 20];
const BYTES: usize = 512 << 20;

/// Reports the median and the 99th percentile of `ROUNDS` calls.
fn round_trips(mut call: impl FnMut() -> RoleResult) -> RoleResult {
    let mut times = Vec::with_capacity(ROUNDS);
    for round in 0..ROUNDS + ROUNDS / 10 {
        let since = Instant::now();
        call()?;
        if round >= ROUNDS / 10 {
            times.push(since.elapsed());
        }
    }
    times.sort_unstable();
    let us = |time: Duration| time.as_secs_f64() * 1e6;
    say!("figure rtt-p50 {:.1}", us(times[ROUNDS / 2]));
    say!("figure rtt-p99 {:.1}", us(times[ROUNDS * 99 / 100]));
    Ok(())
}

/// Reports bytes in a second as GB/s.
fn throughput(size: usize, since: Instant) {
    let rate = BYTES as f64 / since.elapsed().as_secs_f64() / 1e9;
    say!("figure gbs-{}-MiB {rate:.3}", size >> 20);
}

/// Reports the number of messages that are put in a second.
fn pipelined<T: Message>(name: &str, queue: &RemoteQueue<T>, messages: Vec<T>) -> RoleResult {
    let (count, since) = (messages.len(), Instant::now());
    queue.put_many(messages).map_err(|error| error.error.forget())?;
    say!("figure pipelined-{name} {:.0}", count as f64 / since.elapsed().as_secs_f64());
    Ok(())
}

/// Takes all messages of a queue.
fn drain<T: Message>(queue: &Queue<T>) -> RoleResult {
    while queue.get()?.is_some() {}
    Ok(())
}

/// Publishes the queues `small`, `bytes` and `large`, and takes their messages, until the input ends.
pub(crate) fn serve(options: &Options) -> RoleResult {
    let cluster = join(options)?;
    let small = Queue::<Numbered>::bounded(CAPACITY)?;
    let bytes = Queue::<Vec<u8>>::bounded(CAPACITY)?;
    let large = Queue::<FrozenTensor<u8>>::bounded(CAPACITY)?;
    cluster.publish("small", &small)?;
    cluster.publish("bytes", &bytes)?;
    cluster.publish("large", &large)?;
    say!("ready");
    std::thread::scope(|scope| {
        let drained =
            [scope.spawn(|| drain(&small)), scope.spawn(|| drain(&bytes)), scope.spawn(|| drain(&large))];
        let waited = wait_for_end_of_input();
        small.close();
        bytes.close();
        large.close();
        for drained in drained {
            drained.join().map_err(|_| "a thread panicked")??;
        }
        waited
    })
}

/// Measures the queues of the home. Payloads are created before a measurement of throughput, as in
/// [`run_tcp`].
pub(crate) fn run(options: &Options) -> RoleResult {
    let cluster = join(options)?;
    let queue = RemoteQueue::<Numbered>::connect(&cluster, "small")?;
    round_trips(|| Ok(queue.put(numbered(0, SMALL)?).map_err(|error| error.forget())?))?;
    let messages = (0..PIPELINED).map(|number| numbered(number, SMALL)).collect::<Result<Vec<_>, _>>()?;
    pipelined("tensors", &queue, messages)?;
    let messages = (0..PIPELINED).map(|number| vec![number as u8; SMALL]).collect();
    pipelined("bytes", &RemoteQueue::<Vec<u8>>::connect(&cluster, "bytes")?, messages)?;
    let queue = RemoteQueue::<FrozenTensor<u8>>::connect(&cluster, "large")?;
    for size in LARGE {
        let tensor = mp_tensor::Tensor::<u8>::full([size], 1)?.freeze();
        let since = Instant::now();
        let sent = std::iter::repeat_n(tensor, BYTES / size);
        queue.put_many(sent).map_err(|error| error.error.forget())?;
        throughput(size, since);
    }
    cluster.leave()?;
    Ok(())
}

/// Answers each small message with one byte. For each large size, answers with one byte after all messages
/// with that size were received.
pub(crate) fn serve_tcp(options: &Options) -> RoleResult {
    let listener = TcpListener::bind(options.text("first")?)?;
    say!("ready");
    let (mut stream, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    let mut small = [0; SMALL];
    for _ in 0..ROUNDS + ROUNDS / 10 {
        stream.read_exact(&mut small)?;
        stream.write_all(&[1])?;
    }
    let mut buffer = vec![0; 1 << 20];
    for size in LARGE {
        for _ in 0..BYTES / size {
            let mut left = size;
            while left > 0 {
                let part = left.min(buffer.len());
                stream.read_exact(&mut buffer[..part])?;
                left -= part;
            }
        }
        stream.write_all(&[1])?;
    }
    Ok(())
}

/// Measures round trips and throughput of a plain TCP socket.
pub(crate) fn run_tcp(options: &Options) -> RoleResult {
    let mut stream = TcpStream::connect(options.text("first")?)?;
    stream.set_nodelay(true)?;
    let mut answer = [0];
    round_trips(|| {
        stream.write_all(&[0; SMALL])?;
        Ok(stream.read_exact(&mut answer)?)
    })?;
    for size in LARGE {
        let message = vec![1; size];
        let since = Instant::now();
        for _ in 0..BYTES / size {
            stream.write_all(&message)?;
        }
        stream.read_exact(&mut answer)?;
        throughput(size, since);
    }
    Ok(())
}
