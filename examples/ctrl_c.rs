//! Ctrl-C: a pipeline that stops at its source, drains messages in flight, and exits with 0.
//!
//! `cargo run --release --example ctrl_c`, and press Ctrl-C. With `-- --press`, the program sends itself
//! SIGINT after a thousand messages.

use std::io::Write;
use std::process::Command;
use std::time::Duration;

use mp::process::{Interrupt, take_interrupt};
use mp::{GetError, PutError, Queue, SharedTensor, SpawnOptions, Tensor, start_processes};

/// Source of the pipeline. On Ctrl-C, the source finishes the current message, and returns the number of
/// messages that it has put.
fn produce(rank: usize, (numbers, made): (Queue<u64>, SharedTensor<u64>)) -> mp::AnyResult<u64> {
    while !mp::interrupted() {
        let number = made.fetch_add(rank, 1);
        match numbers.put(number) {
            // Ctrl-C came while the queue was full. The number is not lost: from here on, waits block again.
            Err(PutError::Interrupted(number)) => {
                take_interrupt();
                numbers.put(number)?;
                break;
            }
            put => put?,
        }
    }
    Ok(made.load(rank))
}

/// Second stage. It ignores Ctrl-C, and works until the queue is closed and empty.
fn square(_: usize, (numbers, squares): (Queue<u64>, Queue<u64>)) -> mp::AnyResult<()> {
    while let Some(number) = numbers.get()? {
        squares.put(number.wrapping_mul(number))?;
    }
    Ok(())
}

/// Returns `true` if this program was started with SIGINT ignored, by `nohup` or by a shell as a background
/// program. In that case, its workers ignore SIGINT, too.
fn is_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask =
        status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    mask.is_some_and(|mask| mask & 0b10 != 0)
}

fn main() -> mp::AnyResult<()> {
    let press = std::env::args().any(|arg| arg == "--press");
    if press && is_ignored() {
        println!("SKIPPED: Ctrl-C is ignored here, so nothing would end this: nothing lost");
        return Ok(());
    }
    let (numbers, squares) = (Queue::bounded(64)?, Queue::bounded(64)?);
    let made = Tensor::zeros([2])?.share();
    let graceful = SpawnOptions::nprocs(2).name("producer").interrupt(Interrupt::Graceful);
    let producers = start_processes(produce, (numbers.clone(), made.clone()), graceful)?;
    let ignoring = SpawnOptions::nprocs(2).name("squarer").interrupt(Interrupt::Ignore);
    let squarers = start_processes(square, (numbers.clone(), squares.clone()), ignoring)?;

    let (mut got, mut shown) = (0_u64, std::time::Instant::now());
    println!("making squares; Ctrl-C ends it");
    let mut take = |at_most: Duration| -> mp::AnyResult<bool> {
        match squares.get_timeout(at_most) {
            Ok(Some(_)) => got += 1,
            // All producers have ended.
            Ok(None) | Err(GetError::Empty | GetError::Deserted { .. }) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        if shown.elapsed() >= Duration::from_millis(100) {
            print!("\r{got} squares ");
            std::io::stdout().flush()?;
            shown = std::time::Instant::now();
        }
        if press && got == 1000 {
            // A terminal does the same: SIGINT to each of its foreground processes.
            let ours = producers.pids().into_iter().chain(squarers.pids()).chain([std::process::id()]);
            let sent = Command::new("kill").arg("-INT").args(ours.map(|pid| pid.to_string())).status()?;
            assert!(sent.success());
        }
        Ok(true)
    };
    while !mp::interrupted() {
        take(Duration::from_millis(100))
            .or_else(|error| if mp::interrupted() { Ok(false) } else { Err(error) })?;
    }
    // From here on, waits block again. A second Ctrl-C would end the program.
    take_interrupt();
    println!("\nCtrl-C: draining");
    while !producers.join_timeout(Duration::ZERO)? {
        take(Duration::from_millis(1))?;
    }
    numbers.close();
    while !squarers.join_timeout(Duration::ZERO)? {
        take(Duration::from_millis(1))?;
    }
    while take(Duration::ZERO)? {}
    let made: u64 = producers.join()?.into_iter().sum();
    assert_eq!(got, made, "nothing is lost");
    println!("{made} numbers made, {got} squares taken, nothing lost");
    Ok(())
}
