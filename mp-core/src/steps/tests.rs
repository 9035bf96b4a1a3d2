//! Tests of single operations on prepared words: their effects, and their behavior when another process was
//! faster.

use super::lock::{AcquireLock, LockAt, LockAttempt, LockWord, OsThread, ReleaseLock, SetParked, is_held_by};
use super::*;
use crate::mem::HeapMem;
use crate::mem::{Column, Mem, Steps, Word, run};
use crate::words::{
    Access, Attachment, BlockId, BlockKind, BlockLife, BlockState, CurrentUpdate, Grant, Member, Presence,
    RecoveringSlots, Seat, SeatAt, Tenancy,
};

const fn word(i: u64) -> Word {
    Word::at(8 * i)
}

const fn block(id: BlockId, state: u64) -> BlockAt {
    BlockAt { id, state: word(state), inline: 2, per_page: 2 }
}

const BLOCK: BlockAt = block(0, 0);
const OTHER: BlockId = 9;
/// Two pages of seats, and the start of their memory.
const PAGES: [(BlockAt, Word); 2] = [(block(1, 8), word(16)), (block(2, 12), word(24))];
const ENTRY: Word = word(32);
const COUNT: Word = word(33);

fn pages(page: BlockId) -> Option<Word> {
    PAGES.iter().find(|(at, _)| at.id == page).map(|(_, first)| *first)
}

fn page_at(page: BlockId) -> BlockAt {
    PAGES.iter().find(|(at, _)| at.id == page).map_or(BLOCK, |(at, _)| *at)
}

fn me() -> Member {
    Member::new(1, 1)
}

fn other() -> Member {
    Member::new(2, 1)
}

fn live() -> u64 {
    BlockState { life: BlockLife::Live, kind: BlockKind::Data, version: 1 }.pack()
}

fn life(m: &HeapMem, at: BlockAt) -> BlockLife {
    BlockState::unpack(m.load(at.state)).life
}

/// Prepares a live block, whose first seat belongs to this process.
fn memory() -> HeapMem {
    let m = HeapMem::new(64);
    m.store(BLOCK.state, live());
    m.store(BLOCK.seat(0), Seat::Member(me()).pack());
    m
}

/// Prepares a page of this process, filled with old contents.
fn fresh_page(m: &HeapMem, i: usize) {
    let (at, first) = PAGES[i];
    m.store(at.state, live());
    m.store(at.seat(0), Seat::Member(me()).pack());
    (0..5).for_each(|w| m.store(first.plus(w), u64::MAX));
}

fn link(m: &HeapMem, i: usize) {
    let (at, first) = PAGES[i];
    fresh_page(m, i);
    assert!(run(LinkPage::new(BLOCK, at, first, me(), pages), m));
}

fn seat_of(i: usize, n: u32) -> Word {
    PAGES[i].1.plus((PAGE_HEADER + n).into())
}

fn take(m: &HeapMem) -> TakeOutcome {
    let note = AttachRecord { entry: ENTRY, count: COUNT, counted: 3, grant: Grant::new(Access::Frozen, 0) };
    run(TakeSeat::new(BLOCK, pages, Seat::Envelope(7), note), m)
}

/// Makes `n` steps. The steps must not end before.
fn steps<S: Steps>(s: &mut S, m: &HeapMem, n: usize) {
    (0..n).for_each(|_| assert!(s.step(m).is_none(), "the steps ended early"));
}

/// A seat is recorded before it is taken. Taking it increments the block's version.
#[test]
fn taken_seat_is_recorded_and_increments_version() {
    let m = memory();
    let before = BlockState::unpack(m.load(BLOCK.state)).version;
    let at = SeatAt::inline(1);
    assert_eq!(take(&m), TakeOutcome::Seat(at));
    let noted = Attachment::unpack(m.load(ENTRY)).unwrap();
    assert_eq!((noted.block, noted.seat, m.load(COUNT)), (BLOCK.id, at, 3));
    assert_eq!(Seat::unpack(m.load(BLOCK.seat(1))), Seat::Envelope(7));
    assert_eq!(BlockState::unpack(m.load(BLOCK.state)).version, before + 1);
    assert_eq!(take(&m), TakeOutcome::NoSeat);
}

/// The first seat of the page is taken. The search finds the free seat after it.
#[test]
fn seat_search_continues_to_the_end_of_a_page() {
    let m = memory();
    link(&m, 0);
    let seats = [0, 1].map(|n| TakeOutcome::Seat(SeatAt::paged(1, PAGE_HEADER + n)));
    m.store(super::block::seat_hints(PAGES[0].1), 0);
    assert_eq!([take(&m), take(&m)], seats);
    assert_eq!(take(&m), TakeOutcome::NoSeat);
}

/// The hint names a seat in a page of another block. If the search took a seat of that page, the seat would
/// be lost when the other block is freed.
#[test]
fn seat_in_another_blocks_page_is_not_taken() {
    let m = memory();
    link(&m, 0);
    fresh_page(&m, 1);
    m.store(page_owner(PAGES[1].1), u64::from(OTHER) + 1);
    (0..2).for_each(|n| m.store(seat_of(1, n), 0));
    m.store(super::block::seat_hints(PAGES[0].1), SeatAt::paged(2, PAGE_HEADER).raw().into());
    assert!(matches!(take(&m), TakeOutcome::Seat(at) if matches!(at.page(), Ok((1, _)))));
    assert!((0..2).all(|n| m.load(seat_of(1, n)) == 0));
}

/// No old contents are read as a seat or as a link.
#[test]
fn linked_seat_page_is_empty_and_names_its_block() {
    let m = memory();
    link(&m, 0);
    let (at, first) = PAGES[0];
    assert_eq!(m.load(page_owner(first)), u64::from(BLOCK.id) + 1);
    assert_eq!((m.load(page_next(first)), m.load(seat_of(0, 0)), m.load(seat_of(0, 1))), (0, 0, 0));
    assert_eq!(Seat::unpack(m.load(at.seat(0))), Seat::Block(BLOCK.id));
    assert_eq!(link_of(m.load(BLOCK.link())), Some(1));
}

fn free_pages() -> FreePages<impl Fn(BlockId) -> Option<Word> + Clone, impl Fn(BlockId) -> BlockAt> {
    FreePages::new(BLOCK, me(), pages, page_at)
}

/// Freed pages don't name the block, because another process can prepare a freed page for another block at
/// once.
#[test]
fn freed_block_also_frees_its_seat_pages() {
    let m = memory();
    (0..2).for_each(|i| link(&m, i));
    // The creator of the last page died before it handed the page over.
    m.store(PAGES[1].0.seat(0), Seat::Member(other()).pack());
    assert_eq!(run(free_pages(), &m), [2, 1]);
    for (at, first) in PAGES {
        assert_eq!((life(&m, at), m.load(page_owner(first))), (BlockLife::Free, 0));
    }
    assert_eq!(link_of(m.load(BLOCK.link())), None);
}

/// A chain that is being freed may lead to a page that now belongs to another process.
#[test]
fn freed_block_leaves_seat_pages_of_other_blocks() {
    let m = memory();
    link(&m, 0);
    m.store(PAGES[0].0.seat(0), Seat::Member(other()).pack());
    m.store(page_owner(PAGES[0].1), u64::from(OTHER) + 1);
    assert!(run(free_pages(), &m).is_empty());
    assert_eq!(Seat::unpack(m.load(PAGES[0].0.seat(0))), Seat::Member(other()));
}

/// The page's creator died before it handed the page over. The process that reclaims the creator hands the
/// page over while the block's pages are being freed.
#[test]
fn seat_page_handed_over_during_a_free_is_freed_too() {
    let m = memory();
    link(&m, 0);
    let seat = PAGES[0].0.seat(0);
    m.store(seat, Seat::Member(other()).pack());
    let mut free = free_pages();
    // Three steps: the reads of the link, the seat and the owner.
    steps(&mut free, &m, 3);
    m.store(seat, Seat::Block(BLOCK.id).pack());
    assert_eq!(run(free, &m), [1]);
}

fn release(seat: Word, beside: Option<Word>) -> ReleaseSeat<impl Fn(BlockId) -> Option<Word> + Clone> {
    ReleaseSeat::new(BLOCK, pages, me(), seat, Seat::Member(me())).neighbor(beside)
}

/// The block is held while the neighboring seat is taken, and freed when the neighboring seat is free.
#[test]
fn last_holder_frees_the_block() {
    let m = memory();
    link(&m, 0);
    m.store(BLOCK.seat(0), 0);
    m.store(seat_of(0, 0), Seat::Member(me()).pack());
    m.store(seat_of(0, 1), Seat::Envelope(7).pack());
    assert_eq!(run(release(seat_of(0, 0), Some(seat_of(0, 1))), &m), ReleaseOutcome::Held);
    m.store(seat_of(0, 0), Seat::Member(me()).pack());
    m.store(seat_of(0, 1), 0);
    assert!(matches!(run(release(seat_of(0, 0), Some(seat_of(0, 1))), &m), ReleaseOutcome::MustFree(_)));
}

/// A seat was taken and released during a check: the check is repeated.
#[test]
fn free_check_repeats_if_the_block_was_modified() {
    let m = memory();
    m.store(BLOCK.seat(0), 0);
    let mut check = FreeCheck::new(BLOCK, pages, me());
    // Four steps: the reads of the state, two seats and the link.
    steps(&mut check, &m, 4);
    m.add(BLOCK.state, BlockState::BUMP);
    assert!(matches!(run(check, &m), ReleaseOutcome::MustFree(_)));
}

/// The generation ensures that a weak handle to the previous allocation does not find the new allocation.
#[test]
fn each_allocation_has_a_new_generation() {
    let m = memory();
    let busy = BlockState { life: BlockLife::Busy(me()), kind: BlockKind::Data, version: 1 };
    let generations = [(); 3].map(|()| {
        let said = run(PublishBlock::new(BLOCK, me(), busy, BlockKind::Data), &m);
        assert_eq!(said, generation_of(m.load(BLOCK.link())));
        said
    });
    assert_eq!(generations, [1, 2, 3]);
}

const LOCK: LockAt = LockAt(word(40));
const WHO: OsThread = OsThread { pid: 7, tid: 8 };

fn acquire(m: &HeapMem, parked: bool) -> LockAttempt {
    run(AcquireLock::new(LOCK, me(), WHO, parked, None), m)
}

fn mine(acquired: LockAttempt) -> LockWord {
    match acquired {
        LockAttempt::Acquired(word) => word,
        LockAttempt::Held(word) => panic!("{word:?}"),
    }
}

/// A process that was woken can't know if other processes still sleep, so its own release wakes the next one.
#[test]
fn lock_parked_bit_remains_until_a_sleeper_is_woken() {
    let m = memory();
    assert!(mine(acquire(&m, true)).is_parked());
    assert!(run(ReleaseLock::new(LOCK, true), &m), "a sleeper has to be woken");
    let seen = mine(acquire(&m, false));
    assert!(!seen.is_parked());
    let parked = run(SetParked::new(LOCK, seen), &m);
    assert_eq!(parked.map(|word| word.0), Some(m.load(LOCK.word())), "the sleep would end at once");
    assert!(run(ReleaseLock::new(LOCK, true), &m), "the waiter is asleep");
    // The lock is free by now: there is nothing to wait for.
    assert_eq!(run(SetParked::new(LOCK, parked.unwrap()), &m), None);
    assert!(!run(ReleaseLock::new(LOCK, true), &m));
}

#[test]
fn lock_belongs_to_the_acquiring_thread() {
    let m = memory();
    let seen = mine(acquire(&m, false));
    for (tid, is_its) in [(WHO.tid, true), (WHO.tid + 1, false)] {
        assert_eq!(is_held_by(LOCK, seen, OsThread { tid, ..WHO }, &m), is_its);
    }
}

/// The mark remains until a holder declares the data sound.
#[test]
fn lock_poison_mark_remains_until_data_is_sound() {
    const MARKED: u64 = 4;
    let m = memory();
    for (sound, stays) in [(false, true), (true, false)] {
        m.store(LOCK.word(), LockWord::held(me(), 1).0 | MARKED);
        run(ReleaseLock::new(LOCK, sound), &m);
        assert_eq!(mine(acquire(&m, false)).is_poisoned(), stays);
    }
}

const TENANCY: Word = word(44);
const RECOVERING_WORD: Word = word(45);

fn tenancy(m: &HeapMem) -> Presence {
    Tenancy::unpack(m.load(TENANCY)).presence
}

/// Two processes recover the same dead member, and neither ends the recovery of the other.
#[test]
fn recovery_phase_lasts_until_its_last_recoverer_ends() {
    let m = memory();
    m.store(TENANCY, Tenancy { presence: Presence::Dead(0), epoch: 3 }.pack());
    assert_eq!(run(BeginRecovery::new(TENANCY, 2), &m), None, "the slot has a later tenant");
    let [first, second] = [(); 2].map(|()| run(BeginRecovery::new(TENANCY, 3), &m).unwrap());
    assert_eq!(end_recovery(TENANCY, first, me(), &m), None);
    let vacating = end_recovery(TENANCY, second, me(), &m).unwrap();
    assert!(matches!(tenancy(&m), Presence::Vacating(_)));
    assert!(end_recovery(TENANCY, vacating, me(), &m).is_some());
    assert_eq!(tenancy(&m), Presence::Reclaiming(me()));
}

#[test]
fn reclaim_waits_only_for_live_recoverers_of_its_slot() {
    let m = memory();
    m.store(RECOVERING_WORD, RecoveringSlots { first: 3, last: 5 }.pack());
    for (slot, is_dead, alone) in [(4, false, false), (4, true, true), (6, false, true)] {
        let alone_is = CheckSoleRecovery::new(slot, vec![(RECOVERING_WORD, other())], |_| is_dead);
        assert_eq!(run(alone_is, &m), alone, "{slot} {is_dead}");
    }
}

const UPDATES: UpdateAt =
    UpdateAt { current: word(46), own: Column { base: word(64), stride: 8 * UpdateAt::OWN_WORDS } };
const A: Word = word(48);
const B: Word = word(49);

/// Plan that adds one to A and to B, or changes nothing.
struct Add {
    changes: bool,
    exclusive: bool,
}

impl UpdatePlan for Add {
    fn reads(&self) -> &[Word] {
        &[A, B]
    }
    fn writes(&self, v: &[u64]) -> Vec<(usize, u64)> {
        if self.changes { vec![(0, v[0] + 1), (1, v[1] + 1)] } else { Vec::new() }
    }
    fn exclusive(&self) -> bool {
        self.exclusive
    }
}

/// Member list with a single other member.
struct One {
    is_dead: bool,
}

impl DeathOracle for One {
    fn is_dead(&self, _: Member) -> bool {
        self.is_dead
    }
}
impl LiveMembers for One {
    fn others(&self) -> Vec<Member> {
        vec![other()]
    }
}

fn updates() -> HeapMem {
    HeapMem::new(64 + 3 * UpdateAt::OWN_WORDS as usize)
}

fn update(by: Member, changes: bool, exclusive: bool, is_dead: bool) -> Update<Add, One> {
    Update::new(UPDATES, by, Add { changes, exclusive }, One { is_dead })
}

fn making(m: &HeapMem, who: Member) -> u64 {
    m.load(UPDATES.making(who.slot()))
}

fn named(m: &HeapMem) -> Option<Member> {
    CurrentUpdate::unpack(m.load(UPDATES.current)).making.map(|(by, _)| by)
}

/// Runs an update of another member until `current` names that member. No word is changed yet.
fn begun(m: &HeapMem) {
    let mut begun = update(other(), true, false, false);
    while named(m).is_none() {
        steps(&mut begun, m, 1);
    }
    assert_eq!((m.load(A), m.load(B)), (0, 0));
}

/// The word "making" is 1 while the process may change a word.
#[test]
fn update_is_marked_while_it_changes_words() {
    let m = updates();
    let mut own = update(me(), true, false, false);
    while m.load(A) == 0 {
        steps(&mut own, &m, 1);
    }
    assert_eq!(making(&m, me()), 1);
    assert!(matches!(run(own, &m), UpdateOutcome::Done(_)));
    assert_eq!((making(&m, me()), named(&m)), (0, None));
}

/// The word "making" is also 1 while a process completes another member's update. The update is completed.
#[test]
fn helped_update_is_marked_while_it_changes_words() {
    let m = updates();
    begun(&m);
    let mut help = update(me(), false, false, false);
    while m.load(A) == 0 {
        steps(&mut help, &m, 1);
    }
    assert_eq!(making(&m, me()), 1);
    assert!(matches!(run(help, &m), UpdateOutcome::Done([1, 1, ..])));
    assert_eq!((m.load(A), m.load(B)), (1, 1));
    assert_eq!((making(&m, me()), named(&m)), (0, None));
}

#[test]
fn exclusive_update_awaits_only_live_members() {
    for (says, is_dead, waits) in [(0, false, false), (1, false, true), (1, true, false)] {
        let m = updates();
        m.store(UPDATES.making(other().slot()), says);
        let end = run(update(me(), true, true, is_dead), &m);
        assert_eq!(end == UpdateOutcome::Busy(other()), waits, "{end:?}");
        assert_eq!(m.load(A), u64::from(!waits));
    }
}

/// Another update happens after this update has read its words, and before `current` names this update.
#[test]
fn overtaken_update_restarts() {
    for changes in [true, false] {
        let m = updates();
        let mut own = update(me(), changes, false, false);
        // Three steps: the reads of `current`, A and B. The other update makes these values outdated.
        steps(&mut own, &m, 3);
        assert!(matches!(run(update(other(), true, false, false), &m), UpdateOutcome::Done(_)));
        assert!(matches!(run(own, &m), UpdateOutcome::Done([1, 1, ..])));
        assert_eq!(m.load(A), if changes { 2 } else { 1 });
    }
}

/// A process is stopped while it helps with an update. Other processes complete the update, and its owner
/// records the next one. The stopped process then continues, and changes no word.
#[test]
fn late_helper_does_not_change_the_next_update() {
    // Steps: current; "making"; then the reads of current, of the three words of an entry, of current again.
    for stopped_after in [2, 3, 4, 5, 6] {
        let m = updates();
        begun(&m);
        let mut late = update(me(), false, false, false);
        steps(&mut late, &m, stopped_after);
        assert!(matches!(run(update(Member::new(0, 1), false, false, false), &m), UpdateOutcome::Done(_)));
        // The next update of the same member is recorded, but `current` does not name it yet.
        let mut next = update(other(), true, false, false);
        while m.load(UPDATES.own.of(other().slot()).plus(3)) != 2 {
            steps(&mut next, &m, 1);
        }
        (0..3).for_each(|_| _ = next.step(&m));
        let before = (m.load(A), m.load(B));
        if named(&m).is_none() {
            assert!(matches!(run(late, &m), UpdateOutcome::Done(_)));
            assert_eq!((m.load(A), m.load(B)), before, "stopped after {stopped_after}");
        }
        assert!(matches!(run(next, &m), UpdateOutcome::Done(_)));
        assert_eq!((m.load(A), m.load(B)), (2, 2));
    }
}
