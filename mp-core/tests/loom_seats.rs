//! Seats and sleeping under loom: every interleaving that the memory model allows.
//!
//! `RUSTFLAGS="--cfg mp_loom" cargo test --release -p mp-core --test loom_seats`
#![cfg(mp_loom)]

use loom::sync::Arc;
use loom::thread;
use mp_core::detach_notice::{DetachedProcess, LastDetached, give_up, is_alone};
use mp_core::mem::HeapMem;
use mp_core::mem::{Column, Mem, Word, run};
use mp_core::steps::{
    AttachRecord, BlockAt, ClaimBlock, DeathOracle, FreeCheck, HintGroup, HintsAt, JoinOutcome, JoinParent,
    LeaveOutcome, LeaveParent, LiveMembers, PublishBlock, ReleaseOutcome, ReleaseSeat, SlabSnapshot,
    TakeOutcome, TakeSeat, UnclaimBlock, UnmarkGroup, Update, UpdateAt, UpdateOutcome, UpdatePlan,
};
use mp_core::words::{
    Access, Attachment, BlockId, BlockKind, BlockLife, BlockState, CurrentUpdate, Grant, Member, Seat, SeatAt,
};
use mp_core::{Announce, NotifyAll, NotifyOne, count_up};

const BLOCK: BlockAt = BlockAt { id: 0, state: Word::at(0), inline: 2, per_page: 1 };
const ENTRY: Word = Word::at(40);
const COUNT: Word = Word::at(48);
const QUEUED: Word = Word::at(56);
const PAYLOAD: Word = Word::at(64);

fn member(i: u32) -> Member {
    Member::new(i, 1)
}
fn no_pages(_: BlockId) -> Option<Word> {
    None
}

/// Creates memory with a block that the first member holds and has written to.
fn held(kind: BlockKind) -> Arc<HeapMem> {
    let m = Arc::new(HeapMem::new(16));
    m.store(BLOCK.state, BlockState { life: BlockLife::Live, kind, version: 1 }.pack());
    m.store(BLOCK.seat(0), Seat::Member(member(0)).pack());
    m.store_relaxed(PAYLOAD, 7);
    m
}

fn release(m: &HeapMem, me: u32, seat: u32, holder: Seat, beside: bool) -> bool {
    let steps = ReleaseSeat::new(BLOCK, no_pages as fn(_) -> _, member(me), BLOCK.seat(seat), holder);
    let steps = steps.neighbor(beside.then_some(BLOCK.seat(1 - seat)));
    match run(steps, m) {
        ReleaseOutcome::Held => false,
        ReleaseOutcome::MustFree(state) => {
            // The thread that frees the block reads every holder's writes.
            assert_eq!(m.load_relaxed(PAYLOAD), 7);
            run(UnclaimBlock::new(BLOCK, state), m);
            true
        }
    }
}

/// A sender takes a seat for a message, publishes the message, and releases its own seat. The receiver takes
/// over the message's seat and releases it. The block is freed exactly once, after both have released their
/// seats.
#[test]
fn loom_block_sent_in_a_message_is_freed_once() {
    hand_over(false);
}

/// A block is sent in a message and freed. Each process first checks the other process's seat, as a neighbor
/// of its own seat.
#[test]
fn loom_block_with_a_neighbor_check_is_freed_once() {
    hand_over(true);
}

fn hand_over(beside: bool) {
    loom::model(move || {
        let m = held(BlockKind::Data);
        let receiver = {
            let m = Arc::clone(&m);
            thread::spawn(move || {
                while m.load(QUEUED) == 0 {
                    thread::yield_now();
                }
                let attach = Attachment::unpack(m.load_relaxed(ENTRY)).expect("recorded before the queueing");
                assert_eq!(m.load_relaxed(PAYLOAD), 7);
                let mine = Seat::Member(member(1));
                let at = BLOCK.seat_word(attach.seat, no_pages).expect("a seat in the header");
                m.cas(at, Seat::Envelope(0).pack(), mine.pack()).expect("the envelope has the seat");
                release(&m, 1, attach.seat.page().unwrap_err(), mine, beside)
            })
        };
        let note =
            AttachRecord { entry: ENTRY, count: COUNT, counted: 1, grant: Grant::new(Access::Frozen, 0) };
        let take = TakeSeat::new(BLOCK, no_pages as fn(_) -> _, Seat::Envelope(0), note);
        assert_eq!(run(take, &*m), TakeOutcome::Seat(SeatAt::inline(1)));
        m.store(QUEUED, 1);
        let here = release(&m, 0, 0, Seat::Member(member(0)), beside);
        let there = receiver.join().unwrap();
        assert!(here != there, "freed by {}", if here { "both" } else { "neither" });
        assert_eq!(BlockState::unpack(m.load(BLOCK.state)).life, BlockLife::Free);
    });
}

/// A process makes a child of the block, sends the child, and releases the block. The receiver frees the
/// child. The block is freed exactly once, when neither the process nor the child holds it.
#[test]
fn loom_child_block_is_freed_once() {
    loom::model(|| {
        let m = held(BlockKind::Object);
        let receiver = {
            let m = Arc::clone(&m);
            thread::spawn(move || {
                while m.load(QUEUED) == 0 {
                    thread::yield_now();
                }
                assert_eq!(m.load_relaxed(PAYLOAD), 7);
                let (pages, at): (fn(_) -> _, fn(_) -> _) =
                    (no_pages, |id| (id == BLOCK.id).then_some(BLOCK));
                match run(LeaveParent::new(9, ENTRY, member(1), pages, at), &*m) {
                    LeaveOutcome::Held => false,
                    LeaveOutcome::MustFree(_, state) => {
                        assert_eq!(m.load_relaxed(PAYLOAD), 7);
                        run(UnclaimBlock::new(BLOCK, state), &*m);
                        true
                    }
                }
            })
        };
        let note =
            AttachRecord { entry: ENTRY, count: COUNT, counted: 1, grant: Grant::new(Access::Object, 0) };
        let make = JoinParent::new(BLOCK, no_pages as fn(_) -> _, member(0), 9, note);
        assert_eq!(run(make, &*m), JoinOutcome::Joined);
        m.store(QUEUED, 1);
        let here = release(&m, 0, 0, Seat::Member(member(0)), false);
        let there = receiver.join().unwrap();
        assert!(here != there, "freed by {}", if here { "both" } else { "neither" });
        assert_eq!(BlockState::unpack(m.load(BLOCK.state)).life, BlockLife::Free);
    });
}

fn busy() -> BlockState {
    BlockState { life: BlockLife::Busy(member(0)), kind: BlockKind::Data, version: 1 }
}

/// A process that finds a block live finds the seat of its claimer.
#[test]
fn loom_live_block_has_its_claimers_seat() {
    loom::model(|| {
        let m = Arc::new(HeapMem::new(16));
        m.store(BLOCK.state, busy().pack());
        let publisher = {
            let m = Arc::clone(&m);
            thread::spawn(move || _ = run(PublishBlock::new(BLOCK, member(0), busy(), BlockKind::Data), &*m))
        };
        let look = FreeCheck::new(BLOCK, no_pages as fn(_) -> _, member(1));
        assert_eq!(run(look, &*m), ReleaseOutcome::Held);
        publisher.join().unwrap();
    });
}

/// The process that claims a freed block reads the block's previous generation, so each allocation has a new
/// generation.
#[test]
fn loom_freed_block_is_claimed_with_a_new_generation() {
    loom::model(|| {
        let m = Arc::new(HeapMem::new(16));
        m.store(BLOCK.state, busy().pack());
        let last = {
            let m = Arc::clone(&m);
            thread::spawn(move || {
                let generation = run(PublishBlock::new(BLOCK, member(0), busy(), BlockKind::Data), &*m);
                run(UnclaimBlock::new(BLOCK, busy().bumped()), &*m);
                generation
            })
        };
        let slab = SlabSnapshot { word: PAYLOAD, value: 0 };
        let state = loop {
            match run(ClaimBlock::new(BLOCK, member(1), slab), &*m) {
                Some(state) => break state,
                None => thread::yield_now(),
            }
        };
        let generation = run(PublishBlock::new(BLOCK, member(1), state, BlockKind::Data), &*m);
        assert_eq!(generation, last.join().unwrap() + 1);
    });
}

const PARKING: Word = Word::at(72);

/// A waker publishes a value and checks for sleepers. A sleeper announces itself and checks for the value
/// again. At least one of them detects the other.
#[test]
fn loom_announced_sleeper_is_woken() {
    loom::model(|| sleep_and_wake(|m| run(NotifyOne::new(PARKING), m).is_some()));
}

/// A waker publishes a value and wakes all sleepers, while a sleeper announces itself and checks for the
/// value again.
#[test]
fn loom_announced_sleeper_is_woken_by_notify_all() {
    loom::model(|| sleep_and_wake(|m| run(NotifyAll::new(PARKING), m)));
}

fn sleep_and_wake(notify: fn(&HeapMem) -> bool) {
    let m = Arc::new(HeapMem::new(16));
    let waker = {
        let m = Arc::clone(&m);
        thread::spawn(move || {
            // Published by a read-modify-write, like a slot.
            m.cas(QUEUED, 0, 1).unwrap();
            notify(&m)
        })
    };
    let announced = run(Announce::new(PARKING), &*m);
    let sleeps = m.load(QUEUED) == 0 && m.load(PARKING) == announced;
    let woken = waker.join().unwrap();
    let fell_asleep_for_good = sleeps && !woken && m.load(PARKING) == announced;
    assert!(!fell_asleep_for_good, "a lost wake-up");
}

/// A waker publishes a value and wakes one sleeper. A second sleeper announces itself at any time, so that
/// the sleepers bit may already be set.
#[test]
fn loom_one_of_two_sleepers_is_woken() {
    loom::model(|| {
        let m = Arc::new(HeapMem::new(16));
        let other = {
            let m = Arc::clone(&m);
            thread::spawn(move || _ = run(Announce::new(PARKING), &*m))
        };
        let waker = {
            let m = Arc::clone(&m);
            thread::spawn(move || {
                m.cas(QUEUED, 0, 1).unwrap();
                run(NotifyOne::new(PARKING), &*m).is_some()
            })
        };
        let announced = run(Announce::new(PARKING), &*m);
        let sleeps = m.load(QUEUED) == 0;
        let woken = waker.join().unwrap();
        other.join().unwrap();
        let fell_asleep_for_good = sleeps && !woken && m.load(PARKING) == announced;
        assert!(!fell_asleep_for_good, "a lost wake-up");
    });
}

/// A process frees an envelope of a group. Meanwhile another process, which has found no hint in the group,
/// clears the group's bit.
#[test]
fn loom_group_of_a_freed_envelope_stays_marked() {
    const AT: HintsAt = HintsAt { hints: Word::at(0), map: Word::at(8), bit: 1 << 5 };
    loom::model(|| {
        let m = Arc::new(HeapMem::new(2));
        m.store(AT.map, AT.bit);
        let freer = {
            let m = Arc::clone(&m);
            thread::spawn(move || run(HintGroup::new(AT, 4), &*m))
        };
        run(UnmarkGroup::new(AT), &*m);
        freer.join().unwrap();
        assert_eq!((m.load(AT.hints), m.load(AT.map)), (4, AT.bit), "hints that no search finds");
    });
}

/// Queue that up to two processes release at once, while a third process waits for it.
const RING: BlockAt = BlockAt { id: 0, state: Word::at(0), inline: 3, per_page: 1 };
const LAST_GONE: LastDetached = LastDetached(Word::at(40));
const ASKED: Word = Word::at(48);
const NOTICED: Word = Word::at(56);

fn has_the_queue(m: &HeapMem, who: Member) -> bool {
    (0..3).any(|seat| m.load(RING.seat(seat)) == Seat::Member(who).pack())
}

/// Releases the queue, as the process that holds seat `i`.
fn gives_up(m: &HeapMem, i: u32) {
    let says = || {
        LAST_GONE.note(m, DetachedProcess::Member(member(i)), |who| has_the_queue(m, who));
        count_up(m, PARKING);
    };
    let releases = || {
        let mine = Seat::Member(member(i));
        let release = ReleaseSeat::new(RING, no_pages as fn(_) -> _, member(i), RING.seat(i), mine);
        assert_eq!(run(release, m), ReleaseOutcome::Held);
    };
    if give_up(m, ASKED, says, releases) {
        m.add(NOTICED, 1);
    }
}

/// Prepares the sleep of the waiter with seat 0. Returns the values on which it sleeps: parking word and
/// number of deaths. Returns `None` if no other process holds the queue.
fn waits(m: &HeapMem) -> Option<(u64, u64)> {
    let alone = || (1..3).all(|seat| Seat::is_free(m.load(RING.seat(seat))));
    let announced = run(Announce::new(PARKING), m);
    let noticed = m.load(NOTICED);
    let has = |who| has_the_queue(m, who);
    let finds_it = LAST_GONE.read(m).is_some() && is_alone(m, ASKED, LAST_GONE, has, alone);
    (!finds_it).then_some((announced, noticed))
}

/// Checks that the waiter finds no other holder of the queue, or that one of the words on which it sleeps
/// changes.
fn loom_giving_up(both: bool) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(if both { 3 } else { 5 });
    model.check(move || {
        let m = Arc::new(HeapMem::new(16));
        m.store(RING.state, BlockState { life: BlockLife::Live, kind: BlockKind::Ring, version: 1 }.pack());
        (0..2 + u32::from(both)).for_each(|i| m.store(RING.seat(i), Seat::Member(member(i)).pack()));
        let goes = |i| {
            let m = Arc::clone(&m);
            thread::spawn(move || gives_up(&m, i))
        };
        let others = [Some(goes(1)), both.then(|| goes(2))];
        let asleep = waits(&m);
        others.into_iter().flatten().for_each(|other| other.join().unwrap());
        let slept_on = (m.load(PARKING), m.load(NOTICED));
        assert_ne!(asleep, Some(slept_on), "the waiter sleeps, and no process wakes it");
    });
}

/// A process releases a queue, and a waiter begins to wait at any time during the release.
#[test]
fn loom_late_waiter_detects_a_released_queue() {
    loom_giving_up(false);
}

/// Two processes release the queue at once, and a waiter begins to wait at any time during the releases.
#[test]
fn loom_queue_waiter_detects_concurrent_releases() {
    loom_giving_up(true);
}

const A: Word = Word::at(80);
const B: Word = Word::at(88);
const AT: UpdateAt =
    UpdateAt { current: Word::at(96), own: Column { base: Word::at(104), stride: 8 * UpdateAt::OWN_WORDS } };

/// Plan that exchanges A and B.
struct Swap;
impl UpdatePlan for Swap {
    fn reads(&self) -> &[Word] {
        &[A, B]
    }
    fn writes(&self, v: &[u64]) -> Vec<(usize, u64)> {
        vec![(0, v[1]), (1, v[0])]
    }
    fn exclusive(&self) -> bool {
        true
    }
}

/// Plan that subtracts one from A, and adds one to B.
struct Move;
impl UpdatePlan for Move {
    fn reads(&self) -> &[Word] {
        &[A, B]
    }
    fn writes(&self, v: &[u64]) -> Vec<(usize, u64)> {
        vec![(0, v[0].wrapping_sub(1)), (1, v[1] + 1)]
    }
    fn exclusive(&self) -> bool {
        false
    }
}

/// Member list with one other member, in this slot.
struct Other(u32);
impl DeathOracle for Other {
    fn is_dead(&self, _: Member) -> bool {
        false
    }
}
impl LiveMembers for Other {
    fn others(&self) -> Vec<Member> {
        vec![member(self.0)]
    }
}

/// Returns a model in which two processes each change two words together. The model checks the final values.
fn updates<P: UpdatePlan + 'static>(plans: fn(u32) -> P) -> impl Fn() {
    move || {
        let m = Arc::new(HeapMem::new(13 + 2 * UpdateAt::OWN_WORDS as usize));
        m.store(A, 1);
        m.store(B, 2);
        let update = move |m: &HeapMem, me: u32| {
            loop {
                match run(Update::new(AT, member(me), plans(me), Other(1 - me)), m) {
                    UpdateOutcome::Done(read) => {
                        assert_eq!(read[0].wrapping_add(read[1]), 3, "A and B are of different updates");
                        return;
                    }
                    UpdateOutcome::Busy(_) => thread::yield_now(),
                }
            }
        };
        let other = {
            let m = Arc::clone(&m);
            thread::spawn(move || update(&m, 1))
        };
        update(&m, 0);
        other.join().unwrap();
        let (a, b) = (m.load(A), m.load(B));
        assert!([(1, 2), (u64::MAX, 4)].contains(&(a, b)), "{a} {b}");
    }
}

#[test]
fn loom_exclusive_updates_are_atomic() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(updates(|_| Swap));
}

#[test]
fn loom_updates_are_atomic() {
    loom::model(updates(|_| Move));
}

/// Plan that restores the previous value of A.
struct Back;
impl UpdatePlan for Back {
    fn reads(&self) -> &[Word] {
        &[A]
    }
    fn writes(&self, v: &[u64]) -> Vec<(usize, u64)> {
        if v[0] == 2 { vec![(0, 1)] } else { Vec::new() }
    }
    fn exclusive(&self) -> bool {
        true
    }
}

/// Plan that only reads A.
struct Look;
impl UpdatePlan for Look {
    fn reads(&self) -> &[Word] {
        &[A]
    }
    fn writes(&self, _: &[u64]) -> Vec<(usize, u64)> {
        Vec::new()
    }
    fn exclusive(&self) -> bool {
        false
    }
}

/// Two processes complete a dead member's update at once. Then one of them restores the old value of the
/// word. A late swap by the other process must fail.
#[test]
fn loom_late_swap_fails_after_the_update() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let m = Arc::new(HeapMem::new(13 + 3 * UpdateAt::OWN_WORDS as usize));
        m.store(A, 1);
        let record = AT.own.of(2).plus(1);
        for (i, part) in [A.offset(), 1, 2].into_iter().enumerate() {
            m.store(record.plus(i as u64), part);
        }
        m.store(AT.current, CurrentUpdate { making: Some((member(2), 1)), number: 7 }.pack());
        let helper = {
            let m = Arc::clone(&m);
            thread::spawn(move || _ = run(Update::new(AT, member(1), Look, Other(0)), &*m))
        };
        while matches!(run(Update::new(AT, member(0), Back, Other(1)), &*m), UpdateOutcome::Busy(_)) {
            thread::yield_now();
        }
        helper.join().unwrap();
        assert_eq!(m.load(A), 1);
    });
}
