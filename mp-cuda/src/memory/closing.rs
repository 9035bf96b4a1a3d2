//! Decides when memory that was opened by a legacy handle may be closed.
//!
//! To close the memory, the driver waits for all work of this process's streams on the device. Meanwhile the
//! calling thread holds a lock of the driver. So other threads can't launch a kernel, copy, record an event,
//! make a stream or allocate (measured on an H200). Therefore a thread without other tasks closes the memory,
//! after it has waited until the streams are idle.
//!
//! | state of the streams | queued memory |
//! |---|---|
//! | each stream of the device is idle: all its ticks are complete, and no use of memory began on the stream since its last tick or since a host waited for it | is closed |
//! | a stream is not idle, and the memory is queued for less than [`LATE`] | waits |
//! | a stream is not idle after [`LATE`], and the work found by one check has run within [`SHORT`] | is closed: some programs' streams are never idle |
//! | a stream is not idle after [`LATE`], and the work takes longer than [`SHORT`] | waits |
//! | a thread calls [`ipc_collect`](crate::ipc_collect) | is closed by that thread |
//! | the process ends | is closed if each stream is idle, else by the driver |
//!
//! The check does not see every kernel. If memory is closed during a kernel that uses no tensor of this
//! library, threads wait until the kernel ends, as during `cuMemFree`. If a kernel uses a tensor that was not
//! sent or dropped after the launch, threads wait from [`LATE`] until the kernel ends.
//!
//! No thread waits for an action of another process, because a stream waits only for work that was already
//! submitted to a device. If the process that submitted the work dies, another thread of this process
//! recovers and reclaims the dead process.

use std::time::{Duration, Instant};

use mp_core::{Arena, Recovery};

use crate::device::Device;
use crate::driver::long_calls::LongCall;
use crate::exit;
use crate::stream::work::DeviceLoad;

/// Time for which queued memory waits for idle streams, before it may be closed during short work.
const LATE: Duration = Duration::from_secs(1);
/// Longest duration of work during which memory may be closed. After [`LATE`], memory is closed in spite of
/// pending work if the work that the previous check found has run within this time.
const SHORT: Duration = Duration::from_millis(250);

/// Progress of the devices' streams, for the thread that closes memory.
#[derive(Debug, Default)]
pub(super) struct StreamActivity(Vec<DeviceActivity>);

/// Progress of one device's streams.
#[derive(Debug)]
struct DeviceActivity {
    device: Device,
    /// Work of the streams at an earlier check, and the time of that check.
    before: DeviceLoad,
    since: Instant,
    /// `true` if the streams were checked at least once, so that the fields below are valid.
    is_known: bool,
    is_at_rest: bool,
    /// `true` if the work found by the previous check (`before`) ran within [`SHORT`] after that check.
    is_quick: bool,
}

impl DeviceActivity {
    fn look(&mut self) {
        let now = DeviceLoad::now(&self.device);
        self.is_known = true;
        self.is_at_rest = now.is_empty();
        self.is_quick = false;
        if self.before.has_run() {
            let is_short = self.since.elapsed() <= SHORT;
            self.is_quick = is_short && !self.before.is_empty() && self.before.is_complete_list();
            (self.before, self.since) = (now, Instant::now());
        }
    }
}

impl StreamActivity {
    /// Checks the streams of all devices. The caller must not hold the registry's lock.
    pub(super) fn look(&mut self) {
        self.0.iter_mut().for_each(DeviceActivity::look);
    }

    /// Returns `true` if all devices have been checked.
    pub(super) fn are_known(&self) -> bool {
        self.0.iter().all(|device_activity| device_activity.is_known)
    }

    /// Returns `true` if memory may be closed that is open for these devices and was queued at `since`.
    pub(super) fn allow(&mut self, devices: &[Device], since: Instant) -> bool {
        let mut allow = true;
        for device in devices {
            let is_late = since.elapsed() >= LATE && !exit::has_begun();
            match self.0.iter().find(|device_activity| device_activity.device == *device) {
                Some(device_activity) => {
                    allow &= device_activity.is_at_rest || is_late && device_activity.is_quick;
                }
                // The device is checked before the next call.
                None => {
                    self.0.push(DeviceActivity {
                        device: device.clone(),
                        before: DeviceLoad::default(),
                        since: Instant::now(),
                        is_known: false,
                        is_at_rest: false,
                        is_quick: false,
                    });
                    allow = false;
                }
            }
        }
        allow
    }
}

/// Drops `all`, whose drop closes memory, in another thread if one can be started. Meanwhile the calling
/// thread recovers and reclaims dead processes.
pub(super) fn close(all: impl Send + 'static, call: LongCall) {
    let thread = std::thread::Builder::new().name("mp-cuda-close".into());
    let Ok(thread) = thread.spawn(move || drop((all, call))) else { return };
    let mut pause = Duration::from_micros(50);
    while !thread.is_finished() {
        reclaim_if_due();
        // sleep: the driver wakes no thread when it has closed memory.
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(1));
    }
    _ = thread.join();
}

pub(super) fn reclaim_if_due() {
    _ = Arena::current().and_then(|arena| Recovery(arena).reclaim_if_due());
}
