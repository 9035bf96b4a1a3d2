//! Server of mp's side, which reads names of rows from standard input, runs the rows in its worker processes,
//! and prints the figures.
//!
//! Each answer is lines of JSON: rows, notes (`{"note": …}`), and at last `{"done": row}` or
//! `{"failed": row, "why": …}`. After a failure, the workers are ended, and new workers are started for the
//! next row.

use std::io::{BufRead, Write};
use std::time::{Duration, Instant};

use mp::cuda::CudaEvent;
use mp::queue::Spin;
use mp::{AnyResult, Arena, GetError, Process, PutError, Queue, QueueOptions};
use serde_json::json;

use crate::cuda::row::Row;
use crate::cuda::worker::{DEADLINE, Figures, Job, Numbers, Reply, ensure, put, taken, worker};

/// Number of permanent workers: a maker, a relay, a taker, an observer of the device's memory, and one more
/// receiver.
const WORKERS: usize = 5;
const OBSERVER: usize = 3;
/// Bytes of 1 MiB.
const MIB: usize = 1 << 20;

/// Process and its two queues.
struct Worker {
    process: Process<()>,
    jobs: Queue<Job>,
    replies: Queue<Reply>,
}

impl Worker {
    fn start() -> AnyResult<Self> {
        let (jobs, replies) = (Queue::bounded(4)?, Queue::bounded(4)?);
        let process = Process::builder().daemon(true).spawn(worker, (jobs.clone(), replies.clone()))?;
        Ok(Self { process, jobs, replies })
    }

    fn ask(&self, job: Job) -> AnyResult<()> {
        put(&self.jobs, job)
    }

    fn reply_within(&self, time: Duration) -> AnyResult<Figures> {
        let deadline = Instant::now() + time;
        loop {
            match self.replies.get_timeout(Duration::from_millis(100)) {
                Ok(Some(reply)) => return Ok(reply?),
                Ok(None) => return Err("a worker's queue was closed".into()),
                Err(GetError::Empty) => {}
                Err(error) => return Err(error.into()),
            }
            ensure!(self.process.is_alive(), "a worker has ended: {:?}", self.process.exit());
            ensure!(Instant::now() < deadline, "a worker didn't answer within {time:?}");
        }
    }

    fn reply(&self) -> AnyResult<Figures> {
        self.reply_within(2 * DEADLINE)
    }

    /// Ends the worker by closing its queue, and kills it if it doesn't end.
    fn end(self) -> AnyResult<()> {
        self.jobs.close();
        if !self.process.wait_timeout(Duration::from_secs(8)) {
            self.process.kill()?;
            return Err("a worker didn't end within 8 s, and was killed".into());
        }
        Ok(self.process.join()?)
    }
}

/// Returns the figures with this name.
fn of(said: &Figures, name: &str) -> AnyResult<Vec<f64>> {
    let found = said.iter().find(|(n, _)| n == name);
    found.map(|(_, values)| values.clone()).ok_or_else(|| format!("no figures {name}").into())
}

fn first(said: &Figures, name: &str) -> AnyResult<f64> {
    of(said, name)?.first().copied().ok_or_else(|| format!("no figure {name}").into())
}

fn last(said: &Figures, name: &str) -> AnyResult<f64> {
    of(said, name)?.last().copied().ok_or_else(|| format!("no figure {name}").into())
}

/// Converts nanoseconds to microseconds.
fn us(all: &[f64]) -> Vec<f64> {
    all.iter().map(|ns| ns / 1000.0).collect()
}

fn line(value: &serde_json::Value) {
    println!("{value}");
    _ = std::io::stdout().flush();
}

fn note(text: &str) {
    line(&json!({ "note": text }));
}

/// Workers of mp's side, and its settings.
struct Server {
    workers: Vec<Worker>,
    quick: bool,
    /// State of the generator of random times.
    random: u64,
}

/// Runs the server until its standard input ends.
pub(crate) fn serve(quick: bool) -> AnyResult<()> {
    let mut server = Server { workers: Vec::new(), quick, random: crate::cuda::gpu::now() | 1 };
    server.workers()?;
    line(&json!({"ready": "mp"}));
    for command in std::io::stdin().lock().lines() {
        let command = command?;
        let mut words = command.split_whitespace();
        let (Some(name), round) = (words.next(), words.next()) else { continue };
        let round = round.and_then(|round| round.parse().ok()).unwrap_or(1);
        match server.row(name, round) {
            Ok(()) => line(&json!({"done": name})),
            Err(error) => {
                line(&json!({"failed": name, "why": error.to_string()}));
                server.drop_workers();
            }
        }
    }
    for worker in server.workers {
        worker.end()?;
    }
    Ok(())
}

impl Server {
    /// Returns the permanent workers, started and with a context.
    fn workers(&mut self) -> AnyResult<&[Worker]> {
        if self.workers.is_empty() {
            self.workers = (0..WORKERS).map(|_| Worker::start()).collect::<AnyResult<_>>()?;
            for worker in &self.workers {
                worker.ask(Job::Start)?;
            }
            for worker in &self.workers {
                worker.reply()?;
            }
        }
        Ok(&self.workers)
    }

    fn drop_workers(&mut self) {
        for worker in self.workers.drain(..) {
            _ = worker.process.kill();
            _ = worker.process.wait_timeout(Duration::from_secs(2));
        }
    }

    /// Returns `many`, or `few` for a quick run.
    fn count(&self, many: usize, few: usize) -> usize {
        if self.quick { few } else { many }
    }

    fn row(&mut self, name: &str, round: usize) -> AnyResult<()> {
        self.workers()?;
        match name {
            "kernel_floor" => self.kernel_floor(),
            "cpu_round_trip" => self.cpu_round_trip(),
            "two_streams" => self.two_streams(),
            "switch_floor" => self.switch_floor(),
            "warm_4k" => self.warm("warm_4k", 1024, false),
            "warm_64m" => self.warm("warm_64m", 16 * MIB, false),
            "ready_4k" => self.warm("ready_4k", 1024, true),
            "cold" => self.cold(),
            "same_2000" => self.frozen("same_2000", (1024, 1024), self.count(2000, 200), false),
            "views_1000" => self.frozen("views_1000", (1000, 1024), self.count(1000, 200), true),
            "event_hop" => self.event_hop(),
            "alloc_free" => self.alloc_free(),
            "reuse" => self.reuse(),
            "broadcast_4" => self.broadcast(),
            "relay" => self.relay("relay", self.count(10_000, 500), &[]),
            "relay_memory" => {
                let count = self.count(100_000, 2_000);
                let marks = if self.quick { [200, 1_000, count - 100] } else { [1_000, 10_000, count - 100] };
                self.relay("relay_100000", count, &marks)
            }
            "killed" => self.killed(),
            _ => Err(format!("there is no row {name} (round {round})").into()),
        }
    }

    /// Prints a row.
    fn report(&self, row: &str, who: &str, unit: &str, samples: &[f64]) -> AnyResult<()> {
        let row = Row::of(row, who, unit, samples).ok_or_else(|| format!("no samples of {row}"))?;
        line(&serde_json::to_value(row)?);
        Ok(())
    }

    fn free(&self) -> AnyResult<f64> {
        let observer = &self.workers[OBSERVER];
        observer.ask(Job::Free)?;
        first(&observer.reply()?, "free")
    }

    /// Waits until this much memory is free, for at most `time`. Returns the free memory.
    fn free_at_least(&self, wanted: f64, time: Duration) -> AnyResult<f64> {
        let deadline = Instant::now() + time;
        loop {
            let free = self.free()?;
            if free >= wanted || Instant::now() > deadline {
                return Ok(free);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn kernel_floor(&self) -> AnyResult<()> {
        self.workers[2].ask(Job::Floor { warm: 50, count: self.count(1000, 50) })?;
        self.report("kernel_floor", "mp", "us", &us(&of(&self.workers[2].reply()?, "ns")?))
    }

    fn cpu_round_trip(&self) -> AnyResult<()> {
        let (there, back) = (Numbers::bounded(4)?, Numbers::bounded(4)?);
        let (warm, count) = (100, self.count(5000, 100));
        self.workers[1].ask(Job::Pong { from: there.clone(), to: back.clone(), count: warm + count })?;
        self.workers[0].ask(Job::Ping { to: there, from: back, warm, count })?;
        let said = self.workers[0].reply()?;
        self.workers[1].reply()?;
        self.report("cpu_round_trip", "mp", "us", &us(&of(&said, "ns")?))
    }

    fn two_streams(&self) -> AnyResult<()> {
        for (who, driver) in [("mp", false), ("driver", true)] {
            self.workers[0].ask(Job::TwoStreams { warm: 50, count: self.count(500, 20), driver })?;
            self.report("two_streams", who, "us", &us(&of(&self.workers[0].reply()?, "ns")?))?;
        }
        Ok(())
    }

    /// Runs exchanges of new tensors between two workers.
    fn exchange(
        (maker, taker): (&Worker, &Worker),
        elements: usize,
        (warm, count): (usize, usize),
        (spin, ready): (Spin, bool),
    ) -> AnyResult<(Figures, Figures)> {
        let (to, acks) = (QueueOptions::new().capacity(4).spin(spin).create()?, Numbers::bounded(4)?);
        taker.ask(Job::Take { from: to.clone(), acks: acks.clone(), warm, count })?;
        maker.ask(Job::Make { to, acks, elements, warm, count, ready })?;
        let taken = taker.reply();
        Ok((maker.reply()?, taken?))
    }

    fn warm(&self, name: &str, elements: usize, ready: bool) -> AnyResult<()> {
        let counts = (self.count(50, 10), self.count(300, 20));
        let pair = (&self.workers[0], &self.workers[2]);
        for (who, spin) in [("mp", Spin::Adaptive), ("mp_busy", Spin::Busy)] {
            let (_, taken) = Self::exchange(pair, elements, counts, (spin, ready))?;
            for (what, row) in [("done", ""), ("launched", "_launched"), ("got", "_got")] {
                self.report(&format!("{name}{row}"), who, "us", &us(&of(&taken, what)?))?;
            }
        }
        Ok(())
    }

    /// Measures the time for a device to switch to the kernel of another process. Each kernel is launched and
    /// awaited by its process.
    fn switch_floor(&self) -> AnyResult<()> {
        let count = self.count(300, 20);
        let (there, back) = (Numbers::bounded(4)?, Numbers::bounded(4)?);
        self.workers[2].ask(Job::Switch { from: there.clone(), to: back.clone(), count })?;
        self.workers[0].ask(Job::Switch { from: back.clone(), to: there.clone(), count })?;
        there.put(0)?;
        let said = self.workers[0].reply()?;
        self.workers[2].reply()?;
        self.report("switch_floor", "mp", "us", &us(&of(&said, "ns")?))
    }

    /// Measures the first tensor between two processes that have a context and no slab.
    fn cold(&self) -> AnyResult<()> {
        let pair = (Worker::start()?, Worker::start()?);
        pair.0.ask(Job::Start)?;
        pair.1.ask(Job::Start)?;
        pair.0.reply()?;
        pair.1.reply()?;
        let (made, taken) = Self::exchange((&pair.0, &pair.1), 1024, (0, 1), (Spin::Adaptive, false))?;
        pair.1.end()?;
        pair.0.end()?;
        self.report("cold", "mp", "us", &us(&of(&taken, "done")?))?;
        let all = first(&taken, "ends")? - first(&made, "began")?;
        self.report("cold_with_allocation", "mp", "us", &us(&[all]))
    }

    fn frozen(
        &self,
        name: &str,
        (rows, columns): (usize, usize),
        count: usize,
        views: bool,
    ) -> AnyResult<()> {
        let to = Queue::bounded(64)?;
        self.workers[2].ask(Job::GetFrozen { from: to.clone(), count })?;
        self.workers[0].ask(Job::SendFrozen { to, rows, columns, count, views })?;
        let (got, sent) = (self.workers[2].reply(), self.workers[0].reply()?);
        let got = got?;
        let expected: Vec<f64> =
            (99..count).step_by(100).map(|i| if views { 64.0 * (i % rows) as f64 } else { 0.0 }).collect();
        let sums = of(&got, "sums")?;
        ensure!(sums == expected, "{name}: the sums are {sums:?} instead of {expected:?}");
        let each = (first(&got, "ended")? - first(&sent, "began")?) / count as f64;
        self.report(name, "mp", "us", &us(&[each]))
    }

    fn event_hop(&self) -> AnyResult<()> {
        let tensors = Queue::bounded(1)?;
        self.workers[0].ask(Job::HopTensor { to: tensors.clone() })?;
        self.workers[0].reply()?;
        let values = taken(&tensors)?;
        let (events, turns) =
            ([CudaEvent::new()?, CudaEvent::new()?], [Numbers::bounded(4)?, Numbers::bounded(4)?]);
        let hops = self.count(1000, 20);
        for (worker, me) in [(&self.workers[0], 0), (&self.workers[2], 1)] {
            let (mine, others) = (events[me].clone(), events[1 - me].clone());
            let (from, to) = (turns[me].clone(), turns[1 - me].clone());
            worker.ask(Job::Hop { values: values.clone(), mine, others, from, to, hops, reads: me == 1 })?;
        }
        std::thread::sleep(Duration::from_millis(20));
        let began = crate::cuda::gpu::now() as f64;
        put(&turns[0], 0)?;
        let (a, b) = (self.workers[0].reply(), self.workers[2].reply()?);
        a?;
        // The second worker has the last hop.
        let value = last(&b, "value")?;
        ensure!(value == 2.0 * hops as f64, "{value} after {} hops", 2 * hops);
        let each = (last(&b, "times")? - began) / (2 * hops) as f64;
        self.report("event_hop", "mp", "us", &us(&[each]))
    }

    fn alloc_free(&self) -> AnyResult<()> {
        let (rounds, each) = (self.count(20, 3), self.count(200, 20));
        for (who, driver) in [("mp", false), ("driver_async", true)] {
            self.workers[0].ask(Job::AllocFree { bytes: MIB, rounds, each, driver })?;
            self.report("alloc_free", who, "us", &us(&of(&self.workers[0].reply()?, "ns")?))?;
        }
        Ok(())
    }

    fn reuse(&self) -> AnyResult<()> {
        let count = self.count(1000, 120);
        let pair = (&self.workers[0], &self.workers[2]);
        let (made, _) = Self::exchange(pair, 4 * MIB, (0, count), (Spin::Adaptive, false))?;
        let reserved = of(&made, "reserved")?;
        note(&format!("reuse: bytes reserved after 10, 100 and {count} exchanges of 16 MiB: {reserved:?}"));
        self.report("reuse_reserved", "mp", "bytes", &reserved[reserved.len() - 1..])?;
        ensure!(reserved[1..].iter().all(|bytes| *bytes <= reserved[0]), "it grew: {reserved:?}");
        Ok(())
    }

    fn broadcast(&self) -> AnyResult<()> {
        let (warm, count) = (self.count(20, 3), self.count(100, 5));
        let acks = Numbers::bounded(8)?;
        let to = (1..WORKERS).map(|_| Queue::bounded(4)).collect::<Result<Vec<_>, _>>()?;
        for (worker, from) in self.workers[1..].iter().zip(&to) {
            worker.ask(Job::Receive { from: from.clone(), acks: acks.clone(), count: warm + count })?;
        }
        self.workers[0].ask(Job::Broadcast { to, acks, elements: 16 * MIB, warm, count })?;
        let replies: Vec<_> = self.workers[1..].iter().map(Worker::reply).collect();
        let said = self.workers[0].reply()?;
        replies.into_iter().collect::<AnyResult<Vec<_>>>()?;
        self.report("broadcast_4", "mp", "us", &us(&of(&said, "ns")?))
    }

    /// Measures a relay through three processes. With `marks`, also measures the memory after these numbers
    /// of tensors.
    fn relay(&self, name: &str, count: usize, marks: &[usize]) -> AnyResult<()> {
        let (one, two) = (Queue::bounded(16)?, Queue::bounded(16)?);
        let (reported, go) = (Numbers::bounded(4)?, Numbers::bounded(4)?);
        let take = Job::RelayTake {
            from: two.clone(),
            marks: marks.to_vec(),
            reported: reported.clone(),
            go: go.clone(),
            count,
        };
        self.workers[2].ask(take)?;
        self.workers[1].ask(Job::Relay { from: one.clone(), to: two, count })?;
        self.workers[0].ask(Job::RelayMake { to: one, count })?;
        let mut there = Vec::new();
        for mark in marks {
            let found = reported.get_timeout(3 * DEADLINE)?;
            ensure!(found == Some(*mark as u64), "{found:?} instead of {mark}");
            there.push(self.there()?);
            note(&format!("{name}: after {mark} tensors {:?}", there[there.len() - 1]));
            put(&go, 0)?;
        }
        let taken = self.workers[2].reply_within(3 * DEADLINE);
        let (made, relayed) = (self.workers[0].reply(), self.workers[1].reply());
        let (taken, made) = (taken?, made?);
        relayed?;
        let time = last(&taken, "ended")? - first(&made, "began")? - first(&taken, "paused")?;
        self.report(name, "mp", "1/s", &[count as f64 / time * 1e9])?;
        if let [first, .., last] = &there[..] {
            let grown = first.free as f64 - last.free as f64;
            self.report("relay_device_growth", "mp", "bytes", &[grown])?;
            self.report("relay_arena_growth", "mp", "bytes", &[last.arena as f64 - first.arena as f64])?;
            let more =
                first.anonymous.iter().zip(&last.anonymous).map(|(a, b)| 1024.0 * (*b as f64 - *a as f64));
            self.report("relay_rss_growth", "mp", "bytes", &more.collect::<Vec<_>>())?;
            ensure!(last.free >= first.free, "memory of the device: {there:?}");
            ensure!(last.arena <= first.arena + (1 << 20), "memory of the arena: {there:?}");
            let flat = first.anonymous.iter().zip(&last.anonymous).all(|(a, b)| *b <= a + 4096);
            ensure!(flat, "memory of the processes: {there:?}");
        }
        Ok(())
    }

    fn there(&self) -> AnyResult<MemoryUse> {
        let anonymous = |worker: &Worker| -> AnyResult<u64> {
            let status = std::fs::read_to_string(format!("/proc/{}/status", worker.process.pid()))?;
            let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).ok_or("no RssAnon")?;
            Ok(line.trim().trim_end_matches(" kB").parse()?)
        };
        Ok(MemoryUse {
            free: self.free()? as u64,
            arena: Arena::current()?.memory_stats().allocated,
            anonymous: self.workers[..3].iter().map(anonymous).collect::<AnyResult<_>>()?,
        })
    }

    /// Returns a random time of 20 to 60 ms.
    fn moment(&mut self) -> Duration {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        Duration::from_micros(20_000 + self.random % 40_000)
    }

    fn killed(&mut self) -> AnyResult<()> {
        let rounds = self.count(10, 2);
        let began = Instant::now();
        let (mut held, mut left) = (Vec::new(), Vec::new());
        for round in 1..=rounds {
            if began.elapsed() > Duration::from_secs(30) {
                note(&format!("killed: stopped before round {round} of {rounds}, since 30 s are over"));
                break;
            }
            let moment = self.moment();
            let (alive, ended) = self.killed_once(round, moment)?;
            held.push(alive);
            left.push(ended);
        }
        self.report("killed_survivor_holds", "mp", "bytes", &held)?;
        self.report("killed_left", "mp", "bytes", &left)?;
        ensure!(left.iter().all(|bytes| *bytes == 0.0), "bytes that were left: {left:?}");
        Ok(())
    }

    /// Kills one of two processes. Returns two numbers of bytes: memory that the surviving process has in
    /// addition to its context, and memory that is left when both processes have ended.
    fn killed_once(&self, round: usize, moment: Duration) -> AnyResult<(f64, f64)> {
        let before = self.free()?;
        let survivor = Worker::start()?;
        survivor.ask(Job::Start)?;
        survivor.reply()?;
        let with_survivor = self.free()?;
        let victim = Worker::start()?;
        victim.ask(Job::Start)?;
        victim.reply()?;
        let kills_producer = round % 2 == 1;
        let tensors = Queue::bounded(4)?;
        let (begun, stop) = (Numbers::bounded(4)?, Numbers::bounded(4)?);
        let (producer, consumer) = if kills_producer { (&victim, &survivor) } else { (&survivor, &victim) };
        consumer.ask(Job::Drain { from: tensors.clone(), begun: begun.clone(), stop: stop.clone() })?;
        producer.ask(Job::Stream { to: tensors.clone(), begun: begun.clone(), stop: stop.clone() })?;
        taken(&begun)?;
        taken(&begun)?;
        std::thread::sleep(moment);
        victim.process.kill()?;
        ensure!(
            victim.process.wait_timeout(Duration::from_secs(5)),
            "a killed process didn't end within 5 s"
        );
        stop.put_timeout(0, DEADLINE).map_err(PutError::forget)?;
        let said = survivor.reply()?;
        while let Ok(Some(tensor)) = tensors.try_get() {
            drop(tensor);
        }
        drop((tensors, victim));
        let alive = self.free_at_least(with_survivor, Duration::from_secs(1))?;
        survivor.end()?;
        let ended = self.free_at_least(before, Duration::from_secs(5))?;
        let who = if kills_producer { "producer" } else { "consumer" };
        note(&format!(
            "killed {round}: the {who} after {moment:?}; a context takes {} bytes; the survivor holds {}, \
             in the end {} are left; it says {said:?}",
            before - with_survivor,
            with_survivor - alive,
            before - ended
        ));
        Ok((with_survivor - alive, before - ended))
    }
}

/// Memory while the three processes of a relay run: free device memory, size of the arena in bytes, and
/// anonymous memory of each process in KiB.
#[derive(Debug)]
struct MemoryUse {
    free: u64,
    arena: u64,
    anonymous: Vec<u64>,
}
