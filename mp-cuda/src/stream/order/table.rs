//! Registration of the clock table with the driver, so that devices of this process can access it. The table
//! is registered once, when a stream first ticks or waits.
//!
//! # Safety
//! Unsafe, because a device accesses the memory of this process. Sound, because
//! - the table is in the arena's fixed part, which stays mapped at its address until the process ends, and no
//!   other code writes the words that devices write;
//! - the table stays registered until the process ends, because unregistering it would wait for all work of
//!   the devices.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::time::{Duration, Instant};

use mp_core::Arena;
use mp_core::clocks::{Clock, Clocks, Tick, TickState};
use mp_core::fork::PerProcess;
use mp_core::mutex::Mutex;

use crate::device::Device;
use crate::driver::api::DriverHandle;
use crate::error::{Error, Result};
use crate::stream::order::tick::is_complete;

/// Longest time until the first tick of a device is visible to this process, after the stream has run its
/// work.
const INVISIBLE: Duration = Duration::from_secs(1);
/// Longest time until the stream of a device's first tick has run its work. The stream has no other work, but
/// kernels of other processes may be running.
const UNRUN: Duration = Duration::from_secs(60);

/// Registration of the table with the driver of this process.
struct Registration {
    /// Device whose context was current when the table was registered.
    with: Option<Device>,
    /// Devices, each with the address of the table for the device. The list retains each device, and so the
    /// context for which the address is valid.
    devices: Vec<(Device, u64)>,
}

static REGISTERED: PerProcess<Mutex<Registration>> =
    mp_core::per_process!(Mutex::new(Registration { with: None, devices: Vec::new() }));

/// Returns the offset in the table of the word to which a tick is written.
pub(super) fn offset(arena: Arena, tick: Tick) -> u64 {
    Clocks(arena).done_offset(tick.clock()) as u64
}

/// Returns the address of the table for `device`, after testing that its streams can write to the table.
///
/// # Errors
/// [`Error::Unsupported`] if the streams can't write words although the device's attributes claim it, or if a
/// new stream runs no work within a minute; errors of the driver.
pub(super) fn base(device: &Device) -> Result<u64> {
    let mut registered = REGISTERED.lock();
    if let Some((_, base)) = registered.devices.iter().find(|(one, _)| one == device) {
        return Ok(*base);
    }
    let base = register(device, &mut registered)?;
    // Threads that use another device don't wait for this device's first tick.
    drop(registered);
    let what = match probe(device, base)? {
        ProbeResult::Visible => {
            let mut registered = REGISTERED.lock();
            // Another thread may have probed the device since.
            if registered.devices.iter().all(|(one, _)| one != device) {
                registered.devices.push((device.clone(), base));
            }
            return Ok(base);
        }
        ProbeResult::Invisible => {
            "its streams write no words of the host's memory, although it says that they do"
        }
        ProbeResult::NotRun => {
            "a new stream of it has run nothing for a minute: wait for its other work to end, and try again"
        }
    };
    // The write may be visible later: the table stays registered, and the next use probes again.
    Err(Error::Unsupported { what, device: device.uuid() })
}

/// Registers the table for the process's first device. Returns the table's address for `device`.
fn register(device: &Device, registered: &mut Registration) -> Result<u64> {
    let at = address(Arena::current()?)?;
    if registered.with.is_none() {
        // SAFETY: the table is mapped until this process ends.
        unsafe { device.bind()?.host_register(at, Clocks::BYTES) }?;
        registered.with = Some(device.clone());
    }
    device.bind()?.host_device_address(at)
}

/// Outcome of the first tick of a device, which tests whether its writes are visible.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ProbeResult {
    Visible,
    /// The stream has run its work, but this process does not see the written word.
    Invisible,
    /// The stream has not run its work in time.
    NotRun,
}

impl ProbeResult {
    /// Returns the outcome, or `None` if the test has to continue. `over` is the time since the stream was
    /// first seen to have run, and `waited` is the time since the test began.
    fn decide(is_seen: bool, over: Option<Duration>, waited: Duration) -> Option<ProbeResult> {
        match over {
            _ if is_seen => Some(ProbeResult::Visible),
            Some(over) => (over >= INVISIBLE).then_some(ProbeResult::Invisible),
            None => (waited >= UNRUN).then_some(ProbeResult::NotRun),
        }
    }
}

/// Tests whether a write of the device's stream to the table is visible to this process.
fn probe(device: &Device, base: u64) -> Result<ProbeResult> {
    let arena = Arena::current()?;
    let mut clock = Clock::claim(arena)?;
    let tick = clock.next()?;
    let bound = device.bind()?;
    let stream = bound.stream_create()?;
    let word = base + offset(arena, tick);
    // SAFETY: the stream was made above; the word is registered, and no other process uses it until the clock
    // is dropped.
    let written = unsafe { bound.stream_write(stream, word, tick.value()) };
    let seen = match &written {
        Ok(()) => clock.submitted(tick).map_err(Error::from).and_then(|()| {
            wait_for_first_tick(arena, tick, || {
                // SAFETY: the stream is alive.
                unsafe { bound.stream_is_complete(stream) }
            })
        }),
        Err(_) => Ok(ProbeResult::Invisible),
    };
    // Usually the stream has run its work.
    let probe = ProbeStream { device: device.clone(), stream, tick, _clock: clock };
    if probe.has_work() {
        PROBES.lock().push(probe);
    }
    written?;
    seen
}

/// Stream and clock of a probe. They exist until the stream has run its work, because no other stream may get
/// the clock before.
struct ProbeStream {
    device: Device,
    stream: DriverHandle,
    tick: Tick,
    _clock: Clock,
}

/// Streams of ended probes that have pending work.
static PROBES: PerProcess<Mutex<Vec<ProbeStream>>> = mp_core::per_process!(Mutex::new(Vec::new()));

impl ProbeStream {
    fn has_work(&self) -> bool {
        if matches!(is_complete(self.tick), Ok(false)) {
            return true;
        }
        let Ok(bound) = self.device.bind() else { return false };
        // SAFETY: the stream is destroyed by the drop alone.
        matches!(unsafe { bound.stream_is_complete(self.stream) }, Ok(false))
    }
}

impl Drop for ProbeStream {
    fn drop(&mut self) {
        if let Ok(bound) = self.device.bind() {
            // SAFETY: `probe` made the stream, and no other code has it.
            _ = unsafe { bound.stream_destroy(self.stream) };
        }
    }
}

/// Destroys the streams of probes that have run their work. Returns `true` if no stream of a probe remains.
pub(in crate::stream) fn end_probes() -> bool {
    // Another thread ends streams.
    let Some(mut probes) = PROBES.try_lock() else { return false };
    let ended: Vec<_> = probes.extract_if(.., |probe| !probe.has_work()).collect();
    let is_empty = probes.is_empty();
    drop(probes);
    drop(ended);
    is_empty
}

/// Waits for the first tick of a device. `has_run` returns `true` if the stream has run its work.
fn wait_for_first_tick(arena: Arena, tick: Tick, has_run: impl Fn() -> Result<bool>) -> Result<ProbeResult> {
    let (begun, mut over) = (Instant::now(), None);
    let mut pause = Duration::from_micros(20);
    loop {
        let is_seen = Clocks(arena).state(tick) == TickState::Complete;
        if !is_seen && over.is_none() && has_run()? {
            over = Some(Instant::now());
        }
        if let Some(first) = ProbeResult::decide(is_seen, over.map(|over| over.elapsed()), begun.elapsed()) {
            return Ok(first);
        }
        // sleep: a device's write wakes no thread.
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(1));
    }
}

/// Returns the address of the table in this process.
fn address(arena: Arena) -> Result<*mut c_void> {
    Ok(Clocks(arena).address()?.as_ptr().cast())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_probe_waits_only_while_device_is_busy() {
        let (second, hour) = (Duration::from_secs(1), Duration::from_secs(3600));
        for over in [None, Some(Duration::ZERO), Some(hour)] {
            assert_eq!(ProbeResult::decide(true, over, hour), Some(ProbeResult::Visible));
        }
        assert_eq!(ProbeResult::decide(false, None, 59 * second), None);
        assert_eq!(ProbeResult::decide(false, None, 60 * second), Some(ProbeResult::NotRun));
        assert_eq!(
            ProbeResult::decide(false, Some(second / 2), hour),
            None,
            "the write may become visible later"
        );
        assert_eq!(ProbeResult::decide(false, Some(second), second), Some(ProbeResult::Invisible));
    }
}
