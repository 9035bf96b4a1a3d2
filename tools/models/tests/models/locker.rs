//! Exhaustive model of the locker of descriptors. Each message gets its own descriptors, and a compartment
//! without a message is empty, even if any process is killed or stopped at any access or system call.
//!
//! The code makes system calls between its accesses, so it can't be `Steps`. This model follows
//! `mp-core/src/transport/attachments.rs`, with one access or call in each step. A socket is a word with the
//! packets in it, the oldest in the lowest byte. Each packet has its message and its number. The peek offset
//! (`SO_PEEK_OFF`) is a word, too, because it belongs to the socket and not to the caller.

use mp_core::mem::{Mem, Word};
use mp_models::explore::{Actor, Fate, Memory, World};
use mp_models::random::at_random;

/// Maximum number of messages, and so of blocks.
const BLOCKS: u64 = 3;
/// Number of compartments.
const COMPARTMENTS: u64 = 2;
/// Number of descriptors of each message.
const EACH: u64 = 2;

/// Returns the word with the state of a block.
const fn block(b: u64) -> Word {
    Word::at(8 * b)
}
/// Returns the word with the number of a block's compartment plus one. The next word has the number of its
/// descriptors.
const fn named(b: u64) -> Word {
    Word::at(8 * (BLOCKS + 2 * b))
}
const fn count(b: u64) -> Word {
    Word::at(8 * (BLOCKS + 2 * b + 1))
}
/// Returns the word with the number of the block that uses a compartment, plus one.
const fn compartment(i: u64) -> Word {
    Word::at(8 * (3 * BLOCKS + i))
}
/// Returns the word of a compartment's socket. The next word has the peek offset.
const fn socket(i: u64) -> Word {
    Word::at(8 * (3 * BLOCKS + COMPARTMENTS + i))
}
const fn place(i: u64) -> Word {
    Word::at(8 * (3 * BLOCKS + 2 * COMPARTMENTS + i))
}
const WORDS: usize = (3 * BLOCKS + 3 * COMPARTMENTS) as usize;

/// States of a block: free; in a queued message; owned by an actor; claimed by an actor that frees it.
const FREE: u64 = 0;
const QUEUED: u64 = 1;
fn held_by(actor: usize) -> u64 {
    0x100 | actor as u64
}
fn claimed_by(actor: usize) -> u64 {
    0x200 | actor as u64
}
/// Returns the owning actor, if there is one.
fn owner(state: u64) -> Option<usize> {
    (state >= 0x100).then_some((state & 0xff) as usize)
}

/// Returns packet `number` of message `b`.
fn packet(b: u64, number: u64) -> u64 {
    (b + 1) << 4 | number
}

/// Makes a system call on a socket: one access.
fn call<R>(m: &Memory, socket: Word, f: impl FnOnce(&mut Vec<u8>) -> R) -> R {
    let word = m.load(socket);
    let mut packets: Vec<u8> = word.to_le_bytes().into_iter().take_while(|byte| *byte != 0).collect();
    let result = f(&mut packets);
    let mut bytes = [0; 8];
    bytes[..packets.len()].copy_from_slice(&packets);
    m.poke(socket, u64::from_le_bytes(bytes));
    result
}

/// Planted bug.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Bug {
    None,
    /// A block records its compartment only after the compartment records the block.
    NotAhead,
    /// Freeing a block empties the compartment that the block has recorded, even if the compartment belongs
    /// to another block.
    NameNotCompared,
    /// A compartment is marked as free before it is empty.
    FreeFirst,
    /// Freeing a block leaves its descriptors in the compartment.
    NotEmptied,
    /// Any received packet is treated as the expected one.
    NumberNotCompared,
}

/// Role of an actor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Role {
    /// Sends this message.
    Sender(u64),
    /// Receives messages. Each message is read by two receivers, as in a broadcast, and freed by the second
    /// one.
    Receiver,
    /// Frees resources of dead actors.
    Recoverer,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Pc {
    // A sender.
    Allocate,
    NoCount,
    NoName,
    Find(u64),
    Ahead(u64),
    Take(u64),
    Late(u64),
    Send(u64, u64),
    Count(u64, u64),
    Put,
    // States of receivers and reclaiming actors, with the block.
    Look(u64),
    Get(u64),
    Which(u64),
    HasIt(u64, u64),
    HowMany(u64, u64),
    Set(u64, u64, u64, u64),
    Peek(u64, u64, u64, u64),
    Claim(u64),
    Inherit(u64, u64),
    // States of an actor that frees a block.
    Named(u64),
    Compare(u64, u64),
    Empty(u64, u64),
    Clear(u64, u64),
    EmptyLate(u64, u64),
    Free(u64),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Process {
    role: Role,
    bug: Bug,
    pc: Pc,
    /// `true` if this round over the blocks found work. `last` is `true` if all earlier actors had ended at
    /// the beginning of the round.
    seen: bool,
    last: bool,
}

/// Number of puts and number of gets of each message.
#[derive(Clone, Default, PartialEq, Eq, Hash, Debug)]
struct Ghost {
    put: [u8; BLOCKS as usize],
    got: [u8; BLOCKS as usize],
}

impl Process {
    fn new(role: Role, bug: Bug) -> Self {
        let pc = if matches!(role, Role::Sender(_)) { Pc::Allocate } else { Pc::Look(0) };
        Self { role, bug, pc, seen: false, last: false }
    }

    /// Continues with the block after `b`. Returns `true` at the end of a round without work if the actor can
    /// end.
    fn next(&mut self, b: u64) -> bool {
        self.pc = Pc::Look((b + 1) % BLOCKS);
        if b + 1 < BLOCKS {
            return false;
        }
        !std::mem::take(&mut self.seen) && self.last
    }

    fn is_for_me(&self, state: u64, b: u64, fates: &[Fate]) -> Option<Pc> {
        match self.role {
            Role::Receiver if state == QUEUED => Some(Pc::Get(b)),
            Role::Recoverer if owner(state).is_some_and(|a| fates[a] == Fate::Killed) => {
                Some(Pc::Inherit(b, state))
            }
            _ => None,
        }
    }
}

impl Actor for Process {
    type Ghost = Ghost;

    fn step(&mut self, me: usize, m: &Memory, fates: &[Fate], ghost: &mut Ghost) -> bool {
        let Self { bug, .. } = *self;
        let mine = if let Role::Sender(b) = self.role { b } else { 0 };
        let name = mine + 1;
        match self.pc {
            Pc::Allocate => {
                m.store(block(mine), held_by(me));
                self.pc = Pc::NoCount;
            }
            Pc::NoCount => {
                m.store(count(mine), 0);
                self.pc = Pc::NoName;
            }
            Pc::NoName => {
                m.store(named(mine), 0);
                self.pc = Pc::Find(0);
            }
            Pc::Find(i) => {
                let free = m.load(compartment(i)) == 0;
                self.pc = match (free, bug == Bug::NotAhead) {
                    (true, false) => Pc::Ahead(i),
                    (true, true) => Pc::Take(i),
                    (false, _) => Pc::Find((i + 1) % COMPARTMENTS),
                };
            }
            Pc::Ahead(i) => {
                m.store(named(mine), i + 1);
                self.pc = Pc::Take(i);
            }
            Pc::Take(i) => {
                self.pc = match m.cas(compartment(i), 0, name) {
                    Ok(()) if bug == Bug::NotAhead => Pc::Late(i),
                    Ok(()) => Pc::Send(i, 0),
                    Err(_) => Pc::Find((i + 1) % COMPARTMENTS),
                };
            }
            Pc::Late(i) => {
                m.store(named(mine), i + 1);
                self.pc = Pc::Send(i, 0);
            }
            Pc::Send(i, k) => {
                call(m, socket(i), |packets| packets.push(packet(mine, k) as u8));
                self.pc = Pc::Count(i, k + 1);
            }
            Pc::Count(i, k) => {
                m.store(count(mine), k);
                self.pc = if k < EACH { Pc::Send(i, k) } else { Pc::Put };
            }
            Pc::Put => {
                m.store(block(mine), QUEUED);
                ghost.put[mine as usize] += 1;
                return true;
            }
            Pc::Look(b) => {
                if b == 0 {
                    // All actors that could create more work are earlier in the list.
                    self.last = !fates[..me].contains(&Fate::Running);
                }
                match self.is_for_me(m.load(block(b)), b, fates) {
                    Some(pc) => self.pc = pc,
                    None => return self.next(b),
                }
            }
            Pc::Get(b) => match m.cas(block(b), QUEUED, held_by(me)) {
                Ok(()) => self.pc = Pc::Which(b),
                Err(_) => return self.next(b),
            },
            Pc::Inherit(b, state) => {
                self.seen = true;
                match m.cas(block(b), state, claimed_by(me)) {
                    Ok(()) => self.pc = Pc::Named(b),
                    Err(_) => return self.next(b),
                }
            }
            Pc::Which(b) => {
                self.seen = true;
                let i = m
                    .load(named(b))
                    .checked_sub(1)
                    .expect("torn: a message whose block names no compartment");
                self.pc = Pc::HasIt(b, i);
            }
            Pc::HasIt(b, i) => {
                assert_eq!(m.load(compartment(i)), b + 1, "torn: a message without its compartment");
                self.pc = Pc::HowMany(b, i);
            }
            Pc::HowMany(b, i) => {
                assert_eq!(m.load(count(b)), EACH, "torn: a message with another number");
                self.pc = Pc::Set(b, i, 0, 0);
            }
            Pc::Set(b, i, k, tries) => {
                m.store(place(i), k);
                self.pc = Pc::Peek(b, i, k, tries);
            }
            Pc::Peek(b, i, k, tries) => {
                let at = m.peek(place(i)) as usize;
                let seen = call(m, socket(i), |packets| packets.get(at).copied());
                let found = seen.filter(|p| u64::from(*p) & 15 == k || bug == Bug::NumberNotCompared);
                match found {
                    None => self.pc = Pc::Set(b, i, k, (tries + 1).min(1)),
                    Some(p) => {
                        assert_eq!(u64::from(p), packet(b, k), "torn: another descriptor than was sent");
                        self.pc = if k + 1 < EACH { Pc::Set(b, i, k + 1, 0) } else { Pc::Claim(b) };
                    }
                }
            }
            Pc::Claim(b) => {
                m.store(block(b), claimed_by(me));
                ghost.got[b as usize] += 1;
                assert!(ghost.got[b as usize] <= 1, "duplicated");
                self.pc = Pc::Named(b);
            }
            Pc::Named(b) => {
                self.pc = m.load(named(b)).checked_sub(1).map_or(Pc::Free(b), |i| Pc::Compare(b, i));
            }
            Pc::Compare(b, i) => {
                let has = m.load(compartment(i)) == b + 1 || bug == Bug::NameNotCompared;
                self.pc = match (has, bug) {
                    (false, _) => Pc::Free(b),
                    (true, Bug::FreeFirst | Bug::NotEmptied) => Pc::Clear(b, i),
                    (true, _) => Pc::Empty(b, i),
                };
            }
            Pc::Empty(b, i) | Pc::EmptyLate(b, i) => {
                let was_empty = call(m, socket(i), |packets| {
                    let empty = packets.is_empty();
                    packets.drain(..usize::from(!empty));
                    empty
                });
                let late = matches!(self.pc, Pc::EmptyLate(..));
                if was_empty {
                    self.pc = if late { Pc::Free(b) } else { Pc::Clear(b, i) };
                }
            }
            Pc::Clear(b, i) => {
                m.store(compartment(i), 0);
                self.pc = if bug == Bug::FreeFirst { Pc::EmptyLate(b, i) } else { Pc::Free(b) };
            }
            Pc::Free(b) => {
                m.store(block(b), FREE);
                return self.next(b);
            }
        }
        false
    }
}

fn world(senders: u64, receivers: usize, recoverers: usize, bug: Bug) -> World<Process> {
    let senders = (0..senders).map(Role::Sender);
    let roles = senders.chain([Role::Receiver].repeat(receivers)).chain([Role::Recoverer].repeat(recoverers));
    World::new(Memory::new(WORDS), roles.map(|role| Process::new(role, bug)).collect(), Ghost::default())
}

fn explore(world: World<Process>, kills: u32, stops: u32) {
    let of = |w: &World<Process>, role: fn(Role) -> bool, fate: Fate| {
        w.actors.iter().zip(&w.fates).any(|(a, f)| role(a.role) && *f == fate)
    };
    let end = move |w: &World<Process>| {
        // The last actor to end has read the remains of all others. Without a reclaiming actor, nothing is
        // left if no actor was killed.
        let reclaims = w.actors.last().is_some_and(|last| last.role == Role::Recoverer);
        if w.fates.last() != Some(&Fate::Ended) || !reclaims && w.fates.contains(&Fate::Killed) {
            return;
        }
        for i in 0..COMPARTMENTS {
            let (has, packets) = (w.memory.peek(compartment(i)), w.memory.peek(socket(i)));
            // A stopped actor keeps its messages. A message without receivers stays in its queue.
            let state = has.checked_sub(1).map(|b| w.memory.peek(block(b)));
            let excused = state.is_some_and(|state| {
                state == QUEUED && !of(w, |role| role == Role::Receiver, Fate::Ended)
                    || owner(state).is_some_and(|a| w.fates[a] == Fate::Stopped)
            });
            assert!(excused || has == 0, "leaked: compartment {i} of block {has}, which is {state:?}");
            assert!(excused || packets == 0, "leaked: descriptors of no message");
        }
        for b in 0..BLOCKS as usize {
            let gone = w.fates.iter().any(|fate| matches!(fate, Fate::Killed | Fate::Stopped));
            assert!(gone || w.ghost.put[b] == w.ghost.got[b], "lost");
        }
    };
    // Receivers wait for senders, and senders for a compartment, only while the other side is alive.
    let wedged = |w: &World<Process>| {
        let gone = |fate: &Fate| matches!(fate, Fate::Killed | Fate::Stopped);
        !w.fates.iter().any(gone) && w.fates.contains(&Fate::Running)
    };
    world.explore(kills, stops, end, wedged);
}

#[test]
fn locker_survives_killed_sender_and_receiver() {
    explore(world(1, 1, 1, Bug::None), 2, 0);
}

#[test]
fn locker_of_two_senders_survives_one_kill() {
    explore(world(2, 1, 1, Bug::None), 1, 0);
}

#[test]
fn locker_survives_a_killed_recoverer() {
    explore(world(1, 1, 2, Bug::None), 2, 0);
}

#[test]
fn stopped_process_keeps_its_descriptors() {
    explore(world(2, 1, 1, Bug::None), 0, 1);
    explore(world(1, 1, 1, Bug::None), 1, 1);
}

#[test]
fn more_senders_than_locker_compartments_finish() {
    explore(world(3, 1, 0, Bug::None), 0, 0);
}

#[test]
#[should_panic(expected = "leaked")]
fn model_finds_late_recording_of_a_compartment() {
    explore(world(1, 1, 1, Bug::NotAhead), 1, 0);
}

#[test]
#[should_panic(expected = "torn")]
fn model_finds_emptying_of_another_compartment() {
    explore(world(2, 1, 1, Bug::NameNotCompared), 1, 0);
}

#[test]
#[should_panic(expected = "wedged")]
fn model_finds_compartment_freed_before_emptying() {
    // The receiver takes packets out that already belong to another message.
    explore(world(3, 1, 0, Bug::FreeFirst), 0, 0);
}

#[test]
#[should_panic(expected = "torn")]
fn model_finds_descriptors_left_in_a_compartment() {
    explore(world(3, 1, 0, Bug::NotEmptied), 0, 0);
}

/// Actor that peeks at packets of a socket. Two actors share the socket and its peek offset, which each of
/// them sets.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Looker {
    bug: Bug,
    wanted: Vec<u64>,
    set: bool,
}

impl Actor for Looker {
    type Ghost = ();

    fn step(&mut self, _: usize, m: &Memory, _: &[Fate], (): &mut ()) -> bool {
        let Some(&wanted) = self.wanted.first() else { return true };
        self.set = !self.set;
        if self.set {
            m.store(place(0), wanted);
            return false;
        }
        let at = m.peek(place(0)) as usize;
        let seen = call(m, socket(0), |packets| packets.get(at).copied());
        if let Some(p) = seen.filter(|p| u64::from(*p) & 15 == wanted || self.bug == Bug::NumberNotCompared) {
            assert_eq!(u64::from(p), packet(0, wanted), "torn: another descriptor than was sent");
            self.wanted.remove(0);
        }
        self.wanted.is_empty()
    }
}

fn lookers(wanted: &[&[u64]], bug: Bug) {
    let m = Memory::new(WORDS);
    (0..4).for_each(|k| call(&m, socket(0), |packets| packets.push(packet(0, k) as u8)));
    let looker = |wanted: &&[u64]| Looker { bug, wanted: wanted.to_vec(), set: false };
    let world = World::new(m, wanted.iter().map(looker).collect(), ());
    // A stopped actor does not prevent the others from finding their packets.
    world.explore(1, 1, |_| {}, |w| w.fates.contains(&Fate::Running));
}

#[test]
fn concurrent_locker_peeks_find_their_packets() {
    lookers(&[&[0, 1, 2, 3], &[0, 1, 2, 3]], Bug::None);
    lookers(&[&[0, 3], &[2, 1], &[1, 1]], Bug::None);
}

#[test]
#[should_panic(expected = "torn")]
fn model_finds_packet_taken_under_another_number() {
    lookers(&[&[0, 1], &[1, 0]], Bug::NumberNotCompared);
}

/// Words of the table of pairs: number of pairs, packets of the table, and the lock's holder plus one.
const PAIRS: Word = Word::at(0);
const TABLE: Word = Word::at(8);
const LOCK: Word = Word::at(16);

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum AddPc {
    See,
    Lock,
    Replace(u64),
    Look(u64),
    Packets(u64),
    Send(u64),
    Count(u64),
    Unlock,
}

/// Actor that adds a pair, unless the other actor has added it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Adder {
    /// Planted bug: the actor does not search for an existing packet that is not counted yet.
    careless: bool,
    times: u32,
    seen: u64,
    pc: AddPc,
}

impl Actor for Adder {
    type Ghost = ();

    fn step(&mut self, me: usize, m: &Memory, fates: &[Fate], (): &mut ()) -> bool {
        match self.pc {
            AddPc::See => {
                self.seen = m.load(PAIRS);
                self.pc = AddPc::Lock;
            }
            AddPc::Lock => match m.cas(LOCK, 0, me as u64 + 1) {
                Ok(()) => self.pc = AddPc::Look(0),
                Err(holder) if fates[holder as usize - 1] == Fate::Killed => self.pc = AddPc::Replace(holder),
                Err(_) => {}
            },
            AddPc::Replace(holder) => {
                self.pc =
                    if m.cas(LOCK, holder, me as u64 + 1).is_ok() { AddPc::Look(0) } else { AddPc::Lock };
            }
            AddPc::Look(_) => {
                let pairs = m.load(PAIRS);
                self.pc = if pairs == self.seen { AddPc::Packets(pairs) } else { AddPc::Unlock };
            }
            AddPc::Packets(pairs) => {
                let found = call(m, TABLE, |packets| packets.len() as u64) > pairs && !self.careless;
                self.pc = if found { AddPc::Count(pairs) } else { AddPc::Send(pairs) };
            }
            AddPc::Send(pairs) => {
                call(m, TABLE, |packets| {
                    packets.push(pairs as u8 + 1);
                    assert_eq!(
                        packets.len() as u64,
                        pairs + 1,
                        "torn: a packet that is not at its number's offset"
                    );
                });
                self.pc = AddPc::Count(pairs);
            }
            AddPc::Count(pairs) => {
                m.store(PAIRS, pairs + 1);
                self.pc = AddPc::Unlock;
            }
            AddPc::Unlock => {
                _ = m.cas(LOCK, me as u64 + 1, 0);
                self.times -= 1;
                self.pc = AddPc::See;
                return self.times == 0;
            }
        }
        false
    }
}

fn adders(times: &[u32], careless: bool, kills: u32, stops: u32) {
    let adder = |times: &u32| Adder { careless, times: *times, seen: 0, pc: AddPc::See };
    let world = World::new(Memory::new(3), times.iter().map(adder).collect(), ());
    let end = |w: &World<Adder>| {
        let (pairs, mut packets) = (w.memory.peek(PAIRS), 0);
        call(&w.memory, TABLE, |all| packets = all.len() as u64);
        let gone = w.fates.iter().any(|fate| matches!(fate, Fate::Killed | Fate::Stopped));
        assert!(packets == pairs || gone && packets == pairs + 1, "{packets} packets, {pairs} counted");
        assert!(gone || pairs > 0);
    };
    // An adder that is stopped with the lock prevents other processes from adding pairs. Real processes get
    // an error.
    let wedged = |w: &World<Adder>| w.fates.contains(&Fate::Running) && !w.fates.contains(&Fate::Stopped);
    world.explore(kills, stops, end, wedged);
}

#[test]
fn socket_pairs_are_added_once_despite_kills() {
    adders(&[1, 1], false, 2, 0);
    adders(&[2, 1, 1], false, 2, 0);
    adders(&[2, 2], false, 1, 1);
}

#[test]
#[should_panic(expected = "torn")]
fn model_finds_uncounted_packet_of_the_locker() {
    adders(&[1, 1], true, 1, 0);
}

#[test]
fn locker_holds_in_long_random_schedules() {
    at_random(|| {
        explore(world(3, 2, 2, Bug::None), 2, 0);
        adders(&[2, 2, 2, 2], false, 3, 0);
    });
}
