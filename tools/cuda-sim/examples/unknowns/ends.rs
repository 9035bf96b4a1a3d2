//! Queued work of a process that ends, or is stopped.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::gpu::{Gpu, Outcome};
use crate::helper::{self, Helper, ms, number, spread, tell};
use crate::host::{self, Shared, pause};
use crate::words::{page, their_page};

/// Device memory of the process whose end is measured.
const BYTES: usize = 1 << 30;
const ENDS: [&str; 4] = ["_exit(0)", "return from main", "SIGKILL", "return, nothing queued"];

pub(crate) fn exit() -> Outcome {
    let gpu = Gpu::start()?;
    let (words, _) = page(&gpu)?;
    println!("a kernel of 300 ms, then the write of a word, are queued; the process has {BYTES} bytes:");
    for (i, how) in ENDS.iter().enumerate() {
        let before = gpu.free_bytes()?;
        let mut child = Helper::start("ends", &[words.number(), (8 * i).to_string()])?;
        child.hear()?;
        child.ask(if i == 3 { "queue nothing" } else { "queue 300" })?;
        let took = before.saturating_sub(gpu.free_bytes()?);
        let begin = Instant::now();
        match i {
            2 => child.signal(Signal::KILL)?,
            0 => child.say("_exit")?,
            _ => child.say("return")?,
        }
        let end = child.end()?;
        let gone = begin.elapsed();
        let came = words.load(8 * i) != 0;
        // Within 16 MiB: other allocations may change a little.
        while gpu.free_bytes()? + (16 << 20) < before && begin.elapsed() < Duration::from_millis(1500) {
            pause(Duration::from_secs(1));
        }
        let back = begin.elapsed();
        let is_back = gpu.free_bytes()? + (16 << 20) >= before;
        let late = words.see(8 * i, 1, Duration::from_millis(400)).is_some();
        println!(
            "  {how:<22} {end:<8} waitid after {:8.1} ms; the word was there: {came}, later: {late}; its {} MiB are back: {is_back}, by {:.1} ms",
            ms(gone),
            took >> 20,
            ms(back)
        );
    }
    Ok(())
}

pub(crate) fn stopped() -> Outcome {
    let gpu = Gpu::start()?;
    let (words, _) = page(&gpu)?;
    let (stream, at) = (gpu.stream()?, gpu.alloc(1 << 20)?);
    gpu.fill(stream, at, 1024, 1.0)?;
    gpu.sync(stream)?;
    for (i, time) in [200, 600].into_iter().enumerate() {
        let mut child = Helper::start("ends", &[words.number(), (8 * i).to_string()])?;
        child.hear()?;
        child.ask(&format!("queue {time}"))?;
        let begin = Instant::now();
        child.signal(Signal::STOP)?;
        let seen = kernels(&gpu, (stream, at), &words, 8 * i, time, begin)?;
        println!(
            "a kernel of {time} ms, then the write of a word; the process is stopped: the word was seen {seen}"
        );
        child.kill()?;
    }
    Ok(())
}

/// Runs kernels of this process until the stopped one's word is observed, and some more.
fn kernels(
    gpu: &Gpu,
    (stream, at): (mp_cuda::driver::api::DriverHandle, u64),
    words: &Shared,
    word: usize,
    time: u64,
    begin: Instant,
) -> Outcome<String> {
    let mut times = [Vec::new(), Vec::new()];
    let limit = Duration::from_millis(time + 1000);
    let mut seen = None;
    while begin.elapsed() < limit && times[1].len() < 100 {
        let kernel = Instant::now();
        gpu.fill(stream, at, 1024, 1.0)?;
        gpu.sync(stream)?;
        times[usize::from(seen.is_some())].push(kernel.elapsed());
        if seen.is_none() && words.load(word) != 0 {
            seen = Some(begin.elapsed());
        }
    }
    println!("  kernels meanwhile   {}", spread(&mut times[0]));
    println!("  kernels afterwards  {}", spread(&mut times[1]));
    Ok(seen
        .map_or(format!("not within {} ms", limit.as_millis()), |time| format!("after {:.1} ms", ms(time))))
}

/// Queues work, and ends as requested.
pub(crate) fn help(arguments: &[String]) -> Outcome {
    let gpu = Gpu::start()?;
    let (_words, device) = their_page(&gpu, number(arguments, 0)?)?;
    let word: u64 = number(arguments, 1)?;
    let stream = gpu.stream()?;
    gpu.alloc(BYTES)?;
    gpu.spin(stream, 1)?;
    gpu.sync(stream)?;
    tell("ready")?;
    let line = helper::heard()?;
    if let Some(Ok(time)) = line.split_whitespace().nth(1).map(str::parse) {
        gpu.spin(stream, time)?;
        gpu.write(stream, device + 8 * word, 1)?;
    }
    tell("queued")?;
    if helper::heard()? == "_exit" {
        host::leave();
    }
    Ok(())
}
