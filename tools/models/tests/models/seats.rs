//! Exhaustive model of the holders of a block. Processes send, receive and release one block. Any process,
//! including a reclaiming process, is killed at any shared access. In some worlds, all three seats are in the
//! block's header. In other worlds, two seats are in pages: in two pages, which are searched in a circle, or
//! next to each other in one page. Real processes run the same steps.

use mp_core::mem::{Mem, Steps, Word};
use mp_core::steps::{
    AttachRecord, BlockAt, FreeCheck, PAGE_HEADER, ReleaseOutcome, ReleaseSeat, TakeOutcome, TakeSeat,
    UnclaimBlock, with_link,
};
use mp_core::words::{
    Access, Attachment, BlockId, BlockKind, BlockLife, BlockState, Grant, Holder, Member, Owner, Seat, SeatAt,
};
use mp_models::explore::{Actor, Fate, Memory, World};
use mp_models::members::{is_killed, member};

const SEATS: u32 = 3;
const ENVELOPES: u32 = 2;
/// Block with all seats in the header.
const FLAT: BlockAt = BlockAt { id: 0, state: Word::at(0), inline: SEATS, per_page: 1 };
/// Block with one seat in the header, and two seats in pages of one seat each.
const PAGED: BlockAt = BlockAt { id: 0, state: Word::at(0), inline: 1, per_page: 1 };
/// Block with one seat in the header, and two seats next to each other in one page.
const BESIDE: BlockAt = BlockAt { id: 0, state: Word::at(0), inline: 1, per_page: 2 };
/// Index of the first word of the envelopes. Each envelope has three words: owner, number of attachments,
/// attachment.
const FIRST_ENVELOPE: u64 = 2 + SEATS as u64;
const FIRST_PAGE: u64 = FIRST_ENVELOPE + 3 * ENVELOPES as u64;
const PAGE_WORDS: u64 = PAGE_HEADER as u64 + 2;
const WORDS: usize = (FIRST_PAGE + 2 * PAGE_WORDS) as usize;
/// Numbers of the blocks that are pages of seats.
const PAGE_BLOCKS: [BlockId; 2] = [7, 8];

fn owner_at(e: u32) -> Word {
    Word::at(8 * (FIRST_ENVELOPE + 3 * u64::from(e)))
}
fn count_at(e: u32) -> Word {
    owner_at(e).plus(1)
}
fn entry_at(e: u32) -> Word {
    owner_at(e).plus(2)
}
fn page_at(page: BlockId) -> Option<Word> {
    let i = PAGE_BLOCKS.iter().position(|&p| p == page)? as u64;
    Some(Word::at(8 * (FIRST_PAGE + PAGE_WORDS * i)))
}
type Pages = fn(BlockId) -> Option<Word>;
const PAGES: Pages = page_at;

/// Returns the `i`-th seat of the block.
fn nth(block: BlockAt, i: u32) -> SeatAt {
    match i.checked_sub(block.inline) {
        None => SeatAt::inline(i),
        Some(k) => {
            SeatAt::paged(PAGE_BLOCKS[(k / block.per_page) as usize], PAGE_HEADER + k % block.per_page)
        }
    }
}
fn seat_at(block: BlockAt, at: SeatAt) -> Word {
    block.seat_word(at, PAGES).expect("one of the block's seats")
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Op {
    Send,
    Receive,
    Drop,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Doing {
    Next,
    // send: claim an envelope, clear it, take a seat for the envelope, publish it
    Claim(u32, u64),
    Clear(u32),
    Count(u32),
    Take(u32, TakeSeat<Pages>),
    Publish(u32),
    GiveBack(u32),
    // receive: take the envelope, turn its seat into the process's seat, empty and free the envelope
    Grab(u32, u64),
    Entry(u32),
    Adopt(u32, SeatAt),
    Emptied(u32),
    // drop: release the process's seat
    Release(ReleaseSeat<Pages>, After),
    Freed(UnclaimBlock, After),
    // reclaim
    Own(u32, u64),
    Attached(u32),
    Seat(u32, usize),
    Busy(u64),
    UnclaimBlock(BlockState),
    Check(FreeCheck<Pages>),
}

/// Next action after the release of a seat.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum After {
    Next,
    Emptied(u32),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Process {
    block: BlockAt,
    program: Vec<Op>,
    /// Seat by which this process holds the block.
    seat: Option<SeatAt>,
    doing: Doing,
}

fn envelope(m: &Memory, e: u32) -> Owner {
    Owner::unpack(m.peek(owner_at(e)))
}
fn seat(m: &Memory, block: BlockAt, i: u32) -> Seat {
    Seat::unpack(m.peek(seat_at(block, nth(block, i))))
}

/// Checks that an actor frees the block only if the block has no holder.
fn check_without_holder(m: &Memory, block: BlockAt, fates: &[Fate]) {
    for i in 0..SEATS {
        let held = match seat(m, block, i) {
            Seat::Free | Seat::Block(_) => false,
            Seat::Member(p) => matches!(fates[p.slot() as usize], Fate::Running | Fate::Stopped),
            Seat::Envelope(e) => envelope(m, e).holder == Holder::Queued,
        };
        assert!(!held, "freed while held by {:?}", seat(m, block, i));
    }
}

impl Process {
    fn next(&mut self, me: usize, m: &Memory, fates: &[Fate]) -> Option<Doing> {
        let block = self.block;
        if let Some(&op) = self.program.first() {
            let doing = match op {
                Op::Send if self.seat.is_some() => (0..ENVELOPES)
                    .find(|&e| envelope(m, e).holder == Holder::Free)
                    .map(|e| Doing::Claim(e, m.peek(owner_at(e)))),
                // An actor that reads too early finds no message. Other schedules find it.
                Op::Receive => (0..ENVELOPES)
                    .find(|&e| envelope(m, e).holder == Holder::Queued)
                    .map(|e| Doing::Grab(e, m.peek(owner_at(e)))),
                Op::Drop => self.seat.take().map(|i| {
                    let holder = Seat::Member(member(me));
                    let release = ReleaseSeat::new(block, PAGES, member(me), seat_at(block, i), holder)
                        .neighbor(block.neighbor(i, seat_at(block, i)));
                    Doing::Release(release, After::Next)
                }),
                Op::Send => None,
            };
            self.program.remove(0);
            return Some(doing.unwrap_or(Doing::Next));
        }
        // After its program, a process reclaims dead processes, like waiting processes and parents.
        let dead = |p: Member| is_killed(fates, p);
        for e in 0..ENVELOPES {
            if let Holder::Member(p) = envelope(m, e).holder
                && dead(p)
            {
                return Some(Doing::Own(e, m.peek(owner_at(e))));
            }
        }
        let state = m.peek(block.state);
        match BlockState::unpack(state).life {
            BlockLife::Busy(p) if dead(p) => return Some(Doing::Busy(state)),
            BlockLife::Live => {
                for i in 0..SEATS {
                    if let Seat::Member(p) = seat(m, block, i)
                        && dead(p)
                    {
                        return Some(Doing::Seat(i, p.slot() as usize));
                    }
                }
                // Only a killed actor can leave a live block without seats. Otherwise the actor that released
                // the last seat frees it.
                let deaths = fates.contains(&Fate::Killed);
                if deaths && (0..SEATS).all(|i| seat(m, block, i) == Seat::Free) {
                    return Some(Doing::Check(FreeCheck::new(block, PAGES, member(me))));
                }
            }
            BlockLife::Free | BlockLife::Busy(_) => {}
        }
        None
    }
}

fn after(after: After) -> Doing {
    match after {
        After::Next => Doing::Next,
        After::Emptied(e) => Doing::Emptied(e),
    }
}

impl Actor for Process {
    type Ghost = ();

    fn step(&mut self, me: usize, m: &Memory, fates: &[Fate], _: &mut ()) -> bool {
        let block = self.block;
        let mine = |found: u64| Owner::unpack(found).then(Holder::Member(member(me))).pack();
        let next = match &mut self.doing {
            Doing::Next => match self.next(me, m, fates) {
                Some(doing) => doing,
                None => return true,
            },
            Doing::Claim(e, found) => match m.cas(owner_at(*e), *found, mine(*found)) {
                Ok(()) => Doing::Clear(*e),
                Err(_) => Doing::Next,
            },
            Doing::Clear(e) => {
                m.store(entry_at(*e), 0);
                Doing::Count(*e)
            }
            Doing::Count(e) => {
                m.store(count_at(*e), 1);
                let note = AttachRecord {
                    entry: entry_at(*e),
                    count: count_at(*e),
                    counted: 1,
                    grant: Grant::new(Access::Frozen, 0),
                };
                Doing::Take(*e, TakeSeat::new(block, PAGES, Seat::Envelope(*e), note))
            }
            Doing::Take(e, take) => match take.step(m) {
                None => return false,
                Some(TakeOutcome::Seat(_)) => Doing::Publish(*e),
                Some(TakeOutcome::NoSeat) => Doing::GiveBack(*e),
            },
            Doing::Publish(e) => {
                let owner = envelope(m, *e).then(Holder::Queued);
                m.store(owner_at(*e), owner.pack());
                Doing::Next
            }
            Doing::GiveBack(e) => {
                m.store(count_at(*e), 0);
                Doing::Emptied(*e)
            }
            Doing::Grab(e, found) => match m.cas(owner_at(*e), *found, mine(*found)) {
                Ok(()) => Doing::Entry(*e),
                Err(_) => Doing::Next,
            },
            Doing::Entry(e) => match Attachment::unpack(m.load(entry_at(*e))) {
                Some(attach) => Doing::Adopt(*e, attach.seat),
                None => panic!("a message without its attachment"),
            },
            Doing::Adopt(e, i) => {
                let (e, i) = (*e, *i);
                // A process that already holds the block keeps its seat, and releases the envelope's seat.
                let (to, seat) = match self.seat {
                    None => (Seat::Member(member(me)), i),
                    Some(seat) => (Seat::Free, seat),
                };
                m.cas(seat_at(block, i), Seat::Envelope(e).pack(), to.pack())
                    .expect("the seat is the envelope's");
                self.seat = Some(seat);
                Doing::GiveBack(e)
            }
            Doing::Emptied(e) => {
                m.store(owner_at(*e), envelope(m, *e).then(Holder::Free).pack());
                Doing::Next
            }
            Doing::Release(release, then) => match release.step(m) {
                None => return false,
                Some(ReleaseOutcome::Held) => after(*then),
                Some(ReleaseOutcome::MustFree(state)) => {
                    check_without_holder(m, block, fates);
                    Doing::Freed(UnclaimBlock::new(block, state), *then)
                }
            },
            Doing::Freed(unclaim, then) => {
                unclaim.step(m);
                after(*then)
            }
            Doing::Own(e, found) => match m.cas(owner_at(*e), *found, mine(*found)) {
                Ok(()) => Doing::Attached(*e),
                Err(_) => Doing::Next,
            },
            Doing::Attached(e) => {
                // The word is read together with the number, which only this process can change now.
                let n = m.peek(count_at(*e));
                match Attachment::unpack(m.load(entry_at(*e))).filter(|_| n > 0) {
                    None => Doing::Emptied(*e),
                    Some(attach) => {
                        let (at, holder) = (seat_at(block, attach.seat), Seat::Envelope(*e));
                        let release = ReleaseSeat::new(block, PAGES, member(me), at, holder);
                        Doing::Release(release, After::Emptied(*e))
                    }
                }
            }
            Doing::Seat(i, dead) => {
                let holder = Seat::Member(member(*dead));
                let at = seat_at(block, nth(block, *i));
                Doing::Release(ReleaseSeat::new(block, PAGES, member(me), at, holder), After::Next)
            }
            Doing::Busy(found) => {
                let state = BlockState::unpack(*found).with(BlockLife::Busy(member(me)));
                match m.cas(block.state, *found, state.pack()) {
                    Ok(()) => Doing::UnclaimBlock(state),
                    Err(_) => Doing::Next,
                }
            }
            Doing::UnclaimBlock(state) => {
                UnclaimBlock::new(block, *state).step(m);
                Doing::Next
            }
            Doing::Check(check) => match check.step(m) {
                None => return false,
                Some(ReleaseOutcome::Held) => Doing::Next,
                Some(ReleaseOutcome::MustFree(state)) => {
                    check_without_holder(m, block, fates);
                    Doing::UnclaimBlock(state)
                }
            },
        };
        self.doing = next;
        false
    }
}

/// Creates a world whose first process holds the block.
fn world(programs: &[&[Op]]) -> World<Process> {
    world_of(FLAT, None, programs)
}

/// Creates a world like [`world`], with seats in pages. The seat in pages with the number `last` was taken
/// last.
fn paged(last: usize, programs: &[&[Op]]) -> World<Process> {
    world_of(PAGED, PAGE_BLOCKS.get(last).map(|&page| SeatAt::paged(page, PAGE_HEADER)), programs)
}

/// Creates a world like [`paged`], after a search for holders that ended at seat `held` in pages.
fn hinted(last: usize, held: usize, programs: &[&[Op]]) -> World<Process> {
    let world = paged(last, programs);
    let hints = Word::at(8 * (FIRST_PAGE + 2));
    let held = u64::from(SeatAt::paged(PAGE_BLOCKS[held], PAGE_HEADER).raw());
    world.memory.poke(hints, world.memory.peek(hints) | held << 32);
    world
}

/// Creates a world like [`world`], with two seats next to each other in a page. The seat with the number
/// `last` was taken last.
fn beside(last: u32, programs: &[&[Op]]) -> World<Process> {
    world_of(BESIDE, Some(SeatAt::paged(PAGE_BLOCKS[0], PAGE_HEADER + last)), programs)
}

fn world_of(block: BlockAt, last: Option<SeatAt>, programs: &[&[Op]]) -> World<Process> {
    let m = Memory::new(WORDS);
    let live = BlockState { life: BlockLife::Live, kind: BlockKind::Data, version: 1 };
    m.poke(block.state, live.pack());
    m.poke(block.seat(0), Seat::Member(member(0)).pack());
    if block.inline < SEATS {
        m.poke(block.link(), with_link(0, Some(PAGE_BLOCKS[0])));
        let pages = (SEATS - block.inline) / block.per_page;
        for &page in &PAGE_BLOCKS[..pages as usize] {
            let first = page_at(page).expect("a page");
            m.poke(first, u64::from(block.id) + 1);
            if page == PAGE_BLOCKS[0] {
                let next = PAGE_BLOCKS.get(1).copied().filter(|_| pages > 1);
                m.poke(first.plus(1), with_link(0, next));
                m.poke(first.plus(2), last.map_or(0, |last| last.raw().into()));
            }
        }
    }
    let process = |(i, program): (usize, &&[Op])| Process {
        block,
        program: program.to_vec(),
        seat: (i == 0).then_some(SeatAt::inline(0)),
        doing: Doing::Next,
    };
    World::new(m, programs.iter().enumerate().map(process).collect(), ())
}

fn explore(world: World<Process>, kills: u32, stops: u32) {
    let end = |w: &World<Process>| {
        let (m, block) = (&w.memory, w.actors[0].block);
        let killed = |p: Member| is_killed(&w.fates, p);
        let seen = w.count(0..w.fates.len(), Fate::Ended) > 0
            && (0..ENVELOPES).all(|e| !matches!(envelope(m, e).holder, Holder::Member(p) if killed(p)))
            && (0..SEATS).all(|i| !matches!(seat(m, block, i), Seat::Member(p) if killed(p)))
            && !matches!(BlockState::unpack(m.peek(block.state)).life, BlockLife::Busy(p) if killed(p));
        let in_use = (0..ENVELOPES).any(|e| envelope(m, e).holder != Holder::Free)
            || (0..SEATS).any(|i| matches!(seat(m, block, i), Seat::Member(_)));
        let live_without_seats = (0..SEATS).all(|i| seat(m, block, i) == Seat::Free)
            && BlockState::unpack(m.peek(block.state)).life == BlockLife::Live
            && w.count(0..w.fates.len(), Fate::Killed) > 0;
        // Processes that died after the last check of a living process are left to the next reclaim. Stopped
        // actors may continue.
        if seen && w.count(0..w.fates.len(), Fate::Stopped) == 0 && !in_use && !live_without_seats {
            assert_eq!(BlockState::unpack(m.peek(block.state)).life, BlockLife::Free, "the block leaks");
        }
    };
    let wedged = |w: &World<Process>| w.fates.contains(&Fate::Running);
    world.explore(kills, stops, end, wedged);
}

use Op::{Drop, Receive, Send};

#[test]
fn sent_and_received_blocks_survive_kills() {
    explore(world(&[&[Send, Drop], &[Receive, Drop]]), 2, 0);
    explore(world(&[&[Send, Drop], &[Receive, Drop]]), 1, 1);
}

#[test]
fn relayed_blocks_survive_kills() {
    explore(world(&[&[Send, Drop], &[Receive, Send, Drop], &[Receive, Drop]]), 1, 0);
}

#[test]
fn block_sent_twice_is_held_once_by_its_receiver() {
    explore(world(&[&[Send, Send, Drop], &[Receive, Receive, Drop]]), 1, 0);
}

#[test]
#[should_panic(expected = "freed while held")]
fn model_finds_held_block_freed_without_version() {
    let mut w = world(&[&[Send, Drop], &[Receive, Send, Drop], &[Receive, Drop]]);
    // The only addition of this model increments the version.
    w.memory.lose_additions();
    explore(w, 0, 0);
}

#[test]
fn seats_in_pages_survive_kills() {
    for last in 0..=2 {
        explore(paged(last, &[&[Send, Drop], &[Receive, Drop]]), 2, 0);
        explore(paged(last, &[&[Send, Drop], &[Receive, Drop]]), 1, 1);
    }
}

/// A release begins its search for holders at the seat that an earlier release found held, and notes the held
/// seat that it finds.
#[test]
fn hints_of_held_seats_survive_kills() {
    for (last, held) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        explore(hinted(last, held, &[&[Send, Drop], &[Receive, Drop]]), 2, 0);
        explore(hinted(last, held, &[&[Send, Drop], &[Receive, Drop]]), 1, 1);
        explore(hinted(last, held, &[&[Send, Drop], &[Receive, Send, Drop], &[Receive, Drop]]), 1, 0);
    }
}

#[test]
fn relayed_seats_in_pages_survive_kills() {
    for last in 0..=1 {
        explore(paged(last, &[&[Send, Drop], &[Receive, Send, Drop], &[Receive, Drop]]), 1, 0);
    }
    explore(paged(0, &[&[Send, Send, Drop], &[Receive, Receive, Drop]]), 1, 0);
}

#[test]
fn neighboring_seats_of_a_page_survive_kills() {
    for last in 0..=1 {
        explore(beside(last, &[&[Send, Drop], &[Receive, Drop]]), 2, 0);
        explore(beside(last, &[&[Send, Drop], &[Receive, Drop]]), 1, 1);
        explore(beside(last, &[&[Send, Drop], &[Receive, Send, Drop], &[Receive, Drop]]), 1, 0);
    }
    explore(beside(0, &[&[Send, Send, Drop], &[Receive, Drop], &[Receive, Drop]]), 0, 0);
}

#[test]
#[should_panic(expected = "freed while held")]
fn model_finds_held_page_freed_without_version() {
    // The second message's seat was taken last and is free again: the freeing actor begins its scan there.
    let mut w = paged(1, &[&[Send, Send, Drop], &[Receive, Send, Drop], &[Receive, Drop]]);
    w.memory.lose_additions();
    explore(w, 0, 0);
}
