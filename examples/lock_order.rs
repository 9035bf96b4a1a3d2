//! Two workers take two locks in opposite orders: one of them gets an error for the deadlock and gives up,
//! and the other continues.
//!
//! `cargo run --release --example lock_order`

use mp::{Barrier, Lock, LockError, SpawnOptions, start_processes};

/// Rank 0 takes `a` and then `b`. Rank 1 takes `b` and then `a`.
fn worker(rank: usize, (a, b, both): (Lock<u32>, Lock<u32>, Barrier)) -> mp::AnyResult<()> {
    let (first, second) = if rank == 0 { (a, b) } else { (b, a) };
    let mut held = first.lock()?;
    both.wait()?; // from here on each has what the other one wants
    match second.lock() {
        Ok(mut other) => {
            (*held, *other) = (*held + 1, *other + 1);
            println!("one worker has both locks");
        }
        Err(LockError::Deadlock(deadlock)) => println!("the other thread gets an error: {deadlock}"),
        Err(other) => return Err(other.into()),
    }
    Ok(())
}

fn main() -> mp::AnyResult<()> {
    let (a, b) = (Lock::new(0)?, Lock::new(0)?);
    let both = Barrier::new(2)?;
    start_processes(worker, (a.clone(), b.clone(), both), SpawnOptions::nprocs(2))?.join()?;
    assert_eq!((*a.lock()?, *b.lock()?), (1, 1), "one of them had both");
    Ok(())
}
