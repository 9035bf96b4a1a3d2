//! Ordering of each device's streams, and the events of streams that don't write their clocks:
//! [`steps::device::stream_order`](crate::steps::device::stream_order) describes the words of both tables and
//! their state after a death.

use std::os::fd::AsFd;

use crate::arena::Arena;
use crate::clocks::{Clock, Clocks, TickState};
use crate::error::{Error, Result};
use crate::layout::{EVENTS, ORDERS, control};
use crate::mem::{Mem, Word, raise, run};
use crate::steps::device::stream_order::{
    ChooseOrder, EventNamesAt, ReadEventName, WriteEventNames, order_entry,
};
use crate::sys::peer::{self, Liveness};
use crate::sys::readiness;
use crate::words::Tick;

/// Interprocess handle of an event, as returned by its driver.
pub type EventHandle = [u8; 64];

const KEY: u64 = u64::MAX >> 8;
const HANDLE_WORDS: u64 = 8;
const PAGE: u64 = 4096;

/// Returns the place of the names of a clock's events.
fn names(clock: u32) -> EventNamesAt {
    let row = Word::at(control::EVENTS + EVENTS * u64::from(clock % Clocks::COUNT));
    EventNamesAt { row, words: HANDLE_WORDS }
}

impl Clocks {
    /// Number of events of a clock.
    pub const EVENTS: usize = (EVENTS / 8 / HANDLE_WORDS) as usize - 1;

    /// Returns the order that was chosen for a device, if any.
    ///
    /// ```
    /// let clocks = mp_core::clocks::Clocks(mp_core::Arena::current()?);
    /// assert_eq!(clocks.order(7)?, None);
    /// assert_eq!(clocks.choose_order(7, 1)?, 1); // the first call decides
    /// assert_eq!(clocks.choose_order(7, 2)?, 1); // later calls return the same order
    /// assert_eq!(clocks.order(7)?, Some(1));
    /// # Ok::<(), mp_core::Error>(())
    /// ```
    ///
    /// `key` identifies the device. Only its lower 56 bits count.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::Forked`].
    pub fn order(&self, key: u64) -> Result<Option<u8>> {
        self.committed_orders()?;
        let words = (0..ORDERS).map(|i| self.0.map().load(Word::at(control::ORDERS).plus(i)));
        Ok(words.take_while(|word| *word != 0).find(|word| word >> 8 == key & KEY).map(|word| word as u8))
    }

    /// Chooses an order for a device, unless another member has chosen one. Returns the chosen order. `order`
    /// is any number except 0.
    ///
    /// # Errors
    /// [`Error::ArenaFull`] if the members of this arena have used 512 other devices. [`Error::OutOfMemory`],
    /// [`Error::Forked`].
    pub fn choose_order(&self, key: u64, order: u8) -> Result<u8> {
        self.committed_orders()?;
        let choose = ChooseOrder::new(Word::at(control::ORDERS), ORDERS, order_entry(key, order));
        let full = Error::ArenaFull { what: "devices", asked: 1, limit: ORDERS };
        run(choose, self.0.map()).ok_or(full)
    }

    fn committed_orders(&self) -> Result<()> {
        self.0.me()?;
        self.0.commit(control::ORDERS, PAGE)
    }

    /// Returns the event that the owner of a pending tick has recorded after the work that the tick
    /// completes. The owner may record the event again for later ticks, but not for earlier ones. Returns
    /// `None` if the tick is not pending, or its owner has no events of this device.
    ///
    /// ```
    /// use mp_core::clocks::{Clock, Clocks};
    ///
    /// let (arena, key) = (mp_core::Arena::current()?, 7);
    /// let mut clock = Clock::claim(arena)?;
    /// let names = std::array::from_fn(|i| [i as u8; 64]); // as the driver gives them
    /// clock.has_events(key, &names)?;
    /// let tick = clock.next()?;
    /// clock.submitted(tick)?; // its stream has recorded the event of the tick
    /// assert_eq!(Clocks(arena).event(tick, key)?, Some(names[Clocks::event_of(tick)]));
    /// Clocks(arena).complete(tick);
    /// assert_eq!(Clocks(arena).event(tick, key)?, None); // there is nothing to wait for
    /// # Ok::<(), mp_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::Forked`].
    pub fn event(&self, tick: Tick, key: u64) -> Result<Option<EventHandle>> {
        self.0.me()?;
        commit_row(&self.0, tick.clock())?;
        if self.state(tick) != TickState::Pending {
            return Ok(None);
        }
        let (names, clock) = (names(tick.clock()), super::clock_at(tick.clock()));
        let read = ReadEventName::new(names, clock, tick, Self::event_of(tick) as u64, key & KEY);
        let Some(words) = run(read, self.0.map()) else { return Ok(None) };
        let mut handle = [0; 64];
        let eights = handle.as_chunks_mut::<8>().0.iter_mut();
        eights.zip::<[u64; HANDLE_WORDS as usize]>(words).for_each(|(to, word)| *to = word.to_le_bytes());
        Ok(Some(handle))
    }

    /// Returns `true` if the process of a clock's owner is known to be gone, even if no reclaim has detected
    /// that yet. Makes several system calls.
    #[must_use]
    pub fn owner_is_gone(&self, clock: u32) -> bool {
        if !self.0.is_here() {
            return false;
        }
        match peer::liveness(self.0.map().load(super::clock_at(clock).process()) as u32) {
            Liveness::Ended => true,
            Liveness::Alive(process) => readiness::is_ready(process.as_fd(), false),
            Liveness::Unknown => false,
        }
    }

    /// Returns the index of the clock's event that is recorded for a tick. Events are used in turn.
    #[must_use]
    pub fn event_of(tick: Tick) -> usize {
        (tick.count() % Self::EVENTS as u64) as usize
    }

    /// Completes a tick, for a stream of this process that can't write the clock itself. Any thread may call
    /// this, in any order: an earlier tick that is completed later changes nothing.
    pub fn complete(&self, tick: Tick) {
        if !self.0.is_here() || self.state(tick) == TickState::Complete {
            return;
        }
        raise(self.0.map(), super::clock_at(tick.clock()).done(), tick.value());
    }
}

impl Clock {
    /// Publishes the events that are recorded for the clock's ticks, for other processes to open. `key`
    /// identifies the device of the events. Call this before the first tick is submitted.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if a tick was submitted. [`Error::OutOfMemory`], [`Error::Forked`].
    pub fn has_events(&mut self, key: u64, events: &[EventHandle; Clocks::EVENTS]) -> Result<()> {
        self.arena.me()?;
        if self.last().is_some() {
            return Err(Error::InvalidArgument("a clock gets events before its first tick".into()));
        }
        commit_row(&self.arena, self.index)?;
        let eights = events.as_flattened().as_chunks::<8>().0;
        let words: [u64; Clocks::EVENTS * HANDLE_WORDS as usize] =
            std::array::from_fn(|i| u64::from_le_bytes(eights[i]));
        let write = WriteEventNames::new(names(self.index), key & KEY, self.next()?.epoch(), words);
        run(write, self.arena.map());
        Ok(())
    }
}

fn commit_row(arena: &Arena, clock: u32) -> Result<()> {
    let at = names(clock).row.offset();
    arena.commit(at - at % PAGE, PAGE)
}

#[cfg(all(test, not(mp_loom)))]
mod tests {
    use super::*;

    #[test]
    fn concurrent_choices_agree_on_one_stream_order() {
        let clocks = Clocks(Arena::current().unwrap());
        let (one, other) = (0x51 << 60 | 7, 0x51 << 60 | 8);
        let chosen = std::thread::scope(|threads| {
            let choose = |order: u8| threads.spawn(move || (order, clocks.choose_order(one, order).unwrap()));
            [1, 2, 3].map(choose).map(|thread| thread.join().unwrap())
        });
        let first = chosen[0].1;
        assert!(chosen.iter().all(|(_, found)| *found == first), "{chosen:?}");
        assert_eq!((clocks.order(one).unwrap(), clocks.order(other).unwrap()), (Some(first), None));
        assert_eq!(clocks.choose_order(other, 9).unwrap(), 9);
        assert_eq!((clocks.order(one).unwrap(), clocks.order(other).unwrap()), (Some(first), Some(9)));
    }

    #[test]
    fn clock_returns_the_event_of_a_pending_tick() {
        let arena = Arena::current().unwrap();
        let (clocks, mut clock) = (Clocks(arena), Clock::claim(arena).unwrap());
        let names: [EventHandle; Clocks::EVENTS] = std::array::from_fn(|i| [i as u8 + 1; 64]);
        clock.has_events(5, &names).unwrap();
        let ticks: Vec<Tick> = (0..2 * Clocks::EVENTS)
            .map(|_| {
                let tick = clock.next().unwrap();
                clock.submitted(tick).unwrap();
                tick
            })
            .collect();
        assert!(clock.has_events(5, &names).is_err(), "a tick was submitted already");
        for (one, later) in ticks.iter().zip(&ticks[Clocks::EVENTS..]) {
            let name = clocks.event(*one, 5).unwrap().unwrap();
            assert_eq!(
                (clocks.event(*later, 5).unwrap(), clocks.event(*one, 6).unwrap()),
                (Some(name), None)
            );
        }
        let turns: std::collections::HashSet<_> = ticks.iter().map(|tick| Clocks::event_of(*tick)).collect();
        assert_eq!(turns.len(), Clocks::EVENTS);
        clocks.complete(ticks[3]);
        clocks.complete(ticks[1]);
        assert_eq!(
            clocks.state(ticks[3]),
            TickState::Complete,
            "an earlier tick completed later changes nothing"
        );
        assert_eq!(clocks.event(ticks[3], 5).unwrap(), None);
        assert!(clocks.event(ticks[4], 5).unwrap().is_some());
        clocks.complete(ticks[2 * Clocks::EVENTS - 1]);
        let index = clock.index();
        drop(clock);
        // The ticks of the clock's next owner have no events until that owner publishes its own.
        assert_eq!(clocks.event(ticks[4], 5).unwrap(), None);
        let mut others = Vec::new();
        let mut next = loop {
            let clock = Clock::claim(arena).unwrap();
            if clock.index() == index {
                break clock;
            }
            others.push(clock);
        };
        let tick = next.next().unwrap();
        next.submitted(tick).unwrap();
        assert_eq!((clocks.state(tick), clocks.event(tick, 5).unwrap()), (TickState::Pending, None));
        next.complete(tick).unwrap();
    }
}
