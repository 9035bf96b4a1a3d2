//! Updates of several words at once, without a lock: any process completes the one that is being made.
//!
//! A process that wants one reads the words, writes down what each is to become in a record of its own, and
//! then names itself in one word that all updates go through ([`Current`]): by that swap the update has
//! happened. Any process can make the rest of it, from the record: for each word, a swap of what it was to
//! what it becomes. So none waits for the process that wanted it, whether that one is killed or stopped.
//!
//! The swap that names succeeds only if no other update has happened since the words were read, for each counts that word up.
//! So what was read is what the words are, all at one moment.
//!
//! | word | states | changed by |
//! |---|---|---|
//! | current | nothing, number n | a process that has written its record → being made by it, n |
//! |  | being made by m, n | any process, when all its words are made → nothing, n + 1 |
//! | a record | | its member alone, while it is not named there |
//! | the words | | swapped from old to new, in their order, by each process that makes the update |
//! | making, one for each member | 0, 1 | the member: 1 **before** it makes anything, 0 after |
//!
//! | killed, or stopped for a week | left | other processes |
//! |---|---|---|
//! | before it is named | nothing but its own record | notice nothing |
//! | after that, anywhere | current names it, or none; its word "making" | complete it, and continue |
//!
//! **Late swaps.** A process that makes an update has seen that it is still the current one, and then swaps a
//! word; it may be stopped just before that swap, and make it a week later, when other processes have
//! completed the update long ago. The swap must fail then: the word must not be what it was *again*. An
//! update that gives words only values that they have never had (a count, a frontier, a row that is used for
//! the first time) can't make it so. A plan that may give one a value that it once had is
//! [exclusive](Plan::exclusive): it is made only if no other process is making anything. So a process that is
//! stopped there holds up exclusive updates, and no others.
//!
//! That look finds every process that may be late. One that makes update n says "making", by a
//! read-modify-write, *then* looks whether n is current. One that plans has seen n + 1 or a later one, *then*
//! made a read-modify-write, *then* looks which members say "making". With a full barrier after both, one of
//! the two sees the other.
//!
//! A record is read while its member may already write the next one; so after it was read, current is looked at once more.

use crate::mem::{Column, Mem, Steps, Word};
use crate::words::{Current, Member};

/// Most words that one update reads or writes.
pub(crate) const MAX_WORDS: usize = 6;

/// Where the words of updates are.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct UpdateAt {
    /// The word that all updates go through.
    pub current: Word,
    /// By slot, the first word of each member's own: whether it is making an update, then its record.
    pub own: Column,
}

impl UpdateAt {
    /// How many words each member has of its own.
    pub const OWN_WORDS: u64 = 1 + 3 * MAX_WORDS as u64;

    /// Where a member says that it is making an update.
    pub const fn making(self, slot: u32) -> Word {
        self.own.of(slot)
    }
    /// In a member's record, the `i`-th word's position, what it was, and what it becomes.
    const fn record(self, of: Member, i: usize) -> [Word; 3] {
        let first = self.own.of(of.slot()).plus(1 + 3 * i as u64);
        [first, first.plus(1), first.plus(2)]
    }
}

/// What to change: reads some words, then says what some of them become.
pub trait Plan {
    /// The words to read, at most [six](UpdateAt).
    fn reads(&self) -> &[Word];

    /// From their values, which of them (by their index among those that are read) become what, in the order in which
    /// other processes may see it. Nothing: no change.
    fn writes(&self, values: &[u64]) -> Vec<(usize, u64)>;

    /// Whether it may give one of the words a value that this word has ever had before, whichever process
    /// gave it: see [`Update`].
    fn exclusive(&self) -> bool;
}

/// Says whether a member is known to be dead.
pub trait Oracle {
    /// `false` when in doubt.
    fn is_dead(&self, m: Member) -> bool;
}

impl<F: Fn(Member) -> bool> Oracle for F {
    fn is_dead(&self, m: Member) -> bool {
        self(m)
    }
}

/// The members that may be making updates.
pub trait Members: Oracle {
    /// All members but the caller that are not known to be dead.
    fn others(&self) -> Vec<Member>;
}

/// How it ended.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum UpdateEnd {
    /// The update has happened; these were the values read.
    Done([u64; MAX_WORDS]),
    /// It is an exclusive one, and this member is making another one; try again.
    Held(Member),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Pc {
    Look,
    // What another has begun.
    Help,
    IsStill,
    Position(usize),
    Old(usize),
    New(usize),
    WasStill(usize),
    Other(usize),
    OtherDone,
    Rest,
    // One's own.
    Barrier,
    Alone(usize),
    Read(usize),
    Confirm,
    Record(usize, usize),
    Say,
    Name,
    Make(usize),
    Made,
    Withdraw(bool),
}

/// Makes one [`Plan`] happen, after completing what other members had begun. Of each member one at a time.
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

impl<P: Plan, D: Members> Update<P, D> {
    /// To make `plan` happen, by `me`.
    pub fn new(at: UpdateAt, me: Member, plan: P, members: D) -> Self {
        let (others, writes) = (Vec::new(), Vec::new());
        let (entry, values) = ([0; 3], [0; MAX_WORDS]);
        Self { at, me, plan, members, found: 0, others, entry, values, writes, pc: Pc::Look }
    }

    fn reads(&self) -> &[Word] {
        let all = self.plan.reads();
        &all[..all.len().min(MAX_WORDS)]
    }

    fn begin_to_read(&self) -> Pc {
        if self.reads().is_empty() { Pc::Confirm } else { Pc::Read(0) }
    }

    /// After the values were read: what is to be written, if anything is.
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

    /// The word as it is while this update is being made.
    fn named(&self) -> Current {
        let making = Some((self.me, self.writes.len() as u32));
        Current { making, ..Current::unpack(self.found) }
    }
}

impl<P: Plan, D: Members> Steps for Update<P, D> {
    type Out = UpdateEnd;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<UpdateEnd> {
        let (at, making) = (self.at, self.at.making(self.me.slot()));
        match self.pc {
            Pc::Look => {
                self.found = m.load(at.current);
                self.pc = match (Current::unpack(self.found).making, self.plan.exclusive()) {
                    (Some(_), _) => Pc::Help,
                    (None, true) => Pc::Barrier,
                    (None, _) => self.begin_to_read(),
                };
            }
            Pc::Help => {
                m.or(making, 1);
                m.fence_after_rmw();
                self.pc = Pc::IsStill;
            }
            Pc::IsStill => self.pc = self.still(m, Pc::Position(0)),
            Pc::Position(i) => self.load_entry(m, i, 0, Pc::Old(i)),
            Pc::Old(i) => self.load_entry(m, i, 1, Pc::New(i)),
            Pc::New(i) => self.load_entry(m, i, 2, Pc::WasStill(i)),
            Pc::WasStill(i) => self.pc = self.still(m, Pc::Other(i)),
            Pc::Other(i) => {
                let [position, old, new] = self.entry;
                // If it is something else, another process was faster.
                _ = m.cas(Word::at(position), old, new);
                let words = Current::unpack(self.found).making.map_or(0, |(_, words)| words as usize);
                self.pc = if i + 1 < words.min(MAX_WORDS) { Pc::Position(i + 1) } else { Pc::OtherDone };
            }
            Pc::OtherDone => {
                _ = m.cas(at.current, self.found, Current::unpack(self.found).after().pack());
                self.pc = Pc::Rest;
            }
            Pc::Rest => {
                m.store(making, 0);
                self.pc = Pc::Look;
            }
            // Between the look at current and the looks at the others.
            Pc::Barrier => {
                m.or(making, 0);
                m.fence_after_rmw();
                self.others = self.members.others();
                self.pc = if self.others.is_empty() { self.begin_to_read() } else { Pc::Alone(0) };
            }
            Pc::Alone(i) => {
                let other = self.others[i];
                let is_dead = self.members.is_dead(other);
                if m.load(at.making(other.slot())) != 0 && !is_dead {
                    return Some(UpdateEnd::Held(other));
                }
                self.pc = if i + 1 < self.others.len() { Pc::Alone(i + 1) } else { self.begin_to_read() };
            }
            Pc::Read(i) => {
                self.values[i] = m.load(self.reads()[i]);
                self.pc = if i + 1 < self.reads().len() { Pc::Read(i + 1) } else { self.planned() };
            }
            // There is nothing to change; if the words were like that at one moment.
            Pc::Confirm => {
                if m.load(at.current) == self.found {
                    return Some(UpdateEnd::Done(self.values));
                }
                self.pc = Pc::Look;
            }
            Pc::Record(i, part) => {
                m.store(at.record(self.me, i)[part], self.recorded(i, part));
                self.pc = match (part, i + 1 < self.writes.len()) {
                    (0 | 1, _) => Pc::Record(i, part + 1),
                    (_, true) => Pc::Record(i + 1, 0),
                    (_, false) => Pc::Say,
                };
            }
            // A process that sees a later number sees this.
            Pc::Say => {
                m.store(making, 1);
                self.pc = Pc::Name;
            }
            Pc::Name => {
                let named = m.cas(at.current, self.found, self.named().pack());
                let named = named.is_ok();
                self.pc = if named { Pc::Make(0) } else { Pc::Withdraw(false) };
            }
            Pc::Make(i) => {
                let (index, to) = self.writes[i];
                // If it is something else, another process was faster.
                _ = m.cas(self.reads()[index], self.values[index], to);
                self.pc = if i + 1 < self.writes.len() { Pc::Make(i + 1) } else { Pc::Made };
            }
            Pc::Made => {
                _ = m.cas(at.current, self.named().pack(), self.named().after().pack());
                self.pc = Pc::Withdraw(true);
            }
            Pc::Withdraw(happened) => {
                m.store(making, 0);
                if happened {
                    return Some(UpdateEnd::Done(self.values));
                }
                self.pc = Pc::Look;
            }
        }
        None
    }
}

impl<P: Plan, D: Members> Update<P, D> {
    /// Goes on if the update that was found is still being made.
    fn still<M: Mem + ?Sized>(&self, m: &M, then: Pc) -> Pc {
        if m.load(self.at.current) == self.found { then } else { Pc::Rest }
    }

    fn load_entry<M: Mem + ?Sized>(&mut self, m: &M, i: usize, part: usize, then: Pc) {
        if let Some((by, _)) = Current::unpack(self.found).making {
            self.entry[part] = m.load(self.at.record(by, i)[part]);
        }
        self.pc = then;
    }
}
