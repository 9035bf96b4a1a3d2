//! A lock whose holder is killed. The next worker that locks it gets `OwnerDied`, repairs the data, and
//! continues.
//!
//! `cargo run --release --example lock_poisoning`

use mp::{Lock, LockError, SpawnOptions, start_processes};

/// Two accounts, whose sum never changes.
type Accounts = [i64; 2];

/// Moves money from the first account to the second. Rank 0 is killed during the transfer.
fn worker(rank: usize, accounts: Lock<Accounts>) -> mp::AnyResult<()> {
    let mut accounts = match accounts.lock() {
        Ok(guard) => guard,
        Err(LockError::OwnerDied { member, pid }) => {
            println!("worker {rank}: {member} (pid {pid}) died with the lock");
            let mut guard = accounts.recover()?;
            println!("worker {rank}: it left {:?}, whose sum is {}", *guard, guard.iter().sum::<i64>());
            guard[1] = 100 - guard[0];
            println!("worker {rank}: repaired to {:?}", *guard);
            guard // dropping it says that the data is sound
        }
        Err(other) => return Err(other.into()),
    };
    accounts[0] -= 10;
    if rank == 0 {
        std::process::abort(); // as good as SIGKILL: nothing is cleaned up
    }
    accounts[1] += 10;
    println!("worker {rank}: {:?}", *accounts);
    Ok(())
}

/// Runs `worker` with a rank other than 0, so that it is not killed.
fn heir(rank: usize, accounts: Lock<Accounts>) -> mp::AnyResult<()> {
    worker(rank + 1, accounts)
}

fn main() -> mp::AnyResult<()> {
    let accounts = Lock::new([100, 0])?;
    if let Err(error) = start_processes(worker, accounts.clone(), SpawnOptions::nprocs(1))?.join() {
        println!("parent: {error}");
    }
    assert!(
        matches!(accounts.lock(), Err(LockError::OwnerDied { .. })),
        "each lock() fails, until the data is repaired"
    );
    start_processes(heir, accounts.clone(), SpawnOptions::nprocs(2))?.join()?;
    let after = *accounts.lock()?;
    println!("parent: {after:?}");
    assert_eq!(after, [70, 30]);
    Ok(())
}
