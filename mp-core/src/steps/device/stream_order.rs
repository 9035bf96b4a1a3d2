//! Two tables of words: the order of each device's streams, and the names of events. They are accessed by
//! steps of one shared access each.
//!
//! | word | states | changed by | effect of a death |
//! |---|---|---|---|
//! | order of a device: `key 56, order 8` | 0 → the value of the first member that uses the device, forever | a member, by one swap of 0 ([`ChooseOrder`]) | before the swap: no change; after the swap: the order is chosen |
//! | names of a clock: a device's key, the epoch of an owner, the names | the names of the last owner that had any | the owner, in its epoch, before it submits its first tick ([`WriteEventNames`]) | some names are written, and no tick refers to them |
//!
//! A process that reads a name has a tick of the clock ([`ReadEventName`]). The process reads the name, and
//! then checks that the tick is still pending. If the tick is pending, the clock's owner has not changed, and
//! wrote all its names, if any, before it submitted the tick. Names of an earlier owner have another epoch.

use crate::mem::{Mem, Steps, Word};
use crate::steps::clock::{CheckTick, ClockAt, TickState};
use crate::words::Tick;

/// Returns a device's entry as one word, with the lower 56 bits of the key.
pub const fn order_entry(key: u64, order: u8) -> u64 {
    key << 8 | order as u64
}

/// Chooses an order for a device, unless another member has. Ends with the chosen order, or `None` if the
/// table is full.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ChooseOrder {
    first: Word,
    entries: u64,
    mine: u64,
    at: u64,
    /// `true` if the current entry was free.
    free: bool,
}

impl ChooseOrder {
    /// Creates the steps for a table with this number of entries. `mine` is the [`order_entry`] to write.
    pub const fn new(first: Word, entries: u64, mine: u64) -> Self {
        Self { first, entries, mine, at: 0, free: false }
    }

    /// Evaluates the present entry of the table, whose word is `word`.
    fn found(&mut self, word: u64) -> Option<Option<u8>> {
        if word >> 8 == self.mine >> 8 {
            return Some(Some(word as u8));
        }
        (self.at, self.free) = (self.at + 1, false);
        (self.at == self.entries).then_some(None)
    }
}

impl Steps for ChooseOrder {
    type Out = Option<u8>;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<Option<u8>> {
        let at = self.first.plus(self.at);
        if self.free {
            return match m.cas(at, 0, self.mine) {
                Ok(()) => Some(Some(self.mine as u8)),
                Err(found) => self.found(found),
            };
        }
        match m.load(at) {
            0 => self.free = true,
            word => return self.found(word),
        }
        None
    }
}

/// Position of the names of a clock's events, in a row of words. The row begins with a header that is as long
/// as a name: the device's key, then the owner's epoch. The names follow.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct EventNamesAt {
    /// First word.
    pub row: Word,
    /// Number of words of a name.
    pub words: u64,
}

impl EventNamesAt {
    fn word(self, name: u64, i: u64) -> Word {
        self.row.plus((name + 1) * self.words + i)
    }

    fn epoch(self) -> Word {
        self.row.plus(1)
    }
}

/// Writes the names of an owner's events, `N` words in total, before the owner submits its first tick.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct WriteEventNames<const N: usize> {
    at: EventNamesAt,
    key: u64,
    epoch: u16,
    names: [u64; N],
    written: usize,
}

impl<const N: usize> WriteEventNames<N> {
    /// Creates the steps for events of this device.
    pub const fn new(at: EventNamesAt, key: u64, epoch: u16, names: [u64; N]) -> Self {
        Self { at, key, epoch, names, written: 0 }
    }
}

impl<const N: usize> Steps for WriteEventNames<N> {
    type Out = ();

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<()> {
        match self.written {
            0 => m.store(self.at.row, self.key),
            1 => m.store(self.at.epoch(), self.epoch.into()),
            i => {
                let i = i as u64 - 2;
                m.store(self.at.word(i / self.at.words, i % self.at.words), self.names[i as usize]);
            }
        }
        self.written += 1;
        (self.written == N + 2).then_some(())
    }
}

/// Reads the name of the event that the owner of a tick has recorded after the tick. Ends with `None` if the
/// tick isn't pending, or its owner has no events of this device.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ReadEventName<const W: usize> {
    at: EventNamesAt,
    name: u64,
    key: u64,
    tick: Tick,
    found: [u64; W],
    /// Number of words read; after all of them, the tick is checked.
    read: usize,
    /// `true` if both words before the names have the expected values.
    fits: bool,
    look: CheckTick,
}

impl<const W: usize> ReadEventName<W> {
    /// Creates the steps to read the event name with the index `name`, which must belong to a tick of
    /// `clock`. `key` is the device's key.
    pub fn new(at: EventNamesAt, clock: ClockAt, tick: Tick, name: u64, key: u64) -> Self {
        Self { at, name, key, tick, found: [0; W], read: 0, fits: true, look: CheckTick::new(clock, tick) }
    }
}

impl<const W: usize> Steps for ReadEventName<W> {
    type Out = Option<[u64; W]>;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<Option<[u64; W]>> {
        match self.read {
            0 => self.fits = m.load(self.at.row) == self.key,
            1 => {
                let same = m.load(self.at.epoch()) == u64::from(self.tick.epoch());
                self.fits &= same;
            }
            i if i < W + 2 => self.found[i - 2] = m.load(self.at.word(self.name, i as u64 - 2)),
            _ => {
                let found = self.look.step(m)?;
                let pending = found == TickState::Pending;
                return Some((pending && self.fits).then_some(self.found));
            }
        }
        self.read += 1;
        None
    }
}
