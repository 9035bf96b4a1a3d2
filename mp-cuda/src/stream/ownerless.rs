//! Streams whose last owner was dropped, but which still have work. Each stream and its clock exist until the
//! work has run, because no other stream may get the clock before. When the process exits, this module also
//! waits for the process's streams.
//!
//! # Safety
//! Unsafe, because it destroys streams. Sound, because this crate made each of them, and its last owner was
//! dropped.
#![allow(unsafe_code)]

use std::any::Any;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use mp_core::clocks::Tick;
use mp_core::fork::PerProcess;
use mp_core::mutex::Mutex;
use mp_core::{Arena, Recovery};

use super::order;
use super::work::{self, StreamWork};
use super::{CudaStream, StreamInner};
use crate::device::Device;
use crate::driver::api::DriverHandle;
use crate::exit::{self, ExitPhase};

/// Time for which an exiting process waits for its streams.
const LIMIT: Duration = Duration::from_secs(5);

/// Stream whose last owner was dropped.
pub(crate) struct OwnerlessStream {
    pub(crate) work: Arc<StreamWork>,
    /// Stream to destroy. `None` for a stream of the user.
    pub(crate) stream: Option<DriverHandle>,
    /// Value that keeps a user's stream alive, until its clock has no pending tick.
    pub(crate) keep_alive: Option<Box<dyn Any + Send + Sync>>,
}

static OWNERLESS: PerProcess<Mutex<Vec<OwnerlessStream>>> = mp_core::per_process!(Mutex::new(Vec::new()));

/// Streams of this process that have owners.
static ALIVE: PerProcess<Mutex<Vec<Weak<StreamInner>>>> = mp_core::per_process!(Mutex::new(Vec::new()));

impl OwnerlessStream {
    fn has_work(&self) -> bool {
        // A user's stream is not queried: only its clock is.
        if self.work.clock.is_pending() {
            return true;
        }
        let (Some(stream), Ok(bound)) = (self.stream, self.work.device.bind()) else { return false };
        // SAFETY: this crate made the stream, and has not destroyed it. An error means a lost device, which
        // runs nothing.
        matches!(unsafe { bound.stream_is_complete(stream) }, Ok(false))
    }
}

impl Drop for OwnerlessStream {
    fn drop(&mut self) {
        if let (Some(stream), Ok(bound)) = (self.stream, self.work.device.bind()) {
            // SAFETY: this crate made the stream, and its last owner was dropped. An error means a lost
            // device, which has no streams.
            _ = unsafe { bound.stream_destroy(stream) };
        }
    }
}

/// Number of streams that [`end_some`] queries, each by a driver call.
const AT_ONCE: usize = 4;

/// Destroys a stream, now or when it has run its work.
pub(crate) fn add(ended: OwnerlessStream) {
    if ended.work.clock.is_claimed() && ended.has_work() {
        OWNERLESS.lock().push(ended);
        exit::register(ExitPhase::Streams, leave);
    }
}

/// Destroys the streams that have run their work. Also drops the users' values that kept these streams alive.
/// The drop of such a value may call any function.
pub(super) fn end_all() {
    order::end_probes();
    end(usize::MAX, |_| true);
}

/// Queries some streams, and destroys those that have run their work. Later calls query other streams. The
/// caller must not hold a lock that the drop of a user's value may take.
pub(crate) fn end_some() {
    end(AT_ONCE, |_| true);
}

/// Destroys the streams that have run their work, except streams that are kept alive by a user's value.
pub(super) fn end_own() {
    order::end_probes();
    end(usize::MAX, |one| one.keep_alive.is_none());
}

fn end(at_most: usize, which: impl Fn(&OwnerlessStream) -> bool) {
    // Another thread ends streams.
    let Some(mut ended) = OWNERLESS.try_lock() else { return };
    let count = at_most.min(ended.len());
    let queried: Vec<OwnerlessStream> = ended.drain(..count).collect();
    let (done, left): (Vec<_>, Vec<_>) = queried.into_iter().partition(|one| which(one) && !one.has_work());
    // Streams with work are added last, so that other streams are queried next.
    ended.extend(left);
    drop(ended);
    drop(done);
}

/// Records a new stream.
pub(super) fn register(stream: &CudaStream) {
    let mut alive = ALIVE.lock();
    alive.retain(|one| one.strong_count() > 0);
    alive.push(Arc::downgrade(&stream.0));
    exit::register(ExitPhase::Streams, leave);
}

/// Returns the stream of this process that has made a tick, if the stream is alive.
pub(crate) fn stream_of(tick: Tick) -> Option<CudaStream> {
    let alive: Vec<_> = ALIVE.lock().iter().filter_map(Weak::upgrade).collect();
    alive.into_iter().find(|one| one.work.clock.has_made(tick)).map(CudaStream)
}

/// Records that a device is lost to this process. The device's streams run no more work, which other
/// processes read from the clocks.
pub(super) fn mark_lost(device: &Device) {
    work::of(device).iter().for_each(|one| one.clock.mark_lost());
}

/// Waits for a limited time until all ticks of this process are complete, before the process exits. Waits for
/// no lock, because the holder may never release it. The driver ends the remaining streams.
fn leave() {
    let until = Instant::now() + LIMIT;
    let mut pause = Duration::from_micros(50);
    while !all_has_run() && Instant::now() < until {
        // The streams may wait for a dead process.
        _ = Arena::current().and_then(|arena| Recovery(arena).reclaim_if_due());
        // sleep: a device's write wakes no thread.
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(1));
    }
}

/// Returns `true` if no stream of this process has pending work for which other processes may wait. Returns
/// `false` if a thread holds a lock that the check needs.
fn all_has_run() -> bool {
    let Some(locked) = ALIVE.try_lock() else { return false };
    let alive: Vec<_> = locked.iter().filter_map(Weak::upgrade).collect();
    drop(locked);
    !alive.iter().any(|one| one.work.clock.is_pending())
        && order::end_probes()
        && OWNERLESS.try_lock().is_some_and(|ended| !ended.iter().any(OwnerlessStream::has_work))
}
