//! Clock of a stream, and waits for other clocks.
//!
//! # Safety
//! Unsafe, because streams write words and wait for them. Sound, because
//! - a word is one of the registered table (`table`);
//! - callers guarantee that the stream is alive.
#![allow(unsafe_code)]

use mp_core::clocks::{Clock, Clocks, Tick, TickState};
use mp_core::mutex::Mutex;
use mp_core::{Arena, Wait};

use crate::device::Device;
use crate::driver::api::Handle;
use crate::driver::context::Bound;
use crate::error::{Error, Result};
use crate::stream::order::chosen::{self, Way};
use crate::stream::order::events::{self, StreamEvents};
use crate::stream::order::{host, table};
use crate::sync::{AtomicU64, Ordering};

/// Clock of one stream, which is claimed at the stream's first tick.
#[derive(Debug, Default)]
pub(crate) struct StreamClock {
    row: Mutex<Option<Row>>,
    /// Number of ticks that threads have begun to make, number of ticks that were made or refused, and the
    /// last tick that was made (0: none).
    begun: AtomicU64,
    made: AtomicU64,
    last: AtomicU64,
}

#[derive(Debug)]
struct Row {
    clock: Clock,
    ticks: Ticks,
}

/// Way in which the stream reports a tick.
#[derive(Debug)]
enum Ticks {
    /// The stream writes this word, at its address for the device.
    Word(u64),
    Events(StreamEvents),
    /// The host writes the word, after it has waited.
    Host,
}

impl StreamClock {
    /// Has the stream write its next number when all earlier work has run. Other processes may use the tick,
    /// which the driver has accepted.
    ///
    /// The lock is held meanwhile: if two ticks reached the driver in the wrong order, the clock would run
    /// backwards.
    ///
    /// # Errors
    /// [`Error::Capturing`]; [`Error::TooManyStreams`] if no clock is left; errors of the driver.
    ///
    /// # Safety
    /// The stream is alive, of this device, and the only stream of this clock.
    pub(crate) unsafe fn tick(&self, device: &Device, stream: Handle) -> Result<Tick> {
        let mut row = self.row.lock();
        // Changed only under the lock.
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
    /// See [`tick`](Self::tick).
    unsafe fn tick_of(row: &mut Option<Row>, device: &Device, stream: Handle) -> Result<Tick> {
        let bound = device.bind()?;
        // SAFETY: the caller's.
        if unsafe { bound.stream_is_capturing(stream) }? {
            return Err(Error::Capturing);
        }
        // A clock without further ticks is given up. Its pending ticks stay valid.
        if row.as_ref().is_none_or(|mine| mine.clock.next().is_err()) {
            *row = Some(Row::claim(device)?);
        }
        match row {
            Some(mine) => mine.tick(&bound, stream),
            None => Err(Error::TooManyStreams),
        }
    }

    /// Notes that the device is lost to this process: pending work will never run.
    pub(crate) fn lost(&self) {
        if let Some(row) = self.row.lock().take() {
            row.clock.declare_dead();
        }
    }

    /// Wraps the clock of a stream, in the registered table.
    pub(super) fn of(clock: Clock, word: u64) -> Self {
        Self { row: Mutex::new(Some(Row { clock, ticks: Ticks::Word(word) })), ..Self::default() }
    }

    /// Returns `true` if a tick is pending, or a thread is making a tick. It does not block.
    pub(crate) fn is_pending(&self) -> bool {
        let Some(row) = self.row.try_lock() else { return true };
        let last = row.as_ref().and_then(|row| row.clock.last());
        last.is_some_and(|tick| matches!(is_complete(tick), Ok(false)))
    }

    /// Returns the number of ticks that threads have begun to make.
    pub(crate) fn begun(&self) -> u64 {
        self.begun.load(Ordering::Relaxed)
    }

    /// Returns `true` if this many ticks were made or refused.
    pub(crate) fn has_made_as_many(&self, count: u64) -> bool {
        self.made.load(Ordering::Acquire) >= count
    }

    /// Returns the last tick that was made, if there is one. A thread may be making the next tick.
    pub(crate) fn last_made(&self) -> Option<Tick> {
        Tick::from_raw(self.last.load(Ordering::Relaxed))
    }

    /// Returns `true` if the stream has ever ticked.
    pub(crate) fn is_claimed(&self) -> bool {
        self.row.lock().is_some()
    }

    /// Returns `true` if this clock has made the tick. It does not block, and returns `false` while the clock
    /// ticks.
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
            // SAFETY: the caller guarantees that the stream is alive; the word is one of the registered
            // table, and this clock's.
            Ticks::Word(word) => unsafe { bound.stream_write(stream, *word, tick.value()) },
            // SAFETY: the caller guarantees that the stream is alive, and has this clock.
            Ticks::Events(events) => unsafe { events.tick(bound, stream, tick) },
            // SAFETY: the caller guarantees that the stream is alive.
            Ticks::Host => unsafe { bound.stream_synchronize(stream) },
        };
        accepted?;
        self.clock.submitted(tick)?;
        if matches!(self.ticks, Ticks::Host) {
            self.clock.complete(tick)?;
        }
        Ok(tick)
    }
}

/// Returns `true` if two ticks are of one stream. A clock's next owner has another epoch, and its ticks do
/// not cover work that the previous owner lost.
pub(crate) fn are_of_one_stream(one: Tick, other: Tick) -> bool {
    (one.clock(), one.epoch()) == (other.clock(), other.epoch())
}

/// Adds a tick to a list of the last tick of each stream.
pub(crate) fn note(list: &mut Vec<Tick>, tick: Tick) {
    match list.iter_mut().find(|one| are_of_one_stream(**one, tick)) {
        Some(one) if *one < tick => *one = tick,
        Some(_) => {}
        None => list.push(tick),
    }
}

/// Returns `true` if a tick is complete.
///
/// # Errors
/// [`Error::ProducerDied`] if the work before the tick will never run; [`Error::Malformed`] for a tick that
/// was never made.
pub(crate) fn is_complete(tick: Tick) -> Result<bool> {
    match Clocks(Arena::current()?).state(tick) {
        TickState::Complete => Ok(true),
        TickState::Pending => Ok(false),
        TickState::Died { pid } => Err(Error::ProducerDied { pid }),
        _ => Err(Error::Malformed(format!("{tick:?} is no tick that a stream has made"))),
    }
}

/// Has a stream wait until a tick is complete. Returns `true` if the stream has to wait.
///
/// # Errors
/// Errors of [`is_complete`]; [`Error::Capturing`]; errors of the driver.
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
    if captured {
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
    // The tick is of another device, for which this device's streams can't wait.
    drop(bound);
    host::wait(tick, Wait::Forever)?;
    Ok(false)
}
