//! Deadlocks of processes and threads: cycles are detected and reported once, and waits without a cycle are
//! not reported.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use mp::sync::Deadlock;
use mp::{
    Arena, Array, Condition, Event, Lock, LockError, Once, ProcessContext, Queue, RLock, RwLock,
    SpawnOptions, start_processes,
};
use mp_tests::{
    DEADLINE, Outcome, alone, eventually, failure, give, join, one_process, signal, take, threads_are,
};
use rustix::process::Signal;

type Locks = (Lock<u64>, Array<u32>, RLock<u8>, RwLock<u64>, Once);

fn locks() -> Locks {
    (
        Lock::new(0).unwrap().named("weights"),
        Array::zeros(2).unwrap(),
        RLock::new(0).unwrap(),
        RwLock::new(0).unwrap(),
        Once::new().unwrap(),
    )
}

/// Selects a lock, and the way to hold it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
enum Which {
    Lock,
    Array,
    RLock,
    Read,
    Write,
    Once,
}

/// Calls `f` while this thread holds the lock that `which` selects.
fn with(locks: &Locks, which: Which, f: impl FnOnce()) -> Result<(), LockError> {
    let (lock, array, rlock, rwlock, once) = locks;
    match which {
        Which::Lock => lock.lock().map(|_guard| f()),
        Which::Array => array.lock().map(|_guard| f()),
        Which::RLock => rlock.lock().map(|_guard| f()),
        Which::Read => rwlock.read().map(|_guard| f()),
        Which::Write => rwlock.write().map(|_guard| f()),
        Which::Once => once.call_once(|_| f()),
    }
}

/// Process, and outcome of its second lock: `None` for success, or the processes of a deadlock and the error
/// text.
type Ended = (u32, Option<(Vec<u32>, String)>);

/// Takes the lock `first`, waits until all processes have taken their first lock, and takes `second`.
fn take_two(
    locks: &Locks,
    (first, second): (Which, Which),
    have: &Queue<u32>,
    all: &Event,
) -> Option<Deadlock> {
    let mut found = None;
    with(locks, first, || {
        give(have, std::process::id());
        assert!(all.wait_timeout(DEADLINE).unwrap());
        match with(locks, second, || ()) {
            Ok(()) => {}
            Err(LockError::Deadlock(deadlock)) => found = Some(*deadlock),
            Err(other) => panic!("{other}"),
        }
    })
    .unwrap();
    found
}

type Ring = (Locks, Vec<(Which, Which)>, Queue<u32>, Event, Queue<Ended>);

fn in_a_ring(rank: usize, (locks, order, have, all, ended): Ring) -> Outcome {
    let found = take_two(&locks, order[rank], &have, &all).map(|deadlock| {
        let pids = deadlock.steps.iter().map(|step| step.pid).collect();
        (pids, deadlock.to_string())
    });
    give(&ended, (std::process::id(), found));
    Ok(())
}

/// Starts processes that each hold one lock and wait for the lock of the next one. Checks that one of them
/// gets an error and the others continue. Returns the text of the error.
#[track_caller]
fn reported_deadlock_of(order: &[(Which, Which)]) -> String {
    let n = order.len();
    let (have, all, ended) = (Queue::bounded(8).unwrap(), Event::new().unwrap(), Queue::bounded(8).unwrap());
    let ring: Ring = (locks(), order.to_vec(), have.clone(), all.clone(), ended.clone());
    let context = start_processes(in_a_ring, ring, SpawnOptions::nprocs(n)).unwrap();
    let mut pids: Vec<u32> = order.iter().map(|_| take(&have)).collect();
    all.set().unwrap();
    let ends: Vec<Ended> = order.iter().map(|_| take(&ended)).collect();
    join(&context).unwrap();
    let reported: Vec<_> = ends.iter().filter_map(|(pid, found)| Some((pid, found.as_ref()?))).collect();
    let [(pid, (named, text))] = reported[..] else {
        panic!("not exactly one of them gets an error: {ends:?}")
    };
    assert_eq!(named[0], *pid, "the failed process is named first: {text}");
    let mut named = named.clone();
    named.sort_unstable();
    pids.sort_unstable();
    assert_eq!(named, pids, "{text}");
    text.clone()
}

#[test]
fn opposite_lock_orders_are_an_error_of_one_process() {
    let _alone = alone();
    let text = reported_deadlock_of(&[(Which::Lock, Which::Array), (Which::Array, Which::Lock)]);
    for part in [
        "deadlock: this thread",
        "for the Lock \"weights\" in block",
        "for the Array in block",
        "\"rank-0\"",
        "this thread holds",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn lock_cycle_of_four_is_detected() {
    let _alone = alone();
    let text = reported_deadlock_of(&[
        (Which::Lock, Which::RLock),
        (Which::RLock, Which::Array),
        (Which::Array, Which::Once),
        (Which::Once, Which::Lock),
    ]);
    assert!(text.contains("the Once in block") && text.contains("the RLock in block"), "{text}");
}

#[test]
fn rwlock_cycle_of_readers_and_writers_is_detected() {
    let _alone = alone();
    // In the first cycle a writer waits for a reader.
    let text = reported_deadlock_of(&[(Which::Read, Which::Lock), (Which::Lock, Which::Write)]);
    assert!(text.contains("the RwLock in block") && text.contains("to write"), "{text}");
    // In the second cycle a reader waits for a writer.
    let text = reported_deadlock_of(&[(Which::Write, Which::RLock), (Which::RLock, Which::Read)]);
    assert!(text.contains("to read"), "{text}");
}

fn read_and(_: usize, (locks, second, ready): (Locks, Which, Queue<u32>)) -> Outcome {
    let _reading = locks.3.read()?;
    give(&ready, std::process::id());
    match with(&locks, second, || ()) {
        Ok(()) => give(&ready, 0),
        Err(LockError::Deadlock(_)) => give(&ready, 1),
        Err(LockError::WouldDeadlock) => give(&ready, 2),
        Err(other) => return Err(other.into()),
    }
    Ok(())
}

/// The first thread that requests the write lock takes the lock of writers, and then waits for its own read
/// lock.
#[test]
fn upgrading_readers_are_reported_as_a_deadlock() {
    let _alone = alone();
    let (locks, ready) = (locks(), Queue::bounded(8).unwrap());
    let reading = locks.3.read().unwrap();
    let context = one_process(read_and, (locks.clone(), Which::Write, ready.clone()));
    take(&ready);
    assert_eq!(take(&ready), 2);
    assert!(matches!(locks.3.write(), Err(LockError::WouldDeadlock)));
    drop(reading);
    join(&context).unwrap();
    assert!(locks.3.write().is_ok());
}

/// A waiting writer holds the lock of writers, and also waits for the reader that wants to write.
#[test]
fn upgrading_reader_with_a_writer_is_a_deadlock() {
    let _alone = alone();
    let lock = RwLock::new(0_u64).unwrap();
    let ((reads, reading), (go, gone)) = (mpsc::channel(), mpsc::channel());
    let (theirs, others) = (lock.clone(), lock.clone());
    let reader = std::thread::spawn(move || {
        let _reading = theirs.read().unwrap();
        reads.send(()).unwrap();
        gone.recv_timeout(DEADLINE).unwrap();
        theirs.write().map(drop)
    });
    reading.recv_timeout(DEADLINE).unwrap();
    let writer = std::thread::spawn(move || others.write().map(drop));
    eventually("the writer keeps readers out", || lock.try_read().is_err());
    go.send(()).unwrap();
    match (reader.join().unwrap(), writer.join().unwrap()) {
        (Err(LockError::Deadlock(found)), Ok(())) => assert_eq!(found.steps.len(), 2, "{found}"),
        // The writer began to check the readers when the reader was already waiting.
        (Err(LockError::WouldDeadlock), Err(LockError::Deadlock(found))) => {
            assert_eq!(found.steps.len(), 2, "{found}");
        }
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn deadlock<T>(result: Result<T, LockError>) -> Deadlock {
    match result.map(drop) {
        Err(LockError::Deadlock(deadlock)) => *deadlock,
        other => panic!("{other:?} is no deadlock"),
    }
}

/// Starts a thread of this process that holds `a` and waits for `b`, which the caller holds. Returns when the
/// thread waits.
fn holds_and_waits<T: Send + 'static>(
    wait: impl FnOnce(&Lock<u64>, &Lock<u64>) -> T + Send + 'static,
) -> (Lock<u64>, Lock<u64>, std::thread::JoinHandle<T>) {
    let (a, b) = (Lock::new(0).unwrap(), Lock::new(0).unwrap());
    let (mine, theirs) = (a.clone(), b.clone());
    let thread = std::thread::Builder::new().name("the other".into()).spawn(move || wait(&mine, &theirs));
    eventually("the thread has its lock", || matches!(a.try_lock(), Err(LockError::Held { .. })));
    (a, b, thread.unwrap())
}

#[test]
fn lock_cycle_within_a_process_names_its_threads() {
    let _alone = alone();
    let (go, gone) = mpsc::channel();
    let (a, b, thread) = holds_and_waits(move |a, b| {
        let _a = a.lock().unwrap();
        gone.recv_timeout(DEADLINE).unwrap();
        b.lock().map(drop)
    });
    // This thread also holds a third lock. No thread waits for that lock, so it is not part of the cycle.
    let other = Lock::new(0_u64).unwrap();
    let (held, _guard) = (b.lock().unwrap(), other.lock().unwrap());
    go.send(()).unwrap();
    let mine = a.lock().map(drop);
    drop(held);
    let found = match (mine, thread.join().unwrap()) {
        (Err(LockError::Deadlock(found)), Ok(())) | (Ok(()), Err(LockError::Deadlock(found))) => found,
        other => panic!("{other:?}"),
    };
    assert_eq!(found.steps.len(), 2, "{found}");
    assert!(found.to_string().contains("\"the other\""), "{found}");
    assert!(found.steps.iter().all(|step| step.pid == std::process::id() && step.block.is_some()), "{found}");
}

/// Three threads each hold a lock and wait for the next thread's lock. The last holder does not wait.
#[test]
fn chain_of_lock_waits_is_no_deadlock() {
    let _alone = alone();
    let (go, gone) = mpsc::channel::<()>();
    let locks: Vec<_> = (0..4).map(|_| Lock::new(0_u64).unwrap()).collect();
    let mut threads = Vec::new();
    for i in 0..3 {
        let (mine, next) = (locks[i].clone(), locks[i + 1].clone());
        threads.push(std::thread::spawn(move || {
            let _mine = mine.lock().unwrap();
            next.lock().map(drop)
        }));
    }
    let (last, other) = (locks[3].clone(), Lock::new(0_u64).unwrap());
    let end = std::thread::spawn(move || {
        let (_last, _other) = (last.lock().unwrap(), other.lock().unwrap());
        // Lasts until each of the other threads has waited long enough to be checked.
        _ = gone.recv_timeout(LONG);
    });
    for thread in threads {
        thread.join().unwrap().expect("a chain of waits ends");
    }
    end.join().unwrap();
    drop(go);
}

/// A thread has waited long for a lock, has taken it and has released it. The thread holds another lock, for
/// which the present holder of the first lock waits.
#[test]
fn ended_wait_is_part_of_no_deadlock() {
    let _alone = alone();
    let (go, gone) = mpsc::channel::<()>();
    let (began, begun) = mpsc::channel();
    let b = Lock::new(0_u64).unwrap();
    let theirs = b.clone();
    let held = b.lock().unwrap();
    let (a, _, thread) = holds_and_waits(move |a, _| {
        let _a = a.lock().unwrap();
        theirs.lock().map(drop).unwrap();
        began.send(()).unwrap();
        // Lasts until the other thread has waited long enough for several checks.
        _ = gone.recv_timeout(LONG);
    });
    // sleep: until the thread has waited long enough to be checked
    std::thread::sleep(LONG);
    drop(held);
    begun.recv_timeout(DEADLINE).unwrap();
    let _held = b.lock().unwrap();
    a.lock().map(drop).expect("the holder waits for no lock");
    drop(go);
    thread.join().unwrap();
}

/// Duration of several poll intervals, in each of which a waiter checks for deadlocks.
const LONG: Duration = Duration::from_millis(700);

fn hold_one_want_other(_: usize, (one, other, ready): (Lock<u64>, Lock<u64>, Queue<u32>)) -> Outcome {
    let _one = one.lock()?;
    give(&ready, std::process::id());
    _ = other.lock()?;
    Ok(())
}

/// Starts a process that holds `a` and waits for `b`, which this process holds.
fn holder_that_waits(a: &Lock<u64>, b: &Lock<u64>) -> (ProcessContext, u32) {
    let ready = Queue::bounded(1).unwrap();
    let context = one_process(hold_one_want_other, (a.clone(), b.clone(), ready.clone()));
    (context, take(&ready))
}

#[test]
fn lock_cycle_with_a_dead_process_is_no_deadlock() {
    let _alone = alone();
    let (a, b) = (Lock::new(0).unwrap(), Lock::new(0).unwrap());
    let held = b.lock().unwrap();
    let (context, pid) = holder_that_waits(&a, &b);
    // The wait is long enough to be recorded.
    assert!(matches!(a.lock_timeout(LONG), Err(LockError::Held { .. })));
    signal(pid, Signal::KILL);
    assert!(matches!(a.lock(), Err(LockError::OwnerDied { pid: p, .. }) if p == pid));
    drop(held);
    failure(&context);
}

/// A cycle of waits leads through a lock of a dead process. The process that waits for this lock is stopped.
/// When it continues, it adopts the lock, which ends the cycle.
#[test]
fn lock_cycle_through_a_dead_process_is_no_deadlock() {
    let _alone = alone();
    let (a, b, c) = (Lock::new(0).unwrap(), Lock::new(0).unwrap(), Lock::new(0).unwrap());
    let ((go, gone), (done, ended)) = (mpsc::channel(), mpsc::channel());
    let (mine, wanted) = (a.clone(), b.clone());
    let this = std::thread::spawn(move || {
        let _a = mine.lock().unwrap();
        done.send(Ok(())).unwrap();
        gone.recv_timeout(DEADLINE).unwrap();
        done.send(wanted.lock().map(drop)).unwrap();
    });
    ended.recv_timeout(DEADLINE).unwrap().unwrap();
    let (dead, dies) = holder_that_waits(&c, &a);
    let (stopped, stops) = holder_that_waits(&b, &c);
    // The wait is long enough for both waits to be recorded.
    assert!(matches!(b.lock_timeout(LONG), Err(LockError::Held { .. })));
    signal(stops, Signal::STOP);
    eventually("the process is stopped", || threads_are(stops, 'T'));
    signal(dies, Signal::KILL);
    failure(&dead);
    go.send(()).unwrap();
    assert!(ended.recv_timeout(LONG).is_err(), "the thread waits");
    signal(stops, Signal::CONT);
    ended
        .recv_timeout(DEADLINE)
        .unwrap()
        .expect("the stopped thread gets the owner's death as an error, and ends");
    this.join().unwrap();
    failure(&stopped);
}

/// The thread can't get the lock for which it waits, whether it is stopped or not.
#[test]
fn stopped_waiter_is_part_of_a_deadlock() {
    let _alone = alone();
    let (a, b) = (Lock::new(0).unwrap(), Lock::new(0).unwrap());
    let held = b.lock().unwrap();
    let (context, pid) = holder_that_waits(&a, &b);
    assert!(matches!(a.lock_timeout(LONG), Err(LockError::Held { .. })));
    signal(pid, Signal::STOP);
    eventually("the process is stopped", || threads_are(pid, 'T'));
    assert_eq!(deadlock(a.lock()).steps[1].pid, pid);
    signal(pid, Signal::CONT);
    drop(held);
    join(&context).unwrap();
}

fn hold_until_set(_: usize, (lock, ready, end): (Lock<u64>, Queue<u32>, Event)) -> Outcome {
    let _held = lock.lock()?;
    give(&ready, std::process::id());
    end.wait_timeout(DEADLINE)?;
    Ok(())
}

#[test]
fn wait_for_a_stopped_lock_holder_is_no_deadlock() {
    let _alone = alone();
    let (lock, ready, end) = (Lock::new(0).unwrap(), Queue::bounded(1).unwrap(), Event::new().unwrap());
    let context = one_process(hold_until_set, (lock.clone(), ready.clone(), end.clone()));
    let pid = take(&ready);
    signal(pid, Signal::STOP);
    eventually("the process is stopped", || threads_are(pid, 'T'));
    let (copy, (done, ended)) = (lock.clone(), mpsc::channel());
    let waiter = std::thread::spawn(move || done.send(copy.lock().map(drop)).unwrap());
    assert!(ended.recv_timeout(LONG).is_err(), "the thread waits");
    end.set().unwrap();
    signal(pid, Signal::CONT);
    ended.recv_timeout(DEADLINE).unwrap().unwrap();
    waiter.join().unwrap();
    join(&context).unwrap();
}

/// A wait with a time-out ends by itself. So a wait for a lock that the waiting thread holds ends, too.
#[test]
fn timed_lock_waits_are_no_deadlock() {
    let _alone = alone();
    let (a, b, thread) = holds_and_waits(|a, b| {
        let _a = a.lock().unwrap();
        eventually("the other thread has its lock", || b.try_lock().is_err());
        matches!(b.lock_timeout(LONG), Err(LockError::Held { .. }))
    });
    let _b = b.lock().unwrap();
    drop(a.lock().expect("the other thread stops waiting"));
    assert!(thread.join().unwrap());
}

#[test]
fn deadlock_detection_can_be_disabled_and_enabled() {
    let _alone = alone();
    let arena = Arena::current().unwrap();
    arena.set_deadlock_detection(false);
    let (a, b, thread) = holds_and_waits(|a, b| {
        let _a = a.lock().unwrap();
        eventually("the other thread has its lock", || b.try_lock().is_err());
        b.lock().map(drop)
    });
    let (done, ended) = mpsc::channel();
    let other = std::thread::spawn(move || {
        let _b = b.lock().unwrap();
        done.send(a.lock().map(drop)).unwrap();
    });
    assert!(ended.recv_timeout(LONG).is_err() && !thread.is_finished(), "both wait");
    arena.set_deadlock_detection(true);
    let ends = [ended.recv_timeout(DEADLINE).unwrap(), thread.join().unwrap()];
    other.join().unwrap();
    let reported = ends.iter().filter(|end| matches!(end, Err(LockError::Deadlock(_)))).count();
    assert_eq!((reported, ends.iter().filter(|end| end.is_ok()).count()), (1, 1), "{ends:?}");
}

#[test]
fn environment_disables_deadlock_detection() {
    let _alone = alone();
    let (a, b, ready) = (Lock::new(0).unwrap(), Lock::new(0).unwrap(), Queue::bounded(1).unwrap());
    let (go, gone) = mpsc::channel();
    let (done, ended) = mpsc::channel();
    let (mine, wanted) = (b.clone(), a.clone());
    let waiter = std::thread::spawn(move || {
        let _b = mine.lock().unwrap();
        done.send(Ok(())).unwrap();
        gone.recv_timeout(DEADLINE).unwrap();
        done.send(wanted.lock().map(drop)).unwrap();
    });
    ended.recv_timeout(DEADLINE).unwrap().unwrap();
    let options = SpawnOptions::nprocs(1).env("MP_DEADLOCK", "off");
    let context = start_processes(hold_one_want_other, (a, b, ready.clone()), options).unwrap();
    let pid = take(&ready);
    go.send(()).unwrap();
    assert!(ended.recv_timeout(LONG).is_err(), "the thread waits");
    signal(pid, Signal::KILL);
    assert!(matches!(ended.recv_timeout(DEADLINE).unwrap(), Err(LockError::OwnerDied { .. })));
    waiter.join().unwrap();
    failure(&context);
}

/// A thread that returns from a condition to an `RLock`, of which it holds other guards, must get the lock.
/// So the wait of the other thread fails, although that wait began earlier.
#[test]
fn condition_waiter_reacquires_despite_deadlock() {
    let _alone = alone();
    let (desk, bell, other) =
        (RLock::new(0_u8).unwrap(), Condition::new().unwrap(), Lock::new(0_u64).unwrap());
    let (its_desk, its_bell, its_other) = (desk.clone(), bell.clone(), other.clone());
    let waiter = std::thread::spawn(move || {
        let _other = its_other.lock().unwrap();
        let _outer = its_desk.lock().unwrap();
        let inner = its_desk.lock().unwrap();
        its_bell.wait(inner).map(drop)
    });
    eventually("the waiter waits for the bell", || bell.waiting() == 1);
    let rings = std::thread::spawn(move || {
        // Notifies when the other thread has waited longer than the waiter will have.
        std::thread::sleep(LONG); // sleep: the first wait has to be the longer one
        bell.notify_one().unwrap();
    });
    let desk_held = desk.lock().unwrap();
    let found = deadlock(other.lock());
    assert!(found.steps[0].waited > found.steps[1].waited, "{found}");
    drop(desk_held);
    waiter.join().unwrap().expect("the waiter has its lock again");
    rings.join().unwrap();
}

type Table = (Vec<Lock<u64>>, Instants, Queue<u32>);
/// Time in milliseconds.
type Instants = u64;

fn dine(rank: usize, (forks, millis, ready): Table) -> Outcome {
    give(&ready, std::process::id());
    let end = Instant::now() + Duration::from_millis(millis);
    let (first, second) = (rank.min((rank + 1) % forks.len()), rank.max((rank + 1) % forks.len()));
    let lock = |fork: &Lock<u64>| match fork.lock() {
        Err(LockError::OwnerDied { .. }) => fork.recover().map(|mut guard| *guard += 1),
        other => other.map(|mut guard| *guard += 1),
    };
    while Instant::now() < end {
        let held = match forks[first].lock() {
            Err(LockError::OwnerDied { .. }) => forks[first].recover()?,
            other => other?,
        };
        lock(&forks[second])?;
        // sleep: so long that the others check for deadlocks while they wait
        std::thread::sleep(Duration::from_millis(60));
        drop(held);
    }
    Ok(())
}

/// All processes take locks in the same order, under load, while holders are killed and stopped.
#[test]
fn ordered_philosophers_report_no_deadlock() {
    let _alone = alone();
    let forks: Vec<_> = (0..4).map(|_| Lock::new(0_u64).unwrap()).collect();
    let ready = Queue::bounded(16).unwrap();
    let table = |millis| (forks.clone(), millis, ready.clone());
    let diners = start_processes(dine, table(2500), SpawnOptions::nprocs(4)).unwrap();
    let stopped = take(&ready);
    let killed = one_process(dine, table(60_000));
    let others: Vec<u32> = (0..4).map(|_| take(&ready)).collect();
    for _ in 0..3 {
        signal(stopped, Signal::STOP);
        std::thread::sleep(Duration::from_millis(300)); // sleep: others wait for what it has
        signal(stopped, Signal::CONT);
    }
    assert!(!others.contains(&stopped));
    for pid in killed.pids() {
        signal(pid, Signal::KILL);
    }
    failure(&killed);
    join(&diners).unwrap();
}
