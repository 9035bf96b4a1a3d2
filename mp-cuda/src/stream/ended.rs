//! Streams whose last owner is gone, and that have work left: each stays, with its clock, until that has run, since another stream may
//! not be given the clock before. And what this process's streams owe to others when it ends.
//!
//! # Safety
//! Unsafe, because it destroys streams; sound, because each is one that was made here, whose last owner is gone.
#![allow(unsafe_code)]

use std::any::Any;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use mp_core::Arena;
use mp_core::clocks::Tick;
use mp_core::fork::{GENERATIONS, PerProcess};
use mp_core::mutex::Mutex;

use super::work::{self, Work};
use super::{Inner, Stream};
use crate::device::Device;
use crate::driver::api::Handle;
use crate::exit::{self, Part};

/// How long a process that ends by itself waits for what others may wait for.
const LIMIT: Duration = Duration::from_secs(5);

/// A stream without an owner.
pub(crate) struct Ended {
    pub(crate) work: Arc<Work>,
    /// What is to be destroyed: nothing of a user's.
    pub(crate) stream: Option<Handle>,
    /// What keeps a user's stream alive: until its clock stands still.
    pub(crate) keep_alive: Option<Box<dyn Any + Send + Sync>>,
}

static ENDED: PerProcess<Mutex<Vec<Ended>>> =
    PerProcess::new([const { Mutex::new(Vec::new()) }; GENERATIONS]);

/// Those that have owners.
static ALIVE: PerProcess<Mutex<Vec<Weak<Inner>>>> =
    PerProcess::new([const { Mutex::new(Vec::new()) }; GENERATIONS]);

impl Ended {
    fn has_work(&self) -> bool {
        // Of a user's stream nothing is asked but its clock.
        if self.work.clock.is_pending() {
            return true;
        }
        let (Some(stream), Ok(bound)) = (self.stream, self.work.device.bind()) else { return false };
        // SAFETY: made here, and not destroyed yet. A failure is one of a lost device, which runs nothing.
        matches!(unsafe { bound.stream_is_complete(stream) }, Ok(false))
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        if let (Some(stream), Ok(bound)) = (self.stream, self.work.device.bind()) {
            // SAFETY: it was made here, and its last owner is gone. A failure is one of a lost device, which has no streams.
            _ = unsafe { bound.stream_destroy(stream) };
        }
    }
}

/// How many are looked at by a call that has something else to do: each takes a call of the driver.
const AT_ONCE: usize = 4;

/// Ends a stream now, or when it has run what it has.
pub(crate) fn add(ended: Ended) {
    if ended.work.clock.is_claimed() && ended.has_work() {
        ENDED.lock().push(ended);
        exit::watch(Part::Streams, leave);
    }
}

/// Ends what has run all its work meanwhile. What a user gave with a stream is dropped here, and may call anything.
pub(super) fn sweep() {
    end(usize::MAX, |_| true);
}

/// Looks at some of them, others each time. Not for callers that hold a lock which the drop of what a user gave may take.
pub(crate) fn sweep_some() {
    end(AT_ONCE, |_| true);
}

/// Ends those that have nothing of a user's.
pub(super) fn sweep_ours() {
    end(usize::MAX, |one| one.keep_alive.is_none());
}

fn end(at_most: usize, which: impl Fn(&Ended) -> bool) {
    // Another thread is at it.
    let Some(mut ended) = ENDED.try_lock() else { return };
    let count = at_most.min(ended.len());
    let looked: Vec<Ended> = ended.drain(..count).collect();
    let (done, left): (Vec<_>, Vec<_>) = looked.into_iter().partition(|one| which(one) && !one.has_work());
    // Behind the others, which are looked at next.
    ended.extend(left);
    drop(ended);
    drop(done);
}

/// Notes a new stream.
pub(super) fn begins(stream: &Stream) {
    let mut alive = ALIVE.lock();
    alive.retain(|one| one.strong_count() > 0);
    alive.push(Arc::downgrade(&stream.0));
    exit::watch(Part::Streams, leave);
}

/// The stream of this process whose tick it is, if that is alive.
pub(crate) fn stream_of(tick: Tick) -> Option<Stream> {
    let alive: Vec<_> = ALIVE.lock().iter().filter_map(Weak::upgrade).collect();
    alive.into_iter().find(|one| one.work.clock.has_made(tick)).map(Stream)
}

/// A device is lost to this process: its streams run nothing any more, and other processes are told.
pub(super) fn lost(device: &Device) {
    work::of(device).iter().for_each(|one| one.clock.lost());
}

/// Waits until all ticks that this process has told are complete, for a while: it is about to end. No lock is waited for: a thread that
/// has one may never give it up. The driver ends the streams that are left.
fn leave() {
    let until = Instant::now() + LIMIT;
    let mut pause = Duration::from_micros(50);
    while !all_has_run() && Instant::now() < until {
        // What they wait for may be a process's that has died.
        _ = Arena::current().and_then(|arena| arena.sweep_if_due());
        // sleep: a device's write wakes no thread.
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(1));
    }
}

/// Whether no stream of this process has work left that others may wait for. Also false if a thread keeps that from being seen.
fn all_has_run() -> bool {
    let Some(locked) = ALIVE.try_lock() else { return false };
    let alive: Vec<_> = locked.iter().filter_map(Weak::upgrade).collect();
    drop(locked);
    !alive.iter().any(|one| one.work.clock.is_pending())
        && ENDED.try_lock().is_some_and(|ended| !ended.iter().any(Ended::has_work))
}
