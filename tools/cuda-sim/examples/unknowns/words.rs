//! Latency of words between hosts and streams, alone and concurrently with another process's kernel.

use std::time::{Duration, Instant};

use mp_cuda::driver::api::DriverHandle;

use crate::gpu::{Gpu, Outcome};
use crate::helper::{self, Helper, ms, number, spread, tell};
use crate::host::Shared;

/// Returns a page that this process has registered, with its address on the device.
pub(crate) fn page(gpu: &Gpu) -> Outcome<(Shared, u64)> {
    let words = Shared::new(4096)?;
    let device = gpu.register(words.host, words.bytes)?;
    Ok((words, device))
}

/// Does the same in a helper, by the descriptor's number.
pub(crate) fn their_page(gpu: &Gpu, file: i32) -> Outcome<(Shared, u64)> {
    let words = Shared::open(file, 4096)?;
    let device = gpu.register(words.host, words.bytes)?;
    Ok((words, device))
}

/// Returns the page of a helper's first argument, and a stream on which a kernel has run. The helper has
/// reported that it is ready.
pub(crate) fn ready(gpu: &Gpu, arguments: &[String]) -> Outcome<(Shared, u64, DriverHandle)> {
    let (words, device) = their_page(gpu, number(arguments, 0)?)?;
    let stream = gpu.stream()?;
    gpu.spin(stream, 1)?;
    gpu.sync(stream)?;
    tell("ready")?;
    Ok((words, device, stream))
}

pub(crate) fn store() -> Outcome {
    let gpu = Gpu::start()?;
    let (words, device) = page(&gpu)?;
    let stream = gpu.stream()?;
    let mut times = Vec::new();
    for i in 1..=220 {
        gpu.wait(stream, device, i)?;
        gpu.write(stream, device + 64, i)?;
        // The stream is waiting by then.
        std::thread::sleep(Duration::from_micros(300));
        let begin = Instant::now();
        words.store(0, i);
        words.seen("the word behind the wait", 8, i)?;
        times.push(begin.elapsed());
    }
    println!("host's store, stream's wait and write, seen {}", spread(&mut times[20..]));
    println!(
        "write asked for, seen                      {}",
        spread(&mut writes(&gpu, &words, stream, device, 220)?[20..])
    );
    times.clear();
    for i in 1..=220 {
        let begin = Instant::now();
        gpu.write(stream, device + 128, i)?;
        gpu.sync(stream)?;
        times.push(begin.elapsed());
    }
    println!("write asked for, cuStreamSynchronize       {}", spread(&mut times[20..]));
    let mut calls = Vec::new();
    for i in 1..=220 {
        let begin = Instant::now();
        gpu.write(stream, device + 256, i)?;
        calls.push(begin.elapsed());
        gpu.sync(stream)?;
    }
    println!("the call of the write                      {}", spread(&mut calls[20..]));
    Ok(())
}

/// Writes to word 24 by a stream, and waits until each value is observed.
fn writes(
    gpu: &Gpu,
    words: &Shared,
    stream: DriverHandle,
    device: u64,
    count: u64,
) -> Outcome<Vec<Duration>> {
    let mut times = Vec::new();
    let first = words.load(24) + 1;
    for value in first..first + count {
        let begin = Instant::now();
        gpu.write(stream, device + 8 * 24, value)?;
        words.seen("a word", 24, value)?;
        times.push(begin.elapsed());
    }
    Ok(times)
}

/// Runs kernels, each waited for, while `goes_on`.
fn kernels(gpu: &Gpu, stream: DriverHandle, at: u64, goes_on: impl Fn() -> bool) -> Outcome<Vec<Duration>> {
    let mut times = Vec::new();
    while times.len() < 100 && (times.is_empty() || goes_on()) {
        let begin = Instant::now();
        gpu.fill(stream, at, 1024, 1.0)?;
        gpu.sync(stream)?;
        times.push(begin.elapsed());
    }
    Ok(times)
}

pub(crate) fn slices() -> Outcome {
    let gpu = Gpu::start()?;
    let (words, device) = page(&gpu)?;
    let (stream, at) = (gpu.stream()?, gpu.alloc(1 << 20)?);
    let mut other = Helper::start("spinner", &[words.number()])?;
    other.hear()?;
    kernels(&gpu, stream, at, || true)?;
    println!(
        "launch and synchronise, idle               {}",
        spread(&mut kernels(&gpu, stream, at, || true)?)
    );
    println!(
        "write asked for, seen, idle                {}",
        spread(&mut writes(&gpu, &words, stream, device, 100)?)
    );
    other.say("2000")?;
    words.seen("the start of the other's kernel", 0, 1)?;
    let begin = Instant::now();
    let mut times = kernels(&gpu, stream, at, || words.load(1) < 1)?;
    println!("launch and synchronise, other's 2 s kernel {}", spread(&mut times));
    println!("  of {:.1} ms, its kernel over at the end: {}", ms(begin.elapsed()), words.load(1) >= 1);
    other.hear()?;
    println!("  its kernel of 2000 ms took {:.1} ms", ms(begin.elapsed()));
    other.say("1000")?;
    words.seen("the start of the other's kernel", 0, 2)?;
    let begin = Instant::now();
    let mut times = Vec::new();
    while times.len() < 100 && words.load(1) < 2 {
        times.append(&mut writes(&gpu, &words, stream, device, 1)?);
    }
    println!("write asked for, seen, other's 1 s kernel  {}", spread(&mut times));
    println!("  of {:.1} ms, its kernel over at the end: {}", ms(begin.elapsed()), words.load(1) >= 2);
    other.hear()?;
    other.close()
}

/// Runs kernels of the requested times, with a word before and one after.
pub(crate) fn help(arguments: &[String]) -> Outcome {
    let gpu = Gpu::start()?;
    let (_words, device, stream) = ready(&gpu, arguments)?;
    for count in 1.. {
        let Ok(line) = helper::heard() else {
            break;
        };
        gpu.write(stream, device, count)?;
        gpu.spin(stream, line.parse()?)?;
        gpu.write(stream, device + 8, count)?;
        gpu.sync(stream)?;
        tell("over")?;
    }
    Ok(())
}
