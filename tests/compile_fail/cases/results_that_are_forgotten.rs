//! Dropping the result of these calls is an error under `unused_must_use`.
#![deny(unused_must_use)]

fn main() -> mp::AnyResult<()> {
    let queue = mp::Queue::<u8>::bounded(1)?;
    queue.put(1);
    queue.clone().named("x");
    let lock = mp::Lock::new(1)?;
    lock.lock()?;
    mp::start_processes(|_: usize, (): ()| {}, (), mp::SpawnOptions::nprocs(1))?;
    mp::Process::spawn(|(): ()| {}, ())?;
    mp::Semaphore::new(1)?.acquire()?;
    Ok(())
}
