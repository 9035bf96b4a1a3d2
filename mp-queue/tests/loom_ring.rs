//! Loom tests of the ring: every interleaving that the memory model allows, for two or three threads.
//!
//! `RUSTFLAGS="--cfg mp_loom" cargo test --release -p mp-queue --test loom_ring`
#![cfg(mp_loom)]

use loom::sync::Arc;
use loom::thread;
use mp_core::mem::HeapMem;
use mp_core::mem::{Column, Mem, Word, run};
use mp_core::steps::{BlockAt, EnvelopesAt, ReleaseOutcome, ReleaseSeat, UnclaimBlock};
use mp_core::words::{BlockId, BlockKind, BlockLife, BlockState, GroupState, Holder, Member, Owner, Seat};
use mp_queue::ring::{
    Advance, Close, Extend, Get, GetOutcome, IntentContext, Link, NoteReturned, Position, Put, PutOutcome,
    PutSmall, Reclaim, Return, ReturnWords, RingAt, Settle, SettleOutcome, Slot, SlotState, SmallMessage,
    TakenMessage,
};

const OWNER: Column = Column { base: Word::at(80), stride: 24 };
const PLACE: Column = Column { base: Word::at(88), stride: 24 };
const PAYLOAD: Column = Column { base: Word::at(96), stride: 24 };
/// Location of the token of one side of a channel, with one seat.
const TOKEN: BlockAt = BlockAt { id: 1, state: Word::at(152), inline: 1, per_page: 1 };
const GROUPS: Column = Column { base: Word::at(176), stride: 8 };
/// Words for returned messages. Models without leases use the same words for other purposes. The payload
/// words serve as meta words.
const RETURNS: ReturnWords = ReturnWords { returned: Word::at(24), limit: 0 };
const COUNT: Word = Word::at(64);
const WORDS: usize = 10 + 3 * 3 + 3 + 1;

fn intent(i: u32) -> Word {
    Word::at(48 + 8 * u64::from(i))
}
fn member(i: u32) -> Member {
    Member::new(i, 1)
}
fn ring(slots: u32) -> RingAt {
    RingAt {
        block: 0,
        slots,
        before: 0,
        head: Word::at(0),
        tail: Word::at(8),
        first: Word::at(16),
        envelopes: 3,
    }
}
struct TestContext;
impl IntentContext for TestContext {
    fn intents(&self) -> Vec<Word> {
        vec![intent(1), intent(2)]
    }
    fn slot(&self, _: BlockId, slot: u32) -> Option<Word> {
        Some(ring(1).slot(slot))
    }
    fn exists(&self, _: u32) -> bool {
        true
    }
    fn holds(&self, _: BlockId) -> bool {
        true
    }
    fn redelivers(&self, _: BlockId) -> bool {
        false
    }
    fn dead(&self) -> Member {
        member(0)
    }
}

fn memory(slots: u32) -> Arc<HeapMem> {
    let m = HeapMem::new(WORDS);
    let first = Position { lap: 1, index: 0 }.pack();
    m.store(ring(slots).head, first);
    m.store(ring(slots).tail, first);
    for i in 0..slots {
        m.store(ring(slots).slot(i), Slot { lap: 1, state: SlotState::Empty }.pack());
    }
    Arc::new(m)
}

/// Tries once to put envelope `e`. Its payload is derived from its number.
fn put(m: &HeapMem, slots: u32, me: u32, e: u32) -> PutOutcome {
    let owner = Owner { holder: Holder::Member(member(me)), seq: 1 };
    m.store(OWNER.of(e), owner.pack());
    m.store_relaxed(PAYLOAD.of(e), u64::from(e) + 100);
    run(Put::new(ring(slots), intent(me), (e, OWNER.of(e), PLACE.of(e)), member(me), owner), m)
}

/// Starts a thread that runs `f` with the same memory.
fn spawn<R: 'static>(m: &Arc<HeapMem>, f: impl FnOnce(&HeapMem) -> R + 'static) -> thread::JoinHandle<R> {
    let m = Arc::clone(m);
    thread::spawn(move || f(&m))
}

/// Checks every interleaving with up to three preemptions.
fn check_bounded(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// Puts envelope `e`. Panics if the ring has no room.
fn put_ok(m: &HeapMem, slots: u32, me: u32, e: u32) {
    assert!(matches!(put(m, slots, me, e), PutOutcome::Done(_)));
}

/// Takes a message and returns its payload. Waits until there is a message, and returns `None` if the ring is
/// closed.
fn get(m: &HeapMem, slots: u32, me: u32) -> Option<u64> {
    loop {
        match run(Get::new(ring(slots), intent(me), OWNER, member(me)), m) {
            GetOutcome::Done(TakenMessage::Envelope(e, owner, _)) => {
                assert_eq!(owner.holder, Holder::Member(member(me)));
                let payload = m.load_relaxed(PAYLOAD.of(e));
                assert_eq!(payload, u64::from(e) + 100, "torn, or not yet visible");
                return Some(payload);
            }
            GetOutcome::Done(TakenMessage::Small(small, _)) => {
                return Some(u64::from_le_bytes(small.bytes().as_slice()[..8].try_into().unwrap()));
            }
            GetOutcome::Done(TakenMessage::Stray(e)) => panic!("message {e} is not in the ring"),
            GetOutcome::Closed => return None,
            GetOutcome::Empty => thread::yield_now(),
        }
    }
}

/// Makes member 0 the leaseholder of envelope 0. Returns the steps that give the lease back.
fn lease(m: &HeapMem) -> Return {
    m.store(COUNT, 1);
    m.store(GROUPS.of(0), GroupState::InUse.pack());
    let leased = Owner { holder: Holder::Leased(member(0)), seq: 5 };
    m.store(OWNER.of(0), leased.pack());
    Return::new(RETURNS, OWNER.of(0), PAYLOAD.of(0), leased)
}

/// Leases a returned message for `me`. Returns `None` if there is none.
fn reclaim(m: &HeapMem, me: u32) -> Option<(u32, Owner)> {
    let all = EnvelopesAt { count: COUNT, groups: GROUPS, owners: OWNER, places: PLACE };
    run(Reclaim::new(RETURNS, ring(1), all, (Holder::Returned, Holder::Leased(member(me)))), m)
}

/// A consumer takes two small messages while a producer puts them. Each message arrives complete and once.
#[test]
fn loom_concurrent_small_messages_arrive_once() {
    loom::model(|| {
        let m = memory(1);
        let numbers = |n: u64| SmallMessage::new(&[n as u8 + 1; SmallMessage::MOST]).unwrap();
        let producer = spawn(&m, move |m| {
            for n in 0..2 {
                while run(PutSmall::new(ring(1), numbers(n)), m) == PutOutcome::Full(()) {
                    thread::yield_now();
                }
            }
        });
        for n in 0..2 {
            assert_eq!(get(&m, 1, 1), Some(u64::from_le_bytes([n + 1; 8])), "torn, or twice");
        }
        producer.join().unwrap();
    });
}

/// A ring has a small message and an envelope. Two threads take the messages, and each thread gets one of
/// them.
#[test]
fn loom_small_messages_and_envelopes_arrive_once() {
    loom::model(|| {
        let m = memory(2);
        let small = SmallMessage::new(&[7; SmallMessage::MOST]).unwrap();
        assert!(matches!(run(PutSmall::new(ring(2), small), &*m), PutOutcome::Done(_)));
        put_ok(&m, 2, 0, 0);
        let other = spawn(&m, move |m| get(m, 2, 1));
        let mut got = [get(&m, 2, 2), other.join().unwrap()];
        got.sort_unstable();
        assert_eq!(got, [Some(100), Some(u64::from_le_bytes([7; 8]))]);
    });
}

#[test]
fn loom_get_receives_a_concurrent_put() {
    loom::model(|| {
        let m = memory(1);
        let producer = spawn(&m, move |m| put(m, 1, 0, 0));
        assert_eq!(get(&m, 1, 1), Some(100));
        assert!(matches!(producer.join().unwrap(), PutOutcome::Done(_)));
    });
}

#[test]
fn loom_two_producers_put_once_each() {
    check_bounded(|| {
        let m = memory(2);
        let producers: Vec<_> = (0..2).map(|i| spawn(&m, move |m| put(m, 2, i, i))).collect();
        let mut got = [get(&m, 2, 2).unwrap(), get(&m, 2, 2).unwrap()];
        got.sort_unstable();
        assert_eq!(got, [100, 101]);
        for p in producers {
            assert!(matches!(p.join().unwrap(), PutOutcome::Done(_)));
        }
    });
}

#[test]
fn loom_two_consumers_take_once_each() {
    check_bounded(|| {
        let m = memory(2);
        put_ok(&m, 2, 0, 0);
        put_ok(&m, 2, 0, 1);
        let other = spawn(&m, move |m| get(m, 2, 1).unwrap());
        let mut got = [get(&m, 2, 2).unwrap(), other.join().unwrap()];
        got.sort_unstable();
        assert_eq!(got, [100, 101], "one twice, or one lost");
    });
}

#[test]
fn loom_put_racing_a_close_is_received_or_refused() {
    check_bounded(|| {
        let m = memory(1);
        let producer = spawn(&m, move |m| put(m, 1, 0, 0));
        let closer = spawn(&m, move |m| run(Close::new(ring(1)), m));
        let got = get(&m, 1, 2);
        if got.is_some() {
            assert_eq!(get(&m, 1, 2), None);
        }
        assert!(closer.join().unwrap());
        match producer.join().unwrap() {
            PutOutcome::Done(_) => assert_eq!(got, Some(100), "published, but lost"),
            PutOutcome::Closed(_) => assert_eq!(got, None),
            PutOutcome::Full(_) => panic!("the ring was empty"),
        }
    });
}

/// A consumer takes a message while a recovery settles the intent of its dead producer: exactly one of them
/// gets the envelope.
#[test]
fn loom_settled_envelope_has_one_owner() {
    loom::model(|| {
        let m = memory(1);
        // The producer published, and died before it cleared its intent.
        put_ok(&m, 1, 0, 0);
        m.store(intent(0), 1);
        let consumer = spawn(&m, move |m| get(m, 1, 1));
        let steps = Settle::new(intent(0), (OWNER, PLACE), TestContext);
        let settled = run(steps, &*m);
        assert!(!matches!(settled, SettleOutcome::Owned(_)), "took the envelope of a live consumer");
        assert_eq!(consumer.join().unwrap(), Some(100));
    });
}

/// A living producer puts the envelope that the stale intent of a dead member names. The recovery must read
/// the producer's intent or the changed slot, and must not take the envelope over. So a recovery that reads
/// the owner `QUEUED` must also read the producer's earlier writes: its intent and the place.
#[test]
fn loom_stale_intent_takes_no_envelope_of_a_put() {
    loom::model(|| {
        let m = memory(1);
        m.store(intent(0), 1);
        let producer = spawn(&m, move |m| put(m, 1, 1, 0));
        let settled = run(Settle::new(intent(0), (OWNER, PLACE), TestContext), &*m);
        assert!(!matches!(settled, SettleOutcome::Owned(_)), "took the envelope of a live producer");
        assert!(matches!(producer.join().unwrap(), PutOutcome::Done(_)));
        assert_eq!(get(&m, 1, 2), Some(100));
    });
}

/// Two producers find the segment full and open the next segment. Both find the link open, and the first
/// message can still be taken.
#[test]
fn loom_full_queue_segment_is_extended_once() {
    loom::model(|| {
        let m = memory(1);
        let link = Word::at(24);
        put_ok(&m, 1, 0, 0);
        let others: Vec<_> = (0..2).map(|_| spawn(&m, move |m| run(Extend::new(ring(1), link), m))).collect();
        for other in others {
            assert_eq!(other.join().unwrap(), Link::Open);
        }
        assert_eq!(get(&m, 1, 2), Some(100));
        assert_eq!(get(&m, 1, 2), None);
    });
}

/// A lease is given back while another consumer scans for returned messages. Either the scan finds the
/// message, or the hint reports it.
#[test]
fn loom_returned_message_is_reclaimed_once() {
    loom::model(|| {
        let m = memory(1);
        let give_back = lease(&m);
        let giver = spawn(&m, move |m| run(give_back, m));
        let first = reclaim(&m, 1);
        assert_eq!(giver.join().unwrap(), Some(Holder::Returned));
        let second = reclaim(&m, 1);
        assert!(first.is_some() != second.is_some(), "found {first:?} and {second:?}");
    });
}

/// A lease is given back while two consumers scan because of an earlier note. A scan that finds no message
/// must not hide a message that the other scan has missed.
#[test]
fn loom_empty_scan_hides_no_returned_message() {
    check_bounded(|| {
        let m = memory(1);
        run(NoteReturned::new(RETURNS), &*m);
        let give_back = lease(&m);
        let give = move |m: &HeapMem| {
            run(give_back, m);
            None
        };
        let others = [spawn(&m, give), spawn(&m, move |m| reclaim(m, 1))];
        let mine = reclaim(&m, 2);
        let theirs = others.map(|t| t.join().unwrap());
        let found = [mine, theirs[1], reclaim(&m, 2)];
        assert_eq!(found.iter().flatten().count(), 1, "{found:?}");
    });
}

/// Two messages are put as a batch while another thread takes them in order, the second one as part of a
/// batch.
#[test]
fn loom_batch_of_messages_arrives_in_order() {
    check_bounded(|| {
        let m = memory(2);
        let producer = spawn(&m, move |m| {
            let mut run_of = None;
            for e in 0..2 {
                let owner = Owner { holder: Holder::Member(member(0)), seq: 1 };
                m.store(OWNER.of(e), owner.pack());
                m.store_relaxed(PAYLOAD.of(e), u64::from(e) + 100);
                let words = (e, OWNER.of(e), PLACE.of(e));
                let last = run_of.map(|(_, last)| last);
                let put = Put::new(ring(2), intent(0), words, member(0), owner).batched(last);
                let PutOutcome::Done(position) = run(put, m) else { panic!("there is room") };
                run_of = Some((run_of.map_or(position, |(first, _)| first), position));
            }
            let (first, last) = run_of.unwrap();
            run(Advance::tail(ring(2), first, last), m);
        });
        let mut last = None;
        for wanted in 0..2 {
            loop {
                let get = Get::new(ring(2), intent(1), OWNER, member(1)).batched(last);
                match run(get, &*m) {
                    GetOutcome::Done(TakenMessage::Envelope(e, _, position)) => {
                        assert_eq!((e, m.load_relaxed(PAYLOAD.of(e))), (wanted, u64::from(wanted) + 100));
                        last = Some(position);
                        break;
                    }
                    GetOutcome::Empty => thread::yield_now(),
                    GetOutcome::Closed
                    | GetOutcome::Done(TakenMessage::Small(..))
                    | GetOutcome::Done(TakenMessage::Stray(_)) => {
                        panic!("no thread closes, no message is small")
                    }
                }
            }
        }
        producer.join().unwrap();
    });
}

/// The last sender sends and is dropped while the receiver checks: a receiver that detects the drop also
/// finds the message.
#[test]
fn loom_last_sender_disconnects_after_its_message() {
    loom::model(|| {
        let m = memory(1);
        let pages: fn(BlockId) -> Option<Word> = |_| None;
        let mine = Seat::Member(member(0));
        m.store(
            TOKEN.state,
            BlockState { life: BlockLife::Live, kind: BlockKind::Object, version: 1 }.pack(),
        );
        m.store(TOKEN.seat(0), mine.pack());
        let sender = spawn(&m, move |m| {
            put_ok(m, 1, 0, 0);
            let release = ReleaseSeat::new(TOKEN, pages, member(0), TOKEN.seat(0), mine);
            let ReleaseOutcome::MustFree(state) = run(release, m) else { panic!("other seats exist") };
            run(UnclaimBlock::new(TOKEN, state), m);
        });
        let look = || run(Get::new(ring(1), intent(1), OWNER, member(1)), &*m);
        if look() == GetOutcome::Empty && BlockState::unpack(m.load(TOKEN.state)).life != BlockLife::Live {
            assert!(
                matches!(look(), GetOutcome::Done(TakenMessage::Envelope(0, ..))),
                "disconnected before the last message"
            );
        }
        sender.join().unwrap();
    });
}
