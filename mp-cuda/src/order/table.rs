//! The table of clocks, as the devices of this process reach it: registered once, when a stream first ticks or waits.
//!
//! # Safety
//! Unsafe, because a device is let into the memory of this process; sound, because
//! - the table is in the arena's fixed part, which stays mapped where it is until the process ends, and no other code takes what
//!   devices write there for anything but clocks;
//! - it is unregistered when the process ends, after the streams of this crate have run what they had.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::time::{Duration, Instant};

use mp_core::Arena;
use mp_core::clocks::{Clock, Clocks, Tick, TickState};
use mp_core::fork::{GENERATIONS, PerProcess};
use mp_core::mutex::Mutex;

use crate::device::Device;
use crate::error::{Error, Result};
use crate::exit::{self, Part};

/// How long the first tick of a device may take, which nothing is before.
const PROBE: Duration = Duration::from_secs(1);

/// What is registered: where each device reaches it. A device is kept, and with it the context for which that holds.
static REGISTERED: PerProcess<Mutex<Vec<(Device, u64)>>> =
    PerProcess::new([const { Mutex::new(Vec::new()) }; GENERATIONS]);

/// Where `device` reaches the word that a tick is written to.
///
/// # Errors
/// [`Error::Unsupported`] if the device's streams can't reach it; what the driver refuses.
pub(crate) fn word_of(device: &Device, tick: Tick) -> Result<u64> {
    Ok(base(device)? + offset(Arena::current()?, tick))
}

fn offset(arena: Arena, tick: Tick) -> u64 {
    arena.clocks().done_offset(tick.clock()) as u64
}

fn base(device: &Device) -> Result<u64> {
    let mut registered = REGISTERED.lock();
    if let Some((_, base)) = registered.iter().find(|(one, _)| one == device) {
        return Ok(*base);
    }
    let at = address(Arena::current()?)?;
    let bound = device.bind()?;
    if registered.is_empty() {
        // SAFETY: it is mapped until this process ends.
        unsafe { bound.host_register(at, Clocks::BYTES) }?;
    }
    let base = bound.host_device_address(at)?;
    drop(bound);
    let works = probe(device, base);
    if registered.is_empty() && !matches!(works, Ok(true)) {
        // SAFETY: no stream of this process has been given an address in it but the one of the probe, which is gone.
        unsafe { device.bind()?.host_unregister(at) }?;
    }
    if !works? {
        return Err(Error::Unsupported {
            what: "its streams write no words of the host's memory",
            device: device.uuid(),
        });
    }
    registered.push((device.clone(), base));
    exit::watch(Part::Clocks, leave);
    Ok(base)
}

/// Whether what a stream of the device writes into the table is seen here.
fn probe(device: &Device, base: u64) -> Result<bool> {
    let arena = Arena::current()?;
    let mut clock = Clock::claim(arena)?;
    let tick = clock.next()?;
    let bound = device.bind()?;
    let stream = bound.stream_create()?;
    let word = base + offset(arena, tick);
    // SAFETY: the stream was made here; the word is registered, and the process's own until the clock is dropped.
    let written = unsafe { bound.stream_write(stream, word, tick.value()) };
    let mut seen = false;
    if written.is_ok() && clock.submitted(tick).is_ok() {
        let until = Instant::now() + PROBE;
        let mut pause = Duration::from_micros(20);
        while !seen && Instant::now() < until {
            seen = arena.clocks().state(tick) == TickState::Complete;
            if !seen {
                // sleep: a device's write wakes no thread.
                std::thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(1));
            }
        }
    }
    // SAFETY: it was made here, and is used no more.
    let destroyed = unsafe { bound.stream_destroy(stream) };
    written?;
    destroyed?;
    Ok(seen)
}

/// Takes the table from the devices of this process, which is about to end.
fn leave() {
    let registered = std::mem::take(&mut *REGISTERED.lock());
    let Some((device, _)) = registered.first() else { return };
    if let (Ok(bound), Ok(at)) = (device.bind(), Arena::current().map_err(Error::from).and_then(address)) {
        // SAFETY: the streams of this crate have run what they had, or never will.
        _ = unsafe { bound.host_unregister(at) };
    }
}

/// Where the table is in this process.
fn address(arena: Arena) -> Result<*mut c_void> {
    Ok(arena.clocks().address()?.as_ptr().cast())
}
