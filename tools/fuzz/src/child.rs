//! Child process that runs inputs of one target.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use mp_fuzz::target;
use mp_harness::hostile::{Random, Target, changed, regressions};
use rustix::process::{Resource, Rlimit, setrlimit};

use crate::allocator::most_during;

/// Address space, in bytes, that the process may map in addition to its mappings at the start.
const MEMORY: u64 = 1 << 30;
/// Time limit for an input.
const TIME: Duration = Duration::from_secs(10);
/// Memory limit for an input, in bytes. [`FOR_EACH`] bytes are added for each byte of the input.
const ROOM: usize = 512 << 10;
const FOR_EACH: usize = 512;
/// Memory limit, in bytes, for formats that another crate's reader decodes by serde. The reader allocates up
/// to 1 MiB for a list by its claimed length, and two lists may be nested.
const ROOM_OF_SERDE: usize = 5 << 19;
/// Memory limit, in bytes, for messages with 80,000 bytes of attached memory. Each message is read several
/// times, and the error of a failed read contains a copy of the bytes.
const ROOM_OF_BUFFERS: usize = 4 << 20;
/// Stack size, in bytes, of the thread that runs inputs.
const STACK: usize = 256 << 10;
/// Interval of progress reports.
const PROGRESS: Duration = Duration::from_secs(10);

/// Number of the current input, or 0 while no input runs.
static TRIED: AtomicU64 = AtomicU64::new(0);

/// Runs the child with the arguments `TARGET MILLISECONDS SEED FILE`. With the arguments `TARGET one`, runs a
/// single input from standard input.
pub(crate) fn run(words: &[String]) -> ExitCode {
    let Some(target) = words.first().and_then(|name| target(name)) else { return ExitCode::from(2) };
    // Creates objects that exist once in each process, including the arena.
    let seeds = target.2();
    bounded();
    match words {
        [_, word] if word == "one" => {
            let mut input = Vec::new();
            if std::io::stdin().read_to_end(&mut input).is_err() {
                return ExitCode::from(2);
            }
            on_a_small_stack(move || attempt(target, 1, &input))
        }
        [_, time, seed, file] => match (time.parse(), seed.parse(), File::create(file)) {
            (Ok(time), Ok(seed), Ok(file)) => on_a_small_stack(move || {
                many(target, seeds, Duration::from_millis(time), Random(seed), &file)
            }),
            _ => ExitCode::from(2),
        },
        _ => ExitCode::from(2),
    }
}

/// Runs `f` on a thread with a small stack. A panic of `f` ends the process.
fn on_a_small_stack(f: impl FnOnce() + Send + 'static) -> ExitCode {
    let tried = std::thread::Builder::new().stack_size(STACK).spawn(f).map(|thread| thread.join().is_ok());
    ExitCode::from(if tried.is_ok_and(|ok| ok) { 0 } else { 101 })
}

/// Limits the memory of this process, and starts the time limit for each input.
fn bounded() {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = pages.split(' ').next().and_then(|pages| pages.parse().ok()).unwrap_or(0);
    let most = Some(pages * rustix::param::page_size() as u64 + MEMORY);
    setrlimit(Resource::As, Rlimit { current: most, maximum: most }).expect("a limit of memory");
    // Disables core files.
    _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    std::thread::spawn(|| {
        let (mut last, mut since) = (0, Instant::now());
        loop {
            std::thread::sleep(Duration::from_millis(100)); // sleep: interval between two checks of the clock
            let tried = TRIED.load(Relaxed);
            if tried != last {
                (last, since) = (tried, Instant::now());
            }
            if tried != 0 && since.elapsed() > TIME {
                eprintln!("it takes longer than {TIME:?}");
                std::process::abort();
            }
        }
    });
}

/// Runs a target on one input with this number. A fault ends this process.
fn attempt((name, run, _): Target, number: u64, input: &[u8]) {
    let most = match name {
        "frames" => ROOM_OF_SERDE + FOR_EACH * input.len(),
        "messages" => ROOM_OF_BUFFERS + FOR_EACH * input.len(),
        _ => ROOM + FOR_EACH * input.len(),
    };
    TRIED.store(number, Relaxed);
    let took = most_during(|| run(input));
    TRIED.store(0, Relaxed);
    assert!(
        took <= most,
        "{took} bytes of memory at once for an input of {}: {most} are allowed",
        input.len()
    );
}

fn many(target: Target, seeds: Vec<Vec<u8>>, time: Duration, mut random: Random, file: &File) {
    let seeds: Vec<Vec<u8>> = regressions(target.0).into_iter().chain(seeds).collect();
    let (start, mut said, mut count, mut longest) = (Instant::now(), Instant::now(), 0_u64, 0);
    let mut tried = |input: &[u8]| {
        // The parent reads the input from this file, no matter how this process ends.
        if input.len() < longest {
            file.set_len(0).expect("a file to write to");
        }
        longest = input.len();
        file.write_all_at(input, 0).expect("a file to write to");
        count += 1;
        attempt(target, count, input);
        if count.is_multiple_of(256) && said.elapsed() > PROGRESS {
            said = Instant::now();
            println!(
                "{:<12} {:>9} inputs, {:>8.0} /s",
                target.0,
                count,
                count as f64 / start.elapsed().as_secs_f64()
            );
        }
        count
    };
    seeds.iter().for_each(|seed| _ = tried(seed));
    let mut all = 0;
    while start.elapsed() < time {
        all = tried(&changed(&seeds, &mut random));
    }
    println!("{:<12} {all:>9} inputs, {:>8.0} /s, all", target.0, all as f64 / start.elapsed().as_secs_f64());
}
