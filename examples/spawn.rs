//! Several processes, each of which computes a part of the result.
//!
//! `cargo run --release --example spawn -- 4` (number of processes)

use mp::{Process, SpawnOptions, start_processes};

const MOST: u64 = 2_000_000;

/// Counts the primes in the part of this rank. `main` gets the result, and also an error or a panic.
fn count_primes(rank: usize, ranks: usize) -> Result<usize, String> {
    let part = MOST / ranks as u64;
    let from = part * rank as u64;
    let is_prime = |n: &u64| *n > 1 && (2..).take_while(|d| d * d <= *n).all(|d| !n.is_multiple_of(d));
    Ok((from..from + part).filter(is_prime).count())
}

fn main() -> mp::AnyResult<()> {
    let ranks = std::env::args().nth(1).map_or(Ok(4), |word| word.parse())?;

    // Everything in one call: start, join, results by rank.
    let counts = mp::spawn(count_primes, ranks, ranks)?;
    println!("primes below {MOST}: {} = {counts:?}", counts.iter().sum::<usize>());

    // With a handle, and further options.
    let options = SpawnOptions::nprocs(ranks).name("prime").env("RUST_BACKTRACE", "1");
    let workers = start_processes(count_primes, ranks, options)?;
    println!("running: {:?}", workers.pids());
    assert_eq!(workers.join()?, counts);

    // A single process, which needs no rank.
    let greeter = Process::builder().name("greeter").spawn(
        |name: String| Ok::<_, String>(format!("hello {name}, from process {}", std::process::id())),
        "world".to_string(),
    )?;
    println!("{}", greeter.join()?);
    Ok(())
}
