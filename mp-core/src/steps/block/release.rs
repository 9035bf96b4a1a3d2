//! Release of a seat. The process that releases the last seat frees the block.

use super::cursor::{NextSeat, SeatCursor, SeatHints, page_next, page_owner, seat_hints};
use super::{BlockAt, link_of};
use crate::mem::{Mem, Steps, Word};
use crate::words::{BlockId, BlockLife, BlockState, Member, Seat};

/// Result of a release.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ReleaseOutcome {
    /// The block is still held, or another process frees it.
    Held,
    /// The caller must free the block. Contains the block's state, `BUSY(me)`.
    MustFree(BlockState),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Pc {
    State,
    Inline(u32),
    Head,
    Hints,
    Taken(Word),
    Owner,
    Probe,
    Link,
    Remember,
    Swap,
}

/// Checks if a live block has holders. If it has none, claims it for freeing: `LIVE → BUSY(me)`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct FreeCheck<F> {
    block: BlockAt,
    /// Function that returns the first word of a page. Cloned before each call, so that the compiler need not
    /// keep these steps in memory (see `SeatCursor`).
    pages: F,
    me: Member,
    seen: u64,
    /// First page of seats.
    head: (BlockId, Word),
    hints: SeatHints,
    /// Position in the pages of seats. Separate from `pc`, so that the compiler can optimize the common path,
    /// which reads no pages.
    cursor: Option<SeatCursor>,
    pc: Pc,
}

impl<F: Fn(BlockId) -> Option<Word>> FreeCheck<F> {
    /// Creates the steps to check `block`, for `me`.
    pub fn new(block: BlockAt, pages: F, me: Member) -> Self {
        let (head, hints) = ((0, Word::at(0)), SeatHints::default());
        Self { block, pages, me, seen: 0, head, hints, cursor: None, pc: Pc::State }
    }

    pub(super) fn block(&self) -> BlockAt {
        self.block
    }

    fn after(after: NextSeat) -> Pc {
        match after {
            NextSeat::Seat => Pc::Probe,
            NextSeat::Link => Pc::Link,
            NextSeat::End => Pc::Swap,
        }
    }
}

impl<F: Fn(BlockId) -> Option<Word> + Clone> Steps for FreeCheck<F> {
    type Out = ReleaseOutcome;

    #[inline(always)]
    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<ReleaseOutcome> {
        match self.pc {
            Pc::State => {
                self.seen = m.load(self.block.state);
                if BlockState::unpack(self.seen).life != BlockLife::Live {
                    return Some(ReleaseOutcome::Held);
                }
                self.pc = Pc::Inline(0);
            }
            Pc::Inline(i) => {
                if !Seat::is_free(m.load(self.block.seat(i))) {
                    return Some(ReleaseOutcome::Held);
                }
                let more = i + 1;
                self.pc = if more < self.block.inline { Pc::Inline(i + 1) } else { Pc::Head };
            }
            Pc::Head => {
                let link = link_of(m.load(self.block.link()));
                self.pc = match link.and_then(|page| Some((page, self.pages.clone()(page)?))) {
                    Some(head) => {
                        self.head = head;
                        Pc::Hints
                    }
                    None => Pc::Swap,
                };
            }
            Pc::Hints => {
                self.hints = SeatHints(m.load_relaxed(seat_hints(self.head.1)));
                // Without a hint, the first seat in the header is read once more.
                let taken = self.block.seat_word(self.hints.taken(), self.pages.clone());
                self.pc = Pc::Taken(taken.unwrap_or(self.block.seat(0)));
            }
            // While messages are in flight, the seat that was taken last is held.
            Pc::Taken(seat) => {
                if !Seat::is_free(m.load(seat)) {
                    return Some(ReleaseOutcome::Held);
                }
                let start = if self.hints.held().raw() == 0 { self.hints.taken() } else { self.hints.held() };
                self.cursor = Some(SeatCursor::new(&self.block, self.head, start, self.pages.clone()));
                self.pc = Pc::Owner;
            }
            // In another block's page, the walk would mistake that block's seats for seats of this block.
            Pc::Owner => {
                let Some(cursor) = &mut self.cursor else { return Some(ReleaseOutcome::Held) };
                if m.load_relaxed(page_owner(cursor.now().first)) != u64::from(self.block.id) + 1 {
                    cursor.restart();
                }
                self.pc = Pc::Probe;
            }
            Pc::Probe => {
                let Some(cursor) = &mut self.cursor else { return Some(ReleaseOutcome::Held) };
                if !Seat::is_free(m.load(cursor.now().word())) {
                    if cursor.passed_few(&self.block) {
                        return Some(ReleaseOutcome::Held);
                    }
                    self.pc = Pc::Remember;
                    return None;
                }
                let after = cursor.advance(&self.block);
                self.pc = Self::after(after);
            }
            Pc::Link => {
                let Some(cursor) = &mut self.cursor else { return Some(ReleaseOutcome::Held) };
                let link = link_of(m.load(page_next(cursor.now().first)));
                let after = cursor.enter(link.and_then(|page| Some((page, self.pages.clone()(page)?))));
                self.pc = Self::after(after);
            }
            // The next check begins here. The swap fails if another process has changed a hint meanwhile. If
            // the block was freed, the page may belong to another block by now, even with the same hints: the
            // checks of that block find that this seat's page belongs to a different block.
            Pc::Remember => {
                if let Some(cursor) = &self.cursor {
                    let found = self.hints.with_held(cursor.now().at());
                    _ = m.cas(seat_hints(self.head.1), self.hints.0, found.0);
                }
                return Some(ReleaseOutcome::Held);
            }
            Pc::Swap => {
                let busy = BlockState::unpack(self.seen).with(BlockLife::Busy(self.me));
                match m.cas(self.block.state, self.seen, busy.pack()) {
                    Ok(()) => return Some(ReleaseOutcome::MustFree(busy)),
                    Err(_) => self.pc = Pc::State,
                }
            }
        }
        None
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum ReleasePc {
    Swap,
    Neighbor,
    Check,
}

/// Releases one seat held by `holder`, then runs a [`FreeCheck`].
///
/// If the seat doesn't name `holder`, nothing happens. So a recovery can also release an attachment that was
/// recorded, but whose seat was not yet taken when the sender died.
///
/// For a seat in a page, a neighbor on the same cache line is checked first, since the line is already in the
/// cache. If the neighbor is taken, this process runs no further check, and does not access the cache line of
/// the block's state: the neighbor's holder runs the check when it releases that seat. While messages that
/// attach the block are in flight, the neighbor is usually taken.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ReleaseSeat<F> {
    seat: Word,
    neighbor: Option<Word>,
    holder: Seat,
    pc: ReleasePc,
    check: FreeCheck<F>,
}

impl<F: Fn(BlockId) -> Option<Word>> ReleaseSeat<F> {
    /// Creates the steps to release the seat at `seat`, which belongs to `block`.
    pub fn new(block: BlockAt, pages: F, me: Member, seat: Word, holder: Seat) -> Self {
        Self { seat, neighbor: None, holder, pc: ReleasePc::Swap, check: FreeCheck::new(block, pages, me) }
    }

    /// Sets a neighbor of the seat, in the same block ([`BlockAt::neighbor`]).
    pub fn neighbor(self, neighbor: Option<Word>) -> Self {
        Self { neighbor, ..self }
    }
}

impl<F: Fn(BlockId) -> Option<Word> + Clone> Steps for ReleaseSeat<F> {
    type Out = ReleaseOutcome;

    #[inline(always)]
    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<ReleaseOutcome> {
        match self.pc {
            ReleasePc::Swap => match m.cas(self.seat, self.holder.pack(), Seat::Free.pack()) {
                // Two holders that release the last two seats at once must not both find the other's taken.
                Ok(()) => {
                    m.fence_after_rmw();
                    self.pc = if self.neighbor.is_some() { ReleasePc::Neighbor } else { ReleasePc::Check };
                }
                Err(_) => return Some(ReleaseOutcome::Held),
            },
            ReleasePc::Neighbor => {
                self.pc = ReleasePc::Check;
                if self.neighbor.is_some_and(|neighbor| !Seat::is_free(m.load(neighbor))) {
                    return Some(ReleaseOutcome::Held);
                }
            }
            ReleasePc::Check => return self.check.step(m),
        }
        None
    }
}

#[cfg(all(test, not(mp_loom)))]
mod tests {
    use super::super::{AttachRecord, LinkPage, PAGE_HEADER, TakeOutcome, TakeSeat, with_link};
    use super::*;
    use crate::mem::{HeapMem, run};
    use crate::words::{Access, BlockKind, Grant, SeatAt};

    const PAGES: u32 = 9;
    const PER_PAGE: u32 = 253;
    const BLOCK: BlockAt = BlockAt { id: 0, state: Word::at(0), inline: 2, per_page: PER_PAGE };
    const NOTE: Word = Word::at(8 * 8);
    const FIRST_PAGE: u64 = 16;

    /// Returns the first word of a page. The blocks 1 to [`PAGES`] are pages.
    fn pages(page: BlockId) -> Option<Word> {
        (1..=PAGES).contains(&page).then(|| Word::at(8 * (FIRST_PAGE + 256 * u64::from(page - 1))))
    }

    fn me() -> Member {
        Member::new(1, 1)
    }

    fn seat(i: u32) -> SeatAt {
        SeatAt::paged(1 + i / PER_PAGE, PAGE_HEADER + i % PER_PAGE)
    }

    fn word(i: u32) -> Word {
        BLOCK.seat_word(seat(i), pages).unwrap()
    }

    fn hints(m: &HeapMem) -> SeatHints {
        SeatHints(m.load(seat_hints(pages(1).unwrap())))
    }

    /// Prepares a live block with this many pages, whose seats are held by children.
    fn block_with(linked: u32) -> HeapMem {
        let m = HeapMem::new(FIRST_PAGE as usize + 256 * PAGES as usize);
        let live = BlockState { life: BlockLife::Live, kind: BlockKind::Object, version: 1 };
        m.store(BLOCK.state, live.pack());
        m.store(BLOCK.link(), with_link(0, Some(1)));
        for page in 1..=linked {
            let first = pages(page).unwrap();
            m.store(page_owner(first), u64::from(BLOCK.id) + 1);
            m.store(page_next(first), with_link(0, (page < linked).then_some(page + 1)));
        }
        let seats = linked * PER_PAGE;
        (0..seats).for_each(|i| m.store(word(i), Seat::Block(100 + i).pack()));
        m.store(seat_hints(pages(1).unwrap()), SeatHints::default().with_taken(seat(seats - 1)).0);
        m
    }

    /// Releases a seat. Returns the outcome and the number of steps.
    fn release(m: &HeapMem, i: u32) -> (ReleaseOutcome, u64) {
        let release = ReleaseSeat::new(BLOCK, pages, me(), word(i), Seat::Block(100 + i));
        let mut release = release.neighbor(BLOCK.neighbor(seat(i), word(i)));
        let mut steps = 1;
        loop {
            match release.step(m) {
                Some(outcome) => return (outcome, steps),
                None => steps += 1,
            }
        }
    }

    /// The seats are released in two orders: the lower half upwards and then the upper half downwards, and a
    /// mixed order.
    #[test]
    fn many_seats_are_released_in_few_steps_in_any_order() {
        let seats = (PAGES - 1) * PER_PAGE;
        let middle: Vec<u32> = (0..seats / 2).chain((seats / 2..seats).rev()).collect();
        // 1021 is a prime number that doesn't divide the number of seats.
        let mixed: Vec<u32> = (0..seats).map(|i| i * 1021 % seats).collect();
        for order in [middle, mixed] {
            let m = block_with(PAGES - 1);
            let (&last, others) = order.split_last().unwrap();
            let mut steps = 0;
            for &i in others {
                let (outcome, took) = release(&m, i);
                assert_eq!(outcome, ReleaseOutcome::Held);
                steps += took;
            }
            assert!(steps < 40 * u64::from(seats), "{steps} steps for {seats} seats");
            assert!(matches!(release(&m, last).0, ReleaseOutcome::MustFree(_)));
        }
    }

    /// The hint names a seat in a page of another block, because a process was stopped during its check while
    /// the block was freed.
    #[test]
    fn seats_of_another_block_do_not_hold_a_block() {
        let m = block_with(1);
        let foreign = pages(2).unwrap();
        m.store(page_owner(foreign), 77);
        m.store(foreign.plus(PAGE_HEADER.into()), Seat::Block(5).pack());
        m.store(seat_hints(pages(1).unwrap()), hints(&m).with_held(seat(PER_PAGE)).0);
        for i in 0..PER_PAGE - 1 {
            assert_eq!(release(&m, i).0, ReleaseOutcome::Held);
        }
        assert!(matches!(release(&m, PER_PAGE - 1).0, ReleaseOutcome::MustFree(_)));
    }

    /// A process that takes a seat or links a page does not change the hint of a held seat, which processes
    /// that release seats have written.
    #[test]
    fn taking_seats_keeps_the_hint_of_a_held_seat() {
        let m = block_with(3);
        let held = seat(300);
        (0..300).chain((301..3 * PER_PAGE).rev()).for_each(|i| _ = release(&m, i));
        assert_eq!(hints(&m).held(), held);
        let record =
            AttachRecord { entry: NOTE, count: NOTE, counted: 0, grant: Grant::new(Access::Object, 0) };
        let taken = run(TakeSeat::new(BLOCK, pages, Seat::Member(me()), record), &m);
        assert!(matches!(taken, TakeOutcome::Seat(_)));
        let taken = run(TakeSeat::new(BLOCK, pages, Seat::Member(me()), record), &m);
        let TakeOutcome::Seat(at) = taken else { panic!("{taken:?}") };
        assert_eq!((hints(&m).held(), hints(&m).taken()), (held, at));
        let page = BlockAt { id: 4, state: Word::at(8 * 10), inline: 1, per_page: 0 };
        m.store(page.seat(0), Seat::Member(me()).pack());
        assert!(run(LinkPage::new(BLOCK, page, pages(4).unwrap(), me(), pages), &m));
        assert_eq!((hints(&m).held(), hints(&m).taken()), (held, seat(3 * PER_PAGE)));
    }
}
