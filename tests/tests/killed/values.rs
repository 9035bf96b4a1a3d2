//! Processes that are killed, or stopped, at their n-th access to shared memory while they lock, change and
//! unlock, for every n of a script.
//!
//! After each death, the lock is available at once, an unfinished change is reported, a list has at most one
//! torn slot, and no resources of the dead process are left.

use std::time::Duration;

use mp::list::{ListError, ListItem};
use mp::sync::RawValue;
use mp::sync::bytemuck::{Pod, Zeroable};
use mp::{Array, Lock, LockError, ShareableList};
use mp_core::inject;
use mp_tests::kill::{KILL, MOST, STOP, for_every_access, killed, stopped};
use mp_tests::{DEADLINE, Outcome, alone, one_process, signal};

#[derive(Clone, Copy, PartialEq, Debug, Pod, Zeroable)]
#[bytemuck(crate = "mp::sync::bytemuck")]
#[repr(C)]
struct Pair {
    a: u64,
    b: u64,
}

type Locked = (Lock<Pair>, ShareableList, RawValue<u64>, u64);

/// Increments both halves of a pair under its lock, with accesses to shared memory in between. The process is
/// killed at the access `at`, unless `at` is `u64::MAX`.
fn change_pair(_: usize, (pair, between, done, at): Locked) -> Outcome {
    if at != u64::MAX {
        inject::arm(at, KILL);
    }
    for _ in 0..3 {
        let mut pair = pair.lock()?;
        pair.a += 1;
        between.get(0)?;
        pair.b += 1;
        between.get(0)?;
        drop(pair);
        done.set(done.get() + 1);
    }
    Ok(())
}

/// Checks the value that the victim was changing.
fn check_pair(pair: &Lock<Pair>, done: u64, at: u64) {
    match pair.lock_timeout(DEADLINE) {
        Ok(pair) => assert_eq!(pair.a, pair.b, "torn, and not reported; killed at access {at}"),
        Err(LockError::OwnerDied { .. }) => {}
        Err(e) => panic!("{e}; killed at access {at}"),
    }
    let mut pair = pair.recover().unwrap();
    assert!(pair.a == pair.b || pair.died().is_some() && pair.a == pair.b + 1, "killed at access {at}");
    assert!((done..=done + 1).contains(&pair.a), "{done} were done, {} happened", pair.a);
    pair.b = pair.a;
}

#[test]
fn lock_recovers_after_holder_killed_at_any_access() {
    for_every_access(|at| {
        let pair = Lock::new(Pair { a: 0, b: 0 }).unwrap();
        let (list, done) = (ShareableList::new([1.into()]).unwrap(), RawValue::new(0).unwrap());
        let args = (pair.clone(), list.clone(), done.clone(), at);
        let killed = killed(&one_process(change_pair, args));
        check_pair(&pair, done.get(), at);
        drop(pair.lock().expect("the lock was recovered"));
        assert_eq!(list.get(0).unwrap(), ListItem::Int(1));
        assert!(killed || done.get() == 3);
        killed
    });
}

#[test]
fn contended_lock_survives_a_kill_at_any_access() {
    for_every_access(|at| {
        let pair = Lock::new(Pair { a: 0, b: 0 }).unwrap();
        let (list, done) = (ShareableList::new([1.into()]).unwrap(), RawValue::new(0).unwrap());
        let args = (pair.clone(), list, done.clone(), at);
        let context = one_process(change_pair, args);
        // This process sleeps on the lock, wakes, and adopts the lock.
        let mut killed = None;
        while killed.is_none() {
            match pair.lock_timeout(DEADLINE) {
                Ok(pair) => assert_eq!(pair.a, pair.b),
                Err(LockError::OwnerDied { .. }) => break,
                Err(e) => panic!("{e}; killed at access {at}"),
            }
            killed = match context.join_timeout(Duration::ZERO) {
                Ok(false) => None,
                _ => Some(()),
            };
        }
        let killed = mp_tests::kill::killed(&context);
        check_pair(&pair, done.get(), at);
        killed
    });
}

/// Works like [`change_pair`], but is stopped instead of killed.
fn stop_in_pair(rank: usize, (pair, between, done, at): Locked) -> Outcome {
    inject::arm(at, STOP);
    change_pair(rank, (pair, between, done, u64::MAX))
}

#[test]
fn lock_of_a_process_stopped_anywhere_is_not_taken() {
    for_every_access(|at| {
        let pair = Lock::new(Pair { a: 0, b: 0 }).unwrap();
        let (list, done) = (ShareableList::new([1.into()]).unwrap(), RawValue::new(0).unwrap());
        let args = (pair.clone(), list, done.clone(), at);
        let context = one_process(stop_in_pair, args);
        let (pid, ended) = (context.pids()[0], !stopped(&context));
        // While the process is stopped, the value is whole or the lock unavailable. No other process takes
        // the lock from it.
        match pair.lock_timeout(Duration::from_millis(1)) {
            Ok(pair) => assert_eq!(pair.a, pair.b, "torn, stopped at access {at}"),
            Err(LockError::Held { pid: p, .. }) => assert!(p == pid && !ended, "pid {p}, not {pid}"),
            Err(e) => panic!("{e}; stopped at access {at}"),
        }
        if !ended {
            signal(pid, rustix::process::Signal::CONT);
            assert!(!killed(&context));
        }
        assert_eq!((pair.get().unwrap(), done.get()), (Pair { a: 3, b: 3 }, 3), "stopped at access {at}");
        !ended
    });
}

fn change_list(_: usize, (list, at): (ShareableList, u64)) -> Outcome {
    inject::arm(at, KILL);
    list.set(0, "after it, and longer than a word")?;
    list.set(1, 2)?;
    list.set(2, ListItem::None)?;
    Ok(())
}

#[test]
fn killed_writer_tears_at_most_one_list_slot() {
    let before: [ListItem; 3] = ["before".into(), 1.into(), 0.5.into()];
    let after: [ListItem; 3] = ["after it, and longer than a word".into(), 2.into(), ListItem::None];
    for_every_access(|at| {
        let list = ShareableList::with_room(before.clone(), 32).unwrap();
        let killed = killed(&one_process(change_list, (list.clone(), at)));
        let mut torn = 0;
        // Slots are set in order, so all old values follow the new ones.
        let mut old = false;
        for slot in 0..3 {
            match list.get(slot) {
                Ok(item) if item == before[slot] => old = true,
                Ok(item) => assert!(item == after[slot] && !old, "slot {slot} is {item}, killed at {at}"),
                Err(ListError::Torn { slot: s }) => {
                    assert!(s == slot && !old);
                    torn += 1;
                    old = true;
                    list.set(slot, after[slot].clone()).unwrap();
                    assert_eq!(list.get(slot).unwrap(), after[slot]);
                }
                Err(e) => panic!("{e}, killed at access {at}"),
            }
        }
        assert!(torn <= usize::from(killed), "{torn} torn, killed at access {at}");
        killed
    });
}

fn lock_twice(_: usize, (array, at): (Array<u64>, u64)) -> Outcome {
    inject::arm(at, KILL);
    for _ in 0..2 {
        let mut array = array.recover()?;
        let first = array[0];
        array.fill(first + 1);
    }
    Ok(())
}

/// Each process of a chain adopts the lock, and is killed at the next access. The last one finds a consistent
/// state.
#[test]
fn lock_survives_a_chain_of_killed_adopters() {
    let _alone = alone();
    let array = Array::<u64>::zeros(3).unwrap();
    let mut at = 1;
    loop {
        let context = one_process(lock_twice, (array.clone(), at));
        if !killed(&context) {
            break;
        }
        at += 1;
        assert!(at < MOST);
    }
    assert!(at > 8, "the script ended after {at} accesses");
    let array = array.recover().unwrap();
    assert!(array[0] >= 2 && array.iter().all(|v| *v == array[0]), "{array:?}");
}
