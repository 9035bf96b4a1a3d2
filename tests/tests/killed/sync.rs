//! Processes that are killed, or stopped, at their n-th access to shared memory, for every n of a script,
//! while they use objects for which this process waits.
//!
//! After each death, no process waits longer than a poll interval for the killed process, and all resources
//! of the killed process are released.

use std::time::Duration;

use mp::sync::{BarrierError, RawValue};
use mp::{Barrier, Condition, Event, Lock, LockError, Once, RLock, RwLock, Semaphore};
use mp_core::inject;
use mp_tests::kill::{KILL, STOP, for_every_access, killed, stopped};
use mp_tests::{DEADLINE, Outcome, eventually, one_process, signal};
use rustix::process::Signal;

/// Makes shared accesses between two changes of a protected value, so that a process can be killed there.
fn step(between: &RawValue<u64>) {
    between.set(between.get() + 1);
}

type Locks = (RLock<[u64; 2]>, RwLock<[u64; 2]>, RawValue<u64>, Event, u64);

fn locks(at: u64) -> Locks {
    let (rlock, rwlock) = (RLock::new([0; 2]).unwrap(), RwLock::new([0; 2]).unwrap());
    (rlock, rwlock, RawValue::new(0).unwrap(), Event::new().unwrap(), at)
}

fn change_rlock(_: usize, (rlock, _, between, event, at): Locks) -> Outcome {
    inject::arm(at, KILL);
    let (one, two) = (rlock.lock()?, rlock.lock()?);
    one.set([1, 0]);
    // An access between the halves.
    event.is_set();
    two.set([1, 1]);
    drop(one);
    event.is_set();
    step(&between);
    drop(two);
    drop(rlock.recover()?);
    Ok(())
}

#[test]
fn rlock_held_twice_by_a_killed_process_is_recovered() {
    for_every_access(|at| {
        let args = locks(at);
        let killed = killed(&one_process(change_rlock, args.clone()));
        match args.0.lock_timeout(DEADLINE) {
            Ok(pair) => assert_eq!(pair.get()[0], pair.get()[1], "torn, and not reported; killed at {at}"),
            Err(LockError::OwnerDied { .. }) => assert!(killed),
            Err(e) => panic!("{e}; killed at access {at}"),
        }
        let pair = args.0.recover().unwrap();
        pair.set([pair.get()[0]; 2]);
        drop(pair);
        drop(args.0.try_lock().expect("the lock was recovered"));
        killed
    });
}

fn change_rwlock(_: usize, (_, rwlock, between, event, at): Locks) -> Outcome {
    inject::arm(at, KILL);
    for _ in 0..2 {
        let pair = rwlock.read()?;
        assert_eq!(pair[0], pair[1]);
        event.is_set();
        drop(pair);
        let mut pair = rwlock.write()?;
        pair[0] += 1;
        event.is_set();
        pair[1] += 1;
        drop(pair);
        step(&between);
    }
    Ok(())
}

#[test]
fn death_of_an_rwlock_user_is_reported_or_harmless() {
    for_every_access(|at| {
        let args = locks(at);
        let rwlock = &args.1;
        let context = one_process(change_rwlock, args.clone());
        // Meanwhile, this process takes the lock, which blocks the victim, releases the lock, waits for it
        // again, and detects the victim's death.
        let mut reported = false;
        while !reported && !matches!(context.join_timeout(Duration::ZERO), Ok(true) | Err(_)) {
            match rwlock.read_timeout(DEADLINE) {
                Ok(pair) => assert_eq!(pair[0], pair[1], "torn, and not reported; killed at {at}"),
                Err(LockError::OwnerDied { .. }) => reported = true,
                Err(e) => panic!("{e}; killed at access {at}"),
            }
            std::thread::yield_now();
        }
        let killed = killed(&context);
        assert!(killed || !reported);
        match rwlock.write_timeout(DEADLINE) {
            Ok(pair) => assert!(!reported && pair[0] == pair[1], "torn, and not reported; killed at {at}"),
            Err(LockError::OwnerDied { .. }) => {
                let mut pair = rwlock.recover().unwrap();
                assert!(killed && (pair[0] == pair[1] || pair[0] == pair[1] + 1));
                pair[1] = pair[0];
            }
            Err(e) => panic!("{e}; killed at access {at}"),
        }
        assert!((args.2.get()..=args.2.get() + 1).contains(&rwlock.read().unwrap()[0]));
        killed
    });
}

fn use_permits(_: usize, (semaphore, at): (Semaphore, u64)) -> Outcome {
    inject::arm(at, KILL);
    let one = semaphore.acquire()?;
    let two = semaphore.try_acquire()?;
    drop(one);
    two.keep();
    semaphore.release()?;
    semaphore.acquire()?.keep();
    Ok(())
}

#[test]
fn permits_of_a_user_killed_at_any_access_return() {
    for_every_access(|at| {
        let semaphore = Semaphore::with_limit(2, 2).unwrap();
        let killed = killed(&one_process(use_permits, (semaphore.clone(), at)));
        let all = [0, 1].map(|_| semaphore.acquire_timeout(DEADLINE).expect("permits return"));
        semaphore.try_acquire().expect_err("there were never more");
        drop(all);
        assert_eq!(semaphore.available(), 2);
        killed
    });
}

fn add_permits(_: usize, (semaphore, at): (Semaphore, u64)) -> Outcome {
    inject::arm(at, KILL);
    for _ in 0..3 {
        semaphore.add_permits(1)?;
    }
    Ok(())
}

#[test]
fn permits_can_be_added_after_a_kill_while_adding() {
    for_every_access(|at| {
        let semaphore = Semaphore::with_limit(0, 3).unwrap();
        let killed = killed(&one_process(add_permits, (semaphore.clone(), at)));
        // If the victim took a slot for a permit into use and did not fill it, the next permit fills the
        // slot.
        let added = semaphore.available() as u32;
        assert!(killed || added == 3);
        semaphore.add_permits(3 - added).unwrap();
        semaphore.add_permits(1).expect_err("the limit");
        (0..3).for_each(|_| semaphore.try_acquire().expect("three were added").forget());
        killed
    });
}

fn set_event(_: usize, (event, at): (Event, u64)) -> Outcome {
    inject::arm(at, KILL);
    for _ in 0..3 {
        event.clear()?;
        event.set()?;
    }
    Ok(())
}

#[test]
fn event_wakes_waiters_despite_a_killed_setter() {
    for_every_access(|at| {
        let event = Event::new().unwrap();
        let copy = event.clone();
        let waiter = std::thread::spawn(move || copy.wait_timeout(DEADLINE));
        let killed = killed(&one_process(set_event, (event.clone(), at)));
        // If the event was set, the waiter is woken within a poll interval. Otherwise this process sets it.
        if !event.is_set() {
            event.set().unwrap();
        }
        assert!(waiter.join().unwrap().unwrap());
        killed
    });
}

type Shop = (Lock<u64>, Condition, u64);

fn consume_two(_: usize, (jobs, changed, at): Shop) -> Outcome {
    inject::arm(at, KILL);
    for _ in 0..2 {
        *changed.wait_for(jobs.lock()?, |jobs| *jobs > 0)? -= 1;
    }
    Ok(())
}

/// Takes the lock, and recovers it if a dead process had it.
fn locked(lock: &Lock<u64>) -> mp::sync::LockGuard<'_, u64> {
    match lock.lock_timeout(DEADLINE) {
        Err(LockError::OwnerDied { .. }) => lock.recover().expect("the lock is available"),
        other => other.expect("the lock is available"),
    }
}

#[test]
fn condition_wakes_others_despite_a_killed_waiter() {
    for_every_access(|at| {
        let args: Shop = (Lock::new(0).unwrap(), Condition::new().unwrap(), at);
        let (jobs, changed, _) = &args;
        let context = one_process(consume_two, args.clone());
        let (theirs, notified) = (jobs.clone(), changed.clone());
        let other = std::thread::spawn(move || {
            let mut left = 1;
            while left > 0 {
                match notified.wait_for_timeout(locked(&theirs), DEADLINE, |jobs| *jobs > 0) {
                    Ok((mut jobs, so)) => {
                        assert!(so, "no notification arrived; killed at access {at}");
                        *jobs -= 1;
                        left -= 1;
                    }
                    Err(LockError::OwnerDied { .. }) => {}
                    Err(e) => panic!("{e}; killed at access {at}"),
                }
            }
        });
        // There is one notification for each job. Notifications of the victim must be passed on, and the
        // other waiter takes one job. After the victim's death, its remaining jobs are not waited for.
        let mut given = 0;
        let mut ended = None;
        while !other.is_finished() || ended.is_none() {
            if given < 3 {
                *locked(jobs) += 1;
                changed.notify_one().unwrap();
                given += 1;
            }
            if ended.is_none() && !matches!(context.join_timeout(Duration::ZERO), Ok(false)) {
                ended = Some(killed(&context));
            }
            std::thread::yield_now();
        }
        other.join().unwrap();
        ended.expect("the process has ended")
    });
}

fn notify(_: usize, (jobs, changed, at): Shop) -> Outcome {
    inject::arm(at, KILL);
    *jobs.lock()? += 1;
    changed.notify_all()?;
    changed.notify_one()?;
    Ok(())
}

#[test]
fn condition_wakes_waiter_despite_a_killed_notifier() {
    for_every_access(|at| {
        let args: Shop = (Lock::new(0).unwrap(), Condition::new().unwrap(), at);
        let (theirs, notified) = (args.0.clone(), args.1.clone());
        let waiter = std::thread::spawn(move || {
            let (_jobs, notified) = notified.wait_timeout(theirs.lock().unwrap(), DEADLINE)?;
            assert!(notified, "killed at access {at}");
            Ok(())
        });
        eventually("the waiter waits", || args.1.waiting() == 1);
        let killed = killed(&one_process(notify, args.clone()));
        // If the victim has notified a waiter, the waiter wakes within a poll interval. Otherwise this
        // process notifies.
        args.1.notify_one().unwrap();
        match waiter.join().unwrap() {
            Ok(()) | Err(LockError::OwnerDied { .. }) => {}
            Err(e) => panic!("{e}; killed at access {at}"),
        }
        killed
    });
}

fn pass_twice(_: usize, (barrier, at): (Barrier, u64)) -> Outcome {
    let party = barrier.enroll()?;
    inject::arm(at, KILL);
    for _ in 0..2 {
        party.wait_timeout(DEADLINE)?;
    }
    Ok(())
}

#[test]
fn barrier_reports_party_killed_at_any_access() {
    for_every_access(|at| {
        let barrier = Barrier::new(2).unwrap();
        let context = one_process(pass_twice, (barrier.clone(), at));
        let pid = context.pids()[0];
        let mine = [0, 1].map(|_| barrier.wait_timeout(DEADLINE));
        let killed = killed(&context);
        for passed in mine {
            match passed {
                Ok(number) => assert!(number < 2),
                Err(BarrierError::MemberDied { who }) => {
                    assert!(killed && who.is_none_or(|who| who.pid == pid || who.pid == 0), "{who:?}");
                }
                Err(e) => panic!("{e}; killed at access {at}"),
            }
        }
        barrier.reset().unwrap();
        let copy = barrier.clone();
        let other = std::thread::spawn(move || copy.wait_timeout(DEADLINE));
        barrier.wait_timeout(DEADLINE).expect("the barrier was reset");
        other.join().unwrap().unwrap();
        killed
    });
}

fn reset(_: usize, (barrier, at): (Barrier, u64)) -> Outcome {
    inject::arm(at, KILL);
    barrier.abort()?;
    barrier.reset()?;
    let party = barrier.enroll()?;
    drop(party);
    barrier.wait()?;
    Ok(())
}

#[test]
fn barrier_is_usable_after_a_kill_during_reset() {
    for_every_access(|at| {
        let barrier = Barrier::new(1).unwrap();
        let killed = killed(&one_process(reset, (barrier.clone(), at)));
        barrier.reset().unwrap();
        assert_eq!(barrier.wait_timeout(DEADLINE).expect("the barrier is not broken"), 0);
        drop(barrier.enroll().expect("the dead party's place is free"));
        killed
    });
}

fn run_once(_: usize, (once, times, at): (Once, RawValue<u64>, u64)) -> Outcome {
    inject::arm(at, KILL);
    once.call_once(|_| times.set(times.get() + 1))?;
    once.call_once(|_| times.set(times.get() + 1))?;
    // More calls, so that the script has accesses after its end.
    (0..8).for_each(|_| _ = once.is_completed());
    Ok(())
}

#[test]
fn once_completes_after_a_caller_killed_anywhere() {
    for_every_access(|at| {
        let (once, times) = (Once::new().unwrap(), RawValue::new(0).unwrap());
        let args = (once.clone(), times.clone(), at);
        let killed = killed(&one_process(run_once, args));
        let done = once.is_completed();
        once.call_once_timeout(DEADLINE, |_| times.set(times.get() + 1)).expect("no process is doing it");
        assert!(once.is_completed() && times.get() >= 1 && (!done || times.get() == 1));
        killed
    });
}

fn stop_in_all(_: usize, (semaphore, event, barrier, at): (Semaphore, Event, Barrier, u64)) -> Outcome {
    inject::arm(at, STOP);
    let permit = semaphore.acquire_timeout(DEADLINE)?;
    event.set()?;
    drop(permit);
    event.clear()?;
    barrier.wait_timeout(DEADLINE)?;
    Ok(())
}

#[test]
fn sync_user_stopped_at_any_access_delays_no_other() {
    for_every_access(|at| {
        let args = (Semaphore::new(2).unwrap(), Event::new().unwrap(), Barrier::new(1).unwrap(), at);
        let context = one_process(stop_in_all, args.clone());
        let (pid, ended) = (context.pids()[0], !stopped(&context));
        // All of these calls succeed while the process is stopped. The stopped process keeps its permit.
        let permit = args.0.acquire_timeout(DEADLINE).expect("there is another permit");
        assert!(args.0.available() <= 1);
        args.1.set().unwrap();
        assert!(args.1.wait_timeout(DEADLINE).unwrap());
        args.2.wait_timeout(DEADLINE).expect("one party is enough");
        drop(permit);
        if !ended {
            signal(pid, Signal::CONT);
            assert!(!killed(&context));
        }
        assert_eq!(args.0.available(), 2);
        !ended
    });
}
