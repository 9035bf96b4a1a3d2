//! Exhaustive model of pages of seats. Processes claim pages, link them to a block, and free them with the
//! block. Any process, including a reclaiming process, is killed at any shared access. Real processes run the
//! same steps.

use mp_core::mem::{Mem, Steps, Word};
use mp_core::steps::{
    BlockAt, ClaimBlock, FreeCheck, FreePages, LinkPage, PAGE_HEADER, PublishBlock, ReleaseOutcome,
    ReleaseSeat, SlabSnapshot, UnclaimBlock, link_of, with_link,
};
use mp_core::words::{BlockId, BlockKind, BlockLife, BlockState, Member, Seat};
use mp_models::explore::{Actor, Fate, Memory, World};
use mp_models::members::{is_killed, member};

/// Word of the slab of all blocks, which does not change in this model.
const SLAB: Word = Word::at(0);
const INLINE: u32 = 2;
const BLOCK_WORDS: u64 = 2 + INLINE as u64;
const PAGE_WORDS: u64 = PAGE_HEADER as u64 + 1;
/// Number of blocks. Blocks 0 and 1 are held. Blocks 2 and 3 are, or become, pages of seats.
const BLOCKS: u32 = 4;
const FIRST_PAGE: BlockId = 2;
const MEMORY_AT: u64 = 1 + BLOCK_WORDS * BLOCKS as u64;
const WORDS: usize = (MEMORY_AT + 2 * PAGE_WORDS) as usize;

fn block(id: BlockId) -> BlockAt {
    let state = Word::at(8 * (1 + BLOCK_WORDS * u64::from(id)));
    BlockAt { id, state, inline: INLINE, per_page: 1 }
}
fn page_at(page: BlockId) -> Option<Word> {
    let i = page.checked_sub(FIRST_PAGE).filter(|&i| i < 2)?;
    Some(Word::at(8 * (MEMORY_AT + PAGE_WORDS * u64::from(i))))
}
fn first(page: BlockId) -> Word {
    page_at(page).expect("a page")
}
type Pages = fn(BlockId) -> Option<Word>;
const PAGES: Pages = page_at;
type At = fn(BlockId) -> BlockAt;
const AT: At = block;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Op {
    /// Links the first block as a page to the second block, which the process holds. Does nothing if the page
    /// is in use.
    Grow(BlockId, BlockId),
    /// Releases the process's seat of this block.
    Drop(BlockId),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Doing {
    Next,
    Claim(BlockId, BlockId, ClaimBlock),
    Publish(BlockId, BlockId, PublishBlock),
    Link(LinkPage<Pages>),
    Release(BlockId, ReleaseSeat<Pages>),
    Pages(BlockState, BlockId, FreePages<Pages, At>),
    UnclaimBlock(UnclaimBlock),
    // reclaim
    Busy(BlockId, u64),
    Clear(BlockId, BlockState, u32),
    HandOver(BlockId, u64, BlockId),
    Check(BlockId, FreeCheck<Pages>),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Process {
    program: Vec<Op>,
    doing: Doing,
}

fn state(m: &Memory, id: BlockId) -> BlockState {
    BlockState::unpack(m.peek(block(id).state))
}
fn seats(m: &Memory, id: BlockId) -> impl Iterator<Item = (u32, Seat)> + '_ {
    (0..INLINE).map(move |i| (i, Seat::unpack(m.peek(block(id).seat(i)))))
}

/// Returns the block to which a page is linked, like the search of a reclaiming process.
fn linked(m: &Memory, page: BlockId) -> Option<BlockId> {
    let owner = m.peek(first(page)).checked_sub(1)? as BlockId;
    let mut link = m.peek(block(owner).link());
    for _ in 0..2 {
        match link_of(link)? {
            p if p == page => return Some(owner),
            p => link = m.peek(first(p).plus(1)),
        }
    }
    None
}

impl Process {
    fn next(&mut self, me: usize, m: &Memory, fates: &[Fate]) -> Option<Doing> {
        let mine = Seat::Member(member(me));
        if !self.program.is_empty() {
            return Some(match self.program.remove(0) {
                Op::Grow(b, page) => Doing::Claim(
                    b,
                    page,
                    ClaimBlock::new(block(page), member(me), SlabSnapshot { word: SLAB, value: 0 }),
                ),
                Op::Drop(b) => {
                    let (i, _) = seats(m, b).find(|&(_, s)| s == mine).expect("it holds the block");
                    let at = block(b).seat(i);
                    Doing::Release(b, ReleaseSeat::new(block(b), PAGES, member(me), at, mine))
                }
            });
        }
        let dead = |p: Member| is_killed(fates, p);
        for id in 0..BLOCKS {
            match state(m, id).life {
                BlockLife::Busy(p) if dead(p) => return Some(Doing::Busy(id, m.peek(block(id).state))),
                BlockLife::Live => {
                    for (i, seat) in seats(m, id) {
                        if !matches!(seat, Seat::Member(p) if dead(p)) {
                            continue;
                        }
                        if let Some(owner) = (id >= FIRST_PAGE).then(|| linked(m, id)).flatten() {
                            return Some(Doing::HandOver(id, seat.pack(), owner));
                        }
                        let at = block(id).seat(i);
                        return Some(Doing::Release(
                            id,
                            ReleaseSeat::new(block(id), PAGES, member(me), at, seat),
                        ));
                    }
                    if seats(m, id).all(|(_, seat)| seat == Seat::Free) {
                        return Some(Doing::Check(id, FreeCheck::new(block(id), PAGES, member(me))));
                    }
                }
                BlockLife::Free | BlockLife::Busy(_) => {}
            }
        }
        None
    }
}

fn free(me: usize, id: BlockId, state: BlockState) -> Doing {
    Doing::Pages(state, id, FreePages::new(block(id), member(me), PAGES, AT))
}

impl Actor for Process {
    type Ghost = ();

    fn step(&mut self, me: usize, m: &Memory, fates: &[Fate], _: &mut ()) -> bool {
        let doing = std::mem::replace(&mut self.doing, Doing::Next);
        self.doing = match doing {
            Doing::Next => match self.next(me, m, fates) {
                Some(doing) => doing,
                None => return true,
            },
            Doing::Claim(b, page, mut claim) => match claim.step(m) {
                None => Doing::Claim(b, page, claim),
                Some(None) => Doing::Next,
                Some(Some(state)) => Doing::Publish(
                    b,
                    page,
                    PublishBlock::new(block(page), member(me), state, BlockKind::Seats),
                ),
            },
            Doing::Publish(b, page, mut publish) => match publish.step(m) {
                None => Doing::Publish(b, page, publish),
                Some(_) => Doing::Link(LinkPage::new(block(b), block(page), first(page), member(me), PAGES)),
            },
            Doing::Link(mut link) => match link.step(m) {
                None => Doing::Link(link),
                Some(kept) => {
                    assert!(kept, "the page was stolen from its maker");
                    Doing::Next
                }
            },
            Doing::Release(id, mut release) => match release.step(m) {
                None => Doing::Release(id, release),
                Some(ReleaseOutcome::Held) => Doing::Next,
                Some(ReleaseOutcome::MustFree(state)) => free(me, id, state),
            },
            Doing::Pages(state, id, mut pages) => match pages.step(m) {
                None => Doing::Pages(state, id, pages),
                Some(_) => Doing::UnclaimBlock(UnclaimBlock::new(block(id), state)),
            },
            Doing::UnclaimBlock(mut unclaim) => {
                unclaim.step(m);
                Doing::Next
            }
            Doing::Busy(id, found) => {
                let state = BlockState::unpack(found).with(BlockLife::Busy(member(me)));
                match m.cas(block(id).state, found, state.pack()) {
                    Ok(()) => Doing::Clear(id, state, 0),
                    Err(_) => Doing::Next,
                }
            }
            Doing::Clear(id, state, i) => {
                m.store(block(id).seat(i), Seat::Free.pack());
                if i + 1 < INLINE { Doing::Clear(id, state, i + 1) } else { free(me, id, state) }
            }
            Doing::HandOver(page, found, owner) => {
                _ = m.cas(block(page).seat(0), found, Seat::Block(owner).pack());
                Doing::Next
            }
            Doing::Check(id, mut check) => match check.step(m) {
                None => Doing::Check(id, check),
                Some(ReleaseOutcome::Held) => Doing::Next,
                Some(ReleaseOutcome::MustFree(state)) => free(me, id, state),
            },
        };
        false
    }
}

/// Creates a world in which process `i` holds the blocks of `holds[i]`, and block 0 has the first `pages`
/// pages.
fn world(pages: u32, holds: &[&[BlockId]], programs: &[&[Op]]) -> World<Process> {
    let m = Memory::new(WORDS);
    let live = |kind| BlockState { life: BlockLife::Live, kind, version: 1 }.pack();
    for (i, held) in holds.iter().enumerate() {
        for &b in *held {
            m.poke(block(b).state, live(BlockKind::Data));
            let (free, _) = seats(&m, b).find(|&(_, s)| s == Seat::Free).expect("a free seat");
            m.poke(block(b).seat(free), Seat::Member(member(i)).pack());
        }
    }
    let mut link = block(0).link();
    for page in FIRST_PAGE..FIRST_PAGE + pages {
        m.poke(block(page).state, live(BlockKind::Seats));
        m.poke(block(page).seat(0), Seat::Block(0).pack());
        m.poke(first(page), 1);
        m.poke(link, with_link(0, Some(page)));
        link = first(page).plus(1);
    }
    let process = |program: &&[Op]| Process { program: program.to_vec(), doing: Doing::Next };
    World::new(m, programs.iter().map(process).collect(), ())
}

fn explore(world: World<Process>, kills: u32) {
    let end = |w: &World<Process>| {
        let m = &w.memory;
        let killed = |p: Member| is_killed(&w.fates, p);
        // A process that died after the last check of a living process is left to the next reclaim.
        let left = (0..BLOCKS).any(|id| match state(m, id).life {
            BlockLife::Busy(p) => killed(p),
            BlockLife::Live => {
                seats(m, id).any(|(_, s)| matches!(s, Seat::Member(p) if killed(p)))
                    || seats(m, id).all(|(_, s)| s == Seat::Free)
            }
            BlockLife::Free => false,
        });
        if w.count(0..w.fates.len(), Fate::Ended) > 0 && !left {
            for id in 0..BLOCKS {
                assert_eq!(state(m, id).life, BlockLife::Free, "block {id} leaks: {m:?}");
            }
        }
    };
    world.explore(kills, 0, end, |w| w.fates.contains(&Fate::Running));
}

use Op::{Drop, Grow};

#[test]
fn grown_block_is_freed_with_its_seat_pages() {
    explore(world(0, &[&[0]], &[&[Grow(0, 2), Grow(0, 3), Drop(0)], &[], &[]]), 2);
}

#[test]
fn two_holders_extend_one_chain_of_seat_pages() {
    explore(world(0, &[&[0], &[0]], &[&[Grow(0, 2), Drop(0)], &[Grow(0, 3), Drop(0)]]), 2);
    explore(world(1, &[&[0], &[0]], &[&[Grow(0, 3), Drop(0)], &[Drop(0)]]), 1);
}

#[test]
fn freed_seat_page_is_used_by_another_block() {
    explore(world(2, &[&[0], &[1]], &[&[Drop(0)], &[Grow(1, 3), Drop(1)], &[]]), 1);
    explore(world(2, &[&[0], &[1]], &[&[Drop(0)], &[Grow(1, 3), Drop(1)]]), 2);
}

#[test]
#[should_panic(expected = "stolen from its maker")]
fn model_finds_freed_page_naming_its_block() {
    let mut w = world(2, &[&[0], &[1]], &[&[Drop(0)], &[Grow(1, 3), Drop(1)], &[]]);
    w.memory.lose([first(3)]);
    explore(w, 1);
}
