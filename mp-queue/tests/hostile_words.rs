//! Tests of single operations on prepared words. They check the results, the words that were read, and the
//! case that another process was faster.
#![cfg(not(mp_loom))]

use mp_core::mem::HeapMem;
use mp_core::mem::{Column, Mem, Steps, Word, run};
use mp_core::steps::EnvelopesAt;
use mp_core::words::{BlockId, EnvelopeId, GroupState, Holder, Member, Owner, RingPlace};

use mp_queue::ring::*;

const INTENT: Word = Word::at(8 * 10);
const OWNERS: Column = Column { base: Word::at(8 * 12), stride: 32 };
const PLACES: Column = Column { base: Word::at(8 * 13), stride: 32 };
const ENDS: Column = Column { base: Word::at(8 * 14), stride: 32 };
/// Location of the arena's number of envelopes.
const COUNT: Word = Word::at(8 * 11);
const GROUPS: Column = Column { base: Word::at(8 * 32), stride: 8 };
const ALL: EnvelopesAt = EnvelopesAt { count: COUNT, groups: GROUPS, owners: OWNERS, places: PLACES };
const RETURNS: ReturnWords = ReturnWords { returned: Word::at(8 * 9), limit: 2 };
const META: Word = Word::at(8 * 8);
const ENVELOPES: u32 = 3;
const LAP: u64 = 1;

fn ring() -> RingAt {
    let (head, tail, first) = (Word::at(0), Word::at(8), Word::at(16));
    RingAt { block: 4, slots: 3, before: 0, head, tail, first, envelopes: ENVELOPES }
}

fn me() -> Member {
    Member::new(1, 1)
}

/// Returns an empty ring and envelopes that all belong to this process.
fn memory() -> HeapMem {
    let m = HeapMem::new(33);
    for at in [ring().head, ring().tail] {
        m.store(at, position(0).pack());
    }
    (0..3).for_each(|i| set(&m, i, SlotState::Empty));
    (0..ENVELOPES).for_each(|e| m.store(OWNERS.of(e), owner(Holder::Member(me())).pack()));
    m.store(COUNT, ENVELOPES.into());
    m.store(GROUPS.of(0), GroupState::InUse.pack());
    m
}

fn position(index: u32) -> Position {
    Position { lap: LAP, index }
}

fn owner(holder: Holder) -> Owner {
    Owner { holder, seq: 1 }
}

fn set(m: &HeapMem, index: u32, state: SlotState) {
    m.store(ring().slot(index), Slot { lap: LAP, state }.pack());
}

fn slot(m: &HeapMem, index: u32) -> Slot {
    Slot::unpack(m.load(ring().slot(index)))
}

fn holder(m: &HeapMem, e: EnvelopeId) -> Holder {
    Owner::unpack(m.load(OWNERS.of(e))).holder
}

fn hint(m: &HeapMem, at: Word) -> Position {
    Position::unpack(m.load(at))
}

fn to_put(ring: RingAt, e: EnvelopeId) -> Put {
    Put::new(ring, INTENT, (e, OWNERS.of(e), PLACES.of(e)), me(), owner(Holder::Member(me())))
}

fn small(text: &[u8]) -> SmallMessage {
    SmallMessage::new(text).unwrap()
}

fn put_small(m: &HeapMem, text: &[u8]) -> Position {
    match ends(PutSmall::new(ring(), small(text)), m) {
        PutOutcome::Done(position) => position,
        end => panic!("{end:?}"),
    }
}

fn text(small: SmallMessage) -> Vec<u8> {
    small.bytes().as_slice().to_vec()
}

fn ends<S: Steps>(mut s: S, m: &HeapMem) -> S::Out {
    (0..1 << 20).find_map(|_| s.step(m)).expect("the steps never end")
}

/// Runs up to 1000 steps, until `until` returns `true`. Panics if the operation ends earlier.
fn steps<S: Steps>(s: &mut S, m: &HeapMem, until: impl Fn(&HeapMem) -> bool) {
    for _ in 0..1000 {
        if until(m) {
            return;
        }
        assert!(s.step(m).is_none(), "the steps ended earlier");
    }
    panic!("the condition never held");
}

/// Each operation advances the hint past its own slot, so that the next operation begins at the following
/// slot.
#[test]
fn lagging_ring_hints_are_advanced_by_each_operation() {
    let m = memory();
    assert_eq!(run(to_put(ring(), 0), &m), PutOutcome::Done(position(0)));
    assert_eq!(hint(&m, ring().tail), position(1));
    assert_eq!(put_small(&m, b"one"), position(1));
    assert_eq!(hint(&m, ring().tail), position(2));
    assert!(matches!(
        run(Get::new(ring(), INTENT, OWNERS, me()), &m),
        GetOutcome::Done(TakenMessage::Envelope(0, ..))
    ));
    assert_eq!(hint(&m, ring().head), position(1));
    assert!(matches!(run(FindOldest::new(ring()), &m), GetOutcome::Done(OldestMessage::Small(..))));
    assert_eq!(hint(&m, ring().head), position(2));
    // A batch moves the hint at its end.
    m.store(ring().tail, position(0).pack());
    run(Advance::tail(ring(), position(0), position(1)), &m);
    assert_eq!(hint(&m, ring().tail), position(2));
    assert_eq!(position(2).previous(3), position(1));
}

#[test]
fn ring_operations_end_although_laps_form_a_cycle() {
    const THIRD: u64 = (1 << 38) / 3;
    let m = memory();
    for i in 0..3 {
        m.store(ring().slot(i), Slot { lap: u64::from(i) * THIRD, state: SlotState::Empty }.pack());
    }
    for at in [ring().head, ring().tail] {
        m.store(at, Position { lap: (1 << 38) - 5, index: 0 }.pack());
    }
    assert_eq!(ends(FindOldest::new(ring()), &m), GetOutcome::Empty);
    assert!(matches!(ends(to_put(ring(), 0), &m), PutOutcome::Full(_)));
    assert_eq!(ends(PutSmall::new(ring(), small(b"x")), &m), PutOutcome::Full(()));
    assert!(!ends(Close::new(ring()), &m));
}

#[test]
fn slot_naming_a_missing_envelope_is_emptied() {
    let m = memory();
    set(&m, 0, SlotState::Full(Content::of(ENVELOPES)));
    assert_eq!(run(FindOldest::new(ring()), &m), GetOutcome::Done(OldestMessage::Stray(ENVELOPES)));
    assert_eq!(slot(&m, 0), Slot { lap: LAP + 1, state: SlotState::Empty });
}

/// A message to be leased is copied before it is taken, and the copy consists of one message.
#[test]
fn small_message_stays_whole_until_leased() {
    let m = memory();
    put_small(&m, b"first one");
    let found = run(FindOldest::new(ring()).leasing(), &m);
    assert!(matches!(found, GetOutcome::Done(OldestMessage::Small(message, at))
            if text(message) == b"first one" && at == position(0)));
    assert_eq!(slot(&m, 0).lap, LAP);
    // Between the two reads, the slot's next message arrives.
    let mut find = FindOldest::new(ring()).leasing();
    (0..3).for_each(|_| assert_eq!(find.step(&m), None));
    let next = Slot { lap: LAP + 3, state: SlotState::Empty }.pack();
    m.store(ring().slot(0), next);
    m.store(ring().slot(0).plus(1), 0);
    assert!(m.cas_pair(ring().slot(0), [next, 0], [next | 1 << 24, 0]));
    assert!(!matches!(run(find, &m), GetOutcome::Done(OldestMessage::Small(message, _))
            if text(message) == b"first one"));
}

#[test]
fn taken_small_message_clears_both_words_of_its_slot() {
    let m = memory();
    put_small(&m, b"nine ones");
    assert_ne!(m.load(ring().slot(0).plus(1)), 0);
    assert!(matches!(run(FindOldest::new(ring()), &m), GetOutcome::Done(OldestMessage::Small(..))));
    assert_eq!(m.load(ring().slot(0).plus(1)), 0);
    // A slot with garbage in its second word is repaired before it is used.
    m.store(ring().slot(1).plus(1), 77);
    assert_eq!(put_small(&m, b"x"), position(1));
}

#[test]
fn put_into_closed_full_ring_returns_closed() {
    let m = memory();
    (0..3).for_each(|e| assert!(matches!(run(to_put(ring(), e), &m), PutOutcome::Done(_))));
    assert!(matches!(run(to_put(ring(), 0), &m), PutOutcome::Full(_)));
    assert!(run(Close::new(ring()), &m));
    assert!(matches!(run(to_put(ring(), 0), &m), PutOutcome::Closed(_)));
    assert_eq!(run(PutSmall::new(ring(), small(b"x")), &m), PutOutcome::Closed(()));
    assert!(!run(Close::new(ring()), &m));
}

/// The tail hint lags. The close continues to the position of the next message.
#[test]
fn close_with_a_lagging_hint_keeps_earlier_messages() {
    let m = memory();
    for i in 0..2 {
        set(&m, i, SlotState::Full(Content::of(i)));
    }
    assert!(run(Close::new(ring()), &m));
    assert_eq!(
        [0, 1, 2].map(|i| slot(&m, i).state),
        [SlotState::Full(Content::of(0)), SlotState::Full(Content::of(1)), SlotState::Closed]
    );
}

/// The slot number in a place word counts the slots of all segments.
#[test]
fn place_is_written_before_the_envelope_is_queued() {
    let m = memory();
    let mut put = to_put(RingAt { before: 8, ..ring() }, 0);
    steps(&mut put, &m, |m| holder(m, 0) == Holder::Queued);
    assert_eq!(RingPlace::unpack(m.load(PLACES.of(0))), RingPlace { ring: 4, slot: 8 });
}

/// Another process publishes first, in the last free slot. The caller still owns its envelope.
#[test]
fn overtaken_put_owns_its_envelope_again() {
    let m = memory();
    (0..2).for_each(|i| set(&m, i, SlotState::Full(Content::of(1))));
    for only in [false, true] {
        m.store(OWNERS.of(0), owner(Holder::Member(me())).pack());
        set(&m, 2, SlotState::Empty);
        let put = to_put(ring(), 0);
        let mut put = if only { put.at(position(2)) } else { put };
        steps(&mut put, &m, |m| holder(m, 0) == Holder::Queued);
        set(&m, 2, SlotState::Full(Content::of(2)));
        let end = run(put, &m);
        assert!(matches!(end, PutOutcome::Full(back) if back.pack() == m.load(OWNERS.of(0))), "{end:?}");
        assert_eq!(holder(&m, 0), Holder::Member(me()));
    }
}

#[test]
fn put_at_a_used_position_returns_full() {
    let m = memory();
    set(&m, 0, SlotState::Full(Content::of(1)));
    assert!(matches!(run(to_put(ring(), 0).at(position(0)), &m), PutOutcome::Full(_)));
    assert_eq!(slot(&m, 1).state, SlotState::Empty);
}

fn enclose(message: SmallMessage, at: Position) -> Enclose {
    let words = (OWNERS.of(0), PLACES.of(0));
    Enclose::new(RingAt { before: 8, ..ring() }, words, (me(), owner(Holder::Member(me()))), (message, at))
}

#[test]
fn small_message_is_leased_before_its_slot_is_freed() {
    let m = memory();
    let at = put_small(&m, b"task");
    let mut steps_of = enclose(small(b"task"), at);
    steps(&mut steps_of, &m, |m| holder(m, 0) == Holder::Leased(me()));
    assert_eq!(RingPlace::unpack(m.load(PLACES.of(0))), RingPlace { ring: 4, slot: 8 });
    assert_ne!(m.load(PLACES.of(0)) & RingPlace::ENCLOSING, 0, "marked while it is in its slot");
    assert_eq!(slot(&m, 0).lap, LAP, "the slot is not freed yet");
    let (now, leased) = run(steps_of, &m);
    assert!(leased && now.pack() == m.load(OWNERS.of(0)));
    assert_eq!(m.load(PLACES.of(0)), RingPlace { ring: 4, slot: 8 }.pack());
    assert_eq!(slot(&m, 0), Slot { lap: LAP + 1, state: SlotState::Empty });
}

/// Another process took the message first. The slot then has another message, or an equal message in a later
/// lap.
#[test]
fn taken_small_message_is_not_leased() {
    let other_lap = Slot { lap: LAP + 1, state: Slot::unpack(full(b"task")).state }.pack();
    for found in [full(b"last"), other_lap] {
        let m = memory();
        put_small(&m, b"task");
        m.store(ring().slot(0), found);
        let (now, leased) = run(enclose(small(b"task"), position(0)), &m);
        assert!(!leased, "{:?}", Slot::unpack(found));
        assert_eq!((now.holder, now.pack()), (Holder::Member(me()), m.load(OWNERS.of(0))));
        assert_eq!(m.load(ring().slot(0)), found);
    }
}

/// Returns the first word of a slot with this message: the length and the first two bytes.
fn full(text: &[u8]) -> u64 {
    let m = memory();
    put_small(&m, text);
    m.load(ring().slot(0))
}

fn reclaim() -> Reclaim {
    let to = (Holder::Returned, Holder::Leased(me()));
    Reclaim::new(RETURNS, ring(), ALL, to)
}

fn returned(m: &HeapMem, e: EnvelopeId, ring: BlockId) {
    m.store(OWNERS.of(e), owner(Holder::Returned).pack());
    m.store(PLACES.of(e), RingPlace { ring, slot: 0 }.pack());
    run(NoteReturned::new(RETURNS), m);
}

#[test]
fn returned_messages_are_found_in_any_envelope() {
    let m = memory();
    returned(&m, 0, 9);
    returned(&m, ENVELOPES - 1, ring().block);
    assert!(matches!(run(reclaim(), &m), Some((e, _)) if e == ENVELOPES - 1));
    assert_eq!(run(reclaim(), &m), None);
    assert_eq!(holder(&m, 0), Holder::Returned);
}

/// Another consumer takes the first message. The scan continues with the next message.
#[test]
fn returned_message_scan_continues_after_a_lost_race() {
    let m = memory();
    returned(&m, 0, ring().block);
    returned(&m, 1, ring().block);
    let mut look = reclaim();
    // Reads the hint, the count, the group and the owner.
    (0..4).for_each(|_| assert_eq!(look.step(&m), None));
    m.store(OWNERS.of(0), owner(Holder::Leased(Member::new(2, 1))).pack());
    assert!(matches!(run(look, &m), Some((1, _))));
}

#[test]
fn lease_returned_at_delivery_limit_is_undeliverable() {
    let m = memory();
    let leased = owner(Holder::Leased(me()));
    for (delivered, to) in [(1, Holder::Returned), (2, Holder::Undeliverable)] {
        m.store(OWNERS.of(0), leased.pack());
        let mut meta = 0;
        (0..delivered).for_each(|_| meta = mp_core::words::delivered(meta));
        m.store(META, meta);
        assert_eq!(run(Return::new(RETURNS, OWNERS.of(0), META, leased), &m), Some(to), "{delivered}");
    }
}

/// Context for settling an intent of a dead member that has a seat in the ring `held`.
#[derive(Clone, Copy)]
struct TestContext {
    held: BlockId,
    redelivers: bool,
}

impl IntentContext for TestContext {
    fn intents(&self) -> Vec<Word> {
        Vec::new()
    }
    fn slot(&self, of: BlockId, slot: u32) -> Option<Word> {
        (of == ring().block).then(|| ring().slot(slot))
    }
    fn exists(&self, envelope: EnvelopeId) -> bool {
        envelope < ENVELOPES
    }
    fn holds(&self, ring: BlockId) -> bool {
        ring == self.held
    }
    fn redelivers(&self, _: BlockId) -> bool {
        self.redelivers
    }
    fn dead(&self) -> Member {
        Member::new(2, 1)
    }
}

/// Settles an intent that names envelope 1. Returns the outcome and the holder of the envelope.
fn settled(m: &HeapMem, context: TestContext) -> (SettleOutcome, Holder) {
    m.store(PLACES.of(1), RingPlace { ring: ring().block, slot: 0 }.pack());
    m.store(INTENT, 2);
    let end = run(Settle::new(INTENT, (OWNERS, PLACES), context), m);
    assert_eq!(m.load(INTENT), 0);
    (end, holder(m, 1))
}

#[test]
fn settle_gives_dead_member_envelope_its_intent_names() {
    let m = memory();
    let (dead, held) = (Member::new(2, 1), ring().block);
    for (redelivers, end, now) in [
        (false, SettleOutcome::Owned(1), Holder::Member(dead)),
        (true, SettleOutcome::Leased(1), Holder::Leased(dead)),
    ] {
        m.store(OWNERS.of(1), owner(Holder::Queued).pack());
        assert_eq!(settled(&m, TestContext { held, redelivers }), (end, now));
    }
}

#[test]
fn settle_leaves_envelopes_of_other_holders() {
    let m = memory();
    let held = ring().block;
    // The dead member was done with the envelope, and another member has it now.
    let other = Holder::Member(Member::new(3, 1));
    m.store(OWNERS.of(1), owner(other).pack());
    assert_eq!(settled(&m, TestContext { held, redelivers: true }), (SettleOutcome::Cleared, other));
    // The envelope is queued in a ring in which the dead member has no seat, so another dead member has it.
    m.store(OWNERS.of(1), owner(Holder::Queued).pack());
    assert_eq!(
        settled(&m, TestContext { held: held + 1, redelivers: true }),
        (SettleOutcome::Cleared, Holder::Queued)
    );
    // The envelope is in its slot.
    set(&m, 0, SlotState::Full(Content::of(1)));
    assert_eq!(settled(&m, TestContext { held, redelivers: true }), (SettleOutcome::Cleared, Holder::Queued));
}

#[test]
fn intent_with_an_out_of_range_envelope_is_cleared() {
    let m = memory();
    // Words of a missing envelope, after the last one.
    m.store(OWNERS.of(ENVELOPES), owner(Holder::Queued).pack());
    m.store(PLACES.of(ENVELOPES), RingPlace { ring: ring().block, slot: 0 }.pack());
    m.store(INTENT, u64::from(ENVELOPES) + 1);
    let context = TestContext { held: ring().block, redelivers: false };
    assert_eq!(run(Settle::new(INTENT, (OWNERS, PLACES), context), &m), SettleOutcome::Cleared);
    assert_eq!(holder(&m, ENVELOPES), Holder::Queued);
}

fn to_put_byte_bounded(e: EnvelopeId, bytes: u64) -> PutByteBounded {
    let weight = Weight { ends: ENDS, bytes, limit: 10 };
    let words = (e, OWNERS.of(e), PLACES.of(e));
    PutByteBounded::new(ring(), INTENT, words, me(), owner(Holder::Member(me())), weight)
}

#[test]
fn queue_byte_bound_is_reached_and_not_exceeded() {
    let m = memory();
    assert!(matches!(run(to_put_byte_bounded(0, 6), &m), PutOutcome::Done(_)));
    assert!(matches!(run(to_put_byte_bounded(1, 5), &m), PutOutcome::Full(_)));
    assert!(matches!(run(to_put_byte_bounded(1, 4), &m), PutOutcome::Done(_)));
}
