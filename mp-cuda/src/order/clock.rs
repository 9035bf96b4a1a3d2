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
use crate::order::{host, table};

/// The clock of one stream, claimed when that first ticks.
#[derive(Debug, Default)]
pub(crate) struct StreamClock(Mutex<Option<Row>>);

#[derive(Debug)]
struct Row {
    clock: Clock,
    /// Where the stream's device reaches the word, if it does.
    word: Option<u64>,
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
        let mut row = self.0.lock();
        let bound = device.bind()?;
        // SAFETY: the caller's.
        if unsafe { bound.stream_is_capturing(stream) }? {
            return Err(Error::Capturing);
        }
        // One that has no ticks left is given up: what is not done of it yet counts still.
        if row.as_ref().is_none_or(|mine| mine.clock.next().is_err()) {
            *row = Some(Row::claim(device)?);
        }
        match &mut *row {
            Some(mine) => mine.tick(&bound, stream),
            None => Err(Error::TooManyStreams),
        }
    }

    /// The device is lost to this process: what the stream has not run, it never will.
    pub(crate) fn lost(&self) {
        if let Some(row) = self.0.lock().take() {
            row.clock.declare_dead();
        }
    }

    /// Whether a tick was made whose work has not run yet.
    pub(crate) fn is_pending(&self) -> bool {
        let last = self.0.lock().as_ref().and_then(|row| row.clock.last());
        last.is_some_and(|tick| matches!(is_complete(tick), Ok(false)))
    }

    /// Whether it ever ticked.
    pub(crate) fn is_claimed(&self) -> bool {
        self.0.lock().is_some()
    }

    /// Its number in the table, if it ever ticked.
    pub(crate) fn index(&self) -> Option<u32> {
        self.0.lock().as_ref().map(|row| row.clock.index())
    }
}

impl Row {
    fn claim(device: &Device) -> Result<Self> {
        let clock = Clock::claim(Arena::current()?).map_err(|error| match error {
            mp_core::Error::ArenaFull { .. } => Error::TooManyStreams,
            other => other.into(),
        })?;
        let word = table::word_of(device, clock.next()?)?;
        Ok(Self { clock, word })
    }

    fn tick(&mut self, bound: &Bound<'_>, stream: Handle) -> Result<Tick> {
        let tick = self.clock.next()?;
        let Some(word) = self.word else {
            // SAFETY: the stream is alive, say the callers.
            unsafe { bound.stream_synchronize(stream) }?;
            self.clock.submitted(tick)?;
            self.clock.complete(tick)?;
            return Ok(tick);
        };
        // SAFETY: the stream is alive, say the callers; the word is one of the registered table, and this clock's.
        let accepted = unsafe { bound.stream_write(stream, word, tick.value()) };
        if !mutant!("cuda.clock.told-unaccepted") {
            accepted?;
        }
        self.clock.submitted(tick)?;
        Ok(tick)
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
    let Some(word) = table::word_of(device, tick)? else {
        // The tick is another device's.
        host::wait(tick, Wait::Forever)?;
        return Ok(false);
    };
    let bound = device.bind()?;
    // SAFETY: the caller's.
    if unsafe { bound.stream_is_capturing(stream) }? {
        return Err(Error::Capturing);
    }
    // SAFETY: the stream is the caller's; the word is one of the registered table.
    unsafe { bound.stream_wait(stream, word, tick.value()) }?;
    Ok(true)
}
