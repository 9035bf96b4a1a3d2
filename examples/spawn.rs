//! Processes that each take a part of the work, and what they return.
//!
//! `cargo run --release --example spawn -- 4` (how many processes)

use mp::{Process, SpawnOptions, start_processes};

const MOST: u64 = 2_000_000;

/// Counts the primes in the part of this rank. What it returns comes back to `main`; so would an error, or a panic.
fn count_primes(rank: usize, ranks: usize) -> Result<usize, String> {
    let part = MOST / ranks as u64;
    let from = part * rank as u64;
    let is_prime = |n: &u64| *n > 1 && (2..).take_while(|d| d * d <= *n).all(|d| !n.is_multiple_of(d));
    Ok((from..from + part).filter(is_prime).count())
}

fn main() -> mp::AnyResult<()> {
    let ranks = std::env::args().nth(1).map_or(Ok(4), |word| word.parse())?;

    // All at once, in three words: started, joined, their results by rank.
    let counts = mp::spawn(count_primes, ranks, ranks)?;
    println!("primes below {MOST}: {} = {counts:?}", counts.iter().sum::<usize>());

    // With a handle to look at, and more to say about how they run.
    let options = SpawnOptions::nprocs(ranks).name("prime").env("RUST_BACKTRACE", "1");
    let workers = start_processes(count_primes, ranks, options)?;
    println!("running: {:?}", workers.pids());
    assert_eq!(workers.join()?, counts);

    // One process, which need have no rank.
    let greeter = Process::builder().name("greeter").spawn(
        |name: String| Ok::<_, String>(format!("hello {name}, from process {}", std::process::id())),
        "world".to_string(),
    )?;
    println!("{}", greeter.join()?);
    Ok(())
}
