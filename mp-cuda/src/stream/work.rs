//! What streams of this process have to do, as far as clocks say. No driver is asked: to ask may spoil the capture of a stream.

use std::sync::{Arc, Weak};

use mp_core::clocks::Tick;
use mp_core::fork::{GENERATIONS, PerProcess};
use mp_core::mutant;
use mp_core::mutex::Mutex;

use super::order::{self, StreamClock, clock};
use crate::device::Device;

/// A stream's part in the order of work: it outlives the stream's owners, until all has run.
#[derive(Debug)]
pub(crate) struct Work {
    pub(crate) device: Device,
    pub(crate) clock: StreamClock,
    pub(super) awaited: Mutex<Awaited>,
}

/// That of all streams of this process.
static ALL: PerProcess<Mutex<Vec<Weak<Work>>>> =
    PerProcess::new([const { Mutex::new(Vec::new()) }; GENERATIONS]);

impl Work {
    pub(crate) fn new(device: &Device, clock: StreamClock) -> Arc<Self> {
        let work = Arc::new(Self { device: device.clone(), clock, awaited: Mutex::default() });
        let mut all = ALL.lock();
        all.retain(|one| one.strong_count() > 0);
        all.push(Arc::downgrade(&work));
        work
    }
}

/// That of all streams of a device.
pub(crate) fn of(device: &Device) -> Vec<Arc<Work>> {
    let all: Vec<_> = ALL.lock().iter().filter_map(Weak::upgrade).collect();
    all.into_iter().filter(|one| one.device == *device).collect()
}

/// What a stream was told to wait for, and which of its work may be behind that.
#[derive(Debug, Default)]
pub(super) struct Awaited {
    /// Those that had not come when that was looked at last; also of processes that died, until the stream has run what it had then.
    pub(super) ticks: Vec<Tick>,
    /// Of these, the ticks of work whose results the stream may use; not of work that only had to be out of the way.
    pub(super) sources: Vec<Tick>,
    /// How many uses of pieces of memory have begun, and not ended.
    pub(super) uses: usize,
}

impl Awaited {
    /// Leaves those that have come.
    pub(super) fn look(&mut self) {
        let is_open = |tick: &Tick| match clock::is_complete(*tick) {
            Ok(complete) => !complete,
            Err(_) => !mutant!("cuda.stream.death-forgotten"),
        };
        self.ticks.retain(is_open);
        self.sources.retain(is_open);
    }

    /// Of each other stream the last one is noted, in whichever order this stream was told to wait for them: work of one stream ends in
    /// its order. One that never will be complete stays: it may hold this stream for ever, and what that did behind it is lost.
    pub(super) fn note(&mut self, tick: Tick, is_source: bool) {
        self.look();
        clock::note(&mut self.ticks, tick);
        if is_source {
            clock::note(&mut self.sources, tick);
        }
    }
}

/// What the streams of a device had to do at one moment.
#[derive(Debug, Default)]
pub(crate) struct Load {
    /// Ticks on their way, made or awaited.
    ticks: Vec<Tick>,
    /// Streams that a thread had make a tick just then, and how many they had made before.
    making: Vec<(Arc<Work>, u64)>,
    /// A thread had a stream wait just then.
    is_changing: bool,
    /// Whether a stream that waits for a killed process goes on.
    releases: bool,
}

impl Load {
    pub(crate) fn now(device: &Device) -> Self {
        let mut load = Self { releases: order::releases(device).unwrap_or(false), ..Self::default() };
        for one in of(device) {
            match one.awaited.try_lock() {
                Some(awaited) => load.ticks.extend_from_slice(&awaited.ticks),
                None => load.is_changing = true,
            }
            let made = one.clock.made();
            match one.clock.try_last() {
                Some(last) => load.ticks.extend(last),
                None => load.making.push((one, made)),
            }
        }
        let mut ticks = std::mem::take(&mut load.ticks);
        ticks.retain(|tick| load.is_on_its_way(*tick));
        Self { ticks, ..load }
    }

    fn is_on_its_way(&self, tick: Tick) -> bool {
        match clock::is_complete(tick) {
            Ok(complete) => !complete,
            Err(_) => !self.releases && !mutant!("cuda.load.lost-stream-at-rest"),
        }
    }

    /// Whether no stream had anything to do.
    pub(crate) fn is_none(&self) -> bool {
        self.ticks.is_empty() && self.making.is_empty() && !self.is_changing
    }

    /// Whether all of it has run since.
    pub(crate) fn has_run(&self) -> bool {
        !self.ticks.iter().any(|tick| self.is_on_its_way(*tick))
            && self.making.iter().all(|(one, made)| one.clock.made() > *made)
    }
}

#[cfg(test)]
mod tests {
    use mp_core::Arena;
    use mp_core::clocks::Clock;

    use super::*;

    /// A tensor that was sent later may be used first: the stream is behind the later tick all the same.
    #[test]
    fn of_each_stream_that_is_waited_for_the_last_tick_is_noted() {
        let mut clock = Clock::claim(Arena::current().unwrap()).unwrap();
        let mut tick = || {
            let tick = clock.next().unwrap();
            clock.submitted(tick).unwrap();
            tick
        };
        let (first, second) = (tick(), tick());
        let mut awaited = Awaited::default();
        awaited.note(second, true);
        awaited.note(first, true);
        clock.complete(first).unwrap();
        awaited.look();
        assert_eq!((&awaited.ticks[..], &awaited.sources[..]), (&[second][..], &[second][..]));
        // Its owner dies: what comes of the clock's next owner says nothing of that.
        clock.declare_dead();
        let next = Tick::new(second.clock(), Tick::base(second.epoch() + 1) + 1);
        awaited.note(next, true);
        assert_eq!((&awaited.ticks[..], &awaited.sources[..]), (&[second, next][..], &[second, next][..]));
    }
}
