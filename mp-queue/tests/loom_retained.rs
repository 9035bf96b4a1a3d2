//! Loom tests of rings with retained messages (`watch`, `broadcast`): effects of their fences.
//!
//! `RUSTFLAGS="--cfg mp_loom" cargo test --release -p mp-queue --test loom_retained`
//!
//! | fence | effect if it is missing | test that detects it |
//! |---|---|---|
//! | of a reader, between writing its pin and its second read of the slot | the message is dropped while it is read | `loom_pinned_message_is_not_dropped` |
//! | of a collector, between the swap to `LAST` and its read of the pins | the message is dropped while it is read | `loom_pinned_message_is_not_dropped` |
//! | of a reader, between clearing its pin and its read of the slot | neither reader nor sender collects the retired message | `loom_unpinned_message_is_collected_once` |
#![cfg(mp_loom)]

use loom::sync::Arc;
use loom::thread;
use mp_core::mem::{Column, HeapMem, Mem, Word, run};
use mp_core::words::{Holder, Member, Owner};
use mp_queue::ring::{
    Collect, CollectOutcome, Pin, PinOutcome, Pins, Position, Put, PutOutcome, RetainedAt, Retire, RingAt,
    Slot, SlotState, Unpin,
};

const OWNER: Column = Column { base: Word::at(48), stride: 24 };
const PLACE: Column = Column { base: Word::at(56), stride: 24 };
const PAYLOAD: Word = Word::at(64);
const PINS: Pins = Pins { used: Word::at(72), first: Word::at(80), count: 1 };
const WORDS: usize = 11;
const RING: RingAt = RingAt {
    block: 0,
    slots: 1,
    before: 0,
    head: Word::at(0),
    tail: Word::at(8),
    first: Word::at(16),
    envelopes: 1,
};
const AT: RetainedAt = RetainedAt { ring: RING, pins: PINS, skips: Word::at(88), keep: 0 };
const FIRST: Position = Position { lap: 1, index: 0 };
/// Payload of the message. A dropped message has the payload `DROPPED`.
const WHOLE: u64 = 100;
const DROPPED: u64 = 7;

fn intent(i: u32) -> Word {
    Word::at(32 + 8 * u64::from(i))
}

fn member(i: u32) -> Member {
    Member::new(i, 1)
}

/// Returns a ring with one message.
fn memory() -> Arc<HeapMem> {
    let m = HeapMem::new(WORDS);
    m.store(RING.head, FIRST.pack());
    m.store(RING.tail, FIRST.pack());
    m.store(RING.slot(0), Slot { lap: 1, state: SlotState::Empty }.pack());
    let owner = Owner { holder: Holder::Member(member(0)), seq: 1 };
    m.store(OWNER.of(0), owner.pack());
    m.store_relaxed(PAYLOAD, WHOLE);
    let put = run(Put::new(RING, intent(0), (0, OWNER.of(0), PLACE.of(0)), member(0), owner), &m);
    assert!(matches!(put, PutOutcome::Done(_)));
    Arc::new(m)
}

/// Collects the message and drops it. Returns `false` if the message is pinned or was collected before.
fn collect(m: &HeapMem, me: u32) -> bool {
    match run(Collect::new(RING, PINS, intent(me), OWNER, member(me), 0), m) {
        CollectOutcome::Taken(..) => {
            m.store_relaxed(PAYLOAD, DROPPED);
            true
        }
        CollectOutcome::Pinned(..) | CollectOutcome::Nothing => false,
    }
}

/// Retires and collects the message, as a sender does that has published a newer message. Returns `true` if
/// the message was collected.
fn retire(m: &HeapMem, me: u32) -> bool {
    assert_eq!(run(Retire::new(AT, FIRST), m), Some(0), "the message is the oldest");
    collect(m, me)
}

/// Reads the message in the slot `seen`, as a reader does. Returns `true` if the reader has collected the
/// message.
fn read(m: &HeapMem, me: u32, seen: Slot) -> bool {
    let pin = match run(Pin::new(RING, PINS, member(me), 0, seen), m) {
        PinOutcome::Pinned(pin) => {
            assert_eq!(m.load_relaxed(PAYLOAD), WHOLE, "dropped while it is read");
            pin
        }
        PinOutcome::Changed(pin) => pin,
        PinOutcome::Exhausted => panic!("no other reader pins"),
    };
    run(Unpin::new(RING, PINS, member(me), pin, 0), m) && collect(m, me)
}

fn seen(m: &HeapMem) -> Slot {
    Slot::unpack(m.load(RING.slot(0)))
}

/// A reader pins and reads a message that a sender retires and collects.
#[test]
fn loom_pinned_message_is_not_dropped() {
    loom::model(|| {
        let m = memory();
        let first = seen(&m);
        let sender = {
            let m = Arc::clone(&m);
            thread::spawn(move || retire(&m, 1))
        };
        let read = read(&m, 0, first);
        let collected = sender.join().unwrap();
        assert!(!(read && collected), "dropped twice");
    });
}

/// A reader clears its pin while a sender retires the message: exactly one of them collects it.
#[test]
fn loom_unpinned_message_is_collected_once() {
    loom::model(|| {
        let m = memory();
        let pinned = run(Pin::new(RING, PINS, member(0), 0, seen(&m)), &*m);
        assert_eq!(pinned, PinOutcome::Pinned(0));
        let sender = {
            let m = Arc::clone(&m);
            thread::spawn(move || retire(&m, 1))
        };
        let read = run(Unpin::new(RING, PINS, member(0), 0, 0), &*m) && collect(&m, 0);
        let collected = sender.join().unwrap();
        assert!(read != collected, "{}", if read { "dropped twice" } else { "retired, and never dropped" });
    });
}
