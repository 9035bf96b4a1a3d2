//! When memory is closed that was opened by a legacy handle.
//!
//! To close it waits until all has run that this process's streams have on the device. Meanwhile the driver has a lock, and other threads wait
//! with it that launch a kernel, copy, record an event, make a stream or allocate (seen on an H200). So it is done by a thread that has
//! nothing else to do, when the streams are at rest; and not at the end of a process, if they are not.
//!
//! | | is closed |
//! |---|---|
//! | no stream of the device has work to do, as far as clocks say | at once |
//! | one has | when none has; or, after [`PATIENCE`], when that has run which they had at first, since some programs' streams are never at rest |
//! | a thread waits for it ([`ipc_collect`](crate::ipc_collect)) | at once |
//! | the process ends | if no stream has work to do, else by the driver |
//!
//! What no clock says is a kernel that was launched without a tensor of this library. It delays threads by the time that it takes, as it does
//! where a program calls `cuMemFree`. No thread waits so for another process's next step, since a stream waits for work that was given to a
//! device before: if the process that gave it is dead, a thread here looks after that.

use std::time::{Duration, Instant};

use mp_core::clocks::Tick;
use mp_core::fork::{GENERATIONS, PerProcess};
use mp_core::{Arena, mutant};

use crate::device::Device;
use crate::stream::ended::on_their_way;
use crate::stream::order::clock::is_complete;
use crate::sync::{AtomicBool, Ordering};

/// How long streams may keep memory open.
const PATIENCE: Duration = Duration::from_secs(1);

/// Whether a thread is closing memory: then it may be in the driver for long, with what has others wait.
static IS_CLOSING: PerProcess<AtomicBool> = PerProcess::new([const { AtomicBool::new(false) }; GENERATIONS]);

/// Whether a thread of this process may be in the driver, and others that are to give something back wait with it.
pub(crate) fn is_under_way() -> bool {
    IS_CLOSING.load(Ordering::Relaxed)
}

/// What is closed next.
#[derive(Debug)]
pub(super) struct First {
    /// The devices for which it is open.
    pub(super) devices: Vec<Device>,
    /// How many there are with it.
    pub(super) left: usize,
    /// A thread waits for it.
    pub(super) is_awaited: bool,
    /// The process ends.
    pub(super) ends: bool,
}

/// The moment to close what is next.
#[derive(Debug, Default)]
pub(super) struct Moment {
    /// How many have waited for long enough.
    hurry: usize,
}

impl Moment {
    /// Waits for it; false if it comes no more.
    pub(super) fn wait(&mut self, first: impl Fn() -> Option<First>) -> bool {
        let (since, mut pause) = (Instant::now(), Duration::from_micros(50));
        let mut had: Option<Vec<Vec<Tick>>> = None;
        while let Some(First { devices, left, is_awaited, ends }) = first() {
            let now: Option<Vec<Vec<Tick>>> = devices.iter().map(on_their_way).collect();
            let is_at_rest = now.as_ref().is_some_and(|now| now.iter().all(Vec::is_empty));
            if is_awaited || self.hurry > 0 || is_at_rest {
                break;
            }
            if ends {
                return false;
            }
            if since.elapsed() >= PATIENCE
                && had.as_ref().is_some_and(|had| have_run(had))
                && !mutant!("cuda.closing.never-in-a-hurry")
            {
                self.hurry = left;
                break;
            }
            had = had.or(now);
            look_after_deaths();
            // sleep: a device's write wakes no thread.
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(5));
        }
        self.hurry = self.hurry.saturating_sub(1);
        true
    }
}

/// Drops what closes memory, in a thread of its own if one is to be had; this one looks after deaths until that is done.
pub(super) fn close(one: impl Send + 'static) {
    IS_CLOSING.store(true, Ordering::Relaxed);
    drop_beside_deaths(one);
    IS_CLOSING.store(false, Ordering::Relaxed);
}

fn drop_beside_deaths(one: impl Send + 'static) {
    let thread = std::thread::Builder::new().name("mp-cuda-close".into()).spawn(move || drop(one));
    let Ok(thread) = thread else { return };
    let mut pause = Duration::from_micros(50);
    while !thread.is_finished() {
        look_after_deaths();
        // sleep: the driver wakes no thread when it has closed memory.
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(1));
    }
    _ = thread.join();
}

/// Whether none of these ticks is on its way.
fn have_run(ticks: &[Vec<Tick>]) -> bool {
    let is_over = |tick: &Tick| !matches!(is_complete(*tick), Ok(false));
    ticks.iter().flatten().all(is_over) || mutant!("cuda.closing.beside-what-never-ends")
}

fn look_after_deaths() {
    _ = Arena::current().and_then(|arena| arena.sweep_if_due());
}
