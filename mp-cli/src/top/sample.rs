//! Samples of a program, with the changes since the previous sample.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use mp_core::{Observer, ProcessState, Snapshot, WaitTimes};

use crate::programs::{Process, Program};
use crate::{Result, hang_proof, program_report};

/// Program that is sampled repeatedly, through one observer.
pub(super) struct LiveProgram {
    program: Program,
    observer: Observer,
    opened: Instant,
    before: Option<TopCounters>,
    /// Earlier snapshot with processes that wait in a cycle. A later snapshot can prove that the cycle can't
    /// end.
    cycle: Option<(Snapshot, Instant)>,
}

/// Age at which the earlier snapshot of a cycle is replaced, if no later snapshot has proved that the cycle
/// can't end.
const RENEWED_AFTER: Duration = Duration::from_secs(5);

impl LiveProgram {
    pub(super) fn open(program: Program) -> Result<Self> {
        let observer = program_report::open(&program)?;
        Ok(Self { program, observer, opened: Instant::now(), before: None, cycle: None })
    }

    /// Reads the program, or returns `None` if none of its processes lives.
    pub(super) fn sample(&mut self) -> Option<TopSample> {
        let (mut snapshot, at) = (self.observer.snapshot(), Instant::now());
        if snapshot.processes.iter().all(|process| process.state == ProcessState::Dead) {
            return None;
        }
        self.prove(&mut snapshot, at);
        let of = |pid| Process::at(pid, 0).unwrap_or_default();
        let stats: Vec<_> = snapshot.processes.iter().map(|process| of(process.pid)).collect();
        let counters = TopCounters::of(&snapshot, &stats, at);
        let mut sample = TopSample::new(snapshot, &stats, &counters, self.before.as_ref());
        sample.command.clone_from(&self.program.command);
        sample.root = self.program.root;
        sample.age_ms = self.program.age * 1000 + self.opened.elapsed().as_millis() as u64;
        self.before = Some(counters);
        Some(sample)
    }

    /// If processes wait in a cycle, marks exactly those waits of the snapshot as steady that an earlier
    /// snapshot confirms.
    fn prove(&mut self, snapshot: &mut Snapshot, at: Instant) {
        let cycles = hang_proof::hanging(snapshot);
        if cycles.is_empty() {
            self.cycle = None;
            return;
        }
        let (first, since) = self.cycle.get_or_insert_with(|| (snapshot.clone(), at));
        let mut next = (at.saturating_duration_since(*since) > RENEWED_AFTER).then(|| snapshot.clone());
        hang_proof::confirm(snapshot, first);
        if let Some(next) = next.take_if(|_| hang_proof::hanging(snapshot) != cycles) {
            self.cycle = Some((next, at));
        }
    }
}

/// Counters whose changes `top` shows.
pub(super) struct TopCounters {
    at: Instant,
    /// Starts of processes, and their processor times in clock ticks, by process ID.
    cpu: HashMap<u32, (u64, u64)>,
    /// Numbers of puts and gets, by block.
    queues: HashMap<u32, (u64, u64)>,
    /// Waits of puts and of gets, by block. Queues without waits are left out.
    waits: HashMap<u32, [WaitTimes; 2]>,
    /// Numbers of tasks with a result, by the block of the pool.
    done: HashMap<u32, u64>,
}

impl TopCounters {
    pub(super) fn of(snapshot: &Snapshot, stats: &[Process], at: Instant) -> Self {
        let processes = snapshot.processes.iter().zip(stats);
        let cpu = processes.map(|(process, stat)| (process.pid, (stat.started, stat.cpu)));
        let counts = |queue: &mp_core::QueueSnapshot| {
            let ring = queue.ring.as_ref()?;
            Some((queue.block, (ring.puts, ring.gets)))
        };
        let waits = |queue: &mp_core::QueueSnapshot| {
            let ring = queue.ring.as_ref()?;
            let waits = [ring.put_waits.clone(), ring.get_waits.clone()];
            waits.iter().any(|waits| waits.count() > 0).then_some((queue.block, waits))
        };
        Self {
            at,
            cpu: cpu.collect(),
            queues: snapshot.queues.iter().filter_map(counts).collect(),
            waits: snapshot.queues.iter().filter_map(waits).collect(),
            done: snapshot.pools.iter().map(|pool| (pool.block, pool.done)).collect(),
        }
    }

    /// Returns the share of a processor that a process has used since this sample, in percent.
    fn percent(&self, now: &Self, pid: u32) -> Option<f64> {
        let ((started, before), (same, after)) = (self.cpu.get(&pid)?, now.cpu.get(&pid)?);
        let ticks = after.checked_sub(*before).filter(|_| started == same)?;
        let seconds = ticks as f64 / rustix::param::clock_ticks_per_second().max(1) as f64;
        Some(100.0 * seconds / self.seconds(now)?)
    }

    /// Returns the puts and gets of a queue per second since this sample.
    fn rates(&self, now: &Self, block: u32) -> Option<(f64, f64)> {
        let ((puts, gets), (puts_now, gets_now)) = (self.queues.get(&block)?, now.queues.get(&block)?);
        // If a count is lower than before, the block now has another queue.
        let change = |before: &u64, after: &u64| u64::try_from(after.wrapping_sub(*before) as i64).ok();
        let seconds = self.seconds(now)?;
        Some((change(puts, puts_now)? as f64 / seconds, change(gets, gets_now)? as f64 / seconds))
    }

    /// Returns the waits of puts and of gets at a queue that have ended since this sample.
    fn waits(&self, now: &Self, block: u32) -> [WaitTimes; 2] {
        let Some(waits) = now.waits.get(&block) else { return Default::default() };
        match self.waits.get(&block) {
            Some([put, get]) => [waits[0].since(put), waits[1].since(get)],
            None => waits.clone(),
        }
    }

    /// Returns the tasks of a pool that were done per second since this sample.
    fn done_rate(&self, now: &Self, block: u32) -> Option<f64> {
        let done = now.done.get(&block)?.checked_sub(*self.done.get(&block)?)?;
        Some(done as f64 / self.seconds(now)?)
    }

    fn seconds(&self, now: &Self) -> Option<f64> {
        let seconds = now.at.saturating_duration_since(self.at).as_secs_f64();
        (seconds > 0.0).then_some(seconds)
    }
}

/// Sample of a program, as `top` shows it.
pub(super) struct TopSample {
    pub(super) command: String,
    pub(super) root: u32,
    pub(super) age_ms: u64,
    pub(super) snapshot: Snapshot,
    /// Processor time in percent, in the order of the processes.
    pub(super) cpu: Vec<Option<f64>>,
    /// Memory in bytes, in the order of the processes.
    pub(super) resident: Vec<u64>,
    /// Puts and gets per second, in the order of the queues.
    pub(super) rates: Vec<Option<(f64, f64)>>,
    /// Waits of puts and of gets that have ended, in the order of the queues.
    pub(super) waits: Vec<Option<[WaitTimes; 2]>>,
    /// Tasks done per second, in the order of the pools.
    pub(super) done_rates: Vec<Option<f64>>,
    /// Waits for each block: index of the process in the snapshot, and index of the wait in the process.
    waiters: HashMap<u32, Vec<(usize, usize)>>,
    /// Indices in the snapshot of the objects that are named, owned or waited for.
    pub(super) objects: Vec<usize>,
    /// Processes that wait for each other and can't continue.
    pub(super) hanging: BTreeSet<u32>,
}

impl TopSample {
    /// Creates a sample from a snapshot, and from the counters of this and of the previous sample.
    pub(super) fn new(
        snapshot: Snapshot,
        stats: &[Process],
        now: &TopCounters,
        before: Option<&TopCounters>,
    ) -> Self {
        let mut waiters: HashMap<u32, Vec<(usize, usize)>> = HashMap::new();
        for (i, process) in snapshot.processes.iter().enumerate() {
            for (j, wait) in process.waits.iter().enumerate() {
                wait.object.iter().for_each(|block| waiters.entry(*block).or_default().push((i, j)));
            }
        }
        let percent = |process: &mp_core::ProcessSnapshot| before?.percent(now, process.pid);
        let rates = |queue: &mp_core::QueueSnapshot| before?.rates(now, queue.block);
        let objects = snapshot.objects.iter().enumerate().filter(|(_, object)| {
            !object.name.is_empty() || object.owner.is_some() || waiters.contains_key(&object.block)
        });
        Self {
            command: String::new(),
            root: 0,
            age_ms: 0,
            cpu: snapshot.processes.iter().map(percent).collect(),
            resident: stats.iter().map(|stat| stat.resident).collect(),
            rates: snapshot.queues.iter().map(rates).collect(),
            objects: objects.map(|(i, _)| i).collect(),
            waits: snapshot.queues.iter().map(|queue| Some(before?.waits(now, queue.block))).collect(),
            done_rates: snapshot.pools.iter().map(|pool| before?.done_rate(now, pool.block)).collect(),
            hanging: hang_proof::hanging(&snapshot),
            waiters,
            snapshot,
        }
    }

    /// Returns the waits for a block: index of the process, and index of the wait in the process.
    pub(super) fn waits_for(&self, block: u32) -> &[(usize, usize)] {
        self.waiters.get(&block).map_or(&[], Vec::as_slice)
    }

    /// Returns the name of a process, or its ID.
    pub(super) fn name_of(&self, pid: u32) -> String {
        let process = self.snapshot.processes.iter().find(|process| process.pid == pid);
        let name = process.map(|process| process.name.clone()).filter(|name| !name.is_empty());
        name.unwrap_or_else(|| pid.to_string())
    }

    /// Returns the name of a queue or object, or its number.
    pub(super) fn block_name(&self, block: u32) -> String {
        let queue = self.snapshot.queues.iter().find(|queue| queue.block == block).map(|queue| &queue.name);
        let object = || self.snapshot.objects.iter().find(|object| object.block == block).map(|o| &o.name);
        let name = queue.or_else(object).filter(|name| !name.is_empty());
        name.map_or_else(|| format!("#{block}"), String::clone)
    }
}
