//! Programs that hang, each for another reason: `cargo run -p multiproc-cli --example hangs -- join`, and in
//! another terminal `mp why hangs`.

use std::time::Duration;

use mp::{AnyResult, Barrier, Event, Lock, Process, Queue, Semaphore};

/// `join` before the results are taken: the worker waits for room (cpython#73983).
fn join() -> AnyResult<()> {
    let results = Queue::<u64>::bounded(64)?.named("results");
    let worker = Process::builder()
        .name("rank-0")
        .spawn(|results: Queue<u64>| (0..1000).try_for_each(|number| results.put(number)), results.clone())?;
    worker.join()?;
    Ok(())
}

/// The queue of jobs is never closed.
fn close() -> AnyResult<()> {
    let jobs = Queue::<u64>::bounded(8)?.named("jobs");
    jobs.put(7)?;
    mp::spawn(
        |_: usize, jobs: Queue<u64>| -> AnyResult<()> {
            while jobs.get()?.is_some() {}
            Ok(())
        },
        jobs.clone(),
        2,
    )?;
    Ok(())
}

/// The process that makes the results was killed; another one has the queue, too, and waits for an event
/// (cpython#87971, pytorch#21554).
fn killed() -> AnyResult<()> {
    let (results, stop) = (Queue::<u64>::bounded(8)?.named("results"), Event::new()?.named("stop"));
    let maker = Process::builder().name("maker").spawn(
        |results: Queue<u64>| -> AnyResult<()> {
            results.put(1)?;
            std::process::abort()
        },
        results.clone(),
    )?;
    let logger = Process::builder().name("logger").spawn(
        |(_results, stop): (Queue<u64>, Event)| -> AnyResult<()> { Ok(stop.wait()?) },
        (results.clone(), stop.clone()),
    )?;
    while results.get()?.is_some() {}
    stop.set()?;
    maker.join()?;
    Ok(logger.join()?)
}

/// Two processes take two locks in different orders, and the search for such cycles is off.
fn locks() -> AnyResult<()> {
    mp::Arena::current()?.set_deadlock_detection(false);
    let (a, b) = (Lock::new(0_u32)?.named("weights"), Lock::new(0_u32)?.named("stats"));
    mp::spawn(
        |rank: usize, (a, b, both): (Lock<u32>, Lock<u32>, Barrier)| -> AnyResult<()> {
            let (first, second) = if rank == 0 { (a, b) } else { (b, a) };
            let _first = first.lock()?;
            both.wait()?;
            *second.lock()? += 1;
            Ok(())
        },
        (a, b, Barrier::new(2)?),
        2,
    )?;
    Ok(())
}

/// A process is stopped while it has a lock (cpython#96062).
fn stopped() -> AnyResult<()> {
    let lock = Lock::new(0_u32)?.named("weights");
    let held = Event::new()?;
    let worker = Process::builder().name("rank-0").spawn(
        |(lock, held): (Lock<u32>, Event)| -> AnyResult<()> {
            let _guard = lock.lock()?;
            held.set()?;
            std::thread::sleep(Duration::from_secs(3600));
            Ok(())
        },
        (lock.clone(), held.clone()),
    )?;
    held.wait()?;
    let pid = worker.pid().to_string();
    std::process::Command::new("kill").args(["-STOP", &pid]).status()?;
    *lock.lock()? += 1;
    Ok(())
}

/// The barrier has more parties than processes arrive.
fn barrier() -> AnyResult<()> {
    let all = Barrier::new(3)?.named("epoch");
    mp::spawn(|_: usize, all: Barrier| all.wait().map(|_| ()), all.clone(), 2)?;
    Ok(())
}

/// A permit is kept by a process that waits for another one.
fn permit() -> AnyResult<()> {
    let (slots, jobs) = (Semaphore::new(1)?.named("slots"), Queue::<u64>::bounded(4)?.named("jobs"));
    let kept = slots.acquire()?;
    let worker = Process::builder().name("rank-0").spawn(
        |(slots, jobs): (Semaphore, Queue<u64>)| -> AnyResult<()> {
            let _permit = slots.acquire()?;
            jobs.put(1)?;
            Ok(())
        },
        (slots.clone(), jobs.clone()),
    )?;
    jobs.get()?;
    drop(kept);
    Ok(worker.join()?)
}

/// No hang: the worker computes.
fn computes() -> AnyResult<()> {
    let worker = Process::builder().name("rank-0").spawn(
        |(): ()| -> () {
            loop {
                std::hint::spin_loop();
            }
        },
        (),
    )?;
    Ok(worker.join()?)
}

/// No hang: memory in a file, which a crash leaves.
fn files() -> AnyResult<()> {
    let directory = std::env::var("MP_SHARING_DIRECTORY")?;
    mp::memory::set_sharing_directory(&directory)?;
    mp::memory::set_sharing_strategy(mp::memory::SharingStrategy::FileSystem)?;
    let _tensor = mp::Tensor::<u8>::zeros([1 << 20])?;
    std::thread::sleep(Duration::from_secs(3600));
    Ok(())
}

fn main() -> AnyResult<()> {
    match std::env::args().nth(1).as_deref() {
        Some("join") => join(),
        Some("close") => close(),
        Some("killed") => killed(),
        Some("locks") => locks(),
        Some("stopped") => stopped(),
        Some("barrier") => barrier(),
        Some("permit") => permit(),
        Some("computes") => computes(),
        Some("files") => files(),
        _ => {
            Err("which one: join, close, killed, locks, stopped, barrier, permit, computes or files?".into())
        }
    }
}
