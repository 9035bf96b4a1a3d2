//! What streams of this process have to do, as far as clocks tell. No driver is asked: to ask may spoil the capture of a stream.

use std::sync::{Arc, Weak};

use mp_core::clocks::Tick;
use mp_core::fork::{GENERATIONS, PerProcess};
use mp_core::mutant;
use mp_core::mutex::Mutex;

use super::order::{self, StreamClock, clock};
use crate::device::Device;
use crate::sync::{AtomicU64, Ordering};

/// A stream's part in the order of work: it outlives the stream's owners, until all has run.
#[derive(Debug)]
pub(crate) struct Work {
    pub(crate) device: Device,
    pub(crate) clock: StreamClock,
    pub(super) awaited: Mutex<Awaited>,
    /// How many uses of memory have begun on the stream, and of how many the work is behind a tick, or has run, as a host has seen.
    begun: AtomicU64,
    told: AtomicU64,
}

/// That of all streams of this process.
static ALL: PerProcess<Mutex<Vec<Weak<Work>>>> =
    PerProcess::new([const { Mutex::new(Vec::new()) }; GENERATIONS]);

impl Work {
    pub(crate) fn new(device: &Device, clock: StreamClock) -> Arc<Self> {
        let (awaited, begun, told) = Default::default();
        let work = Arc::new(Self { device: device.clone(), clock, awaited, begun, told });
        let mut all = ALL.lock();
        all.retain(|one| one.strong_count() > 0);
        all.push(Arc::downgrade(&work));
        work
    }

    /// A use begins, whose work is not behind a tick yet: how many have begun.
    pub(super) fn use_begins(&self) -> u64 {
        self.begun.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// How many uses have begun, if all of them have ended: what the stream is given now is behind their work.
    pub(super) fn ended(&self) -> u64 {
        let awaited = self.awaited.lock();
        if awaited.uses == 0 { self.begun.load(Ordering::Relaxed) } else { 0 }
    }

    /// The work of the first uses, this many, is behind a tick now, or has run.
    pub(super) fn told(&self, uses: u64) {
        self.told.fetch_max(uses, Ordering::Relaxed);
    }

    /// A host has seen that the stream has run all that it had when this use ended, which counts if none is open, and none has begun since.
    pub(super) fn has_run(&self, number: u64) {
        if self.ended() == number {
            self.told(number);
        }
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

/// The ticks that streams wait for whose owners have dropped them.
static LEFT: PerProcess<Mutex<Vec<(Device, Tick)>>> =
    PerProcess::new([const { Mutex::new(Vec::new()) }; GENERATIONS]);

impl Work {
    /// The stream's last owner is gone: what it waits for it waits for all the same.
    pub(super) fn leave(&self) {
        let mut awaited = self.awaited.lock();
        awaited.look();
        if !awaited.ticks.is_empty() && !mutant!("cuda.load.ownerless-waits-for-nothing") {
            LEFT.lock().extend(awaited.ticks.drain(..).map(|tick| (self.device.clone(), tick)));
        }
    }

    /// Whether a use began on the stream since its last tick, and since a host waited for the stream: it may have work that its clock doesn't show.
    fn is_untold(&self) -> bool {
        let told = self.told.load(Ordering::Relaxed);
        self.begun.load(Ordering::Relaxed) > told && !mutant!("cuda.load.untold-at-rest")
    }
}

/// What the streams of a device had to do at one moment.
#[derive(Debug, Default)]
pub(crate) struct Load {
    /// Ticks on their way, made or awaited.
    ticks: Vec<Tick>,
    /// Streams that threads had make ticks just then, and how many there are with those.
    making: Vec<(Arc<Work>, u64)>,
    /// A thread had a stream wait just then.
    is_changing: bool,
    /// A stream was used since its last tick.
    has_untold: bool,
    /// Whether a stream that waits for a killed process goes on.
    releases: bool,
}

impl Load {
    pub(crate) fn now(device: &Device) -> Self {
        let mut load = Self { releases: order::releases_here(device), ..Self::default() };
        for one in of(device) {
            match one.awaited.try_lock() {
                Some(awaited) => load.ticks.extend_from_slice(&awaited.ticks),
                None => load.is_changing = true,
            }
            load.has_untold |= one.is_untold();
            let begun = one.clock.begun();
            let is_making = !one.clock.has_made_as_many(begun);
            load.ticks.extend(one.clock.last_made());
            if is_making {
                load.making.push((one, begun));
            }
        }
        {
            let mut left = LEFT.lock();
            left.retain(|(of, tick)| of != device || load.is_on_its_way(*tick));
            load.ticks.extend(left.iter().filter(|(of, _)| of == device).map(|(_, tick)| *tick));
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
        self.ticks.is_empty() && self.making.is_empty() && !self.is_changing && !self.has_untold
    }

    /// Whether all has run that it knows of.
    pub(crate) fn has_run(&mut self) -> bool {
        let made = self.making.extract_if(.., |(one, count)| one.clock.has_made_as_many(*count));
        // It may be a later one, which is waited for then.
        let ticks: Vec<Tick> = made.filter_map(|(one, _)| one.clock.last_made()).collect();
        self.ticks.extend(ticks);
        self.making.is_empty() && !self.ticks.iter().any(|tick| self.is_on_its_way(*tick))
    }

    /// Whether it knows of all that streams were told to wait for.
    pub(crate) fn is_certain(&self) -> bool {
        !self.is_changing
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
