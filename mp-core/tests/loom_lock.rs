//! The lock under loom: every interleaving that the memory model allows.
//!
//! `RUSTFLAGS="--cfg mp_loom" cargo test --release -p mp-core --test loom_lock`
#![cfg(mp_loom)]

use loom::sync::Arc;
use loom::thread;
use mp_core::mem::HeapMem;
use mp_core::mem::{Mem, Word, run};
use mp_core::steps::lock::{
    AcquireLock, DeadHolder, LockAt, LockAttempt, LockWord, OsThread, ReleaseLock, SetParked,
};
use mp_core::words::Member;

const LOCK: LockAt = LockAt(Word::at(0));
const DATA: Word = Word::at(24);
const DEAD: Word = Word::at(32);

fn acquire(m: &HeapMem, me: u32, dead: Option<DeadHolder>) -> LockAttempt {
    let who = OsThread { pid: me + 1, tid: me + 1 };
    run(AcquireLock::new(LOCK, Member::new(me, 1), who, false, dead), m)
}

fn locked(m: &HeapMem, me: u32) {
    while let LockAttempt::Held(_) = acquire(m, me, None) {
        thread::yield_now();
    }
}

/// A holder's writes are visible to the next holder.
#[test]
fn loom_lock_orders_writes_of_holders() {
    loom::model(|| {
        let m = Arc::new(HeapMem::new(8));
        let add = |m: &HeapMem, me: u32| {
            locked(m, me);
            m.store_relaxed(DATA, m.load_relaxed(DATA) + 1);
            run(ReleaseLock::new(LOCK, false), m);
        };
        let other = {
            let m = Arc::clone(&m);
            thread::spawn(move || add(&m, 1))
        };
        add(&m, 0);
        other.join().unwrap();
        assert_eq!(m.load(DATA), 2);
    });
}

/// If two processes adopt a lock from the same dead holder, one of them succeeds, and reads the dead holder's
/// writes.
#[test]
fn loom_lock_is_adopted_once() {
    loom::model(|| {
        let m = Arc::new(HeapMem::new(8));
        let LockAttempt::Acquired(held) = acquire(&m, 0, None) else { panic!("the lock is free") };
        let adopt = move |m: &HeapMem, me: u32| {
            // The death is published with release, and read with acquire.
            while m.load(DEAD) == 0 {
                thread::yield_now();
            }
            let dead = DeadHolder { word: held, pid: 0 };
            let LockAttempt::Acquired(word) = acquire(m, me, Some(dead)) else { return false };
            assert!(word.is_poisoned());
            assert_eq!(m.load_relaxed(DATA), 5);
            true
        };
        let other = {
            let m = Arc::clone(&m);
            thread::spawn(move || adopt(&m, 1))
        };
        m.store_relaxed(DATA, 5);
        m.store(DEAD, 1);
        let mine = adopt(&m, 2);
        let theirs = other.join().unwrap();
        assert!(mine != theirs, "adopted by {}", if mine { "both" } else { "neither" });
    });
}

/// A waiter that has checked the lock just before a release, and then falls asleep, is woken by the release.
#[test]
fn loom_lock_release_wakes_a_late_sleeper() {
    loom::model(|| {
        let m = Arc::new(HeapMem::new(8));
        assert!(matches!(acquire(&m, 0, None), LockAttempt::Acquired(_)));
        let holder = {
            let m = Arc::clone(&m);
            thread::spawn(move || run(ReleaseLock::new(LOCK, false), &*m))
        };
        let parked = match acquire(&m, 1, None) {
            LockAttempt::Acquired(_) => None,
            LockAttempt::Held(word) => run(SetParked::new(LOCK, word), &*m),
        };
        // Like FUTEX_WAIT, which sleeps only if the word has the expected value.
        let sleeps = parked.is_some_and(|LockWord(word)| m.load(LOCK.word()) as u32 == word as u32);
        let woken = holder.join().unwrap();
        assert!(!sleeps || woken, "a lost wake-up");
    });
}
