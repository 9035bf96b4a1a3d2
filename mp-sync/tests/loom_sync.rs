//! Loom models of two or three threads on the same words.
//!
//! `RUSTFLAGS="--cfg mp_loom" cargo test --release -p mp-sync --test loom_sync`
#![cfg(mp_loom)]

use loom::sync::Arc;
use loom::thread;
use mp_core::mem::HeapMem;
use mp_core::mem::{Mem, Word, run};
use mp_core::steps::lock::{AcquireLock, LockAt, LockAttempt, OsThread, ReleaseLock};
use mp_core::words::Member;
use mp_core::{Announce, NotifyAll, NotifyOne};
use mp_sync::steps::condition::{ASLEEP, NOTIFIED, NotifyOutcome, WAITING};
use mp_sync::steps::event::{EventWord, Set};
use mp_sync::steps::once::{IsDone, SetDone};
use mp_sync::steps::rwlock::{AddRead, Enter, EnterOutcome, Leave, Readers};
use mp_sync::steps::slot::{
    ClaimSlot, EMPTY, FindSlot, HELD, HolderSlot, OPEN, ObservedSlot, ReplaceSlot, Slots, set,
};

const DATA: Word = Word::at(0);
const PARKING: Word = Word::at(8);
const SLOTS: Slots = Slots { used: Word::at(16), first: Word::at(24), limit: 2 };

fn member(i: u32) -> Member {
    Member::new(i, 1)
}

fn memory() -> Arc<HeapMem> {
    Arc::new(HeapMem::new(12))
}

fn claim(m: &HeapMem, me: u32) -> Option<ObservedSlot> {
    run(ClaimSlot::new(SLOTS, OPEN, (HELD, member(me), 0), 0), m)
}

fn give_back(m: &HeapMem, seen: ObservedSlot) {
    assert!(run(ReplaceSlot::new(SLOTS.at(seen.index), seen.slot, seen.slot.vacated(OPEN)), m));
}

/// Creates a semaphore with one permit.
fn one_permit() -> Arc<HeapMem> {
    let m = memory();
    m.store(SLOTS.first, HolderSlot::unpack(0).vacated(OPEN).pack());
    m.store(SLOTS.used, 1);
    m
}

/// A thread that reads `done` as set also reads the writes of the closure, without the lock.
#[test]
fn loom_once_done_flag_publishes_the_closures_writes() {
    loom::model(|| {
        let m = memory();
        let done = Word::at(24);
        let other = {
            let m = Arc::clone(&m);
            thread::spawn(move || {
                m.store_relaxed(DATA, 7);
                run(SetDone(done), &*m);
            })
        };
        if run(IsDone(done), &*m) {
            assert_eq!(m.load_relaxed(DATA), 7);
        }
        other.join().unwrap();
        assert!(run(IsDone(done), &*m));
    });
}

/// The next holder of a permit reads what the previous holder wrote while it had the permit.
#[test]
fn loom_semaphore_permit_orders_writes_of_holders() {
    loom::model(|| {
        let m = one_permit();
        let add = |m: &HeapMem, me: u32| {
            let Some(seen) = claim(m, me) else { return 0 };
            m.store_relaxed(DATA, m.load_relaxed(DATA) + 1);
            give_back(m, seen);
            1
        };
        let other = {
            let m = Arc::clone(&m);
            thread::spawn(move || add(&m, 1))
        };
        let done = add(&m, 0) + other.join().unwrap();
        assert!(done >= 1);
        assert_eq!(m.load(DATA), done);
    });
}

/// If a thread misses the release of a permit and falls asleep, the release wakes it.
#[test]
fn loom_release_of_a_permit_wakes_a_late_sleeper() {
    loom::model(|| {
        let m = one_permit();
        let seen = claim(&m, 0).expect("the permit is free");
        let holder = {
            let m = Arc::clone(&m);
            thread::spawn(move || {
                give_back(&m, seen);
                run(NotifyOne::new(PARKING), &*m).is_some()
            })
        };
        let announced = run(Announce::new(PARKING), &*m);
        let sleeps = claim(&m, 1).is_none() && m.load(PARKING) as u32 == announced as u32;
        let woken = holder.join().unwrap();
        assert!(!sleeps || woken, "a lost wake-up");
    });
}

/// A thread that waits for an event is woken, or finds the event set and reads the writes before it.
#[test]
fn loom_event_set_during_a_wait_wakes_the_sleeper() {
    loom::model(|| {
        let (m, event) = (memory(), SLOTS.first);
        let wait = move |m: &HeapMem| {
            let before = EventWord(m.load(event));
            let announced = run(Announce::new(PARKING), m);
            let seen = EventWord(m.load(event)).was_set_since(before);
            if seen || before.is_set() {
                assert_eq!(m.load_relaxed(DATA), 5);
                return false;
            }
            m.load(PARKING) as u32 == announced as u32
        };
        let setter = {
            let m = Arc::clone(&m);
            thread::spawn(move || {
                m.store_relaxed(DATA, 5);
                run(Set::new(event), &*m);
                run(NotifyAll::new(PARKING), &*m)
            })
        };
        let sleeps = wait(&m);
        let woken = setter.join().unwrap();
        assert!(!sleeps || woken, "a lost wake-up");
    });
}

/// A reader and a writer each write one word and load the other's: at least one of them steps back. The
/// reader reads recursively, and ends one read before the other.
#[test]
fn loom_reader_and_writer_exclude_each_other() {
    loom::model(|| {
        let m = memory();
        let lock = LockAt(Word::at(40));
        let readers = Readers { slots: SLOTS, extra_reads: Word::at(64) };
        let reader = {
            let m = Arc::clone(&m);
            thread::spawn(move || match run(Enter::new(lock.word(), readers, member(0), 1), &*m) {
                EnterOutcome::Reading(seen) => {
                    let again = run(AddRead::new(readers, member(0), 1), &*m);
                    assert_eq!(again, Some(seen));
                    assert!(!run(Leave::new(readers, seen), &*m), "the reader has another read");
                    let (a, b) = (m.load_relaxed(DATA), m.load_relaxed(PARKING));
                    assert_eq!(a, b, "the data is torn");
                    assert!(run(Leave::new(readers, seen), &*m));
                    true
                }
                EnterOutcome::Blocked { .. } => false,
                EnterOutcome::Full => unreachable!(),
            })
        };
        let who = OsThread { pid: 2, tid: 2 };
        assert!(matches!(
            run(AcquireLock::new(lock, member(1), who, false, None), &*m),
            LockAttempt::Acquired(_)
        ));
        let wrote = run(FindSlot::new(SLOTS, set(&[HELD]), 0), &*m).is_none();
        if wrote {
            m.store_relaxed(DATA, 1);
            m.store_relaxed(PARKING, 1);
        }
        run(ReleaseLock::new(lock, false), &*m);
        reader.join().unwrap();
    });
}

/// A notifier notifies a thread that is falling asleep: the token arrives, and the thread is woken or does
/// not sleep.
#[test]
fn loom_thread_notified_while_falling_asleep_wakes() {
    loom::model(|| {
        let m = memory();
        let seen =
            run(ClaimSlot::new(SLOTS, EMPTY, (WAITING, member(0), 0), 0).or_grow(), &*m).expect("room");
        let notifier = {
            let m = Arc::clone(&m);
            thread::spawn(move || {
                m.store_relaxed(PARKING, 5);
                match run(mp_sync::steps::condition::Notify::new(SLOTS, DATA), &*m) {
                    NotifyOutcome::Delivered { asleep, .. } => asleep,
                    NotifyOutcome::NoWaiter => panic!("a thread waits"),
                }
            })
        };
        let asleep = seen.slot.into_state(ASLEEP);
        let sleeps = run(ReplaceSlot::new(SLOTS.at(0), seen.slot, asleep), &*m)
            && m.load(SLOTS.at(0)) as u32 == asleep.pack() as u32;
        let woken = notifier.join().unwrap();
        assert!(!sleeps || woken, "a lost wake-up");
        assert_eq!(HolderSlot::unpack(m.load(SLOTS.at(0))).state, NOTIFIED);
        assert_eq!(m.load_relaxed(PARKING), 5);
    });
}
