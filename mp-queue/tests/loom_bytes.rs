//! Loom tests of a queue with a bound of bytes. They cover executions that the memory model allows in
//! addition to those of the model `bytes` in the explorer (`tools/models`).
//!
//! `RUSTFLAGS="--cfg mp_loom" cargo test --release -p mp-queue --test loom_bytes`
#![cfg(mp_loom)]

use loom::sync::Arc;
use loom::thread;
use mp_core::mem::HeapMem;
use mp_core::mem::{Column, Mem, Word, run};
use mp_core::words::{Holder, Member, Owner};
use mp_queue::ring::{
    Get, GetOutcome, Position, PutByteBounded, PutOutcome, RingAt, Slot, SlotState, TakenMessage, Weight,
};

const LIMIT: u64 = 3;
const SLOTS: u32 = 3;
const ENVELOPES: u32 = 3;
const THREADS: u64 = 3;
const FIRST: Word = Word::at(16);
const INTENTS: Word = FIRST.plus(2 * SLOTS as u64);
/// Location of the words of the first envelope: owner, place, begin and end.
const ENVELOPE: Word = INTENTS.plus(THREADS);
const OWNER: Column = Column { base: ENVELOPE, stride: 32 };
const PLACE: Column = Column { base: ENVELOPE.plus(1), stride: 32 };
const ENDS: Column = Column { base: ENVELOPE.plus(2), stride: 32 };
const WORDS: u64 = ENVELOPE.offset() / 8 + 4 * ENVELOPES as u64;

const RING: RingAt = RingAt {
    block: 0,
    slots: SLOTS,
    before: 0,
    head: Word::at(0),
    tail: Word::at(8),
    first: FIRST,
    envelopes: ENVELOPES,
};

fn intent(thread: u32) -> Word {
    INTENTS.plus(u64::from(thread))
}
fn member(thread: u32) -> Member {
    Member::new(thread, 1)
}

fn memory() -> Arc<HeapMem> {
    let m = HeapMem::new(WORDS as usize);
    let first = Position { lap: 1, index: 0 }.pack();
    m.store(RING.head, first);
    m.store(RING.tail, first);
    for i in 0..SLOTS {
        m.store(RING.slot(i), Slot { lap: 1, state: SlotState::Empty }.pack());
    }
    Arc::new(m)
}

/// Puts the unused envelope `e` as a message of `bytes` bytes.
fn put(m: &HeapMem, me: u32, e: u32, bytes: u64) -> PutOutcome {
    let owner = Owner { holder: Holder::Member(member(me)), seq: 1 };
    m.store(OWNER.of(e), owner.pack());
    put_owned(m, me, (e, owner), bytes)
}

fn put_owned(m: &HeapMem, me: u32, (e, owner): (u32, Owner), bytes: u64) -> PutOutcome {
    let words = (e, OWNER.of(e), PLACE.of(e));
    let weight = Weight { ends: ENDS, bytes, limit: LIMIT };
    run(PutByteBounded::new(RING, intent(me), words, member(me), owner, weight), m)
}

/// Takes the oldest message. Panics if the ring is empty.
fn get(m: &HeapMem, me: u32) -> (u32, Owner) {
    match run(Get::new(RING, intent(me), OWNER, member(me)), m) {
        GetOutcome::Done(TakenMessage::Envelope(e, owner, _)) => (e, owner),
        end => panic!("{end:?}"),
    }
}

fn is_empty(m: &HeapMem, me: u32) -> bool {
    run(Get::new(RING, intent(me), OWNER, member(me)), m) == GetOutcome::Empty
}

/// Starts a thread that takes the oldest message and puts its envelope again, as a message of `bytes` bytes.
fn put_again(m: &Arc<HeapMem>, bytes: u64) -> thread::JoinHandle<PutOutcome> {
    let m = Arc::clone(m);
    thread::spawn(move || {
        let taken = get(&m, 1);
        put_owned(&m, 1, taken, bytes)
    })
}

/// Checks all executions of a model with up to three preemptions.
fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// Two threads each put a message. The bound of bytes has room for one message, so exactly one put succeeds.
#[test]
fn loom_byte_bound_admits_one_of_two_puts() {
    check(|| {
        let m = memory();
        let others = [0, 1].map(|i| {
            let m = Arc::clone(&m);
            thread::spawn(move || put(&m, i, i, 2))
        });
        let done = others.map(|t| matches!(t.join().unwrap(), PutOutcome::Done(_)));
        assert!(done[0] != done[1], "{done:?}");
        assert_eq!(get(&m, 2).0, u32::from(done[1]));
        assert!(is_empty(&m, 2));
    });
}

/// A thread puts the oldest message's envelope again, while a producer reads the envelope's words. The
/// producer may use the new begin only if it also reads that the old message was taken.
#[test]
fn loom_reused_oldest_envelope_adds_no_room_for_bytes() {
    check(|| {
        let m = memory();
        assert!(matches!(put(&m, 0, 0, 1), PutOutcome::Done(_)));
        assert!(matches!(put(&m, 0, 1, 2), PutOutcome::Done(_)));
        let other = put_again(&m, 1);
        let end = put(&m, 2, 2, 2);
        assert!(matches!(end, PutOutcome::Full(_)), "{} bytes in the queue: {end:?}", LIMIT + 1);
        other.join().unwrap();
    });
}

/// A thread puts the newest message's envelope again, while a producer reads the envelope's words. There is
/// always room, so the put of the producer succeeds.
#[test]
fn loom_reused_newest_envelope_uses_no_room_for_bytes() {
    check(|| {
        let m = memory();
        // The bytes of envelope 0 end at 3. When it is put again, they end at 1.
        assert!(matches!(put(&m, 0, 1, 2), PutOutcome::Done(_)));
        assert!(matches!(put(&m, 0, 0, 1), PutOutcome::Done(_)));
        get(&m, 0);
        let other = put_again(&m, 1);
        let end = put(&m, 2, 2, 1);
        assert!(matches!(end, PutOutcome::Done(_)), "two bytes at most were in the queue: {end:?}");
        assert!(matches!(other.join().unwrap(), PutOutcome::Done(_)));
    });
}

/// A producer has read the words of the newest message. Meanwhile, another thread takes that message and
/// publishes at the producer's position and at the next one. The words don't apply to these positions. There
/// is always room, so the put of the producer succeeds.
#[test]
fn loom_byte_bound_put_rechecks_republished_position() {
    check(|| {
        let m = memory();
        // The bytes of the one message in the queue end at 3.
        assert!(matches!(put(&m, 0, 0, 2), PutOutcome::Done(_)));
        assert!(matches!(put(&m, 0, 1, 1), PutOutcome::Done(_)));
        let unused = get(&m, 0);
        let other = {
            let m = Arc::clone(&m);
            thread::spawn(move || {
                for _ in 0..2 {
                    let taken = get(&m, 1);
                    assert!(matches!(put_owned(&m, 1, taken, 1), PutOutcome::Done(_)));
                }
            })
        };
        let end = put_owned(&m, 0, unused, 2);
        assert!(matches!(end, PutOutcome::Done(_)), "one byte at most was in the queue: {end:?}");
        other.join().unwrap();
    });
}
