//! Effect of streams that wait for another process's words on a stream that doesn't wait.

use std::time::{Duration, Instant};

use crate::gpu::{Gpu, Outcome};
use crate::helper::{self, Helper, Setting, ms, number, tell};
use crate::host::Shared;
use crate::words::{ready, their_page};

const STREAMS: u64 = 64;
const KERNEL_MS: u64 = 200;
/// Words of the writing process, of the waiting streams, of the other stream, and of the kernel's start.
const THEIRS: u64 = 0;
const MINE: u64 = 64;
const FREE: u64 = 128;
const STARTED: u64 = 136;

pub(crate) fn ask() -> Outcome {
    let cases = [
        (None, 0),
        (None, 1),
        (None, 4),
        (None, 7),
        (None, 8),
        (None, 16),
        (None, STREAMS),
        (Some(1), 1),
        (Some(32), 8),
        (Some(32), 31),
    ];
    let mut ready = Vec::new();
    for (connections, waiting) in cases {
        let words = Shared::new(4096)?;
        let env = connections.map(|count: u32| ("CUDA_DEVICE_MAX_CONNECTIONS", count.to_string()));
        let setting = Setting { env: env.into_iter().collect(), ..Setting::default() };
        let writes = Helper::start_with("writes", &[words.number()], &setting)?;
        let waits = Helper::start_with("waits", &[words.number(), waiting.to_string()], &setting)?;
        ready.push((connections, waiting, words, writes, waits));
    }
    for (_, _, _, writes, waits) in &mut ready {
        writes.hear()?;
        waits.hear()?;
    }
    println!(
        "a process's kernel of {KERNEL_MS} ms, then its 64 words; another's waiting streams, then one that only writes:"
    );
    for (connections, waiting, words, mut writes, mut waits) in ready {
        writes.say("go")?;
        words.seen("the start of the kernel", word(STARTED), 1)?;
        let answer = waits.ask("go")?;
        let connections = connections.map_or("unset".to_owned(), |count: u32| count.to_string());
        println!("  CUDA_DEVICE_MAX_CONNECTIONS {connections:<5}  {waiting:>2} waiting: {answer}");
        writes.close()?;
        waits.close()?;
    }
    Ok(())
}

/// Returns the index of a word.
fn word(number: u64) -> usize {
    usize::try_from(number).unwrap_or(0)
}

/// Runs a kernel, and then writes all words.
pub(crate) fn writes(arguments: &[String]) -> Outcome {
    let gpu = Gpu::start()?;
    let (_words, device, stream) = ready(&gpu, arguments)?;
    helper::heard()?;
    gpu.write(stream, device + 8 * STARTED, 1)?;
    gpu.spin(stream, KERNEL_MS)?;
    for i in THEIRS..THEIRS + STREAMS {
        gpu.write(stream, device + 8 * i, 1)?;
    }
    gpu.sync(stream)?;
    // Waits for the end of its input.
    _ = helper::heard();
    Ok(())
}

/// Runs streams that wait, and one that doesn't.
pub(crate) fn waits(arguments: &[String]) -> Outcome {
    let gpu = Gpu::start()?;
    let (words, device) = their_page(&gpu, number(arguments, 0)?)?;
    let waiting: u64 = number(arguments, 1)?;
    let streams = (0..=waiting).map(|_| gpu.stream()).collect::<Outcome<Vec<_>>>()?;
    for stream in &streams {
        gpu.write(*stream, device + 8 * (FREE + 1), 1)?;
        gpu.sync(*stream)?;
    }
    let [waiting @ .., free] = &streams[..] else {
        return Ok(());
    };
    tell("ready")?;
    helper::heard()?;
    let begin = Instant::now();
    for (i, stream) in (0..).zip(waiting) {
        gpu.wait(*stream, device + 8 * (THEIRS + i), 1)?;
        gpu.write(*stream, device + 8 * (MINE + i), 1)?;
    }
    let asked = begin.elapsed();
    let begin = Instant::now();
    gpu.write(*free, device + 8 * FREE, 1)?;
    let call = begin.elapsed();
    let seen = words.see(word(FREE), 1, Duration::from_secs(2));
    let free_first = (0..STREAMS).all(|i| words.load(word(MINE + i)) == 0);
    let seen = seen.map_or("not in 2 s".to_owned(), |time| format!("after {:.3} ms", ms(time + call)));
    let all = begin.elapsed();
    let limit = Duration::from_secs(2).saturating_sub(all);
    let came = (0..waiting.len() as u64).filter(|i| words.see(word(MINE + i), 1, limit).is_some()).count();
    tell(&format!(
        "seen {seen}, before all others' {free_first}; {came} of {} came, the last by {:.1} ms (asked for in {:.2} ms)",
        waiting.len(),
        ms(begin.elapsed()),
        ms(asked)
    ))?;
    _ = helper::heard();
    Ok(())
}
