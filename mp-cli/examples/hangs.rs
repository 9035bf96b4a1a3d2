//! Programs that hang, each for another reason, and programs in which mp returns an error instead of waiting:
//! `cargo run -p multiproc-cli --example hangs -- join`, and in another terminal `mp why hangs`.

use std::cell::RefCell;
use std::io::Read as _;
use std::time::Duration;

use mp::data::{Context, DataLoader, Dataset, Item};
use mp::memory::ArenaOptions;
use mp::{
    AnyResult, Arena, Barrier, Event, FrozenTensor, JoinableQueue, Lock, LockError, Pool, Process, Queue,
    Semaphore, Tensor,
};
use serde::{Deserialize, Serialize};

/// The program calls `join` before it takes the results: the worker waits for room in the queue
/// (cpython#73983).
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
        9,
    )?;
    Ok(())
}

/// The process that makes the results was killed. The program still waits for results, because another
/// process also has the queue. That process waits for an event (cpython#87971).
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

/// No hang: the process that makes the results was killed, and no other process has the queue. `get` returns
/// an error (cpython#87971).
fn deserted() -> AnyResult<()> {
    let results = Queue::<u64>::bounded(8)?.named("results");
    let _maker = Process::builder().name("maker").spawn(
        |results: Queue<u64>| -> AnyResult<()> {
            results.put(1)?;
            std::process::abort()
        },
        results.clone(),
    )?;
    loop {
        if let Err(error) = results.get() {
            println!("{error}");
            return Ok(());
        }
    }
}

/// Two processes take two locks in different orders, and the search for such cycles is off.
fn locks() -> AnyResult<()> {
    Arena::current()?.set_deadlock_detection(false);
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
    signal(worker.pid(), "-STOP")?;
    *lock.lock()? += 1;
    Ok(())
}

/// Sends a signal to a process.
fn signal(pid: u32, signal: &str) -> AnyResult<()> {
    std::process::Command::new("kill").args([signal, &pid.to_string()]).status()?;
    Ok(())
}

/// No hang: a process is killed while it has a lock. The next owner gets an error (cpython#96062).
fn owner() -> AnyResult<()> {
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
    signal(worker.pid(), "-KILL")?;
    match lock.lock() {
        Err(LockError::OwnerDied { pid, .. }) if pid == worker.pid() => println!("OwnerDied: {pid}"),
        other => println!("no error: {other:?}"),
    }
    Ok(())
}

/// No hang: the only worker of a pool is killed while it waits for a task. Another worker replaces it
/// (cpython#96062).
fn worker() -> AnyResult<()> {
    let pool = Pool::new(1)?;
    let first = pool.apply(|(): ()| std::process::id(), ())?;
    signal(first, "-KILL")?;
    let second = pool.apply(|(): ()| std::process::id(), ())?;
    println!("{first} was replaced: {}", first != second);
    Ok(pool.join()?)
}

/// A barrier has more parties than processes that arrive.
fn barrier() -> AnyResult<()> {
    let all = Barrier::new(3)?.named("epoch");
    mp::spawn(|_: usize, all: Barrier| all.wait().map(|_| ()), all.clone(), 2)?;
    Ok(())
}

/// A process keeps a permit, and waits for another process that needs the permit.
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

/// Each of two workers has a permit for memory, and waits for a second permit before it returns the first
/// (ray#62093).
fn memory() -> AnyResult<()> {
    let memory = Semaphore::new(2)?.named("memory");
    mp::spawn(
        |_: usize, (memory, both): (Semaphore, Barrier)| -> AnyResult<()> {
            let _arguments = memory.acquire()?;
            both.wait()?;
            let _results = memory.acquire()?;
            Ok(())
        },
        (memory, Barrier::new(2)?),
        2,
    )?;
    Ok(())
}

/// No hang: tensors in use leave no memory for another tensor. The allocation returns an error (ray#62093).
fn exhausted() -> AnyResult<()> {
    Arena::configure(ArenaOptions::new().size(64 << 20))?;
    let _arguments = Tensor::<u8>::zeros([40 << 20])?;
    match Tensor::<u8>::zeros([40 << 20]) {
        Ok(_) => println!("no error"),
        Err(error) => println!("{error}"),
    }
    Ok(())
}

/// No hang: parts of one tensor are sent through a `JoinableQueue` (pytorch#95606).
fn split() -> AnyResult<()> {
    let parts = JoinableQueue::<FrozenTensor<f32>>::bounded(8)?.named("parts");
    let workers = Pool::builder().processes(2).build()?;
    let sums: Vec<_> = (0..2).map(|_| workers.apply_async(sum, parts.clone())).collect();
    let whole = Tensor::<f32>::full([10_000, 4], 1.0)?.freeze();
    for part in whole.split(1, 0)? {
        parts.put(part)?;
    }
    parts.join()?;
    parts.close();
    let sums = sums.into_iter().map(|sum| sum.get()).collect::<Result<Vec<_>, _>>()?;
    println!("{} elements", sums.iter().sum::<f32>());
    Ok(())
}

/// Sums all tensors of a queue.
fn sum(parts: JoinableQueue<FrozenTensor<f32>>) -> AnyResult<f32> {
    let mut all = 0.0;
    while let Some(part) = parts.get()? {
        all += part.iter().sum::<f32>();
        part.ack();
    }
    Ok(all)
}

/// A block in shared memory. Its deleter takes the lock of the list of blocks.
struct SharedBlock<'a> {
    limbo: &'a Lock<u32>,
    refusal: &'a RefCell<String>,
}

impl Drop for SharedBlock<'_> {
    fn drop(&mut self) {
        match self.limbo.lock() {
            Ok(mut freed) => *freed += 1,
            Err(error) => *self.refusal.borrow_mut() = error.to_string(),
        }
    }
}

/// Locks the list of blocks, and drops a block. Returns the error that the block's deleter gets.
fn collect(limbo: Lock<u32>, _task: u32) -> AnyResult<String> {
    let refusal = RefCell::new(String::new());
    let guard = limbo.lock()?;
    drop(SharedBlock { limbo: &limbo, refusal: &refusal });
    drop(guard);
    Ok(refusal.into_inner())
}

/// No hang: a thread drops blocks while it owns the lock that their deleter takes. The deleter gets an error
/// (pytorch#39541).
fn deleter() -> AnyResult<()> {
    let limbo = Lock::new(0_u32)?.named("limbo");
    let pool = Pool::new(2)?;
    for refusal in pool.starmap(collect, (0..5).map(|task| (limbo.clone(), task)))? {
        println!("{refusal}");
    }
    Ok(pool.join()?)
}

/// The caller owns the lock that the deleter of blocks takes, and waits for workers that take this lock, too
/// (pytorch#39541).
fn starmap() -> AnyResult<()> {
    let limbo = Lock::new(0_u32)?.named("limbo");
    let pool = Pool::new(2)?;
    let _guard = limbo.lock()?;
    pool.starmap(collect, (0..5).map(|task| (limbo.clone(), task)))?;
    Ok(())
}

/// Dataset whose samples after the first `fast` samples never finish.
#[derive(Serialize, Deserialize)]
struct Samples {
    fast: usize,
}

impl Dataset for Samples {
    type Batch = Tensor<i64>;

    fn len(&self) -> usize {
        100
    }

    fn fetch(&mut self, items: &[Item], cx: &mut Context<Self::Batch>) -> AnyResult<Self::Batch> {
        while items.iter().any(|item| item.index >= self.fast) {
            std::hint::spin_loop();
        }
        cx.rows(items, &[], |item, _rng, row| {
            row[0] = item.index as i64;
            Ok(())
        })
    }
}

/// No hang: all workers of a data loader are killed. Other workers make the batches of the killed ones
/// (pytorch#21554).
fn loader() -> AnyResult<()> {
    let loader = DataLoader::builder(Samples { fast: 100 }).batch_size(5).num_workers(2).build()?;
    let mut sum = 0;
    for (number, batch) in loader.epoch(0).enumerate() {
        sum += batch?.iter().sum::<i64>();
        if number == 0 {
            loader.pids().into_iter().try_for_each(|pid| signal(pid, "-KILL"))?;
        }
    }
    println!("sum {sum}");
    Ok(())
}

/// A worker of a data loader is in an endless loop, and no time-out was set (pytorch#21554).
fn fetch() -> AnyResult<()> {
    let loader = DataLoader::builder(Samples { fast: 50 }).batch_size(50).num_workers(2).build()?;
    for batch in loader.epoch(0) {
        _ = batch?;
    }
    Ok(())
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

/// No hang: a program keeps memory in a file, which remains after a crash.
fn files() -> AnyResult<()> {
    let directory = std::env::var("MP_SHARING_DIRECTORY")?;
    mp::memory::set_sharing_directory(&directory)?;
    mp::memory::set_sharing_strategy(mp::memory::SharingStrategy::FileSystem)?;
    let _tensor = mp::Tensor::<u8>::zeros([1 << 20])?;
    std::thread::sleep(Duration::from_secs(3600));
    Ok(())
}

/// No hang: a worker sends numbers, and this process checks them until its standard input ends.
fn counts() -> AnyResult<()> {
    let (numbers, stop) = (Queue::<u64>::bounded(8)?.named("numbers"), Event::new()?.named("stop"));
    // These events enlarge the state of the program to about 100 KiB.
    let _others = (0..500).map(|_| Event::new()).collect::<Result<Vec<_>, _>>()?;
    let worker = Process::builder().name("rank-0").spawn(
        |(numbers, stop): (Queue<u64>, Event)| -> AnyResult<()> {
            (0..).take_while(|_| !stop.is_set()).try_for_each(|number| numbers.put(number))?;
            numbers.close();
            Ok(())
        },
        (numbers.clone(), stop.clone()),
    )?;
    std::thread::spawn(move || {
        _ = std::io::stdin().read_to_end(&mut Vec::new());
        stop.set()
    });
    let mut expected = 0;
    while let Some(number) = numbers.get()? {
        assert_eq!(number, expected);
        expected += 1;
    }
    Ok(worker.join()?)
}

/// Function that runs a program of this file.
type Program = fn() -> AnyResult<()>;

const PROGRAMS: &[(&str, Program)] = &[
    ("join", join),
    ("close", close),
    ("killed", killed),
    ("deserted", deserted),
    ("locks", locks),
    ("stopped", stopped),
    ("owner", owner),
    ("worker", worker),
    ("barrier", barrier),
    ("permit", permit),
    ("memory", memory),
    ("exhausted", exhausted),
    ("split", split),
    ("deleter", deleter),
    ("starmap", starmap),
    ("loader", loader),
    ("fetch", fetch),
    ("computes", computes),
    ("counts", counts),
    ("files", files),
];

fn main() -> AnyResult<()> {
    let name = std::env::args().nth(1).unwrap_or_default();
    match PROGRAMS.iter().find(|(program, _)| *program == name) {
        Some((_, run)) => run(),
        None => {
            let names: Vec<_> = PROGRAMS.iter().map(|(program, _)| *program).collect();
            Err(format!("which program: {}?", names.join(", ")).into())
        }
    }
}
