//! Loom tests of queues that are closed while they grow, and of small messages that are leased.
//!
//! `RUSTFLAGS="--cfg mp_loom" cargo test --release -p mp-queue --test loom_chain`
#![cfg(mp_loom)]

use loom::sync::Arc;
use loom::thread;
use mp_core::mem::HeapMem;
use mp_core::mem::{Column, Mem, Word, run};
use mp_core::words::{Holder, Member, Owner};
use mp_queue::ring::{
    ChainAt, CloseChain, Enclose, Extend, Get, GetOutcome, Link, Position, Put, PutOutcome, PutSmall, RingAt,
    Slot, SlotState, SmallMessage, TakenMessage,
};

const OWNER: Column = Column { base: Word::at(48), stride: 24 };
const PLACE: Column = Column { base: Word::at(56), stride: 24 };
const PAYLOAD: Column = Column { base: Word::at(64), stride: 24 };
const SECOND: Word = Word::at(120);
/// Number of words. They include the second segment, with 128 bytes between its head and tail, and between
/// its tail and slot.
const WORDS: usize = 15 + 34;

fn intent(i: u32) -> Word {
    Word::at(32 + 8 * u64::from(i))
}

fn member(i: u32) -> Member {
    Member::new(i, 1)
}

/// Returns a chain of two segments of one slot each.
fn chain() -> ChainAt {
    let first = RingAt {
        block: 0,
        slots: 1,
        before: 0,
        head: Word::at(0),
        tail: Word::at(8),
        first: Word::at(16),
        envelopes: 2,
    };
    ChainAt { first, links: Word::at(104), segments: 2, most: 1, second: SECOND }
}

fn memory() -> Arc<HeapMem> {
    let m = HeapMem::new(WORDS);
    let first = Position { lap: 1, index: 0 }.pack();
    m.store(chain().first.head, first);
    m.store(chain().first.tail, first);
    m.store(chain().first.slot(0), Slot { lap: 1, state: SlotState::Empty }.pack());
    Arc::new(m)
}

/// Tries once to put envelope `e` into segment `i`.
fn put(m: &HeapMem, i: u32, (me, e): (u32, u32), owner: Owner) -> PutOutcome {
    let words = (e, OWNER.of(e), PLACE.of(e));
    run(Put::new(chain().segment(i), intent(me), words, member(me), owner), m)
}

/// Puts a message into the first segment with room, and opens the next segment if needed. Returns `false` if
/// the queue is full or closed.
fn send(m: &HeapMem, me: u32, e: u32) -> bool {
    let mut owner = Owner { holder: Holder::Member(member(me)), seq: 1 };
    m.store(OWNER.of(e), owner.pack());
    m.store_relaxed(PAYLOAD.of(e), u64::from(e) + 100);
    for i in 0..2 {
        match put(m, i, (me, e), owner) {
            PutOutcome::Done(_) => return true,
            PutOutcome::Full(back) | PutOutcome::Closed(back) => owner = back,
        }
        let Some(link) = chain().link(i) else { return false };
        match run(Extend::new(chain().segment(i), link), m) {
            Link::Open => {}
            Link::End => return false,
            Link::None => panic!("the link is still unset"),
        }
    }
    false
}

/// Takes all messages and returns them in their order. Also returns `true` if the queue is closed.
fn all(m: &HeapMem, me: u32) -> (Vec<u32>, bool) {
    let (mut got, mut i) = (Vec::new(), 0);
    loop {
        match run(Get::new(chain().segment(i), intent(me), OWNER, member(me)), m) {
            GetOutcome::Done(TakenMessage::Envelope(e, ..)) => {
                assert_eq!(m.load_relaxed(PAYLOAD.of(e)), u64::from(e) + 100, "torn, or not yet visible");
                got.push(e);
            }
            GetOutcome::Empty => return (got, false),
            GetOutcome::Closed => match chain().link(i).map(|link| Link::unpack(m.load(link))) {
                Some(Link::Open) => i += 1,
                Some(Link::None) => return (got, false),
                Some(Link::End) | None => return (got, true),
            },
            GetOutcome::Done(TakenMessage::Small(..)) | GetOutcome::Done(TakenMessage::Stray(_)) => {
                panic!("a small or missing message")
            }
        }
    }
}

/// A producer makes the queue grow while another thread closes it: a message is received if and only if its
/// put succeeded.
#[test]
fn loom_close_during_growth_loses_no_message() {
    loom::model(|| {
        let m = memory();
        assert!(send(&m, 0, 0));
        let producer = {
            let m = Arc::clone(&m);
            thread::spawn(move || send(&m, 0, 1))
        };
        assert!(run(CloseChain::new(chain()), &*m), "another thread has closed it");
        let put = producer.join().unwrap();
        let (got, ended) = all(&m, 1);
        assert!(ended, "closed without an end");
        assert_eq!(got, if put { vec![0, 1] } else { vec![0] });
    });
}

/// A consumer follows the link while the next segment is opened, and takes both messages in their order.
#[test]
fn loom_consumer_follows_the_link_of_a_growing_queue() {
    loom::model(|| {
        let m = memory();
        assert!(send(&m, 0, 0));
        let producer = {
            let m = Arc::clone(&m);
            thread::spawn(move || send(&m, 0, 1))
        };
        let (mut got, _) = all(&m, 1);
        assert!(producer.join().unwrap());
        got.extend(all(&m, 1).0);
        assert_eq!(got, [0, 1]);
    });
}

/// A small message is leased by a copy while another thread takes it: exactly one of them gets the complete
/// message.
#[test]
fn loom_small_message_is_either_leased_or_taken() {
    loom::model(|| {
        let (m, ring) = (memory(), chain().first);
        let small = |n: u8| SmallMessage::new(&[n; SmallMessage::MOST]).unwrap();
        assert!(matches!(run(PutSmall::new(ring, small(5)), &*m), PutOutcome::Done(_)));
        let taker = {
            let m = Arc::clone(&m);
            thread::spawn(move || {
                let got = run(Get::new(ring, intent(1), OWNER, member(1)), &*m);
                // The slot is used again at once: a thread that has read the first message must not mistake
                // the second one for it.
                let again = matches!(run(PutSmall::new(ring, small(6)), &*m), PutOutcome::Done(_));
                (got, again)
            })
        };
        let found = run(Get::new(ring, intent(0), OWNER, member(0)).leasing(), &*m);
        let leased = if let GetOutcome::Done(TakenMessage::Small(message, position)) = found {
            let mine = Owner { holder: Holder::Member(member(0)), seq: 1 };
            m.store(OWNER.of(0), mine.pack());
            let words = (OWNER.of(0), PLACE.of(0));
            let (owner, leased) = run(Enclose::new(ring, words, (member(0), mine), (message, position)), &*m);
            let holder = if leased { Holder::Leased(member(0)) } else { Holder::Member(member(0)) };
            assert_eq!((owner.holder, m.load(OWNER.of(0))), (holder, owner.pack()));
            leased.then_some(message)
        } else {
            None
        };
        let (got, again) = taker.join().unwrap();
        let taken = match got {
            GetOutcome::Done(TakenMessage::Small(message, _)) => Some(message),
            GetOutcome::Empty => None,
            other => panic!("{other:?}"),
        };
        let left = match run(Get::new(ring, intent(0), OWNER, member(0)), &*m) {
            GetOutcome::Done(TakenMessage::Small(message, _)) => Some(message),
            _ => None,
        };
        let numbers: Vec<_> = [leased, taken, left].into_iter().flatten().collect();
        let wanted = if again { vec![small(5), small(6)] } else { vec![small(5)] };
        let mut sorted = numbers.clone();
        sorted.sort_unstable_by_key(|s| s.bytes().as_slice()[0]);
        assert_eq!(sorted, wanted, "one twice, or one lost");
    });
}
