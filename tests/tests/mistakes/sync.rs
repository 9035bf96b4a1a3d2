//! Locks and other synchronization.

use std::time::Duration;

use mp::{Barrier, BoundedSemaphore, Condition, Lock, Semaphore};

use crate::says;

#[test]
fn relock_error_suggests_rlock() {
    let lock = Lock::new(1).unwrap();
    let _held = lock.lock().unwrap();
    says(lock.lock().map(drop).unwrap_err(), &["this thread", "RLock"]);
}

#[test]
fn held_lock_error_names_the_holder() {
    let lock = Lock::new(1).unwrap();
    let held = lock.lock().unwrap();
    let there = lock.clone();
    let error = std::thread::spawn(move || there.try_lock().map(drop).unwrap_err()).join().unwrap();
    says(error, &["locked by", "stopped, or slow"]);
    drop(held);
}

#[test]
fn over_release_error_suggests_permit() {
    let semaphore = BoundedSemaphore::new(1).unwrap();
    says(semaphore.release().unwrap_err(), &["released more often", "Permit"]);
}

#[test]
fn exhausted_permits_error_names_the_cause() {
    let semaphore = Semaphore::new(1).unwrap();
    let _permit = semaphore.acquire().unwrap();
    says(semaphore.try_acquire().map(drop).unwrap_err(), &["all permits are taken", "slow"]);
}

#[test]
fn incomplete_barrier_error_counts_parties() {
    let barrier = Barrier::new(2).unwrap();
    says(barrier.wait_timeout(Duration::from_millis(1)).unwrap_err(), &["only 1 of 2", "reset()"]);
    says(barrier.wait().unwrap_err(), &["broken", "reset()"]);
    says(Barrier::new(0).unwrap_err(), &["for 0", "1 to"]);
}

#[test]
fn condition_without_waiters_error_names_the_range() {
    says(Condition::with_waiters(0).unwrap_err(), &["for 0", "1 to"]);
}
