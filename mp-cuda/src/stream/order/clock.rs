//! Clocks of streams. A clock counts the *ticks* of a stream, which mark points in its work. Streams wait for
//! ticks of other clocks.
//!
//! # Safety
//! Unsafe, because streams write words and wait for them. Sound, because
//! - each word belongs to the registered clock table (`table`);
//! - callers guarantee that the stream is alive.
#![allow(unsafe_code)]

use mp_core::Arena;
use mp_core::clocks::{Clock, Tick};
use mp_core::mutex::Mutex;

use crate::device::Device;
use crate::driver::api::DriverHandle;
use crate::driver::context::BoundContext;
use crate::error::{Error, Result};
use crate::stream::order::choice::{self, TickMethod};
use crate::stream::order::events::{self, StreamEvents};
use crate::stream::order::table;
use crate::stream::order::tick::{are_of_one_stream, is_complete};
use crate::sync::{AtomicU64, Ordering};

/// Clock of one stream. A row of the clock table is claimed for it at the stream's first tick.
#[derive(Debug, Default)]
pub(crate) struct StreamClock {
    row: Mutex<Option<ClockRow>>,
    /// Number of ticks that threads have begun to make, number of ticks that were made or refused, and the
    /// last tick (0 before the first tick).
    begun: AtomicU64,
    made: AtomicU64,
    last: AtomicU64,
}

#[derive(Debug)]
struct ClockRow {
    clock: Clock,
    ticks: TickSource,
}

/// Method by which the stream reports a tick.
#[derive(Debug)]
enum TickSource {
    /// The stream writes the clock's word. The value is the address of the word for the device.
    Word(u64),
    Events(StreamEvents),
    /// The host writes the clock's word, after it has waited for the stream.
    Host,
}

impl StreamClock {
    /// Makes a tick: submits the write of the clock's next number, which happens when all earlier work has
    /// run. Returns after the driver has accepted the write, so other processes may use the tick.
    ///
    /// The clock's lock is held meanwhile. Otherwise two ticks could reach the driver in the wrong order, and
    /// the clock would run backwards.
    ///
    /// # Errors
    /// [`Error::Capturing`]; [`Error::TooManyStreams`] if no row of the table is free; errors of the driver.
    ///
    /// # Safety
    /// The stream is alive, belongs to this device, and is the only stream of this clock.
    pub(crate) unsafe fn tick(&self, device: &Device, stream: DriverHandle) -> Result<Tick> {
        let mut row = self.row.lock();
        // Changed only under the lock.
        let count = self.begun.load(Ordering::Relaxed) + 1;
        self.begun.store(count, Ordering::Relaxed);
        // SAFETY: guaranteed by the caller.
        let tick = unsafe { Self::tick_of(&mut row, device, stream) };
        if let Ok(tick) = &tick {
            self.last.store(tick.raw(), Ordering::Relaxed);
        }
        self.made.store(count, Ordering::Release);
        tick
    }

    /// Makes a tick. The caller holds the lock of the clock.
    ///
    /// # Safety
    /// See [`tick`](Self::tick).
    unsafe fn tick_of(row: &mut Option<ClockRow>, device: &Device, stream: DriverHandle) -> Result<Tick> {
        let bound = device.bind()?;
        // SAFETY: guaranteed by the caller.
        if unsafe { bound.stream_is_capturing(stream) }? {
            return Err(Error::Capturing);
        }
        // A clock without further ticks is released. Its pending ticks stay valid.
        if row.as_ref().is_none_or(|mine| mine.clock.next().is_err()) {
            *row = Some(ClockRow::claim(device)?);
        }
        match row {
            Some(mine) => mine.tick(&bound, stream),
            None => Err(Error::TooManyStreams),
        }
    }

    /// Records that the device is lost to this process: pending work will never run.
    pub(crate) fn mark_lost(&self) {
        if let Some(row) = self.row.lock().take() {
            row.clock.declare_dead();
        }
    }

    /// Returns `true` if a tick is pending, or a thread is making a tick. Does not block.
    pub(crate) fn is_pending(&self) -> bool {
        let Some(row) = self.row.try_lock() else { return true };
        let last = row.as_ref().and_then(|row| row.clock.last());
        last.is_some_and(|tick| matches!(is_complete(tick), Ok(false)))
    }

    /// Returns the number of ticks that threads have begun to make.
    pub(crate) fn begun(&self) -> u64 {
        self.begun.load(Ordering::Relaxed)
    }

    /// Returns `true` if the first `count` ticks that threads began to make were made or refused.
    pub(crate) fn has_made_as_many(&self, count: u64) -> bool {
        self.made.load(Ordering::Acquire) >= count
    }

    /// Returns the last tick that was made, if there is one. A thread may be making the next tick.
    pub(crate) fn last_made(&self) -> Option<Tick> {
        Tick::from_raw(self.last.load(Ordering::Relaxed))
    }

    /// Returns `true` if the stream has ticked, and its device is not lost.
    pub(crate) fn is_claimed(&self) -> bool {
        self.row.lock().is_some()
    }

    /// Returns `true` if this clock has made the tick. Does not block: returns `false` while a thread is
    /// making a tick of this clock.
    pub(crate) fn has_made(&self, tick: Tick) -> bool {
        let row = self.row.try_lock();
        let last = row.as_ref().and_then(|row| row.as_ref()?.clock.last());
        last.is_some_and(|last| are_of_one_stream(last, tick))
    }
}

impl ClockRow {
    fn claim(device: &Device) -> Result<Self> {
        let mut clock = Clock::claim(Arena::current()?).map_err(|error| match error {
            mp_core::Error::ArenaFull { .. } => Error::TooManyStreams,
            other => other.into(),
        })?;
        let ticks = match choice::method(device)? {
            TickMethod::Words(base) => {
                TickSource::Word(base + table::offset(Arena::current()?, clock.next()?))
            }
            TickMethod::Events => TickSource::Events(StreamEvents::new(device, &mut clock)?),
            TickMethod::Hosts => TickSource::Host,
        };
        Ok(Self { clock, ticks })
    }

    fn tick(&mut self, bound: &BoundContext<'_>, stream: DriverHandle) -> Result<Tick> {
        let tick = self.clock.next()?;
        let accepted = match &self.ticks {
            // SAFETY: the caller guarantees that the stream is alive; the word is one of the registered
            // table, and this clock's.
            TickSource::Word(word) => unsafe { bound.stream_write(stream, *word, tick.value()) },
            // SAFETY: the caller guarantees that the stream is alive, and has this clock.
            TickSource::Events(events) => unsafe { events.tick(bound, stream, tick) },
            // SAFETY: the caller guarantees that the stream is alive.
            TickSource::Host => unsafe { bound.stream_synchronize(stream) },
        };
        accepted?;
        self.clock.submitted(tick)?;
        if matches!(self.ticks, TickSource::Host) {
            self.clock.complete(tick)?;
        }
        Ok(tick)
    }
}

/// Outcome of a [`wait`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum StreamWait {
    /// The tick is complete.
    Over,
    /// The stream will run later work when the tick is complete.
    Pending,
    /// The stream can't wait for the tick, so the host has to wait.
    ByHost,
}

/// Makes a stream wait until a tick is complete.
///
/// # Errors
/// Errors of [`is_complete`]; [`Error::Capturing`]; errors of the driver.
///
/// # Safety
/// The stream is alive, and belongs to this device.
pub(crate) unsafe fn wait(device: &Device, stream: DriverHandle, tick: Tick) -> Result<StreamWait> {
    if is_complete(tick)? {
        return Ok(StreamWait::Over);
    }
    let method = choice::method(device)?;
    let bound = device.bind()?;
    // SAFETY: guaranteed by the caller.
    let captured = !matches!(method, TickMethod::Hosts) && unsafe { bound.stream_is_capturing(stream) }?;
    if captured {
        return Err(Error::Capturing);
    }
    match method {
        TickMethod::Words(base) => {
            let word = base + table::offset(Arena::current()?, tick);
            // SAFETY: the caller guarantees that the stream is alive; the word is one of the registered
            // table.
            unsafe { bound.stream_wait(stream, word, tick.value()) }?;
            return Ok(StreamWait::Pending);
        }
        TickMethod::Events => {
            // SAFETY: the caller guarantees that the stream is alive; it was found not to be captured.
            if let Some(waits) = unsafe { events::wait(device, stream, tick) }? {
                return Ok(if waits { StreamWait::Pending } else { StreamWait::Over });
            }
        }
        TickMethod::Hosts => {}
    }
    // The tick belongs to another device, for which this device's streams can't wait.
    Ok(StreamWait::ByHost)
}
