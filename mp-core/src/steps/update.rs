//! Updates of several words at once, without a lock: any process completes the current update.
//!
//! The initiator of an update reads the words, writes the new value of each into its own record, and then
//! names itself in one word that all updates use ([`CurrentUpdate`]), by a swap. The swap decides that the
//! update happens. Any process can do the rest from the record: for each word, a swap of the old value to the
//! new one. So no process waits for the initiator, even if the initiator is killed or stopped.
//!
//! The initiator's swap succeeds only if no other update has happened since the words were read, because each
//! update increments the number in that word. So the values read are the values of all words at one moment.
//!
//! | word | states | changed by |
//! |---|---|---|
//! | current | nothing, number n | a process `m` that has written its record → being made by `m`, n |
//! |  | being made by `m`, n | any process, after all words of the update are changed → nothing, n + 1 |
//! | a record | | only its member, while `current` does not name the member |
//! | the words to change | | each process that makes the update: from the old to the new value, in the order of the record |
//! | making, one for each member | 0, 1 | the member: 1 **before** it changes any word, 0 afterwards |
//!
//! | killed, or stopped for a week | remaining state | other processes |
//! |---|---|---|
//! | before `current` names the process | only its own record | are not affected |
//! | after that, anywhere | `current` names the process, or no process; its word "making" | complete the update, and continue |
//!
//! **Late swaps.** A process that makes an update checks that this update is still the current one, and then
//! swaps a word. If the process is stopped just before that swap, it makes the swap late, perhaps a week
//! after other processes have completed the update. A late swap must fail: the word must not have its old
//! value *again*. Most updates only write values that their words have never had (a count, a frontier, a row
//! that is used for the first time), and so restore no old value. An update that can write an earlier value
//! of a word is [exclusive](UpdatePlan::exclusive): it begins only if no other process is making an update.
//! So a process that is stopped before its swap delays only exclusive updates.
//!
//! This check finds every process that may be late. A process that makes update n sets "making", by a
//! read-modify-write, *then* checks if n is current. A process that plans an exclusive update has read n + 1
//! or a later number, *then* makes a read-modify-write, *then* reads "making" of all members. With a full
//! barrier after each read-modify-write, at least one of the two reads the other's write.
//!
//! A record may be read while its member already writes the next one. So `current` is read again afterwards.

use crate::mem::{Column, Mem, Steps, Word};
use crate::words::{CurrentUpdate, Member};

/// Maximum number of words that one update reads or writes.
pub(crate) const MAX_WORDS: usize = 6;

/// Positions of the words of updates.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct UpdateAt {
    /// Word that all updates use.
    pub current: Word,
    /// First of the words of each member, by slot: the word "making", then the record of its update.
    pub own: Column,
}

impl UpdateAt {
    /// Number of words that each member has for updates.
    pub const OWN_WORDS: u64 = 1 + 3 * MAX_WORDS as u64;

    /// Returns the word "making" of the member in this slot.
    pub const fn making(self, slot: u32) -> Word {
        self.own.of(slot)
    }
    /// Returns the `i`-th entry of a member's record: the word's position, its old value, and its new value.
    const fn record(self, of: Member, i: usize) -> [Word; 3] {
        let first = self.own.of(of.slot()).plus(1 + 3 * i as u64);
        [first, first.plus(1), first.plus(2)]
    }
}

/// Change of several words: reads some words, and computes new values for some of them.
pub trait UpdatePlan {
    /// Returns the words to read, at most [six](UpdateAt).
    fn reads(&self) -> &[Word];

    /// Returns the changes, in the order in which they are made. Each consists of the index of a word among
    /// the words read, and the word's new value. An empty list changes nothing.
    fn writes(&self, values: &[u64]) -> Vec<(usize, u64)>;

    /// Returns `true` if this plan can change a word to a value that the word has had before, written by any
    /// process. The update then begins only if no other process is making an update: see "Late swaps" in the
    /// documentation of [this module](self).
    fn exclusive(&self) -> bool {
        false
    }
}

/// Knowledge about members that are dead.
pub trait DeathOracle {
    /// Returns `true` if the member is known to be dead.
    fn is_dead(&self, m: Member) -> bool;
}

impl<F: Fn(Member) -> bool> DeathOracle for F {
    fn is_dead(&self, m: Member) -> bool {
        self(m)
    }
}

/// Members other than the caller, each of which can be making an update.
pub trait LiveMembers: DeathOracle {
    /// Returns all members but the caller that are not known to be dead.
    fn others(&self) -> Vec<Member>;
}

/// Result of an update.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum UpdateOutcome {
    /// The update has happened. These are the values of the words before it.
    Done([u64; MAX_WORDS]),
    /// The update is exclusive, and this member is making another update. The caller retries later.
    Busy(Member),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Pc {
    Load,
    // Steps of another member's update.
    Help,
    CheckCurrent,
    Position(usize),
    Old(usize),
    New(usize),
    RecheckCurrent(usize),
    HelpSwap(usize),
    HelpEnd,
    HelpDone,
    // Steps of this member's own update.
    Barrier,
    CheckOther(usize),
    Read(usize),
    Confirm,
    Record(usize, usize),
    Announce,
    Publish,
    Swap(usize),
    End,
    ClearFlag(bool),
}

/// Performs one [`UpdatePlan`]. If another member's update is in progress, completes that update first. Each
/// member performs one update at a time.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Update<P, D> {
    at: UpdateAt,
    me: Member,
    plan: P,
    members: D,
    found: u64,
    others: Vec<Member>,
    entry: [u64; 3],
    values: [u64; MAX_WORDS],
    writes: Vec<(usize, u64)>,
    pc: Pc,
}

impl<P: UpdatePlan, D: LiveMembers> Update<P, D> {
    /// Creates the steps by which `me` performs `plan`.
    pub fn new(at: UpdateAt, me: Member, plan: P, members: D) -> Self {
        let (others, writes) = (Vec::new(), Vec::new());
        let (entry, values) = ([0; 3], [0; MAX_WORDS]);
        Self { at, me, plan, members, found: 0, others, entry, values, writes, pc: Pc::Load }
    }

    fn reads(&self) -> &[Word] {
        let all = self.plan.reads();
        &all[..all.len().min(MAX_WORDS)]
    }

    fn begin_to_read(&self) -> Pc {
        if self.reads().is_empty() { Pc::Confirm } else { Pc::Read(0) }
    }

    /// Computes the new values from the values read.
    fn planned(&mut self) -> Pc {
        let known = self.reads().len();
        self.writes = self.plan.writes(&self.values[..known]);
        self.writes.retain(|&(i, to)| i < known && to != self.values[i]);
        self.writes.truncate(MAX_WORDS);
        if self.writes.is_empty() { Pc::Confirm } else { Pc::Record(0, 0) }
    }

    fn recorded(&self, i: usize, part: usize) -> u64 {
        let (index, to) = self.writes[i];
        [self.reads()[index].offset(), self.values[index], to][part]
    }

    /// Returns the value of the word `current` that announces this update.
    fn named(&self) -> CurrentUpdate {
        let making = Some((self.me, self.writes.len() as u32));
        CurrentUpdate { making, ..CurrentUpdate::unpack(self.found) }
    }
}

impl<P: UpdatePlan, D: LiveMembers> Steps for Update<P, D> {
    type Out = UpdateOutcome;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<UpdateOutcome> {
        let (at, making) = (self.at, self.at.making(self.me.slot()));
        match self.pc {
            Pc::Load => {
                self.found = m.load(at.current);
                self.pc = match (CurrentUpdate::unpack(self.found).making, self.plan.exclusive()) {
                    (Some(_), _) => Pc::Help,
                    (None, true) => Pc::Barrier,
                    (None, _) => self.begin_to_read(),
                };
            }
            Pc::Help => {
                m.or(making, 1);
                m.fence_after_rmw();
                self.pc = Pc::CheckCurrent;
            }
            Pc::CheckCurrent => self.pc = self.if_current(m, Pc::Position(0)),
            Pc::Position(i) => self.load_entry(m, i, 0, Pc::Old(i)),
            Pc::Old(i) => self.load_entry(m, i, 1, Pc::New(i)),
            Pc::New(i) => self.load_entry(m, i, 2, Pc::RecheckCurrent(i)),
            Pc::RecheckCurrent(i) => self.pc = self.if_current(m, Pc::HelpSwap(i)),
            Pc::HelpSwap(i) => {
                let [position, old, new] = self.entry;
                // If this fails, another process was faster.
                _ = m.cas(Word::at(position), old, new);
                let words = CurrentUpdate::unpack(self.found).making.map_or(0, |(_, words)| words as usize);
                self.pc = if i + 1 < words.min(MAX_WORDS) { Pc::Position(i + 1) } else { Pc::HelpEnd };
            }
            Pc::HelpEnd => {
                _ = m.cas(at.current, self.found, CurrentUpdate::unpack(self.found).after().pack());
                self.pc = Pc::HelpDone;
            }
            Pc::HelpDone => {
                m.store(making, 0);
                self.pc = Pc::Load;
            }
            // Between the read of current and the reads of the other members' words.
            Pc::Barrier => {
                m.or(making, 0);
                m.fence_after_rmw();
                self.others = self.members.others();
                self.pc = if self.others.is_empty() { self.begin_to_read() } else { Pc::CheckOther(0) };
            }
            Pc::CheckOther(i) => {
                let other = self.others[i];
                let is_dead = self.members.is_dead(other);
                if m.load(at.making(other.slot())) != 0 && !is_dead {
                    return Some(UpdateOutcome::Busy(other));
                }
                self.pc =
                    if i + 1 < self.others.len() { Pc::CheckOther(i + 1) } else { self.begin_to_read() };
            }
            Pc::Read(i) => {
                self.values[i] = m.load(self.reads()[i]);
                self.pc = if i + 1 < self.reads().len() { Pc::Read(i + 1) } else { self.planned() };
            }
            // There is nothing to change. Checks that the words had these values at one moment.
            Pc::Confirm => {
                if m.load(at.current) == self.found {
                    return Some(UpdateOutcome::Done(self.values));
                }
                self.pc = Pc::Load;
            }
            Pc::Record(i, part) => {
                m.store(at.record(self.me, i)[part], self.recorded(i, part));
                self.pc = match (part, i + 1 < self.writes.len()) {
                    (0 | 1, _) => Pc::Record(i, part + 1),
                    (_, true) => Pc::Record(i + 1, 0),
                    (_, false) => Pc::Announce,
                };
            }
            // A process that reads a later number in `current` also reads this value.
            Pc::Announce => {
                m.store(making, 1);
                self.pc = Pc::Publish;
            }
            Pc::Publish => {
                let named = m.cas(at.current, self.found, self.named().pack());
                let named = named.is_ok();
                self.pc = if named { Pc::Swap(0) } else { Pc::ClearFlag(false) };
            }
            Pc::Swap(i) => {
                let (index, to) = self.writes[i];
                // If this fails, another process was faster.
                _ = m.cas(self.reads()[index], self.values[index], to);
                self.pc = if i + 1 < self.writes.len() { Pc::Swap(i + 1) } else { Pc::End };
            }
            Pc::End => {
                _ = m.cas(at.current, self.named().pack(), self.named().after().pack());
                self.pc = Pc::ClearFlag(true);
            }
            Pc::ClearFlag(happened) => {
                m.store(making, 0);
                if happened {
                    return Some(UpdateOutcome::Done(self.values));
                }
                self.pc = Pc::Load;
            }
        }
        None
    }
}

impl<P: UpdatePlan, D: LiveMembers> Update<P, D> {
    /// Returns `then` if the update that was found is still the current one, and otherwise `Pc::HelpDone`.
    fn if_current<M: Mem + ?Sized>(&self, m: &M, then: Pc) -> Pc {
        if m.load(self.at.current) == self.found { then } else { Pc::HelpDone }
    }

    fn load_entry<M: Mem + ?Sized>(&mut self, m: &M, i: usize, part: usize, then: Pc) {
        if let Some((by, _)) = CurrentUpdate::unpack(self.found).making {
            self.entry[part] = m.load(self.at.record(by, i)[part]);
        }
        self.pc = then;
    }
}
