//! Pending work of this process's streams, read from their clocks. The driver is not called, because a query
//! may invalidate the capture of a stream.

use std::sync::{Arc, Weak};

use mp_core::clocks::Tick;
use mp_core::fork::PerProcess;
use mp_core::mutex::Mutex;

use super::order::{self, StreamClock, tick};
use crate::device::Device;
use crate::sync::{AtomicU64, Ordering};

/// State of a stream's work. It outlives the stream's owners, until all work has run.
#[derive(Debug)]
pub(crate) struct StreamWork {
    pub(crate) device: Device,
    pub(crate) clock: StreamClock,
    pub(super) awaited: Mutex<AwaitedTicks>,
    /// Number of uses of memory that have begun on the stream, and number of uses whose work has run or is
    /// covered by a tick.
    begun: AtomicU64,
    covered: AtomicU64,
}

/// Work of all streams of this process.
static ALL: PerProcess<Mutex<Vec<Weak<StreamWork>>>> = mp_core::per_process!(Mutex::new(Vec::new()));

impl StreamWork {
    pub(crate) fn new(device: &Device, clock: StreamClock) -> Arc<Self> {
        let (awaited, begun, covered) = Default::default();
        let work = Arc::new(Self { device: device.clone(), clock, awaited, begun, covered });
        let mut all = ALL.lock();
        all.retain(|one| one.strong_count() > 0);
        all.push(Arc::downgrade(&work));
        work
    }

    /// Counts a use, which no tick covers yet. Returns the number of uses that have begun.
    pub(super) fn use_begins(&self) -> u64 {
        self.begun.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Returns the number of uses that have begun, if all of them have ended: a new tick covers all their
    /// work. Otherwise returns 0.
    pub(super) fn ended_uses(&self) -> u64 {
        let awaited = self.awaited.lock();
        if awaited.uses == 0 { self.begun.load(Ordering::Relaxed) } else { 0 }
    }

    /// Records that the work of this many uses is covered by a tick, or has run.
    pub(super) fn covered(&self, uses: u64) {
        self.covered.fetch_max(uses, Ordering::Relaxed);
    }

    /// Records that a host has seen that all work of the stream has run when use `number` ended. Has no
    /// effect if a use is open, or a later use has begun.
    pub(super) fn has_run(&self, number: u64) {
        if self.ended_uses() == number {
            self.covered(number);
        }
    }
}

/// Returns the work of all streams of a device.
pub(crate) fn of(device: &Device) -> Vec<Arc<StreamWork>> {
    let all: Vec<_> = ALL.lock().iter().filter_map(Weak::upgrade).collect();
    all.into_iter().filter(|one| one.device == *device).collect()
}

/// Purpose of a stream's wait for a tick.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum StreamWaitPurpose {
    /// The stream uses the results of the work before the tick. If they are lost, the results of its later
    /// work are lost, too.
    Results,
    /// The stream uses the same memory, but not the results of the work before the tick.
    Memory,
}

/// Ticks for which waits were submitted to a stream.
#[derive(Debug, Default)]
pub(super) struct AwaitedTicks {
    /// Awaited ticks that are pending or lost. Lost ticks are removed after the stream has run its work.
    pub(super) ticks: Vec<Tick>,
    /// Ticks in `ticks` that the stream awaits for [`Results`](StreamWaitPurpose::Results), not only for
    /// memory.
    pub(super) sources: Vec<Tick>,
    /// Number of uses of memory that have begun and not ended.
    pub(super) uses: usize,
}

impl AwaitedTicks {
    /// Removes complete ticks.
    pub(super) fn prune(&mut self) {
        let is_open = |tick: &Tick| !tick::is_complete(*tick).is_ok_and(|complete| complete);
        self.ticks.retain(is_open);
        self.sources.retain(is_open);
    }

    /// Records that the stream waits for a tick. Only the last tick of each other stream is kept, because the
    /// work of a stream ends in order. A lost tick is kept: it may block this stream forever, and later work
    /// of this stream may be lost, too.
    pub(super) fn record(&mut self, tick: Tick, purpose: StreamWaitPurpose) {
        self.prune();
        tick::keep_latest(&mut self.ticks, tick);
        if purpose == StreamWaitPurpose::Results {
            tick::keep_latest(&mut self.sources, tick);
        }
    }
}

/// Ticks for which streams without owners wait.
static ORPHANED_TICKS: PerProcess<Mutex<Vec<(Device, Tick)>>> = mp_core::per_process!(Mutex::new(Vec::new()));

impl StreamWork {
    /// Retains the ticks of a stream whose last owner was dropped, because the stream still waits for them.
    pub(super) fn orphan_ticks(&self) {
        let mut awaited = self.awaited.lock();
        awaited.prune();
        if !awaited.ticks.is_empty() {
            ORPHANED_TICKS.lock().extend(awaited.ticks.drain(..).map(|tick| (self.device.clone(), tick)));
        }
    }

    /// Returns `true` if a use began after the last tick of the stream, and after the last wait of a host for
    /// the stream. The clock may not cover the work of that use.
    fn is_uncovered(&self) -> bool {
        let covered = self.covered.load(Ordering::Relaxed);
        self.begun.load(Ordering::Relaxed) > covered
    }
}

/// Work of a device's streams at one moment.
#[derive(Debug, Default)]
pub(crate) struct DeviceLoad {
    /// Pending ticks, which the streams made or wait for.
    ticks: Vec<Tick>,
    /// Streams for which threads were making ticks, each with the number of ticks that had begun.
    in_progress: Vec<(Arc<StreamWork>, u64)>,
    /// `true` if a thread was submitting a wait to a stream.
    is_changing: bool,
    /// `true` if a stream was used since its last tick.
    has_uncovered: bool,
    /// `true` if a recovery releases streams that wait for a killed process.
    releases: bool,
}

impl DeviceLoad {
    pub(crate) fn now(device: &Device) -> Self {
        let mut load = Self { releases: order::releases_here(device), ..Self::default() };
        for one in of(device) {
            match one.awaited.try_lock() {
                Some(awaited) => load.ticks.extend_from_slice(&awaited.ticks),
                None => load.is_changing = true,
            }
            load.has_uncovered |= one.is_uncovered();
            let begun = one.clock.begun();
            let is_making = !one.clock.has_made_as_many(begun);
            load.ticks.extend(one.clock.last_made());
            if is_making {
                load.in_progress.push((one, begun));
            }
        }
        {
            let mut left = ORPHANED_TICKS.lock();
            left.retain(|(of, tick)| of != device || load.is_pending(*tick));
            load.ticks.extend(left.iter().filter(|(of, _)| of == device).map(|(_, tick)| *tick));
        }
        let mut ticks = std::mem::take(&mut load.ticks);
        ticks.retain(|tick| load.is_pending(*tick));
        Self { ticks, ..load }
    }

    fn is_pending(&self, tick: Tick) -> bool {
        match tick::is_complete(tick) {
            Ok(complete) => !complete,
            Err(_) => !self.releases,
        }
    }

    /// Returns `true` if no stream had pending work.
    pub(crate) fn is_empty(&self) -> bool {
        self.ticks.is_empty() && self.in_progress.is_empty() && !self.is_changing && !self.has_uncovered
    }

    /// Returns `true` if all work of the recorded ticks has run.
    pub(crate) fn has_run(&mut self) -> bool {
        let made = self.in_progress.extract_if(.., |(one, count)| one.clock.has_made_as_many(*count));
        // If a later tick was made meanwhile, that tick is waited for.
        let ticks: Vec<Tick> = made.filter_map(|(one, _)| one.clock.last_made()).collect();
        self.ticks.extend(ticks);
        self.in_progress.is_empty() && !self.ticks.iter().any(|tick| self.is_pending(*tick))
    }

    /// Returns `true` if `ticks` contains all ticks for which the streams waited.
    pub(crate) fn is_complete_list(&self) -> bool {
        !self.is_changing
    }
}

#[cfg(test)]
mod tests {
    use mp_core::Arena;
    use mp_core::clocks::Clock;

    use super::*;

    /// If a stream uses two tensors in the reverse order of their sends, it waits for the later tick first.
    #[test]
    fn last_tick_of_each_awaited_stream_is_recorded() {
        let mut clock = Clock::claim(Arena::current().unwrap()).unwrap();
        let mut tick = || {
            let tick = clock.next().unwrap();
            clock.submitted(tick).unwrap();
            tick
        };
        let (first, second) = (tick(), tick());
        let mut awaited = AwaitedTicks::default();
        awaited.record(second, StreamWaitPurpose::Results);
        awaited.record(first, StreamWaitPurpose::Results);
        clock.complete(first).unwrap();
        awaited.prune();
        assert_eq!((&awaited.ticks[..], &awaited.sources[..]), (&[second][..], &[second][..]));
        // The owner dies. Ticks of the clock's next owner do not cover its work.
        clock.declare_dead();
        let next = Tick::new(second.clock(), Tick::base(second.epoch() + 1) + 1);
        awaited.record(next, StreamWaitPurpose::Results);
        assert_eq!((&awaited.ticks[..], &awaited.sources[..]), (&[second, next][..], &[second, next][..]));
    }
}
