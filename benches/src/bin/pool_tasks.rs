//! Tasks of a pool of two workers, and nothing else: for profilers and counters that cover all processes of a
//! program.
//!
//! `perf stat -e instructions:u target/release/pool_tasks map 1000000` counts the instructions of caller,
//! pool and workers. The difference to a run with another number of tasks is the cost of the tasks, without
//! start and end.
//!
//! `pool_tasks map|imap|one|collatz TASKS [ROUNDS]`: `map` and `imap` in chunks of the pool's choice, `one`
//! in chunks of one, `collatz` like `map`, with a function of about 100 ns. Each round prints its nanoseconds
//! for each task. Results are asserted.

use std::process::ExitCode;
use std::time::Instant;

use mp::Pool;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn successor(x: u64) -> u64 {
    x + 1
}

fn collatz(mut n: u64) -> u64 {
    let mut steps = 0;
    while n > 1 {
        n = if n.is_multiple_of(2) { n / 2 } else { 3 * n + 1 };
        steps += 1;
    }
    steps
}

fn start() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, else_: u64| words.get(at).map_or(Ok(else_), |word| word.parse());
    let (tasks, rounds) = (number(1, 1_000_000)?, number(2, 1)?);
    let pool = Pool::new(2)?;
    for _ in 0..rounds {
        let begun = Instant::now();
        let results = match words.first().map(String::as_str) {
            Some("map") => pool.map(successor, 0..tasks)?,
            Some("imap") => pool.imap(successor, 0..tasks).collect::<std::result::Result<_, _>>()?,
            Some("one") => pool.task(successor).chunksize(1).map(0..tasks)?,
            Some("collatz") => pool.map(collatz, 0..tasks)?,
            _ => return Err("usage: pool_tasks map|imap|one|collatz TASKS [ROUNDS]".into()),
        };
        let took = begun.elapsed();
        assert_eq!(results.len() as u64, tasks);
        if words[0] == "collatz" {
            assert!(tasks <= 27 || results[27] == 111);
        } else {
            assert!(results.into_iter().eq(1..=tasks), "not the successors");
        }
        println!("{:.1}", took.as_nanos() as f64 / tasks as f64);
    }
    pool.join()?;
    Ok(())
}

fn main() -> ExitCode {
    match start() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("pool_tasks: {error}");
            ExitCode::FAILURE
        }
    }
}
