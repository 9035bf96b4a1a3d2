//! The table of clocks, as the devices of this process reach it: registered once, when a stream first ticks or waits.
//!
//! # Safety
//! Unsafe, because a device is let into the memory of this process; sound, because
//! - the table is in the arena's fixed part, which stays mapped where it is until the process ends, and no other code takes what
//!   devices write there for anything but clocks;
//! - it stays registered until the process ends, and its devices with it: to unregister it would wait for all that they run.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::time::{Duration, Instant};

use mp_core::Arena;
use mp_core::clocks::{Clock, Clocks, Tick, TickState};
use mp_core::fork::{GENERATIONS, PerProcess};
use mp_core::mutex::Mutex;

use crate::device::Device;
use crate::error::{Error, Result};
use crate::stream::ended::{self, Ended};
use crate::stream::order::StreamClock;
use crate::stream::work::Work;

/// How long the first tick of a device may take to be seen, when its stream has run.
const UNSEEN: Duration = Duration::from_secs(1);
/// How long its stream may take to run, which has nothing before: kernels of other processes may be running.
const BUSY: Duration = Duration::from_secs(60);

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
/// [`Error::Unsupported`] if they are said to and don't, or if a new stream runs nothing for a minute; what the driver refuses.
pub(super) fn base(device: &Device) -> Result<u64> {
    let mut registered = REGISTERED.lock();
    if let Some((_, base)) = registered.devices.iter().find(|(one, _)| one == device) {
        return Ok(*base);
    }
    let base = register(device, &mut registered)?;
    // Threads that use another device don't wait for this one's first tick.
    drop(registered);
    let what = match probe(device, base)? {
        First::Seen => {
            let mut registered = REGISTERED.lock();
            // Another thread may have had the device probed meanwhile.
            if registered.devices.iter().all(|(one, _)| one != device) {
                registered.devices.push((device.clone(), base));
            }
            return Ok(base);
        }
        First::Unseen => "its streams write no words of the host's memory, although it says that they do",
        First::NotRun => {
            "a new stream of it has run nothing for a minute: wait until other work on it has ended, and try again"
        }
    };
    // The write may come yet: the table stays registered, and is tried again with the next use.
    Err(Error::Unsupported { what, device: device.uuid() })
}

/// Lets a device reach the table, the first of its process or another one: where.
fn register(device: &Device, registered: &mut Registered) -> Result<u64> {
    let at = address(Arena::current()?)?;
    if registered.with.is_none() {
        // SAFETY: it is mapped until this process ends.
        unsafe { device.bind()?.host_register(at, Clocks::BYTES) }?;
        registered.with = Some(device.clone());
    }
    device.bind()?.host_device_address(at)
}

/// What became of the first tick of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum First {
    Seen,
    /// Its stream has run, and the word is not written.
    Unseen,
    /// Its stream has not run.
    NotRun,
}

impl First {
    /// If there is no more to wait for. `over`: for how long its stream has run.
    fn known(is_seen: bool, over: Option<Duration>, waited: Duration) -> Option<First> {
        match over {
            _ if is_seen => Some(First::Seen),
            Some(over) => (over >= UNSEEN).then_some(First::Unseen),
            None => (waited >= BUSY).then_some(First::NotRun),
        }
    }
}

/// Whether what a stream of the device writes into the table is seen here.
fn probe(device: &Device, base: u64) -> Result<First> {
    let arena = Arena::current()?;
    let mut clock = Clock::claim(arena)?;
    let tick = clock.next()?;
    let bound = device.bind()?;
    let stream = bound.stream_create()?;
    let word = base + offset(arena, tick);
    // SAFETY: the stream was made here; the word is registered, and the process's own until the clock is dropped.
    let written = unsafe { bound.stream_write(stream, word, tick.value()) };
    let seen = match &written {
        Ok(()) => clock.submitted(tick).map_err(Error::from).and_then(|()| {
            comes(arena, tick, || {
                // SAFETY: it is alive.
                unsafe { bound.stream_is_complete(stream) }
            })
        }),
        Err(_) => Ok(First::Unseen),
    };
    // It is destroyed, and its clock given up, when it has run what it has: at once, as a rule.
    let work = Work::new(device, StreamClock::of(clock, word));
    ended::add(Ended { work, stream: Some(stream), keep_alive: None });
    written?;
    seen
}

/// Waits for the first tick of a device, whose stream `has_run` asks after.
fn comes(arena: Arena, tick: Tick, has_run: impl Fn() -> Result<bool>) -> Result<First> {
    let (begun, mut over) = (Instant::now(), None);
    let mut pause = Duration::from_micros(20);
    loop {
        let is_seen = arena.clocks().state(tick) == TickState::Complete;
        if !is_seen && over.is_none() && has_run()? {
            over = Some(Instant::now());
        }
        if let Some(first) = First::known(is_seen, over.map(|over| over.elapsed()), begun.elapsed()) {
            return Ok(first);
        }
        // sleep: a device's write wakes no thread.
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(1));
    }
}

/// Where the table is in this process.
fn address(arena: Arena) -> Result<*mut c_void> {
    Ok(arena.clocks().address()?.as_ptr().cast())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_others_keep_busy_is_waited_for_and_one_that_writes_nothing_is_not() {
        let (second, hour) = (Duration::from_secs(1), Duration::from_secs(3600));
        for over in [None, Some(Duration::ZERO), Some(hour)] {
            assert_eq!(First::known(true, over, hour), Some(First::Seen));
        }
        assert_eq!(First::known(false, None, 59 * second), None);
        assert_eq!(First::known(false, None, 60 * second), Some(First::NotRun));
        assert_eq!(
            First::known(false, Some(second / 2), hour),
            None,
            "the write may take a moment to be seen"
        );
        assert_eq!(First::known(false, Some(second), second), Some(First::Unseen));
    }
}
