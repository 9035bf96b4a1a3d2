//! Latency from one process's stream to another's and back: by words, and by events whose hosts notify each
//! other.

use std::time::{Duration, Instant};

use mp_cuda::driver::api::DriverHandle;

use crate::gpu::{Gpu, Outcome, ProbeError};
use crate::helper::{self, Helper, ms, number, tell, us};
use crate::host::pause;
use crate::words::{page, their_page};

const ROUNDS: u64 = 200;
const EVENTS: u64 = 50;

/// Part of a stream: in each round, it waits for a word and writes the other's.
struct Part {
    waits_for: u64,
    writes: u64,
    more: u64,
}

impl Part {
    fn ask(&self, gpu: &Gpu, stream: DriverHandle, first: u64) -> Outcome {
        for i in first..first + ROUNDS {
            gpu.wait(stream, self.waits_for, i)?;
            gpu.write(stream, self.writes, i + self.more)?;
        }
        Ok(())
    }
}

pub(crate) fn ask() -> Outcome {
    let gpu = Gpu::start()?;
    let (words, device) = page(&gpu)?;
    let (stream, chain) = (gpu.stream()?, gpu.stream()?);
    gpu.spin(chain, 1)?;
    gpu.sync(chain)?;
    let mut other = Helper::start("hop", &[words.number()])?;
    other.hear()?;
    // Each side waits for the word that the other writes. The other answers with the number of the next
    // round.
    let part = Part { waits_for: device, writes: device + 64, more: 0 };
    let mut first = 1;
    for kernels in [0, 0, 900] {
        other.ask(&format!("{first} {kernels}"))?;
        part.ask(&gpu, stream, first)?;
        for _ in 0..kernels {
            gpu.spin(chain, 1)?;
        }
        gpu.write(chain, device + 256, first)?;
        let begin = Instant::now();
        words.store(0, first);
        let (mut rounds, mut chain_took) = (0, None);
        while rounds < ROUNDS && begin.elapsed() < Duration::from_secs(3) {
            rounds = words.load(0).saturating_sub(first);
            // Once the chains are over, the device is idle, and later figures are meaningless.
            if words.load(32) >= first && kernels > 0 {
                chain_took = Some(begin.elapsed());
                break;
            }
            pause(begin.elapsed());
        }
        let took = begin.elapsed();
        let each = us(took) / (2 * rounds).max(1) as f64;
        println!(
            "words, {kernels:>3} kernels of 1 ms in each process: {rounds:>3} rounds of 2 hops in {:9.2} ms, {each:9.1} us a hop{}",
            ms(took),
            if chain_took.is_some() { ", until the chain of this process was over" } else { "" }
        );
        words.seen("the last round", 0, first + ROUNDS)?;
        other.hear()?;
        gpu.sync(chain)?;
        gpu.sync(stream)?;
        first += ROUNDS + 1;
    }
    events(&gpu, stream, &mut other)?;
    other.close()
}

/// Each host records its event and notifies the other, whose stream waits for it.
fn events(gpu: &Gpu, stream: DriverHandle, other: &mut Helper) -> Outcome {
    let mine = gpu.event()?;
    let theirs = other.ask(&format!("events {}", helper::text(gpu.event_handle(mine)?)))?;
    let theirs = gpu.open_event(helper::handle(&theirs)?)?;
    for kind in ["first", "again"] {
        let begin = Instant::now();
        for _ in 0..EVENTS {
            gpu.record(mine, stream)?;
            other.ask("recorded")?;
            gpu.wait_event(stream, theirs)?;
        }
        gpu.sync(stream)?;
        let each = us(begin.elapsed()) / (2 * EVENTS) as f64;
        println!("events and hosts by pipes, {kind}: {EVENTS} rounds of 2 hops, {each:9.1} us a hop");
    }
    let begin = Instant::now();
    for _ in 0..EVENTS {
        other.ask("nothing")?;
    }
    let each = us(begin.elapsed()) / (2 * EVENTS) as f64;
    println!("  of which the pipe {each:9.1} us a hop");
    Ok(())
}

/// Runs the other process.
pub(crate) fn help(arguments: &[String]) -> Outcome {
    let gpu = Gpu::start()?;
    let (_words, device) = their_page(&gpu, number(arguments, 0)?)?;
    let (stream, chain) = (gpu.stream()?, gpu.stream()?);
    gpu.spin(chain, 1)?;
    gpu.sync(chain)?;
    tell("ready")?;
    let part = Part { waits_for: device + 64, writes: device, more: 1 };
    let mut event = None;
    while let Ok(line) = helper::heard() {
        if let Some(text) = line.strip_prefix("events ") {
            let mine = gpu.event()?;
            event = Some((gpu.open_event(helper::handle(text)?)?, mine));
            tell(&helper::text(gpu.event_handle(mine)?))?;
        } else if line == "recorded" {
            let (theirs, mine) = event.ok_or_else(|| ProbeError("no event".to_owned()))?;
            gpu.wait_event(stream, theirs)?;
            gpu.record(mine, stream)?;
            tell("recorded")?;
        } else if line == "nothing" {
            tell("nothing")?;
        } else if let [first, kernels] = helper::numbers::<u64>(&line)?[..] {
            part.ask(&gpu, stream, first)?;
            for _ in 0..kernels {
                gpu.spin(chain, 1)?;
            }
            tell("asked")?;
            gpu.sync(stream)?;
            gpu.sync(chain)?;
            tell("over")?;
        }
    }
    Ok(())
}
