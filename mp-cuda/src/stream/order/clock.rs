//! A stream's clock, and waiting for the clocks of others.
//!
//! # Safety
//! Unsafe, because streams are given words to write and to wait for; sound, because
//! - a word is one of the registered table (`table`);
//! - callers vouch that the stream is alive.
#![allow(unsafe_code)]

use mp_core::clocks::{Clock, Tick, TickState};
use mp_core::mutex::Mutex;
use mp_core::{Arena, Wait, mutant};

use crate::device::Device;
use crate::driver::api::Handle;
use crate::driver::context::Bound;
use crate::error::{Error, Result};
use crate::stream::order::chosen::{self, Way};
use crate::stream::order::events::{self, StreamEvents};
use crate::stream::order::{host, table};
use crate::sync::{AtomicU64, Ordering};

/// The clock of one stream, claimed when that first ticks.
#[derive(Debug, Default)]
pub(crate) struct StreamClock {
    row: Mutex<Option<Row>>,
    /// How many ticks threads have begun to make, how many of them were made, or refused, and the last one that was made (0: none).
    begun: AtomicU64,
    made: AtomicU64,
    last: AtomicU64,
}

#[derive(Debug)]
struct Row {
    clock: Clock,
    ticks: Ticks,
}

/// How the stream says that it has come to a tick.
#[derive(Debug)]
enum Ticks {
    /// It writes this word, as its device reaches it.
    Word(u64),
    Events(StreamEvents),
    /// The host says so, when it has waited.
    Host,
}

impl StreamClock {
    /// Has the stream write its next number when all that it was given before has run. The tick is the driver's, and may be told.
    ///
    /// The lock is held meanwhile: two ticks that the driver gets in the wrong order would turn the clock back.
    ///
    /// # Errors
    /// [`Error::Capturing`]; [`Error::TooManyStreams`] if no clock is left; what the driver refuses.
    ///
    /// # Safety
    /// The stream is alive, of this device, and the only one whose clock this is.
    pub(crate) unsafe fn tick(&self, device: &Device, stream: Handle) -> Result<Tick> {
        let mut row = self.row.lock();
        // Changed under the lock alone.
        let count = self.begun.load(Ordering::Relaxed) + 1;
        self.begun.store(count, Ordering::Relaxed);
        // SAFETY: the caller's.
        let tick = unsafe { Self::tick_of(&mut row, device, stream) };
        if let Ok(tick) = &tick {
            self.last.store(tick.raw(), Ordering::Relaxed);
        }
        self.made.store(count, Ordering::Release);
        tick
    }

    /// # Safety
    /// As [`tick`](Self::tick).
    unsafe fn tick_of(row: &mut Option<Row>, device: &Device, stream: Handle) -> Result<Tick> {
        let bound = device.bind()?;
        // SAFETY: the caller's.
        if unsafe { bound.stream_is_capturing(stream) }? && !mutant!("cuda.clock.captured-ticks") {
            return Err(Error::Capturing);
        }
        // One that has no ticks left is given up: what is not done of it yet counts still.
        if row.as_ref().is_none_or(|mine| mine.clock.next().is_err()) {
            *row = Some(Row::claim(device)?);
        }
        match row {
            Some(mine) => mine.tick(&bound, stream),
            None => Err(Error::TooManyStreams),
        }
    }

    /// The device is lost to this process: what the stream has not run, it never will.
    pub(crate) fn lost(&self) {
        if let Some(row) = self.row.lock().take() {
            row.clock.declare_dead();
        }
    }

    /// That of a stream which has it already, in the registered table.
    pub(super) fn of(clock: Clock, word: u64) -> Self {
        Self { row: Mutex::new(Some(Row { clock, ticks: Ticks::Word(word) })), ..Self::default() }
    }

    /// Whether a tick was made whose work has not run yet, or a thread makes one just now. It doesn't block.
    pub(crate) fn is_pending(&self) -> bool {
        let Some(row) = self.row.try_lock() else { return true };
        let last = row.as_ref().and_then(|row| row.clock.last());
        last.is_some_and(|tick| matches!(is_complete(tick), Ok(false)))
    }

    /// How many ticks threads have begun to make.
    pub(crate) fn begun(&self) -> u64 {
        self.begun.load(Ordering::Relaxed)
    }

    /// Whether the first ones, this many, were made, or refused.
    pub(crate) fn has_made_as_many(&self, count: u64) -> bool {
        self.made.load(Ordering::Acquire) >= count
    }

    /// The last tick that was made, if there is one: also while a thread makes the next.
    pub(crate) fn last_made(&self) -> Option<Tick> {
        Tick::from_raw(self.last.load(Ordering::Relaxed))
    }

    /// Whether it ever ticked.
    pub(crate) fn is_claimed(&self) -> bool {
        self.row.lock().is_some()
    }

    /// Whether it has made this tick. It doesn't block: of a clock that ticks just now it isn't known.
    pub(crate) fn has_made(&self, tick: Tick) -> bool {
        let row = self.row.try_lock();
        let last = row.as_ref().and_then(|row| row.as_ref()?.clock.last());
        last.is_some_and(|last| are_of_one_stream(last, tick))
    }
}

impl Row {
    fn claim(device: &Device) -> Result<Self> {
        let mut clock = Clock::claim(Arena::current()?).map_err(|error| match error {
            mp_core::Error::ArenaFull { .. } => Error::TooManyStreams,
            other => other.into(),
        })?;
        let ticks = match chosen::way(device)? {
            Way::Words(base) => Ticks::Word(base + table::offset(Arena::current()?, clock.next()?)),
            Way::Events => Ticks::Events(StreamEvents::new(device, &mut clock)?),
            Way::Hosts => Ticks::Host,
        };
        Ok(Self { clock, ticks })
    }

    fn tick(&mut self, bound: &Bound<'_>, stream: Handle) -> Result<Tick> {
        let tick = self.clock.next()?;
        let accepted = match &self.ticks {
            // SAFETY: the stream is alive, say the callers; the word is one of the registered table, and this clock's.
            Ticks::Word(word) => unsafe { bound.stream_write(stream, *word, tick.value()) },
            // SAFETY: the stream is alive, and this clock its own, say the callers.
            Ticks::Events(events) => unsafe { events.tick(bound, stream, tick) },
            // SAFETY: the stream is alive, say the callers.
            Ticks::Host => unsafe { bound.stream_synchronize(stream) },
        };
        if !mutant!("cuda.clock.told-unaccepted") {
            accepted?;
        }
        self.clock.submitted(tick)?;
        if matches!(self.ticks, Ticks::Host) {
            self.clock.complete(tick)?;
        }
        Ok(tick)
    }
}

/// Whether two ticks are of one stream: a clock's next owner has another epoch, and says nothing of work that was lost with the one before.
pub(crate) fn are_of_one_stream(one: Tick, other: Tick) -> bool {
    (one.clock(), one.epoch()) == (other.clock(), other.epoch())
}

/// Adds a tick to a list of the last tick of each stream.
pub(crate) fn note(list: &mut Vec<Tick>, tick: Tick) {
    match list.iter_mut().find(|one| are_of_one_stream(**one, tick)) {
        Some(one) if *one < tick || mutant!("cuda.clock.later-tick-forgotten") => *one = tick,
        Some(_) => {}
        None => list.push(tick),
    }
}

/// What there is to do for a stream that is to run after a tick.
///
/// # Errors
/// [`Error::ProducerDied`] if what was to be done before the tick never will be; [`Error::Malformed`] for a tick that was never made.
pub(crate) fn is_complete(tick: Tick) -> Result<bool> {
    match Arena::current()?.clocks().state(tick) {
        TickState::Complete => Ok(true),
        TickState::Pending => Ok(false),
        TickState::Died { pid } => Err(Error::ProducerDied { pid }),
        _ => Err(Error::Malformed(format!("{tick:?} is no tick that a stream has made"))),
    }
}

/// Has a stream wait until a tick is complete; whether it has to.
///
/// # Errors
/// As [`is_complete`]; [`Error::Capturing`]; what the driver refuses.
///
/// # Safety
/// The stream is alive, and of this device.
pub(crate) unsafe fn wait(device: &Device, stream: Handle, tick: Tick) -> Result<bool> {
    if is_complete(tick)? {
        return Ok(false);
    }
    let way = chosen::way(device)?;
    let bound = device.bind()?;
    // SAFETY: the caller's.
    let captured = !matches!(way, Way::Hosts) && unsafe { bound.stream_is_capturing(stream) }?;
    if captured && !mutant!("cuda.clock.captured-waits") {
        return Err(Error::Capturing);
    }
    match way {
        Way::Words(base) => {
            let word = base + table::offset(Arena::current()?, tick);
            // SAFETY: the stream is the caller's; the word is one of the registered table.
            unsafe { bound.stream_wait(stream, word, tick.value()) }?;
            return Ok(true);
        }
        Way::Events => {
            // SAFETY: the stream is the caller's, and was found not to be captured.
            if let Some(waits) = unsafe { events::wait(device, stream, tick) }? {
                return Ok(waits);
            }
        }
        Way::Hosts => {}
    }
    // The tick is another device's, for which this one's streams can't wait.
    drop(bound);
    host::wait(tick, Wait::Forever)?;
    Ok(false)
}
