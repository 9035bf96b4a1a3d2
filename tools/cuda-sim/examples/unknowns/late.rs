//! Writes by a killed process's kernel after the end of the process.

use std::time::{Duration, Instant};

use crate::gpu::{Gpu, Outcome};
use crate::helper::{self, Helper, ms, number, tell, us};
use crate::host::Shared;
use crate::words::their_page;

const STAMP: &str = concat!(include_str!("stamp.ptx"), "\0");

/// Number of processes that are prepared in advance.
const AHEAD: usize = 5;
/// Number of kills of each kind.
const KILLS: usize = 20;
/// Number of words of a process: the kernel's stamp, and the word written after it.
const STRIDE: usize = 8;

#[derive(Default)]
struct Kills {
    count: usize,
    changed: usize,
    last: Duration,
    ends: Vec<Duration>,
    came: usize,
    later: usize,
}

pub(crate) fn ask() -> Outcome {
    let begin = Instant::now();
    let words = Shared::new(4096)?;
    let simulated = {
        let mut one = start(&words, 0)?;
        let simulated = one.hear()? == "simulated";
        one.kill()?;
        simulated
    };
    if simulated {
        println!("SKIPPED: simulator (two kills each with spin_ns in place of stamp, to run all of it)");
    }
    let each = if simulated { 2 } else { KILLS };
    // Alternately one kernel of 10 s, and 1,000 of 20 ms.
    let mut ahead = Vec::new();
    let (mut started, mut kinds) = (0, [Kills::default(), Kills::default()]);
    let mut done = Vec::new();
    while kinds[0].count + kinds[1].count < 2 * each && begin.elapsed() < Duration::from_secs(9) {
        while ahead.len() < AHEAD && started < 2 * each {
            started += 1;
            ahead.push((started, start(&words, started)?));
        }
        let (i, mut helper) = ahead.remove(0);
        helper.hear()?;
        let kind = &mut kinds[i % 2];
        let at = STRIDE * i;
        helper.say(if i % 2 == 0 { "1 10000000000" } else { "1000 20000000" })?;
        words.seen("a stamp", at, 1)?;
        std::thread::sleep(Duration::from_millis(30));
        kind.ends.push(helper.kill()?);
        let first = words.load(at);
        let over = Instant::now();
        let (mut last, mut value) = (None, first);
        while over.elapsed() < Duration::from_millis(100) {
            let now = words.load(at);
            if now != value {
                value = now;
                last = Some(over.elapsed());
            }
        }
        kind.count += 1;
        kind.changed += usize::from(last.is_some());
        kind.last = kind.last.max(last.unwrap_or_default());
        kind.came += usize::from(words.load(at + 1) != 0);
        done.push((i, value));
    }
    for (i, value) in done {
        kinds[i % 2].later += usize::from(words.load(STRIDE * i) != value);
    }
    for (what, kind) in ["one kernel of 10 s", "1000 kernels of 20 ms"].iter().zip(&mut kinds) {
        kind.ends.sort_unstable();
        let middle = kind.ends.get(kind.ends.len() / 2).copied().unwrap_or_default();
        let largest = kind.ends.last().copied().unwrap_or_default();
        println!(
            "{what:<22} {} kills: {} words changed within 100 ms after waitid, last change after {:.1} us, {} later; the write behind came {} times; kill to waitid median {:.1} max {:.1} ms",
            kind.count,
            kind.changed,
            us(kind.last),
            kind.later,
            kind.came,
            ms(middle),
            ms(largest)
        );
    }
    for (_, mut helper) in ahead {
        helper.kill()?;
    }
    Ok(())
}

fn start(words: &Shared, i: usize) -> Outcome<Helper> {
    Helper::start("late", &[words.number(), (STRIDE * i).to_string()])
}

/// Stamps its word until it is killed.
pub(crate) fn help(arguments: &[String]) -> Outcome {
    let gpu = Gpu::start()?;
    let (_words, device) = their_page(&gpu, number(arguments, 0)?)?;
    let at = device + 8 * number::<u64>(arguments, 1)?;
    let stream = gpu.stream()?;
    let stamp = match gpu.simulated {
        true => None,
        false => Some(gpu.function(gpu.module(STAMP)?, "stamp")?),
    };
    tell(if gpu.simulated { "simulated" } else { "ready" })?;
    let [count, ns] = helper::numbers::<u64>(&helper::heard()?)?[..] else {
        return Ok(());
    };
    for _ in 0..count {
        match stamp {
            Some(stamp) => gpu.launch(stamp, stream, (1, 1), vec![at, ns])?,
            None => {
                gpu.write(stream, at, 1)?;
                gpu.spin(stream, ns / 1_000_000)?;
            }
        }
    }
    gpu.write(stream, at + 8, 1)?;
    helper::heard().map(drop)
}
