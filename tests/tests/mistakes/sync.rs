//! Locks and other synchronization.

use std::time::Duration;

use mp::{Barrier, BoundedSemaphore, Condition, Lock, Semaphore};

use crate::says;

#[test]
fn a_lock_that_its_thread_has_already() {
    let lock = Lock::new(1).unwrap();
    let _held = lock.lock().unwrap();
    says(lock.lock().map(drop).unwrap_err(), &["this thread", "RLock"]);
}

#[test]
fn a_lock_is_not_waited_for() {
    let lock = Lock::new(1).unwrap();
    let held = lock.lock().unwrap();
    let there = lock.clone();
    let error = std::thread::spawn(move || there.try_lock().map(drop).unwrap_err()).join().unwrap();
    says(error, &["locked by", "stopped, or slow"]);
    drop(held);
}

#[test]
fn a_permit_is_given_back_twice() {
    let semaphore = BoundedSemaphore::new(1).unwrap();
    says(semaphore.release().unwrap_err(), &["released more often", "Permit"]);
}

#[test]
fn all_permits_are_taken() {
    let semaphore = Semaphore::new(1).unwrap();
    let _permit = semaphore.acquire().unwrap();
    says(semaphore.try_acquire().map(drop).unwrap_err(), &["all permits are taken", "slow"]);
}

#[test]
fn a_barrier_for_more_than_come() {
    let barrier = Barrier::new(2).unwrap();
    says(barrier.wait_timeout(Duration::from_millis(1)).unwrap_err(), &["only 1 of 2", "reset()"]);
    says(barrier.wait().unwrap_err(), &["broken", "reset()"]);
    says(Barrier::new(0).unwrap_err(), &["for 0", "1 to"]);
}

#[test]
fn a_condition_for_no_waiter() {
    says(Condition::with_waiters(0).unwrap_err(), &["for 0", "1 to"]);
}
