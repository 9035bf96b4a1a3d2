//! Who holds a block, exhaustively: processes send, receive and release one block while any of them is killed at any
//! shared access, the sweepers included. The steps are the ones that run in processes.

use mp_core::mem::{Mem, Steps, Word};
use mp_core::steps::{BlockAt, FreeCheck, Note, Release, Released, Take, Taken, Unclaim};
use mp_core::words::{Access, Attach, BlockId, BlockState, Holder, Kind, Life, Member, Owner, Seat};
use mp_tests::explore::{Actor, Fate, Memory, World};

const SEATS: u32 = 3;
const ENVELOPES: u32 = 2;
const BLOCK: BlockAt = BlockAt { id: 0, state: Word::at(0), inline: SEATS, per_page: 1 };
/// Per envelope: owner, number of attachments, attachment.
const FIRST_ENVELOPE: u64 = 2 + SEATS as u64;
const WORDS: usize = (FIRST_ENVELOPE + 3 * ENVELOPES as u64) as usize;

fn owner_at(e: u32) -> Word {
    Word::at(8 * (FIRST_ENVELOPE + 3 * u64::from(e)))
}
fn count_at(e: u32) -> Word {
    owner_at(e).plus(1)
}
fn entry_at(e: u32) -> Word {
    owner_at(e).plus(2)
}
fn member(actor: usize) -> Member {
    Member::new(actor as u32, 1)
}
fn no_pages(_: BlockId) -> Option<Word> {
    None
}
type Pages = fn(BlockId) -> Option<Word>;
const PAGES: Pages = no_pages;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Op {
    Send,
    Receive,
    Drop,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Doing {
    Next,
    // send: claim an envelope, clear it, take a seat for it, publish it
    Claim(u32, u64),
    Clear(u32),
    Count(u32),
    Take(u32, Take<Pages>),
    Publish(u32),
    GiveBack(u32),
    // receive: take the envelope, make its seat one's own, empty and free it
    Grab(u32, u64),
    Entry(u32),
    Adopt(u32, u32),
    Emptied(u32),
    // drop: give one's seat up
    Release(Release<Pages>, After),
    Freed(Unclaim, After),
    // sweep
    Own(u32, u64),
    Attached(u32),
    Seat(u32, usize),
    Busy(u64),
    Unclaim(BlockState),
    Check(FreeCheck<Pages>),
}

/// What follows after a seat was given up.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum After {
    Next,
    Emptied(u32),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Process {
    program: Vec<Op>,
    /// The seat in which this process holds the block.
    seat: Option<u32>,
    doing: Doing,
}

fn envelope(m: &Memory, e: u32) -> Owner {
    Owner::unpack(m.peek(owner_at(e)))
}
fn seat(m: &Memory, i: u32) -> Seat {
    Seat::unpack(m.peek(BLOCK.seat(i)))
}

/// Whoever frees the block must be right that nobody holds it.
fn nobody_holds(m: &Memory, fates: &[Fate]) {
    for i in 0..SEATS {
        let held = match seat(m, i) {
            Seat::Free | Seat::Block(_) => false,
            Seat::Member(p) => matches!(fates[p.slot() as usize], Fate::Running | Fate::Stopped),
            Seat::Envelope(e) => envelope(m, e).holder == Holder::Queued,
        };
        assert!(!held, "freed while held by {:?}", seat(m, i));
    }
}

impl Process {
    fn next(&mut self, me: usize, m: &Memory, fates: &[Fate]) -> Option<Doing> {
        if let Some(&op) = self.program.first() {
            let doing = match op {
                Op::Send if self.seat.is_some() => (0..ENVELOPES)
                    .find(|&e| envelope(m, e).holder == Holder::Free)
                    .map(|e| Doing::Claim(e, m.peek(owner_at(e)))),
                // Finds nothing if it looks too early; some other order finds it.
                Op::Receive => (0..ENVELOPES)
                    .find(|&e| envelope(m, e).holder == Holder::Queued)
                    .map(|e| Doing::Grab(e, m.peek(owner_at(e)))),
                Op::Drop => self.seat.take().map(|i| {
                    let holder = Seat::Member(member(me));
                    let release = Release::new(BLOCK, PAGES, member(me), BLOCK.seat(i), holder);
                    Doing::Release(release, After::Next)
                }),
                Op::Send => None,
            };
            self.program.remove(0);
            return Some(doing.unwrap_or(Doing::Next));
        }
        // After its program, a process sweeps, as waiting processes and parents do.
        let dead = |p: Member| fates[p.slot() as usize] == Fate::Killed;
        for e in 0..ENVELOPES {
            if let Holder::Member(p) = envelope(m, e).holder
                && dead(p)
            {
                return Some(Doing::Own(e, m.peek(owner_at(e))));
            }
        }
        let state = m.peek(BLOCK.state);
        match BlockState::unpack(state).life {
            Life::Busy(p) if dead(p) => return Some(Doing::Busy(state)),
            Life::Live => {
                for i in 0..SEATS {
                    if let Seat::Member(p) = seat(m, i)
                        && dead(p)
                    {
                        return Some(Doing::Seat(i, p.slot() as usize));
                    }
                }
                if (0..SEATS).all(|i| seat(m, i) == Seat::Free) {
                    return Some(Doing::Check(FreeCheck::new(BLOCK, PAGES, member(me))));
                }
            }
            Life::Free | Life::Busy(_) => {}
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
                let note = Note {
                    entry: entry_at(*e),
                    count: count_at(*e),
                    counted: 1,
                    access: Access::Frozen,
                    tag: 0,
                };
                Doing::Take(*e, Take::new(BLOCK, PAGES, Seat::Envelope(*e), note))
            }
            Doing::Take(e, take) => match take.step(m) {
                None => return false,
                Some(Taken::Seat(_)) => Doing::Publish(*e),
                Some(Taken::NoneFree) => Doing::GiveBack(*e),
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
            Doing::Entry(e) => match Attach::unpack(m.load(entry_at(*e))) {
                Some(attach) => Doing::Adopt(*e, attach.seat),
                None => panic!("a message without its attachment"),
            },
            Doing::Adopt(e, i) => {
                let (e, i) = (*e, *i);
                // A process that holds the block already keeps its seat, and gives the envelope's up.
                let (to, seat) = match self.seat {
                    None => (Seat::Member(member(me)), i),
                    Some(seat) => (Seat::Free, seat),
                };
                m.cas(BLOCK.seat(i), Seat::Envelope(e).pack(), to.pack())
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
                Some(Released::Held) => after(*then),
                Some(Released::ToFree(state)) => {
                    nobody_holds(m, fates);
                    Doing::Freed(Unclaim::new(BLOCK, state), *then)
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
                // Read together with the number, which only we can change now.
                let n = m.peek(count_at(*e));
                match Attach::unpack(m.load(entry_at(*e))).filter(|_| n > 0) {
                    None => Doing::Emptied(*e),
                    Some(attach) => {
                        let (at, holder) = (BLOCK.seat(attach.seat), Seat::Envelope(*e));
                        let release = Release::new(BLOCK, PAGES, member(me), at, holder);
                        Doing::Release(release, After::Emptied(*e))
                    }
                }
            }
            Doing::Seat(i, dead) => {
                let holder = Seat::Member(member(*dead));
                Doing::Release(Release::new(BLOCK, PAGES, member(me), BLOCK.seat(*i), holder), After::Next)
            }
            Doing::Busy(found) => {
                let state = BlockState::unpack(*found).with(Life::Busy(member(me)));
                match m.cas(BLOCK.state, *found, state.pack()) {
                    Ok(()) => Doing::Unclaim(state),
                    Err(_) => Doing::Next,
                }
            }
            Doing::Unclaim(state) => {
                Unclaim::new(BLOCK, *state).step(m);
                Doing::Next
            }
            Doing::Check(check) => match check.step(m) {
                None => return false,
                Some(Released::Held) => Doing::Next,
                Some(Released::ToFree(state)) => {
                    nobody_holds(m, fates);
                    Doing::Unclaim(state)
                }
            },
        };
        self.doing = next;
        false
    }
}

/// A world whose first process holds the block.
fn world(programs: &[&[Op]]) -> World<Process> {
    let m = Memory::new(WORDS);
    let live = BlockState { life: Life::Live, kind: Kind::Data, version: 1 };
    m.poke(BLOCK.state, live.pack());
    m.poke(BLOCK.seat(0), Seat::Member(member(0)).pack());
    let process = |(i, program): (usize, &&[Op])| Process {
        program: program.to_vec(),
        seat: (i == 0).then_some(0),
        doing: Doing::Next,
    };
    World::new(m, programs.iter().enumerate().map(process).collect(), ())
}

fn explore(world: World<Process>, kills: u32, stops: u32) {
    let end = |w: &World<Process>| {
        let m = &w.memory;
        let killed = |p: Member| w.fates[p.slot() as usize] == Fate::Killed;
        let seen = w.count(0..w.fates.len(), Fate::Ended) > 0
            && (0..ENVELOPES).all(|e| !matches!(envelope(m, e).holder, Holder::Member(p) if killed(p)))
            && (0..SEATS).all(|i| !matches!(seat(m, i), Seat::Member(p) if killed(p)))
            && !matches!(BlockState::unpack(m.peek(BLOCK.state)).life, Life::Busy(p) if killed(p));
        let in_use = (0..ENVELOPES).any(|e| envelope(m, e).holder != Holder::Free)
            || (0..SEATS).any(|i| matches!(seat(m, i), Seat::Member(_)));
        let live_without_seats = (0..SEATS).all(|i| seat(m, i) == Seat::Free)
            && BlockState::unpack(m.peek(BLOCK.state)).life == Life::Live
            && w.count(0..w.fates.len(), Fate::Killed) > 0;
        // What died after the last living one looked is for the next sweep; what is stopped may go on.
        if seen && w.count(0..w.fates.len(), Fate::Stopped) == 0 && !in_use && !live_without_seats {
            assert_eq!(BlockState::unpack(m.peek(BLOCK.state)).life, Life::Free, "the block leaks");
        }
    };
    let wedged = |w: &World<Process>| w.fates.contains(&Fate::Running);
    let explored = world.explore(kills, stops, end, wedged);
    println!("{} states, {} ends", explored.states, explored.ends);
    assert!(explored.ends > 0);
}

use Op::{Drop, Receive, Send};

#[test]
fn sent_and_received_with_kills() {
    explore(world(&[&[Send, Drop], &[Receive, Drop]]), 2, 0);
    explore(world(&[&[Send, Drop], &[Receive, Drop]]), 1, 1);
}

#[test]
fn relayed_with_kills() {
    explore(world(&[&[Send, Drop], &[Receive, Send, Drop], &[Receive, Drop]]), 1, 0);
}

#[test]
fn sent_twice_held_once() {
    explore(world(&[&[Send, Send, Drop], &[Receive, Receive, Drop]]), 1, 0);
}

#[test]
#[should_panic(expected = "freed while held")]
fn without_the_version_it_is_freed_while_held() {
    let mut w = world(&[&[Send, Drop], &[Receive, Send, Drop], &[Receive, Drop]]);
    // The only addition is the one that counts the version up.
    w.memory.lose_additions();
    explore(w, 0, 0);
}
