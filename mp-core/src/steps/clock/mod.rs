//! Clocks: numbers that streams of devices increment, and that any process and any device can wait for.
//!
//! A clock is a row of eight words. Its owner *submits* ticks. For each, the owner orders its stream to write
//! the next number to **done** after the preceding work, and then stores the number to **submitted**, before
//! it sends the tick to any other process. After an owner has released a clock, another one may claim it, in
//! a new *epoch*, whose numbers are above all previous ones. So **done** only grows, and a wait for an old
//! tick returns at once.
//!
//! # Words of a clock, and the processes that change them
//! | word | states | changed by |
//! |---|---|---|
//! | state | `FREE(e)` | a claimer → `CLAIMING(me, e)` |
//! |  | `LEFT(m, e)` | a claimer that has found `done = submitted` → `CLAIMING(me, e)` |
//! |  | `DEAD(e)` | a claimer → `CLAIMING(me, e, died)` |
//! |  | `CLAIMING(m, e)` | `m` → `LIVE(m, e + 1)`; if `m` is dead, any process → `FREE(e)`, or, from `CLAIMING(m, e, died)`, → `DEAD(e)` |
//! |  | `LIVE(m, e)` | `m` → `FREE(e)` if `done = submitted`, else → `LEFT(m, e)` |
//! |  | `LIVE(m, e)`, `LEFT(m, e)` | if `m` is dead, any process → `ENDING(m, e)` |
//! |  | `ENDING(m, e)` | any process → `DEAD(e)` |
//! | done |  | the device; the claimer, to the base of the new epoch; in `ENDING` and `DEAD` any process, to the end of all ticks |
//! | submitted |  | the owner; the claimer |
//! | died at |  | in `ENDING`, any process: to the value of done, never back |
//! | endings |  | the claimer: the bit of the ended epoch, set if all of it was done |
//! | process, start |  | the claimer |
//! | when |  | in `ENDING`, any process: to the time. A hint: the clock that ended first is claimed again first |
//!
//! **Ending.** Devices of other processes may wait for ticks of a dead owner that will never be reached, and
//! there is no way to notify these devices. So **done** becomes greater than any tick ([`END_OF_TICKS`]). The
//! actual progress is recorded before that change, in **died at**. By this word a host distinguishes finished
//! ticks from unfinished ones. Any number of processes do this at once, and none of them owns the row: each
//! change is a swap of the value read. Within an epoch no value of **done** repeats, except by a late write
//! of the dead owner's device, which is overwritten again. The numbers of a later epoch are different. So if
//! a process is stopped between its read and its swap, and the word changes, the swap fails. (Suppose that a
//! dead owner's device writes a tick late, between two of these accesses. A process that checks the tick at
//! that time finds the tick complete, and later checks find that its owner died. The tick's work is done, and
//! no process relies on that. If that work waited for another clock of the same owner, which was ended
//! before, the work ran too early. Both cases require that a device continues after the end of its owner's
//! process, which no known driver allows.)
//!
//! # Effects of a death
//! | killed process | remaining state | cleared by |
//! |---|---|---|
//! | before `CLAIMING` | the previous state | |
//! | in `CLAIMING` | a row without an owner | any process → `FREE`, or `DEAD` if the clock was dead; **done** and **submitted** may have values of the next epoch, which are above all ticks |
//! | after it ordered a tick, before it stored `submitted` | `LIVE(dead)`, and a tick unknown to other processes, which is above `submitted` | any process → `ENDING` |
//! | after it stored `submitted`, before it sent the tick | `LIVE(dead)`, and a tick unknown to other processes | any process → `ENDING` |
//! | between ticks | `LIVE(dead)` | any process → `ENDING` |
//! | while it released the clock | `LIVE(dead)` or `LEFT(dead)`, or `FREE` | any process → `ENDING`; `FREE` needs no change |
//! | anywhere in `ENDING` | `ENDING`, **died at** and **done** before or after their change | any other process |
//!
//! A clock of a dead owner does not become free at once, even if all submitted ticks are done: the owner may
//! have died between an order to its stream and storing `submitted`. The clock is claimed again after it has
//! been dead for some time.
//!
//! **Checking** a tick reads the required words between two equal reads of the state. A tick of the present
//! epoch is compared with **done**, or, once **done** is [`END_OF_TICKS`], with **died at**. All ticks of an
//! earlier epoch are complete if the epoch is before `first_died`, or if its bit in **endings** is set (for
//! the last 63 epochs). Otherwise **died at** decides, if it belongs to that epoch.

mod claim;
mod end;
mod tick;

pub use claim::{ClaimClock, ReleaseClock};
pub use end::EndClock;
pub use tick::{CheckTick, TickState};

use crate::mem::Word;
#[cfg(doc)]
use crate::words::END_OF_TICKS;

/// Position of a clock's words.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ClockAt(pub Word);

impl ClockAt {
    /// Number of words of a row.
    pub const WORDS: u64 = 8;

    /// Returns the word that the device writes.
    pub const fn done(self) -> Word {
        self.0
    }
    /// Returns the word of the last submitted tick.
    pub const fn submitted(self) -> Word {
        self.0.plus(1)
    }
    /// Returns the state word.
    pub const fn state(self) -> Word {
        self.0.plus(2)
    }
    /// Returns the word with the value of **done** when an owner last died.
    pub const fn died_at(self) -> Word {
        self.0.plus(3)
    }
    /// Returns the word with a bit for each of the last epochs: bit `epoch % 64` is set if all ticks of the
    /// epoch were done at its end.
    pub const fn endings(self) -> Word {
        self.0.plus(4)
    }
    /// Returns the word of the owner's process id.
    pub const fn process(self) -> Word {
        self.0.plus(5)
    }
    /// Returns the word of the owner's start time, which is 0 if unknown.
    pub const fn start(self) -> Word {
        self.0.plus(6)
    }
    /// Returns the word of the time when the owner was found dead, in milliseconds.
    pub const fn when(self) -> Word {
        self.0.plus(7)
    }
}

const fn ending_bit(epoch: u16) -> u64 {
    1 << (epoch % 64)
}

#[cfg(all(test, not(mp_loom)))]
mod tests {
    use super::*;
    use crate::mem::{HeapMem, Mem, run};
    use crate::words::{ClockPhase, ClockState, END_OF_TICKS, Member, Tick};

    const CLOCK: ClockAt = ClockAt(Word::at(0));

    fn tick(epoch: u16, count: u64) -> Tick {
        Tick::new(0, Tick::base(epoch) + count)
    }

    fn claim(m: &HeapMem) -> Option<u16> {
        run(ClaimClock::new(CLOCK, Member::new(1, 1), (7, 7), true), m)
    }

    /// Runs an epoch: the next owner submits two ticks, of which `done` are done, and releases the clock or
    /// dies.
    fn epoch(m: &HeapMem, done: u64, dies: bool) -> u16 {
        let epoch = claim(m).unwrap();
        m.store(CLOCK.submitted(), tick(epoch, 2).value());
        m.store(CLOCK.done(), tick(epoch, done).value());
        if dies {
            assert!(run(EndClock::new(CLOCK, Some(Member::new(1, 1)), 1), m));
        } else {
            assert!(run(ReleaseClock::new(CLOCK, tick(epoch, 2).value()), m));
        }
        epoch
    }

    fn status(m: &HeapMem, tick: Tick) -> TickState {
        run(CheckTick::new(CLOCK, tick), m)
    }

    #[test]
    fn clock_ticks_of_earlier_epochs_keep_their_status() {
        let m = HeapMem::new(8);
        let [well, died] = [false, true];
        let ends = [(2, well), (1, died), (2, well), (2, died), (1, died), (2, well)];
        for (i, &(done, dies)) in ends.iter().enumerate() {
            assert_eq!(epoch(&m, done, dies), i as u16 + 1);
        }
        let second = |epoch| status(&m, tick(epoch, 2));
        assert_eq!(second(1), TickState::Complete, "before any owner died");
        assert_eq!(second(2), TickState::Died { pid: None });
        assert_eq!(second(3), TickState::Complete, "released by its owner, after another had died");
        assert_eq!(second(4), TickState::Complete, "its owner died after all ticks were done");
        assert_eq!((status(&m, tick(5, 1)), second(5)), (TickState::Complete, TickState::Died { pid: None }));
        assert_eq!(second(6), TickState::Complete);
        assert_eq!(status(&m, tick(6, 3)), TickState::Forged);
        assert_eq!((status(&m, tick(7, 1)), status(&m, tick(0, 1))), (TickState::Forged, TickState::Forged));
        // After these epochs, an old tick is known to be complete only if no owner had died before.
        (0..70).for_each(|_| _ = epoch(&m, 2, well));
        assert_eq!(
            (second(1), second(3), second(14)),
            (TickState::Complete, TickState::Died { pid: None }, TickState::Complete)
        );
    }

    /// A member began to claim a dead clock, wrote the first value of the next epoch to **done**, and died.
    /// Ending the clock again keeps this value, which is above all ticks of the ended epoch.
    #[test]
    fn clock_end_keeps_a_value_above_its_ended_ticks() {
        let m = HeapMem::new(8);
        epoch(&m, 1, true);
        m.store(CLOCK.done(), Tick::base(2));
        assert!(run(EndClock::new(CLOCK, None, 2), &m));
        assert_eq!(m.load(CLOCK.done()), Tick::base(2));
        // A late write of the dead owner's device is overwritten.
        m.store(CLOCK.done(), tick(1, 2).value());
        assert!(run(EndClock::new(CLOCK, None, 2), &m));
        assert_eq!(
            (m.load(CLOCK.done()), status(&m, tick(1, 2))),
            (END_OF_TICKS, TickState::Died { pid: Some(7) })
        );
    }

    #[test]
    fn exhausted_clock_is_not_claimed() {
        let m = HeapMem::new(8);
        let last = ClockState { phase: ClockPhase::Free, epoch: u16::MAX - 1, first_died: 0 };
        m.store(CLOCK.state(), last.pack());
        assert_eq!(epoch(&m, 2, false), u16::MAX);
        assert_eq!(claim(&m), None);
    }
}
