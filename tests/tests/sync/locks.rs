//! Locks between processes whose holders are killed, stopped or slow: reentrant locks, read locks, once
//! cells, and several locks together.

use std::time::{Duration, Instant};

use mp::sync::RawValue;
use mp::{
    Lock, LockError, Once, ProcessContext, Queue, RLock, RwLock, Semaphore, SpawnOptions, start_processes,
};
use mp_tests::{
    DEADLINE, Outcome, alone, eventually, failure, give, join, one_process, signal, take, threads_are,
};
use rustix::process::Signal;

/// Two halves that belong together.
type Pair = [u64; 2];

type Locks = (Lock<Pair>, RLock<Pair>, RwLock<Pair>);

fn locks() -> Locks {
    (Lock::new([0; 2]).unwrap(), RLock::new([0; 2]).unwrap(), RwLock::new([0; 2]).unwrap())
}

fn add(_: usize, ((lock, rlock, rwlock), times): (Locks, u64)) -> Outcome {
    for _ in 0..times {
        let mut pair = lock.lock()?;
        assert_eq!(pair[0], pair[1], "torn");
        *pair = [pair[0] + 1, pair[1] + 1];
        drop(pair);
        let (outer, inner) = (rlock.lock()?, rlock.lock()?);
        drop(outer);
        let [a, b] = inner.get();
        assert_eq!(a, b, "torn");
        inner.set([a + 1, b + 1]);
        drop(inner);
        let pair = rwlock.read()?;
        assert_eq!(pair[0], pair[1], "torn");
        drop(pair);
        let mut pair = rwlock.write()?;
        *pair = [pair[0] + 1, pair[1] + 1];
    }
    Ok(())
}

#[test]
fn additions_under_each_kind_of_lock_are_not_lost() {
    let _alone = alone();
    let locks = locks();
    let context = start_processes(add, (locks.clone(), 1000), SpawnOptions::nprocs(3)).unwrap();
    add(0, (locks.clone(), 1000)).unwrap();
    join(&context).unwrap();
    assert_eq!(*locks.0.lock().unwrap(), [4000; 2]);
    assert_eq!(locks.1.lock().unwrap().get(), [4000; 2]);
    assert_eq!(*locks.2.read().unwrap(), [4000; 2]);
}

/// Selects the lock to hold, and the way to hold it.
#[derive(Clone, Copy, serde::Serialize, serde::Deserialize)]
enum Held {
    Lock,
    RLock,
    Read,
    Write,
}

fn hold(_: usize, (locks, held, ready): (Locks, Held, Queue<u32>)) -> Outcome {
    let (lock, rlock, rwlock) = &locks;
    let (mut a, mut b, mut c, mut d) = (None, Vec::new(), None, None);
    match held {
        Held::Lock => a.insert(lock.lock()?)[0] += 1,
        Held::RLock => {
            b = vec![rlock.lock()?, rlock.lock()?];
            b[1].set([b[0].get()[0] + 1, 0]);
        }
        Held::Read => _ = c.insert(rwlock.read()?),
        Held::Write => d.insert(rwlock.write()?)[0] += 1,
    }
    give(&ready, std::process::id());
    // Sleeps until another process kills this process, and not forever if none does.
    std::thread::sleep(DEADLINE); // sleep: the test kills or stops this process while it holds the lock
    drop((a, b, c, d));
    Ok(())
}

fn holder(locks: &Locks, held: Held) -> (ProcessContext, u32) {
    let ready = Queue::bounded(1).unwrap();
    let context = one_process(hold, (locks.clone(), held, ready.clone()));
    (context, take(&ready))
}

fn held_by<T>(result: Result<T, LockError>, pid: u32) {
    match result.map(drop) {
        Err(LockError::Held { pid: p, .. }) => assert_eq!(p, pid),
        other => panic!("{other:?}, not held by {pid}"),
    }
}

fn died<T>(result: Result<T, LockError>, pid: u32) {
    match result.map(drop) {
        Err(LockError::OwnerDied { pid: p, .. }) => assert_eq!(p, pid),
        other => panic!("{other:?}, but {pid} died"),
    }
}

const SHORT: Duration = Duration::from_millis(20);

#[test]
fn killed_holder_poisons_lock_until_recovery() {
    let _alone = alone();
    let locks = locks();
    let (context, pid) = holder(&locks, Held::Lock);
    held_by(locks.0.lock_timeout(SHORT), pid);
    held_by(locks.0.lock_deadline(Instant::now() + SHORT), pid);
    held_by(locks.0.recover_timeout(SHORT), pid);
    signal(pid, Signal::KILL);
    died(locks.0.lock(), pid);
    died(locks.0.lock_timeout(DEADLINE), pid);
    {
        let mut pair = locks.0.recover().unwrap();
        assert_eq!((*pair, pair.died().unwrap().pid), ([1, 0], pid), "left by the dead process");
        pair[1] = 1;
    }
    assert_eq!(*locks.0.try_lock().unwrap(), [1, 1]);
    failure(&context);
}

#[test]
fn killed_rlock_holder_of_two_levels_is_reported() {
    let _alone = alone();
    let locks = locks();
    let (context, pid) = holder(&locks, Held::RLock);
    held_by(locks.1.try_lock(), pid);
    held_by(locks.1.lock_deadline(Instant::now() + SHORT), pid);
    signal(pid, Signal::KILL);
    died(locks.1.lock(), pid);
    {
        let pair = locks.1.recover().unwrap();
        assert_eq!(pair.died().unwrap().pid, pid);
        let again = locks.1.lock().expect("this thread holds the lock");
        again.set([again.get()[0]; 2]);
    }
    assert_eq!(locks.1.lock_timeout(DEADLINE).unwrap().get(), [1, 1]);
    failure(&context);
}

#[test]
fn lock_stays_locked_while_its_process_lives() {
    let _alone = alone();
    for held in [Held::Lock, Held::RLock] {
        let locks = locks();
        let are_locked = || (locks.0.is_locked(), locks.1.is_locked());
        let its = match held {
            Held::Lock => (true, false),
            _ => (false, true),
        };
        assert_eq!(are_locked(), (false, false));
        let (context, pid) = holder(&locks, held);
        assert_eq!(are_locked(), its);
        signal(pid, Signal::STOP);
        assert_eq!(are_locked(), its, "the stopped process still holds the lock");
        signal(pid, Signal::KILL);
        eventually("the death is detected", || are_locked() == (false, false));
        died(locks.0.lock().map(drop).and(locks.1.lock().map(drop)), pid);
        failure(&context);
    }
    let (lock, rlock) = (Lock::new(1_u8).unwrap(), RLock::new(1_u8).unwrap());
    {
        let (_one, outer, inner) = (lock.lock().unwrap(), rlock.lock().unwrap(), rlock.lock().unwrap());
        drop(outer);
        assert!(lock.is_locked() && rlock.is_locked());
        drop(inner);
        assert!(lock.is_locked() && !rlock.is_locked());
    }
    assert!(!lock.is_locked());
}

#[test]
fn only_the_holding_thread_relocks_an_rlock() {
    let _alone = alone();
    let rlock = RLock::new(1_u8).unwrap();
    let (one, two) = (rlock.lock().unwrap(), rlock.lock().unwrap());
    let try_elsewhere = || {
        let rlock = rlock.clone();
        std::thread::spawn(move || rlock.try_lock().map(drop)).join().unwrap()
    };
    held_by(try_elsewhere(), std::process::id());
    drop(one);
    held_by(try_elsewhere(), std::process::id());
    drop(two);
    try_elsewhere().unwrap();
}

#[test]
fn dead_reader_of_an_rwlock_delays_no_writer() {
    let _alone = alone();
    let locks = locks();
    let (context, pid) = holder(&locks, Held::Read);
    drop(locks.2.try_read().expect("another reader"));
    held_by(locks.2.try_write(), pid);
    held_by(locks.2.write_timeout(SHORT), pid);
    let copy = locks.2.clone();
    let writer = std::thread::spawn(move || copy.write_timeout(DEADLINE).map(|mut pair| pair[0] = 7));
    signal(pid, Signal::KILL);
    writer.join().unwrap().expect("a dead reader does not poison the lock");
    assert_eq!(*locks.2.read().unwrap(), [7, 0]);
    failure(&context);
}

#[test]
fn dead_writer_is_reported_to_readers_and_writers() {
    let _alone = alone();
    let locks = locks();
    let (context, pid) = holder(&locks, Held::Write);
    held_by(locks.2.try_read(), pid);
    held_by(locks.2.read_deadline(Instant::now() + SHORT), pid);
    held_by(locks.2.write_deadline(Instant::now() + SHORT), pid);
    signal(pid, Signal::KILL);
    died(locks.2.read(), pid);
    died(locks.2.read_timeout(DEADLINE), pid);
    died(locks.2.write(), pid);
    let copy = locks.2.clone();
    let panics = std::thread::spawn(move || {
        let _pair = copy.recover().unwrap();
        panic!("in the middle of the repair");
    });
    panics.join().unwrap_err();
    died(locks.2.try_read(), pid);
    {
        let mut pair = locks.2.recover_timeout(DEADLINE).unwrap();
        assert_eq!((*pair, pair.died().is_some()), ([1, 0], true));
        pair[1] = 1;
    }
    assert_eq!(*locks.2.read().unwrap(), [1, 1]);
    assert!(locks.2.write().unwrap().died().is_none());
    failure(&context);
}

#[test]
fn stopped_lock_holder_is_awaited_and_named() {
    let _alone = alone();
    for held in [Held::Lock, Held::RLock, Held::Read, Held::Write] {
        let locks = locks();
        let (context, pid) = holder(&locks, held);
        signal(pid, Signal::STOP);
        eventually("the process is stopped", || threads_are(pid, 'T'));
        // The time is longer than a poll interval, after which a waiter checks if the holder is dead.
        let long = Duration::from_millis(250);
        match held {
            Held::Lock => held_by(locks.0.lock_timeout(long), pid),
            Held::RLock => held_by(locks.1.lock_timeout(long), pid),
            Held::Read => held_by(locks.2.write_timeout(long), pid),
            Held::Write => held_by(locks.2.read_timeout(long), pid),
        }
        signal(pid, Signal::KILL);
        failure(&context);
    }
}

/// The stopped reader is named, whatever its position among the readers is.
#[test]
fn only_stopped_reader_is_named_to_a_waiting_writer() {
    let _alone = alone();
    let locks = locks();
    let readers = [holder(&locks, Held::Read), holder(&locks, Held::Read), holder(&locks, Held::Read)];
    for (_, pid) in &readers {
        signal(*pid, Signal::STOP);
        eventually("the process is stopped", || threads_are(*pid, 'T'));
        held_by(locks.2.write_timeout(SHORT), *pid);
        signal(*pid, Signal::CONT);
        eventually("the process continues", || !threads_are(*pid, 'T'));
    }
    // If neither reader is stopped, one of them is named.
    match locks.2.write_timeout(SHORT).map(drop) {
        Err(LockError::Held { pid, .. }) => assert!(readers.iter().any(|(_, p)| *p == pid)),
        other => panic!("{other:?}"),
    }
    for (context, pid) in readers {
        signal(pid, Signal::KILL);
        failure(&context);
    }
}

#[test]
fn relock_of_a_lock_by_its_thread_is_an_error() {
    let _alone = alone();
    let (lock, _, rwlock) = locks();
    let guard = lock.lock().unwrap();
    assert!(matches!(lock.lock(), Err(LockError::WouldDeadlock)));
    drop(guard);
    let reading = rwlock.read().unwrap();
    assert!(matches!(rwlock.write(), Err(LockError::WouldDeadlock)));
    drop(reading);
    let writing = rwlock.write().unwrap();
    assert!(matches!(rwlock.read(), Err(LockError::WouldDeadlock)));
    assert!(matches!(rwlock.write(), Err(LockError::WouldDeadlock)));
    drop(writing);
    drop(rwlock.try_write().unwrap());
}

#[test]
fn reader_relocks_an_rwlock_while_a_writer_waits() {
    let _alone = alone();
    let rwlock = RwLock::with_readers([0_u64; 2], 2).unwrap();
    let reading = rwlock.read().unwrap();
    let (copy, later) = (rwlock.clone(), rwlock.clone());
    let writer = std::thread::spawn(move || copy.write_timeout(DEADLINE).map(|mut pair| pair[0] = 1));
    // Tries in another thread, because this thread would only read again.
    let elsewhere = |wait: Duration| {
        let later = later.clone();
        std::thread::spawn(move || later.read_timeout(wait).map(drop)).join().unwrap()
    };
    eventually("the writer waits", || matches!(elsewhere(Duration::ZERO), Err(LockError::Held { .. })));
    let again = rwlock.read().expect("this thread reads already");
    // This is the maximum number of readers.
    held_by(elsewhere(SHORT), std::process::id());
    drop((reading, again));
    writer.join().unwrap().unwrap();
    assert_eq!(rwlock.read_timeout(DEADLINE).unwrap()[0], 1);
}

#[test]
fn repeated_read_of_an_rwlock_uses_one_slot() {
    let _alone = alone();
    let rwlock = RwLock::with_readers(5_u64, 1).unwrap();
    let reading = rwlock.read().unwrap();
    let again = [(); 3].map(|()| rwlock.read_timeout(SHORT).expect("this thread reads already"));
    // The guards count as one reader until the last one is dropped, whatever the order of the drops is.
    let try_write = || {
        let copy = rwlock.clone();
        std::thread::spawn(move || copy.try_write().map(drop)).join().unwrap()
    };
    drop(reading);
    for guard in again {
        assert_eq!(*guard, 5);
        held_by(try_write(), std::process::id());
    }
    try_write().unwrap();
}

fn once(rank: usize, (once, times, gate): (Once, RawValue<u64>, Semaphore)) -> Outcome {
    once.call_once_timeout(DEADLINE, |state| {
        times.set(times.get() + 1);
        if rank == 0 && state.died().is_none() && gate.try_acquire().is_ok() {
            std::process::abort();
        }
    })?;
    assert!(once.is_completed());
    Ok(())
}

#[test]
fn once_runs_its_function_exactly_once() {
    let _alone = alone();
    let (run, times, gate) = (Once::new().unwrap(), RawValue::new(0).unwrap(), Semaphore::new(0).unwrap());
    let args = (run.clone(), times.clone(), gate);
    join(&start_processes(once, args, SpawnOptions::nprocs(4)).unwrap()).unwrap();
    assert_eq!(times.get(), 1);
    run.call_once(|_| panic!("the call was already done")).unwrap();
}

#[test]
fn once_of_a_killed_process_runs_again() {
    let _alone = alone();
    let (run, times, gate) = (Once::new().unwrap(), RawValue::new(0).unwrap(), Semaphore::new(1).unwrap());
    let args = (run.clone(), times.clone(), gate);
    failure(&one_process(once, args));
    assert!(!run.is_completed());
    let mut died = None;
    run.try_call_once(|state| died = state.died()).unwrap();
    assert!(died.is_some() && run.is_completed() && times.get() == 1);
    let inside = Once::new().unwrap();
    inside.call_once(|_| assert!(matches!(inside.call_once(|_| ()), Err(LockError::WouldDeadlock)))).unwrap();
}
