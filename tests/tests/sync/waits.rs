//! Semaphores, events and conditions between real processes that are killed, stopped or slow.

use std::time::{Duration, Instant};

use mp::Message;
use mp::sync::AcquireError;
use mp::sync::bytemuck::{Pod, Zeroable};
use mp::{
    Barrier, BoundedSemaphore, Condition, Event, Lock, LockError, Once, Queue, RLock, RwLock, Semaphore,
    SpawnOptions, Waitable, start_processes,
};
use mp_tests::{
    DEADLINE, Outcome, alone, eventually, failure, give, in_use, join, one_process, signal, take, threads_are,
};
use rustix::process::Signal;

const SHORT: Duration = Duration::from_millis(20);
/// Time longer than a poll interval. Waiting processes check for dead processes once in each interval.
const LONG: Duration = Duration::from_millis(250);

fn take_permits(_: usize, (semaphore, inside, most): (Semaphore, Lock<u64>, u64)) -> Outcome {
    for _ in 0..300 {
        let permit = semaphore.acquire_timeout(DEADLINE)?;
        {
            let mut inside = inside.lock()?;
            *inside += 1;
            assert!(*inside <= most, "{inside:?} with permits for {most}");
        }
        *inside.lock()? -= 1;
        drop(permit);
    }
    Ok(())
}

#[test]
fn semaphore_permits_bound_concurrent_holders() {
    let _alone = alone();
    let args = (Semaphore::new(2).unwrap(), Lock::new(0).unwrap(), 2);
    let context = start_processes(take_permits, args.clone(), SpawnOptions::nprocs(3)).unwrap();
    take_permits(0, args.clone()).unwrap();
    join(&context).unwrap();
    assert_eq!((args.0.available(), *args.1.lock().unwrap()), (2, 0));
}

fn keep_permits(_: usize, (semaphore, ready): (Semaphore, Queue<u32>)) -> Outcome {
    let guard = semaphore.acquire()?;
    semaphore.acquire()?.keep();
    semaphore.acquire()?.forget();
    give(&ready, std::process::id());
    std::thread::sleep(DEADLINE); // sleep: the test stops and kills this process while it has permits
    drop(guard);
    Ok(())
}

#[test]
fn only_permits_of_killed_processes_return() {
    let _alone = alone();
    let (semaphore, ready) = (Semaphore::new(3).unwrap(), Queue::bounded(1).unwrap());
    let context = one_process(keep_permits, (semaphore.clone(), ready.clone()));
    let pid = take(&ready);
    signal(pid, Signal::STOP);
    eventually("the process is stopped", || threads_are(pid, 'T'));
    match semaphore.acquire_timeout(LONG) {
        Err(AcquireError::Held { holders }) => assert!(holders.len() == 1 && holders[0].pid == pid),
        other => panic!("{other:?}"),
    }
    assert!(matches!(semaphore.acquire_deadline(Instant::now() + SHORT), Err(AcquireError::Held { .. })));
    let copy = semaphore.clone();
    let waiter = std::thread::spawn(move || copy.acquire_timeout(DEADLINE));
    signal(pid, Signal::KILL);
    let one = waiter.join().unwrap().expect("one permit returns");
    let two = semaphore.acquire_timeout(DEADLINE).expect("the other permit returns");
    match semaphore.try_acquire() {
        Err(AcquireError::Held { holders }) => {
            assert_eq!(holders[0].pid, std::process::id(), "one was forgotten")
        }
        other => panic!("{other:?}"),
    }
    drop((one, two));
    assert_eq!(semaphore.available(), 2);
    failure(&context);
}

#[test]
fn permits_are_added_up_to_the_limit() {
    let _alone = alone();
    let semaphore = Semaphore::with_limit(0, 2).unwrap();
    assert!(matches!(semaphore.try_acquire(), Err(AcquireError::Held { holders }) if holders.is_empty()));
    assert!(!semaphore.is_ready());
    semaphore.release().unwrap();
    semaphore.add_permits(1).unwrap();
    assert!(matches!(semaphore.add_permits(1), Err(AcquireError::TooMany { limit: 2 })));
    assert!(semaphore.is_ready() && semaphore.available() == 2);
    let bounded = BoundedSemaphore::new(1).unwrap();
    let error = bounded.release().unwrap_err();
    assert!(matches!(error, AcquireError::NotKept) && error.to_string().contains("more often than acquired"));
    bounded.acquire().unwrap().keep();
    bounded.try_acquire().unwrap_err();
    bounded.release().unwrap();
    drop(bounded.try_acquire().unwrap());
    assert!(Semaphore::with_limit(2, 1).is_err() && BoundedSemaphore::new(u32::MAX).is_err());
}

fn wait_for_event(_: usize, (event, ready): (Event, Queue<u32>)) -> Outcome {
    give(&ready, std::process::id());
    assert!(event.wait_timeout(DEADLINE)?);
    Ok(())
}

#[test]
fn event_cleared_at_once_wakes_all_waiters() {
    let _alone = alone();
    let (event, ready) = (Event::new().unwrap(), Queue::bounded(4).unwrap());
    let args = (event.clone(), ready.clone());
    let context = start_processes(wait_for_event, args, SpawnOptions::nprocs(4)).unwrap();
    (0..4).for_each(|_| {
        let pid = take(&ready);
        eventually("the process sleeps", || threads_are(pid, 'S'));
    });
    assert!(event.set().unwrap() && !event.set().unwrap());
    assert!(event.clear().unwrap() && !event.clear().unwrap());
    join(&context).unwrap();
    assert!(!event.wait_timeout(SHORT).unwrap() && !event.wait_deadline(Instant::now()).unwrap());
    event.set().unwrap();
    event.wait().unwrap();
    assert!(event.is_set() && event.is_ready());
}

type Shop = (Lock<u64>, Condition, Queue<u32>);

fn shop() -> Shop {
    (Lock::new(0).unwrap(), Condition::new().unwrap(), Queue::bounded(8).unwrap())
}

fn consume(_: usize, ((jobs, changed, ready), times): (Shop, u64)) -> Outcome {
    give(&ready, std::process::id());
    for _ in 0..times {
        let (mut jobs, any) = changed.wait_for_timeout(jobs.lock()?, DEADLINE, |jobs| *jobs > 0)?;
        assert!(any, "no job arrived");
        *jobs -= 1;
    }
    Ok(())
}

#[test]
fn each_notification_wakes_one_waiter() {
    let _alone = alone();
    let shop = shop();
    let context = start_processes(consume, (shop.clone(), 200), SpawnOptions::nprocs(3)).unwrap();
    for _ in 0..600 {
        *shop.0.lock().unwrap() += 1;
        shop.1.notify_one().unwrap();
    }
    join(&context).unwrap();
    assert_eq!((*shop.0.lock().unwrap(), shop.1.waiting()), (0, 0));
    assert!(!shop.1.notify_one().unwrap(), "no process waits");
}

fn wait_once(_: usize, ((jobs, changed, ready), reported): (Shop, Queue<u32>)) -> Outcome {
    let jobs = jobs.lock()?;
    give(&ready, std::process::id());
    let (_jobs, notified) = changed.wait_timeout(jobs, DEADLINE)?;
    assert!(notified);
    give(&reported, std::process::id());
    Ok(())
}

#[test]
fn notification_of_a_killed_process_reaches_another() {
    let _alone = alone();
    let (shop, reported) = (shop(), Queue::bounded(4).unwrap());
    let start = || one_process(wait_once, (shop.clone(), reported.clone()));
    let first = start();
    let pid = take(&shop.2);
    eventually("the waiter waits", || shop.1.waiting() == 1);
    signal(pid, Signal::STOP);
    eventually("the process is stopped", || threads_are(pid, 'T'));
    // The waiter is notified, and killed before it can check.
    assert!(shop.1.notify_one().unwrap());
    let second = start();
    let other = take(&shop.2);
    eventually("the other process waits", || shop.1.waiting() == 1);
    signal(pid, Signal::KILL);
    assert_eq!(take(&reported), other);
    join(&second).unwrap();
    failure(&first);
    assert_eq!(shop.1.waiting(), 0);
}

#[test]
fn killed_waiter_is_no_longer_counted() {
    let _alone = alone();
    let (shop, reported) = (shop(), Queue::bounded(1).unwrap());
    let context = one_process(wait_once, (shop.clone(), reported));
    let pid = take(&shop.2);
    eventually("the waiter waits", || shop.1.waiting() == 1);
    signal(pid, Signal::KILL);
    failure(&context);
    // Since the death, no other process has waited or notified, and so freed the place of the dead waiter.
    assert_eq!(shop.1.waiting(), 0);
    assert!(!shop.1.notify_one().unwrap(), "the place of the killed waiter is free");
}

#[test]
fn token_of_a_killed_process_frees_its_slot() {
    let _alone = alone();
    let shop = (Lock::new(0).unwrap(), Condition::with_waiters(1).unwrap(), Queue::bounded(1).unwrap());
    let reported = Queue::bounded(1).unwrap();
    let context = one_process(wait_once, (shop.clone(), reported));
    let pid = take(&shop.2);
    eventually("the waiter waits", || shop.1.waiting() == 1);
    signal(pid, Signal::STOP);
    eventually("the process is stopped", || threads_are(pid, 'T'));
    assert!(shop.1.notify_one().unwrap());
    signal(pid, Signal::KILL);
    failure(&context);
    // The token is in the only place, and no other waiter could have taken it. The next waiter gets both.
    let (guard, notified) = shop.1.wait_timeout(shop.0.lock().unwrap(), DEADLINE).unwrap();
    assert!(notified);
    let (_guard, notified) = shop.1.wait_timeout(guard, SHORT).unwrap();
    assert!(!notified, "there was one token");
}

#[test]
fn condition_notifications_are_counted_and_given_out() {
    let _alone = alone();
    let (shop, reported) = (shop(), Queue::bounded(4).unwrap());
    let context =
        start_processes(wait_once, (shop.clone(), reported.clone()), SpawnOptions::nprocs(4)).unwrap();
    eventually("all processes wait", || shop.1.waiting() == 4);
    assert_eq!(shop.1.notify(2).unwrap(), 2);
    let first = [take(&reported), take(&reported)];
    assert_eq!(shop.1.waiting(), 2, "two processes still wait");
    assert_eq!(shop.1.notify_all().unwrap(), 2);
    let second = [take(&reported), take(&reported)];
    assert!(first.iter().all(|pid| !second.contains(pid)));
    join(&context).unwrap();
}

#[test]
fn condition_wait_ends_in_time_with_the_lock() {
    let _alone = alone();
    let (lock, condition) = (Lock::new(1_u64).unwrap(), Condition::with_waiters(1).unwrap());
    let (guard, notified) = condition.wait_timeout(lock.lock().unwrap(), SHORT).unwrap();
    assert!(!notified && matches!(lock.try_lock(), Err(LockError::WouldDeadlock)));
    let (guard, so) = condition.wait_for_deadline(guard, Instant::now() + SHORT, |n| *n > 1).unwrap();
    assert!(!so);
    let (guard, _) = condition.wait_deadline(guard, Instant::now()).unwrap();
    assert_eq!(*condition.wait_for(guard, |n| *n == 1).unwrap(), 1);
    // One waiter has room, and a second one gets an error.
    let (theirs, reported) = (lock.clone(), condition.clone());
    let waiter = std::thread::spawn(move || {
        condition.wait_timeout(theirs.lock()?, DEADLINE).map(|(n, notified)| if notified { *n } else { 0 })
    });
    eventually("the waiter waits", || reported.waiting() == 1);
    let error = reported.wait(lock.lock().unwrap()).unwrap_err();
    assert!(error.to_string().contains("1 in all"), "{error}");
    *lock.lock().unwrap() = 5;
    assert!(reported.notify_one().unwrap());
    assert_eq!(waiter.join().unwrap().unwrap(), 5);
}

type Desk = (RLock<u64>, Condition, Queue<u32>);

fn consume_inside(_: usize, ((jobs, changed, ready), times): (Desk, u64)) -> Outcome {
    give(&ready, std::process::id());
    for _ in 0..times {
        let (outer, inner) = (jobs.lock()?, jobs.lock()?);
        let (guard, any) = changed.wait_for_timeout(jobs.lock()?, DEADLINE, |jobs| jobs.get() > 0)?;
        assert!(any, "no job arrived");
        drop((inner, guard));
        // One level of the lock is left, as before.
        outer.set(outer.get() - 1);
    }
    Ok(())
}

#[test]
fn lock_held_several_times_is_released_and_retaken() {
    let _alone = alone();
    let desk: Desk = (RLock::new(0).unwrap(), Condition::new().unwrap(), Queue::bounded(8).unwrap());
    let context = start_processes(consume_inside, (desk.clone(), 200), SpawnOptions::nprocs(3)).unwrap();
    for _ in 0..600 {
        let jobs = desk.0.lock().unwrap();
        jobs.set(jobs.get() + 1);
        desk.1.notify_one().unwrap();
    }
    join(&context).unwrap();
    assert_eq!((desk.0.lock().unwrap().get(), desk.1.waiting()), (0, 0));
}

fn hold_and_die(_: usize, (jobs, ready): (RLock<u64>, Queue<u32>)) -> Outcome {
    let guard = jobs.lock()?;
    give(&ready, std::process::id());
    std::thread::sleep(DEADLINE); // sleep: the test stops and kills this process while it holds the lock
    drop(guard);
    Ok(())
}

#[test]
fn waiter_with_other_guards_returns_with_the_lock() {
    let _alone = alone();
    let desk: Desk =
        (RLock::new(7).unwrap(), Condition::with_waiters(1).unwrap(), Queue::bounded(1).unwrap());
    let (jobs, changed, ready) = &desk;
    let holder = || one_process(hold_and_die, (jobs.clone(), ready.clone()));
    // No process notifies. When the time has expired, another process holds the lock, and is killed with it.
    let (theirs, reported, at) = (jobs.clone(), changed.clone(), std::sync::mpsc::channel::<()>());
    let waiter = std::thread::spawn(move || {
        let outer = theirs.lock().unwrap();
        // Longer than the start of the process that takes the lock.
        let error = reported.wait_timeout(theirs.lock().unwrap(), 16 * LONG).unwrap_err();
        assert!(matches!(error, LockError::OwnerDied { .. }), "{error}");
        at.1.recv_timeout(DEADLINE).unwrap();
        // This thread still holds the lock once, by its outer guard.
        outer.set(8);
        drop(outer);
    });
    eventually("the waiter waits", || changed.waiting() == 1);
    let context = holder();
    let pid = take(ready);
    signal(pid, Signal::STOP);
    eventually("the waiter has stopped waiting", || changed.waiting() == 0);
    signal(pid, Signal::KILL);
    failure(&context);
    let held = |e: &LockError| matches!(e, LockError::Held { pid, .. } if *pid == std::process::id());
    // Does not use `recover`, which would clear the death before the waiter detects it.
    eventually("the waiter has the lock again", || jobs.lock_timeout(SHORT).is_err_and(|e| held(&e)));
    at.0.send(()).unwrap();
    waiter.join().unwrap();
    assert!(
        matches!(jobs.try_lock(), Err(LockError::OwnerDied { .. })),
        "no process has recovered the lock since the death"
    );
    assert_eq!(jobs.recover().unwrap().get(), 8);
    // A waiter without other guards returns without the lock, if the lock stays held for too long.
    let theirs = jobs.clone();
    let reported = changed.clone();
    let waiter = std::thread::spawn(move || reported.wait_timeout(theirs.lock().unwrap(), LONG).map(|_| ()));
    eventually("the waiter waits", || changed.waiting() == 1);
    let context = holder();
    let pid = take(ready);
    signal(pid, Signal::STOP);
    let error = waiter.join().unwrap().unwrap_err();
    assert!(matches!(error, LockError::Held { pid: held, .. } if held == pid), "{error}");
    signal(pid, Signal::KILL);
    failure(&context);
    // Also without room for the waiter, only one level is released, and the others are unchanged.
    drop(jobs.recover().unwrap());
    let (theirs, reported) = (jobs.clone(), changed.clone());
    let waiter =
        std::thread::spawn(move || reported.wait_timeout(theirs.lock().unwrap(), DEADLINE).map(|_| ()));
    eventually("the waiter waits", || changed.waiting() == 1);
    let outer = jobs.lock().unwrap();
    let error = changed.wait(jobs.lock().unwrap()).unwrap_err();
    assert!(error.to_string().contains("1 in all"), "{error}");
    outer.set(9);
    drop(outer);
    assert!(changed.notify_one().unwrap());
    waiter.join().unwrap().unwrap();
    assert_eq!(jobs.try_lock().unwrap().get(), 9);
}

type Everything = (
    (Lock<()>, RLock<u64>, RwLock<[f32; 3]>, Once),
    (Semaphore, BoundedSemaphore, Event, Condition, Barrier),
);

fn everything() -> Everything {
    (
        (
            Lock::new(()).unwrap(),
            RLock::new(1).unwrap(),
            RwLock::new([1.0; 3]).unwrap(),
            Once::new().unwrap(),
        ),
        (
            Semaphore::new(1).unwrap(),
            BoundedSemaphore::new(1).unwrap(),
            Event::new().unwrap(),
            Condition::new().unwrap(),
            Barrier::new(1).unwrap(),
        ),
    )
}

fn use_all(_: usize, queue: Queue<Everything>) -> Outcome {
    let ((lock, rlock, rwlock, once), (semaphore, bounded, event, condition, barrier)) = take(&queue);
    drop(lock.lock()?);
    rlock.lock()?.set(2);
    rwlock.write()?[2] = 2.0;
    once.call_once(|_| ())?;
    semaphore.acquire()?.forget();
    bounded.acquire()?.keep();
    event.set()?;
    condition.notify_all()?;
    assert_eq!(barrier.wait()?, 0);
    Ok(())
}

#[test]
fn sync_handles_round_trip_in_messages() {
    let _alone = alone();
    let before = in_use().0;
    let (queue, all) = (Queue::bounded(1).unwrap(), everything());
    let context = one_process(use_all, queue.clone());
    give(&queue, all.clone());
    join(&context).unwrap();
    let ((lock, rlock, rwlock, once), (semaphore, bounded, event, condition, barrier)) = &all;
    assert!(!format!("{all:?}").is_empty());
    drop(lock.try_lock().unwrap());
    assert_eq!((rlock.lock().unwrap().get(), rwlock.read().unwrap()[2]), (2, 2.0));
    assert!(once.is_completed() && event.is_set() && condition.waiting() == 0 && !barrier.is_broken());
    semaphore.try_acquire().unwrap_err();
    drop(bounded.acquire_timeout(DEADLINE).expect("the process that kept the permit has ended"));
    drop((queue, all, context));
    eventually("all memory is freed", || in_use().0 == before);
}

fn sent(mut a: impl mp::Message) -> mp::message::Incoming {
    let mut out = mp::message::Outgoing::default();
    a.encode::<mp_reduce::MessagePack>(&mut out).unwrap();
    out.into_incoming()
}

#[test]
fn value_types_of_equal_name_other_size_are_refused() {
    let _alone = alone();
    let (name, mut rwlock, mut rlock) = {
        #[derive(Clone, Copy, Pod, Zeroable)]
        #[bytemuck(crate = "mp::sync::bytemuck")]
        #[repr(C)]
        struct Pair([u8; 2]);
        let pair = Pair([1, 2]);
        let rlock = sent(RLock::new(pair).unwrap());
        (std::any::type_name::<Pair>(), sent(RwLock::new(pair).unwrap()), rlock)
    };
    #[derive(Clone, Copy, Pod, Zeroable)]
    #[bytemuck(crate = "mp::sync::bytemuck")]
    #[repr(C)]
    struct Pair([u64; 20]);
    assert_eq!(std::any::type_name::<Pair>(), name);
    // Its places of readers would overlap the data.
    let error = RwLock::<Pair>::decode::<mp_reduce::MessagePack>(&mut rwlock).unwrap_err();
    assert!(error.to_string().contains("160 bytes"), "{error}");
    let error = RLock::<Pair>::decode::<mp_reduce::MessagePack>(&mut rlock).unwrap_err();
    assert!(error.to_string().contains("160 bytes"), "{error}");
}

#[test]
fn sync_handles_of_another_kind_are_refused() {
    let _alone = alone();
    fn confuse<A: mp::Message, B: mp::Message>(a: A, what: &str) {
        let Err(error) = B::decode::<mp_reduce::MessagePack>(&mut sent(a)) else {
            panic!("{what} was taken")
        };
        assert!(error.to_string().contains("attachment"), "{what}: {error}");
    }
    confuse::<Lock<u64>, Lock<i64>>(Lock::new(1).unwrap(), "a lock of another type");
    confuse::<RwLock<u64>, RwLock<u32>>(RwLock::new(1).unwrap(), "a RwLock of another type");
    confuse::<RwLock<u64>, RLock<u64>>(RwLock::new(1).unwrap(), "a RwLock as an RLock");
    confuse::<Semaphore, BoundedSemaphore>(Semaphore::new(1).unwrap(), "a semaphore as a bounded one");
    confuse::<Event, Condition>(Event::new().unwrap(), "an event as a condition");
    confuse::<Queue<u8>, Barrier>(Queue::bounded(1).unwrap(), "a queue as a barrier");
}
