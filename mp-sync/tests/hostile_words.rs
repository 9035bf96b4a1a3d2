//! Single operations on hand-written words: hostile values, and results that callers rely on.
#![cfg(not(mp_loom))]

use mp_core::mem::HeapMem;
use mp_core::mem::{Mem, Steps, Word, run};
use mp_core::steps::lock::LockWord;
use mp_core::words::Member;

use mp_sync::steps::barrier::{Arrive, ArriveOutcome, BarrierAt, Phase};
use mp_sync::steps::rlock::{AddLevel, AddLevelOutcome, Depth};
use mp_sync::steps::rwlock::{AddRead, ClaimReader, Enter, EnterOutcome, Readers};
use mp_sync::steps::slot::{EMPTY, HELD, HolderSlot, Slots};

const WORD: Word = Word::at(0);
const SLOTS: Slots = Slots { used: Word::at(8), first: Word::at(16), limit: 4 };
const READERS: Readers = Readers { slots: SLOTS, extra_reads: Word::at(48) };

fn me() -> Member {
    Member::new(1, 1)
}

/// Returns `true` if any reader has a slot.
fn are_reading(m: &HeapMem) -> bool {
    (0..4).any(|i| HolderSlot::unpack(m.load(SLOTS.at(i))).state == HELD)
}

#[test]
fn rlock_depth_overflow_is_refused() {
    let m = HeapMem::new(16);
    for (levels, end, now) in
        [(1, AddLevelOutcome::Added, 2), (u32::MAX.into(), AddLevelOutcome::Overflow, u32::MAX.into())]
    {
        m.store(WORD, Depth::new(levels, true).0);
        assert_eq!(run(AddLevel::new(WORD), &m), end);
        let depth = Depth(m.load(WORD));
        assert_eq!((depth.levels(), depth.is_recovering()), (now, true));
    }
}

/// The count in a slot belongs to one thread.
#[test]
fn recursive_rwlock_read_uses_the_threads_own_slot() {
    let m = HeapMem::new(16);
    let seen = run(ClaimReader::new(READERS, me(), 7), &m).unwrap();
    assert_eq!(run(AddRead::new(READERS, me(), 8), &m), None);
    assert_eq!(run(AddRead::new(READERS, Member::new(2, 1), 7), &m), None);
    assert_eq!(run(AddRead::new(READERS, me(), 7), &m), Some(seen));
}

/// A writer acquired the lock between the reader's load of the lock and its claim of a slot. The writer may
/// have found the slot taken, and sleep.
#[test]
fn rwlock_reader_reports_stepping_back_for_a_writer() {
    let m = HeapMem::new(16);
    let mut enter = Enter::new(WORD, READERS, me(), 7);
    while !are_reading(&m) {
        assert_eq!(enter.step(&m), None);
    }
    let by = LockWord::held(Member::new(2, 1), 1);
    m.store(WORD, by.0);
    assert_eq!(run(enter, &m), EnterOutcome::Blocked { by, stepped_back: true });
    assert!(!are_reading(&m));
}

/// The holder died while it wrote, and its lock is free: the data may be torn until a caller recovers it.
#[test]
fn poisoned_rwlock_blocks_new_readers() {
    const MARKED: LockWord = LockWord(4);
    assert!(MARKED.is_poisoned() && MARKED.holder().is_none());
    let m = HeapMem::new(16);
    m.store(WORD, MARKED.0);
    let end = run(Enter::new(WORD, READERS, me(), 7), &m);
    assert_eq!(end, EnterOutcome::Blocked { by: MARKED, stepped_back: false });
    m.store(WORD, EMPTY.into());
    assert!(matches!(run(Enter::new(WORD, READERS, me(), 7), &m), EnterOutcome::Reading(_)));
}

/// The last party died before it ended the phase: the next arrival ends it, and has to wake the waiters.
#[test]
fn barrier_arrival_ends_phase_of_a_dead_last_party() {
    let m = HeapMem::new(16);
    let at = BarrierAt { phase: WORD, arrivals: Word::at(8), parties: 2 };
    for (i, party) in [(0, 2), (1, 3)] {
        let end = run(Arrive::new(at, Member::new(party, 1)), &m);
        assert!(matches!(end, ArriveOutcome::Arrived { index, helped: false, .. } if index == i), "{end:?}");
    }
    let end = run(Arrive::new(at, me()), &m);
    assert!(matches!(end, ArriveOutcome::Arrived { index: 0, helped: true, .. }), "{end:?}");
    assert_eq!(Phase::unpack(m.load(WORD)).trips, 1);
}
