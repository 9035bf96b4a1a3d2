//! The table of clocks, as the devices of this process reach it: registered once, when a stream first ticks or waits.
//!
//! # Safety
//! Unsafe, because a device is let into the memory of this process; sound, because
//! - the table is in the arena's fixed part, which stays mapped where it is until the process ends, and no other code takes what
//!   devices write there for anything but clocks;
//! - it is unregistered when the process ends, if the streams of this crate have run what they had; else that is left to the kernel.
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
use crate::stream::ended::{self, Ended};
use crate::stream::order::StreamClock;

/// How long the first tick of a device may take, which nothing is before.
const PROBE: Duration = Duration::from_secs(1);

/// What the driver of this process knows of the table.
struct Registered {
    /// The device with whose context it was registered.
    with: Option<Device>,
    /// Devices, and where each reaches it. A device is kept, and with it the context for which that holds.
    devices: Vec<(Device, u64)>,
}

static REGISTERED: PerProcess<Mutex<Registered>> =
    PerProcess::new([const { Mutex::new(Registered { with: None, devices: Vec::new() }) }; GENERATIONS]);

/// Where in the table the word is that a tick is written to.
pub(super) fn offset(arena: Arena, tick: Tick) -> u64 {
    arena.clocks().done_offset(tick.clock()) as u64
}

/// Where `device` reaches the table, whose streams can write there.
///
/// # Errors
/// [`Error::Unsupported`] if they are said to and don't; what the driver refuses.
pub(super) fn base(device: &Device) -> Result<u64> {
    let mut registered = REGISTERED.lock();
    if let Some((_, base)) = registered.devices.iter().find(|(one, _)| one == device) {
        return Ok(*base);
    }
    let base = register(device, &mut registered)?;
    registered.devices.push((device.clone(), base));
    Ok(base)
}

/// Lets a device reach the table, the first of its process or another one.
fn register(device: &Device, registered: &mut Registered) -> Result<u64> {
    let at = address(Arena::current()?)?;
    if registered.with.is_none() {
        // SAFETY: it is mapped until this process ends.
        unsafe { device.bind()?.host_register(at, Clocks::BYTES) }?;
        registered.with = Some(device.clone());
        exit::watch(Part::Clocks, leave);
    }
    let base = device.bind()?.host_device_address(at)?;
    if probe(device, base)? {
        return Ok(base);
    }
    // The write may come yet: the table stays registered, and is tried again with the next use.
    let what = "its streams write no words of the host's memory, although it says that they do";
    Err(Error::Unsupported { what, device: device.uuid() })
}

/// Whether what a stream of the device writes into the table is seen here, in time.
fn probe(device: &Device, base: u64) -> Result<bool> {
    let arena = Arena::current()?;
    let mut clock = Clock::claim(arena)?;
    let tick = clock.next()?;
    let bound = device.bind()?;
    let stream = bound.stream_create()?;
    let word = base + offset(arena, tick);
    // SAFETY: the stream was made here; the word is registered, and the process's own until the clock is dropped.
    let written = unsafe { bound.stream_write(stream, word, tick.value()) };
    let seen = written.is_ok() && clock.submitted(tick).is_ok() && comes(arena, tick);
    // It is destroyed, and its clock given up, when it has run what it has: at once, as a rule.
    let clock = StreamClock::of(clock, word);
    ended::add(Ended { device: device.clone(), stream: Some(stream), clock, keep_alive: None });
    written?;
    Ok(seen)
}

/// Whether a tick becomes complete in time.
fn comes(arena: Arena, tick: Tick) -> bool {
    let until = Instant::now() + PROBE;
    let mut pause = Duration::from_micros(20);
    loop {
        if arena.clocks().state(tick) == TickState::Complete {
            return true;
        }
        if Instant::now() >= until {
            return false;
        }
        // sleep: a device's write wakes no thread.
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(1));
    }
}

/// Takes the table from the devices of this process, which is about to end, if none of them is to write there.
fn leave() {
    let Some(mut registered) = REGISTERED.try_lock() else { return };
    // Else the kernel takes it, when it has stopped the devices.
    if !ended::all_has_run() {
        return;
    }
    let Some(device) = registered.with.take() else { return };
    registered.devices.clear();
    drop(registered);
    if let (Ok(bound), Ok(at)) = (device.bind(), Arena::current().map_err(Error::from).and_then(address)) {
        // SAFETY: the streams of this crate have run what they had.
        _ = unsafe { bound.host_unregister(at) };
    }
}

/// Where the table is in this process.
fn address(arena: Arena) -> Result<*mut c_void> {
    Ok(arena.clocks().address()?.as_ptr().cast())
}
