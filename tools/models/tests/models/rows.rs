//! Exhaustive model of the rows of device memory, which record the last use of a piece. Holders of a piece
//! submit work to their streams, join the work into the row's last use, and release the piece. When no holder
//! is left, the maker reuses the memory, for streams that wait for the last use. Any process is killed or
//! stopped at any shared access. Real processes run the same steps.
//!
//! A device executes the work of its process. After the process is killed, the device continues for any time,
//! and then stops. Other processes detect the stop, count the end of unfinished work, and only then end the
//! waits for that work, as in the model of clocks. Checked: no work in the new piece runs while work in the
//! old piece may run, except late reads of dead processes.

use mp_core::mem::{Mem, Steps, Word};
use mp_core::steps::device::use_record::{
    EndUse, LastUseChange, ReadUseRecord, ResetUseRecord, UseRecord, UseRecordAt, begin_use, last_use_change,
    mark_mixed,
};
use mp_core::words::Tick;
use mp_models::explore::{Actor, Fate, Memory, World};
use mp_models::random::at_random;

const ROW: UseRecordAt = UseRecordAt(Word::at(0));
/// Word with the bit set of the holders.
const SEATS: Word = Word::at(16);
/// Word with the number of clocks that have ended with unfinished work.
const ENDS: Word = Word::at(24);

/// Planted bug.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Bug {
    None,
    /// A holder releases its seat before it joins its work.
    SeatFirst,
    /// A holder ends its use before it joins its work.
    EndedFirst,
    /// The last use is overwritten by a tick that doesn't follow the old last use.
    NotFollowed,
    /// A join replaces the last use without a compare, so it overwrites another process's join.
    NotCompared,
    /// A last use that follows work of several processes is not marked as mixed.
    NotMixed,
    /// The maker doesn't check for ends of unfinished work.
    EndsIgnored,
    /// The end of unfinished work is counted after streams that wait for the work continue.
    CountedLate,
    /// The maker doesn't check the counts of begun and ended uses.
    UsesIgnored,
    /// Streams that reuse the memory don't wait.
    NotWaited,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Role {
    /// Process that cuts the memory into pieces.
    Maker,
    /// Process that has the piece of this generation. `after` is the holder from which the process got the
    /// piece. If the process writes, its stream waits for the work of that holder.
    Holder {
        writes: bool,
        generation: u8,
        after: Option<usize>,
    },
    Device {
        owner: usize,
    },
    /// Ends the clocks of killed holders with unfinished work, after their devices have stopped.
    Ender,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Pc {
    Start,
    Work,
    Look,
    Join(u64),
    Mix {
        old: u64,
        new: u64,
    },
    Swap {
        old: u64,
        new: u64,
    },
    End(EndUse),
    Leave,
    /// The maker waits for the last holder.
    Holders,
    Reclaim(u64),
    Returned(ReadUseRecord),
    /// The maker, after finding that the last use is complete, reads the number of ends.
    Ends(UseRecord),
    /// The maker reads the number of ends for the next piece.
    EndsBefore,
    /// The ender has made the first of the two steps of an end: the count, or with a planted bug the release
    /// of waiting streams.
    Ended(usize),
    Cut(ResetUseRecord),
    Give,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Process {
    role: Role,
    bug: Bug,
    pc: Pc,
    /// Tick that covers the holder's work.
    tick: u64,
}

/// Operation of a stream: waits for ticks, then executes work, then ticks.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Op {
    owner: usize,
    tick: u64,
    waits: Vec<u64>,
    /// Generation of the memory that the work uses, and `true` if the work writes. `None` for an operation
    /// that only joins uses.
    work: Option<(u8, bool)>,
    done: bool,
}

/// State for checks, which processes can't read as a whole.
#[derive(Clone, Default, PartialEq, Eq, Hash, Debug)]
struct Ghost {
    ops: Vec<Op>,
    generation: u8,
    retired: bool,
    /// Tick for which streams wait before they use the memory of this generation.
    cooling: Option<u64>,
    /// Number of times that the memory was returned to the maker.
    returned: u8,
    /// Bit set of the holders whose clocks have ended with unfinished work.
    ended: u8,
    /// Number of ends of unfinished work when the piece was cut.
    ends_before: u64,
}

/// Returns the tick of a holder. Each holder has a clock for its stream, and, if `joins` is set, a clock for
/// the stream that joins uses.
fn tick_of(holder: usize, joins: bool) -> u64 {
    let clock = 2 * holder as u32 + u32::from(joins);
    Tick::new(clock, Tick::base(1) + 1).raw()
}

impl Ghost {
    /// Returns the memory to the maker. Returns the maker's next step, or `None` after the last generation.
    fn takes_back(&mut self, cooling: Option<u64>, seats: &[u64]) -> Option<Pc> {
        self.cooling = cooling;
        self.returned += 1;
        (usize::from(self.returned) < seats.len()).then_some(Pc::Cut(ResetUseRecord::new(ROW)))
    }

    fn op(&self, tick: u64) -> &Op {
        self.ops.iter().find(|op| op.tick == tick).expect("a tick that was made")
    }

    /// Returns `Some(true)` if the tick's work has run, `Some(false)` if it is pending, and `None` if it will
    /// never run.
    fn over(&self, tick: u64) -> Option<bool> {
        let op = self.op(tick);
        if op.done || self.ended & 1 << op.owner == 0 { Some(op.done) } else { None }
    }

    /// Checks that no work of an earlier generation may run when work of a later generation begins.
    fn judge(&self, generation: u8, fates: &[Fate]) {
        for op in &self.ops {
            let Some((earlier, writes)) = op.work else { continue };
            let harmless = fates[op.owner] == Fate::Killed && !writes;
            if earlier < generation && !op.done && !harmless {
                let lost = self.over(op.tick).is_none();
                assert!(lost, "memory is used again under work of holder {}", op.owner);
            }
        }
    }
}

/// Returns the index of the first device. Devices follow the maker and the holders, and the last actor is the
/// ender.
fn devices(fates: &[Fate]) -> usize {
    fates.len().div_ceil(2)
}

impl Process {
    fn holder(&mut self, me: usize, m: &Memory, fates: &[Fate], ghost: &mut Ghost) -> bool {
        let Role::Holder { writes, generation, after } = self.role else { unreachable!() };
        self.pc = match self.pc {
            // A holder that never gets the piece has nothing to do.
            Pc::Start if ghost.generation < generation => {
                return ghost.retired || fates[0].gone();
            }
            Pc::Start => {
                let before = after.map(|other| tick_of(other, false));
                if let (Some(tick), Some(other)) = (before, after) {
                    let sent = ghost.ops.iter().any(|op| op.tick == tick);
                    if !sent {
                        // The sender may have ended, and its message may be lost.
                        self.pc = if fates[other].gone() { Pc::Leave } else { Pc::Start };
                        return false;
                    }
                }
                if writes {
                    begin_use(ROW, m);
                }
                Pc::Work
            }
            // The process's stream accepts the work and a tick. Not a shared access.
            Pc::Work => {
                self.tick = tick_of(me, false);
                let cooling = ghost.cooling.filter(|_| self.bug != Bug::NotWaited);
                let before = after.filter(|_| writes).map(|other| tick_of(other, false));
                let waits = cooling.into_iter().chain(before).collect();
                let work = Some((generation, writes));
                ghost.ops.push(Op { owner: me, tick: self.tick, waits, work, done: false });
                match self.bug {
                    Bug::SeatFirst => Pc::Leave,
                    Bug::EndedFirst if writes => Pc::End(EndUse::new(ROW)),
                    _ => Pc::Look,
                }
            }
            Pc::Look => Pc::Join(m.load(ROW.last_use())),
            Pc::Join(old) => {
                let waited = |tick: Tick| ghost.op(self.tick).waits.contains(&tick.raw());
                let own = [Tick::from_raw(self.tick).expect("a tick")];
                let found = Tick::from_raw(old);
                let plan = last_use_change(found, &own, |tick| ghost.over(tick.raw()), waited);
                let LastUseChange::Swap { tick, mixes } = plan else {
                    self.pc = self.ends(writes);
                    return false;
                };
                let new = match tick {
                    Some(tick) => tick.raw(),
                    None if self.bug == Bug::NotFollowed => self.tick,
                    None => {
                        let tick = tick_of(me, true);
                        // If another process was faster, the stream joins again, and the tick then follows
                        // both.
                        ghost.ops.retain(|op| op.tick != tick);
                        let waits = vec![self.tick, old];
                        ghost.ops.push(Op { owner: me, tick, waits, work: None, done: false });
                        tick
                    }
                };
                if mixes && self.bug != Bug::NotMixed { Pc::Mix { old, new } } else { Pc::Swap { old, new } }
            }
            Pc::Mix { old, new } => {
                mark_mixed(ROW, m);
                Pc::Swap { old, new }
            }
            Pc::Swap { new, .. } if self.bug == Bug::NotCompared => {
                m.store(ROW.last_use(), new);
                self.ends(writes)
            }
            Pc::Swap { old, new } => match m.cas(ROW.last_use(), old, new) {
                Ok(()) => self.ends(writes),
                Err(_) => Pc::Look,
            },
            Pc::End(mut steps) => match steps.step(m) {
                None => Pc::End(steps),
                Some(()) if self.bug == Bug::EndedFirst && m.peek(ROW.last_use()) == 0 => Pc::Look,
                Some(()) => Pc::Leave,
            },
            Pc::Leave => {
                m.and(SEATS, !(1 << me));
                if self.bug == Bug::SeatFirst && self.tick != 0 {
                    self.bug = Bug::None;
                    Pc::Look
                } else {
                    return true;
                }
            }
            pc => unreachable!("{pc:?} of a holder"),
        };
        false
    }

    fn ends(&self, writes: bool) -> Pc {
        if writes && self.bug != Bug::EndedFirst { Pc::End(EndUse::new(ROW)) } else { Pc::Leave }
    }

    fn maker(&mut self, m: &Memory, fates: &[Fate], seats: &[u64], ghost: &mut Ghost) -> bool {
        self.pc = match self.pc {
            Pc::Start | Pc::Holders => {
                let now = m.load(SEATS);
                let dead = (1..devices(fates)).find(|a| now & 1 << a != 0 && fates[*a] == Fate::Killed);
                match dead {
                    _ if now == 0 => Pc::Returned(ReadUseRecord::new(ROW)),
                    Some(dead) => Pc::Reclaim(1 << dead),
                    None => Pc::Holders,
                }
            }
            Pc::Reclaim(seat) => {
                m.and(SEATS, !seat);
                Pc::Holders
            }
            Pc::Returned(mut steps) => match steps.step(m) {
                None => Pc::Returned(steps),
                Some(found) => {
                    let last = found.last_use;
                    let over = if last == 0 { Some(true) } else { ghost.over(last) };
                    let whole = found.is_complete || self.bug == Bug::UsesIgnored;
                    let Some(over) = over.filter(|_| whole) else {
                        ghost.retired = true;
                        return true;
                    };
                    if found.is_mixed {
                        self.pc = if over { Pc::Ends(found) } else { Pc::Holders };
                        return false;
                    }
                    let Some(next) = ghost.takes_back((!over).then_some(last), seats) else { return true };
                    next
                }
            },
            Pc::Ends(found) => {
                let now = m.load(ENDS);
                if !found.is_conclusive([ghost.ends_before, now]) && self.bug != Bug::EndsIgnored {
                    ghost.retired = true;
                    return true;
                }
                let Some(next) = ghost.takes_back(None, seats) else { return true };
                next
            }
            Pc::Cut(mut steps) => match steps.step(m) {
                None => Pc::Cut(steps),
                Some(()) => Pc::EndsBefore,
            },
            Pc::EndsBefore => {
                ghost.ends_before = m.load(ENDS);
                Pc::Give
            }
            Pc::Give => {
                m.store(SEATS, seats[usize::from(ghost.returned)]);
                ghost.generation += 1;
                Pc::Holders
            }
            pc => unreachable!("{pc:?} of the maker"),
        };
        false
    }

    /// Executes an operation of its process that is ready.
    fn device(owner: usize, fates: &[Fate], ghost: &mut Ghost) -> bool {
        let ready = |op: &Op| {
            let met = |tick: &u64| ghost.over(*tick) != Some(false);
            op.owner == owner && !op.done && op.waits.iter().all(met)
        };
        match ghost.ops.iter().position(ready) {
            Some(next) => {
                if let Some((generation, _)) = ghost.ops[next].work {
                    ghost.judge(generation, fates);
                }
                ghost.ops[next].done = true;
                false
            }
            // No more orders will arrive. Pending work of a dead process is discarded.
            None => {
                let waits = ghost.ops.iter().any(|op| op.owner == owner && !op.done);
                fates[owner].gone() && (!waits || fates[owner] == Fate::Killed)
            }
        }
    }
}

impl Process {
    fn ender(&mut self, me: usize, m: &Memory, fates: &[Fate], ghost: &mut Ghost) -> bool {
        let is_late = self.bug == Bug::CountedLate;
        let (owner, counts) = match self.pc {
            Pc::Ended(owner) => (owner, is_late),
            _ => {
                // Holders follow the maker in the list of actors, and devices follow the holders in the same
                // order.
                let is_left = |&owner: &usize| {
                    let unfinished = ghost.ops.iter().any(|op| op.owner == owner && !op.done);
                    let is_gone = fates[owner] == Fate::Killed && fates[owner - 1 + devices(fates)].gone();
                    is_gone && unfinished && ghost.ended & 1 << owner == 0
                };
                let Some(owner) = (1..devices(fates)).find(is_left) else {
                    return fates[1..me].iter().all(|fate| fate.gone());
                };
                (owner, !is_late)
            }
        };
        if counts {
            m.add(ENDS, 1);
        } else {
            ghost.ended |= 1 << owner;
        }
        self.pc = if matches!(self.pc, Pc::Ended(_)) { Pc::Start } else { Pc::Ended(owner) };
        false
    }
}

/// Returns the bit set of the holders of each generation.
fn seats_of(actors: &[Role]) -> Vec<u64> {
    let mut seats = vec![0; 2];
    for (a, role) in actors.iter().enumerate() {
        if let Role::Holder { generation, .. } = role {
            seats[usize::from(*generation)] |= 1 << a;
        }
    }
    seats
}

impl Actor for Actors {
    type Ghost = Ghost;

    fn step(&mut self, me: usize, m: &Memory, fates: &[Fate], ghost: &mut Ghost) -> bool {
        match self.process.role {
            Role::Maker => self.process.maker(m, fates, &self.seats, ghost),
            Role::Holder { .. } => self.process.holder(me, m, fates, ghost),
            Role::Device { owner } => Process::device(owner, fates, ghost),
            Role::Ender => self.process.ender(me, m, fates, ghost),
        }
    }
}

/// Actor, with the holders of each generation, which the maker needs.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Actors {
    process: Process,
    seats: Vec<u64>,
}

const fn holder(writes: bool, generation: u8) -> Role {
    Role::Holder { writes, generation, after: None }
}

/// Explores a maker, holders, their devices, and a process that ends clocks.
fn explore(holders: &[Role], (kills, stops): (u32, u32), bug: Bug) {
    let processes: Vec<Role> = std::iter::once(Role::Maker).chain(holders.iter().copied()).collect();
    let seats = seats_of(&processes);
    let devices = (1..processes.len()).map(|owner| Role::Device { owner });
    let roles = processes.iter().copied().chain(devices).chain([Role::Ender]);
    let actor =
        |role| Actors { process: Process { role, bug, pc: Pc::Start, tick: 0 }, seats: seats.clone() };
    let memory = Memory::new(4);
    memory.poke(SEATS, seats[0]);
    let world = World::new(memory, roles.map(actor).collect(), Ghost::default());
    let first_device = processes.len();
    let end = |w: &World<Actors>| {
        let all = 0..w.fates.len();
        let well = w.count(all.clone(), Fate::Killed) + w.count(all, Fate::Stopped) == 0;
        if well {
            assert!(!w.ghost.retired, "the slab is retired, and no process died");
            assert_eq!(w.ghost.returned, 2, "the memory did not return");
        }
    };
    // A device isn't a process: it ends with its owner. Clocks are ended as long as one process lives.
    let wedged = move |w: &World<Actors>| {
        let (all, devices) = (0..w.fates.len(), first_device..w.fates.len());
        w.count(all, Fate::Stopped) == 0 && w.count(devices, Fate::Killed) == 0
    };
    world.explore(kills, stops, end, wedged);
}

const WRITERS: [Role; 3] = [holder(true, 0), holder(true, 0), holder(true, 1)];
const READERS: [Role; 3] = [holder(false, 0), holder(false, 0), holder(true, 1)];
const CHAIN: [Role; 3] =
    [holder(true, 0), Role::Holder { writes: true, generation: 0, after: Some(1) }, holder(true, 1)];
const READ_CHAIN: [Role; 4] = [
    holder(false, 0),
    Role::Holder { writes: false, generation: 0, after: Some(1) },
    Role::Holder { writes: false, generation: 0, after: Some(2) },
    holder(true, 1),
];

#[test]
fn device_memory_is_reused_after_two_writers() {
    explore(&WRITERS, (1, 0), Bug::None);
}

#[test]
fn device_memory_is_reused_after_two_readers() {
    explore(&READERS, (1, 0), Bug::None);
}

#[test]
fn moved_device_piece_is_reused_after_its_uses() {
    explore(&CHAIN, (1, 0), Bug::None);
}

/// The death of a process ends the second reader's wait, so the third reader's tick may be complete before
/// the first reader's work has run.
#[test]
fn device_memory_is_reused_after_three_readers() {
    explore(&READ_CHAIN, (1, 0), Bug::None);
}

#[test]
#[should_panic(expected = "memory is used again under work")]
fn model_finds_ignored_end_of_unfinished_work() {
    explore(&READ_CHAIN, (1, 0), Bug::EndsIgnored);
}

#[test]
#[should_panic(expected = "memory is used again under work")]
fn model_finds_end_of_work_counted_too_late() {
    explore(&READ_CHAIN, (1, 0), Bug::CountedLate);
}

#[test]
fn memory_rows_survive_one_kill_and_one_stop() {
    explore(&[holder(true, 0), holder(true, 1)], (1, 1), Bug::None);
}

#[test]
fn memory_rows_hold_in_random_schedules() {
    at_random(|| {
        let holders = [holder(true, 0), holder(false, 0), holder(true, 0), holder(true, 1), holder(true, 1)];
        explore(&holders, (2, 1), Bug::None);
    });
}

#[test]
#[should_panic(expected = "memory is used again under work")]
fn model_finds_seat_released_before_work_is_joined() {
    explore(&WRITERS, (0, 0), Bug::SeatFirst);
}

#[test]
#[should_panic(expected = "memory is used again under work")]
fn model_finds_use_ended_before_work_is_joined() {
    explore(&[holder(true, 0), holder(true, 1)], (1, 0), Bug::EndedFirst);
}

#[test]
#[should_panic(expected = "memory is used again under work")]
fn model_finds_last_use_without_its_predecessor() {
    explore(&READERS, (0, 0), Bug::NotFollowed);
}

#[test]
#[should_panic(expected = "memory is used again under work")]
fn model_finds_overwritten_concurrent_join() {
    explore(&READERS, (0, 0), Bug::NotCompared);
}

/// A stream waits for two holders. If its process dies, streams that wait for the process continue, although
/// work of the holders may be pending.
#[test]
#[should_panic(expected = "memory is used again under work")]
fn model_finds_unmarked_joint_last_use() {
    explore(&READERS, (1, 0), Bug::NotMixed);
}

#[test]
#[should_panic(expected = "memory is used again under work")]
fn model_finds_reuse_despite_a_dead_writer() {
    explore(&[holder(true, 0), holder(true, 1)], (1, 0), Bug::UsesIgnored);
}

#[test]
#[should_panic(expected = "memory is used again under work")]
fn model_finds_reuse_without_waiting_for_last_use() {
    explore(&[holder(true, 0), holder(true, 1)], (0, 0), Bug::NotWaited);
}
