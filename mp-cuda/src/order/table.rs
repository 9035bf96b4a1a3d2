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

/// A device, and where it reaches the table, if it can. The device is kept, and with it the context for which that holds.
type Reached = (Device, Option<u64>);

static REGISTERED: PerProcess<Mutex<Vec<Reached>>> =
    PerProcess::new([const { Mutex::new(Vec::new()) }; GENERATIONS]);

/// Where `device` reaches the word that a tick is written to; `None` if its streams neither write words nor wait for them, as old ones.
///
/// # Errors
/// [`Error::Unsupported`] if they are said to and don't; what the driver refuses.
pub(crate) fn word_of(device: &Device, tick: Tick) -> Result<Option<u64>> {
    let offset = offset(Arena::current()?, tick);
    Ok(base(device)?.map(|base| base + offset))
}

fn offset(arena: Arena, tick: Tick) -> u64 {
    arena.clocks().done_offset(tick.clock()) as u64
}

/// Where `device` reaches the table.
pub(super) fn base(device: &Device) -> Result<Option<u64>> {
    let mut registered = REGISTERED.lock();
    if let Some((_, base)) = registered.iter().find(|(one, _)| one == device) {
        return Ok(*base);
    }
    let attributes = device.attributes()?;
    let base = if attributes.memory_operations && attributes.host_registration {
        let is_first = registered.iter().all(|(_, base)| base.is_none());
        Some(register(device, is_first)?)
    } else {
        None
    };
    registered.push((device.clone(), base));
    exit::watch(Part::Clocks, leave);
    Ok(base)
}

/// Lets a device reach the table, the first of its process or another one.
fn register(device: &Device, is_first: bool) -> Result<u64> {
    let at = address(Arena::current()?)?;
    if is_first {
        // SAFETY: it is mapped until this process ends.
        unsafe { device.bind()?.host_register(at, Clocks::BYTES) }?;
    }
    let reached = device.bind()?.host_device_address(at);
    let works = reached.and_then(|base| Ok(probe(device, base)?.then_some(base)));
    if is_first && !matches!(works, Ok(Some(_))) {
        // SAFETY: no stream of this process has been given an address in it but the one of the probe, which is gone.
        unsafe { device.bind()?.host_unregister(at) }?;
    }
    let what = "its streams write no words of the host's memory, although it says that they do";
    works?.ok_or_else(|| Error::Unsupported { what, device: device.uuid() })
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
    let Some((device, _)) = registered.iter().find(|(_, base)| base.is_some()) else { return };
    if let (Ok(bound), Ok(at)) = (device.bind(), Arena::current().map_err(Error::from).and_then(address)) {
        // SAFETY: the streams of this crate have run what they had, or never will.
        _ = unsafe { bound.host_unregister(at) };
    }
}

/// Where the table is in this process.
fn address(arena: Arena) -> Result<*mut c_void> {
    Ok(arena.clocks().address()?.as_ptr().cast())
}
