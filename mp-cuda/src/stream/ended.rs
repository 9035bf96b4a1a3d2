//! Streams whose last owner is gone, and that have work left: each stays, with its clock, until that has run, since another stream may
//! not be given the clock before. And what this process's streams owe to others when it ends.
//!
//! # Safety
//! Unsafe, because it destroys streams; sound, because each is one that was made here, whose last owner is gone.
#![allow(unsafe_code)]

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use mp_core::clocks::Tick;
use mp_core::fork::{GENERATIONS, PerProcess};
use mp_core::mutex::Mutex;

use super::{Inner, Stream};
use crate::device::Device;
use crate::driver::api::Handle;
use crate::exit::{self, Part};
use crate::order::StreamClock;

/// How long a process that ends by itself waits for what others may wait for.
const LIMIT: Duration = Duration::from_secs(5);

/// A stream without an owner.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) device: Device,
    /// What is to be destroyed: nothing of a user's.
    pub(super) stream: Option<Handle>,
    pub(super) clock: StreamClock,
}

static ENDED: PerProcess<Mutex<Vec<Ended>>> =
    PerProcess::new([const { Mutex::new(Vec::new()) }; GENERATIONS]);

/// Those that have a clock, and owners.
static TICKING: PerProcess<Mutex<Vec<Weak<Inner>>>> =
    PerProcess::new([const { Mutex::new(Vec::new()) }; GENERATIONS]);

impl Ended {
    fn has_work(&self) -> bool {
        if self.clock.is_pending() {
            return true;
        }
        let (Some(stream), Ok(bound)) = (self.stream, self.device.bind()) else { return false };
        // SAFETY: made here, and not destroyed yet. A failure is one of a lost device, which runs nothing.
        matches!(unsafe { bound.stream_is_complete(stream) }, Ok(false))
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        if let (Some(stream), Ok(bound)) = (self.stream, self.device.bind()) {
            // SAFETY: it was made here, and its last owner is gone. A failure is one of a lost device, which has no streams.
            _ = unsafe { bound.stream_destroy(stream) };
        }
    }
}

/// Ends a stream now, or when it has run what it has.
pub(super) fn add(ended: Ended) {
    if ended.clock.is_claimed() && ended.has_work() {
        ENDED.lock().push(ended);
    }
}

/// Ends what has run all its work meanwhile.
pub(super) fn sweep() {
    let mut ended = ENDED.lock();
    let done: Vec<Ended> = ended.extract_if(.., |one| !one.has_work()).collect();
    drop(ended);
    drop(done);
}

/// Notes that a stream has got a clock.
pub(super) fn ticks(stream: &Stream) {
    let mut ticking = TICKING.lock();
    ticking.retain(|one| one.strong_count() > 0);
    ticking.push(Arc::downgrade(&stream.0));
    exit::watch(Part::Streams, leave);
}

/// The stream of this process whose tick it is, if that is alive.
pub(crate) fn stream_of(tick: Tick) -> Option<Stream> {
    let alive: Vec<_> = TICKING.lock().iter().filter_map(Weak::upgrade).collect();
    alive.into_iter().find(|one| one.clock.index() == Some(tick.clock())).map(Stream)
}

/// A device is lost to this process: its streams run nothing any more, and other processes are told.
pub(super) fn lost(device: &Device) {
    let alive: Vec<_> = TICKING.lock().iter().filter_map(Weak::upgrade).collect();
    alive.iter().filter(|one| one.device == *device).for_each(|one| one.clock.lost());
    ENDED.lock().iter().filter(|one| one.device == *device).for_each(|one| one.clock.lost());
}

/// Waits until all ticks that this process has told are complete, for a while: it is about to end.
fn leave() {
    let until = Instant::now() + LIMIT;
    let mut pause = Duration::from_micros(50);
    while (owned_have_work() || ENDED.lock().iter().any(Ended::has_work)) && Instant::now() < until {
        // sleep: a device's write wakes no thread.
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(1));
    }
    sweep();
}

/// Whether a stream that has owners made a tick whose work has not run.
fn owned_have_work() -> bool {
    let alive: Vec<_> = TICKING.lock().iter().filter_map(Weak::upgrade).collect();
    alive.iter().any(|one| one.clock.is_pending())
}
