//! When memory is closed that was opened by a legacy handle.
//!
//! A thread that closes such memory waits until all has run that this process's streams have on the device. Meanwhile it holds a lock of the driver, so other
//! threads that launch a kernel, copy, record an event, make a stream or allocate wait, too (seen on an H200). So it is a thread that has nothing else to do,
//! and it waits for the streams to be at rest.
//!
//! | | memory that is in line |
//! |---|---|
//! | each stream of its device is at rest: its ticks are complete, and no use of memory began on it since the last one, or since a host waited for it | is closed |
//! | one is not, and memory is in line for less than [`LATE`] | waits |
//! | later; what clocks told of at some look has run within [`SHORT`] | is closed: some programs' streams are never at rest |
//! | later; it takes longer | waits |
//! | a thread asks for it ([`ipc_collect`](crate::ipc_collect)) | is closed by that thread |
//! | the process ends | is closed if each stream is at rest, else by the driver |
//!
//! Clocks don't tell of a kernel that was launched without a tensor of this library, nor of one with a tensor that was neither sent nor dropped since. The former delays
//! threads by the time that it takes, as it does where a program calls `cuMemFree`; the latter by what is left of it after [`LATE`]. No thread waits so for another process's next step, since a stream waits for work that was given to a
//! device before: if the process that gave it is dead, another thread here looks after that.

use std::time::{Duration, Instant};

use mp_core::{Arena, mutant};

use crate::device::Device;
use crate::driver::long_calls::LongCall;
use crate::exit;
use crate::stream::work::Load;

/// How long memory waits for streams that are never at rest.
const LATE: Duration = Duration::from_secs(1);
/// How long what streams have to do may take, if memory is closed beside it.
const SHORT: Duration = Duration::from_millis(250);

/// How streams of the devices go on, for the thread that closes memory.
#[derive(Debug, Default)]
pub(super) struct Paces(Vec<Pace>);

/// How those of one do.
#[derive(Debug)]
struct Pace {
    device: Device,
    /// What they had to do at a look before, and when that was.
    before: Load,
    since: Instant,
    /// As the last look found it, if there was one.
    is_known: bool,
    is_at_rest: bool,
    /// That has run since, and soon.
    is_quick: bool,
}

impl Pace {
    fn look(&mut self) {
        let now = Load::now(&self.device);
        self.is_known = true;
        self.is_at_rest = now.is_none();
        self.is_quick = false;
        if self.before.has_run() || mutant!("cuda.closing.beside-what-never-ends") {
            let is_short = self.since.elapsed() <= SHORT || mutant!("cuda.closing.beside-what-takes-long");
            self.is_quick = is_short && !self.before.is_none() && self.before.is_certain();
            (self.before, self.since) = (now, Instant::now());
        }
    }
}

impl Paces {
    /// Looks at all streams. No lock of the table is held.
    pub(super) fn look(&mut self) {
        self.0.iter_mut().for_each(Pace::look);
    }

    /// Whether all have been looked at.
    pub(super) fn are_known(&self) -> bool {
        self.0.iter().all(|pace| pace.is_known)
    }

    /// Whether memory is to be closed now that is open for these devices, and in line since then.
    pub(super) fn allow(&mut self, devices: &[Device], since: Instant) -> bool {
        let mut allow = true;
        for device in devices {
            let is_late =
                since.elapsed() >= LATE && !exit::has_begun() && !mutant!("cuda.closing.never-in-a-hurry");
            match self.0.iter().find(|pace| pace.device == *device) {
                Some(pace) => {
                    allow &=
                        pace.is_at_rest || is_late && pace.is_quick || mutant!("cuda.closing.beside-work");
                }
                // It is looked at before this is asked again.
                None => {
                    self.0.push(Pace {
                        device: device.clone(),
                        before: Load::default(),
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

/// Drops what closes memory, in a thread of its own if one can be started; this one looks after deaths until that is done.
pub(super) fn close(all: impl Send + 'static, call: LongCall) {
    let thread = std::thread::Builder::new().name("mp-cuda-close".into());
    let Ok(thread) = thread.spawn(move || drop((all, call))) else { return };
    let mut pause = Duration::from_micros(50);
    while !thread.is_finished() {
        look_after_deaths();
        // sleep: the driver wakes no thread when it has closed memory.
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(1));
    }
    _ = thread.join();
}

pub(super) fn look_after_deaths() {
    _ = Arena::current().and_then(|arena| arena.sweep_if_due());
}
