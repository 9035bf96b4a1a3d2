//! Workload with a pool. The process that owns the pool kills and stops its workers.
//!
//! | killed process | guarantee |
//! |---|---|
//! | a worker | at most its current task is lost: the task ends with [`WorkerLost`](mp::pool::WorkerLost), or another worker tries it again |
//! | the owner of the pool | the workers end with it; unfinished tasks are lost |
//! | none | each task runs once, and has the correct result |

use std::collections::HashSet;
use std::fs;

use mp::process::ExitStatus;
use mp::{AsyncResult, Message, Pool, TaskError};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

use crate::bookkeeping::board::Op;
use crate::bookkeeping::ledger::Ledger;
use crate::bookkeeping::parcel::{Job, Parcel};
use crate::random::{Random, mix};
use crate::rounds::copies;
use crate::workloads::work::Worker;

/// Number of worker processes of the pool.
pub(crate) const WORKERS: usize = 2;
/// Largest number of pending tasks.
pub(crate) const IN_POOL: u64 = 16;

/// Arguments of a task.
#[derive(Clone, Serialize, Deserialize)]
struct Task {
    job: Job,
    /// `true` if the task must not run a second time.
    once: bool,
    ledger: Ledger,
}

/// Result of a task.
#[derive(Message)]
struct TaskResult {
    worker: u32,
    parcel: Parcel,
}

/// Runs a task in a worker of the pool.
fn answer(task: Task) -> mp::AnyResult<TaskResult> {
    let Task { job, once, ledger } = task;
    ledger.got(job.number, once)?;
    job.check()?;
    let mut random = Random::new(mix(job.number));
    // Some tasks take a while, so that signals arrive during the task.
    for _ in 0..random.below(200) {
        std::thread::yield_now();
    }
    Ok(TaskResult { worker: std::process::id(), parcel: Parcel::answer(job, &mut random)? })
}

/// Sends a signal to a process, if it is a child of this process.
fn signal(pid: u32, signal: Signal) -> bool {
    let Some(raw) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return false };
    let Ok(fd) = pidfd_open(raw, PidfdFlags::empty()) else { return false };
    // The id may have been reused.
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let ours = format!("PPid:\t{}", std::process::id());
    status.lines().any(|line| line == ours) && pidfd_send_signal(&fd, signal).is_ok()
}

/// Largest number of workers that are killed before they have done a task. On a busy machine, killing workers
/// is faster than starting them, and a pool in which no worker ever becomes ready breaks, as it should.
const NEWCOMERS: u32 = 4;

/// Sender of signals to the workers of a pool.
#[derive(Default)]
pub(crate) struct Torment {
    /// Ids of killed workers whose death has not cost a task yet.
    killed: HashSet<u32>,
    /// Ids of workers that have done a task. Only these workers are stopped: a worker that is stopped before
    /// it is bound to its parent would remain forever if the parent is killed.
    begun: HashSet<u32>,
    /// Number of workers that were killed before they had done a task, since stopped workers were last
    /// continued.
    newcomers: u32,
    stopped: Vec<u32>,
}

impl Torment {
    pub(crate) fn go_on(&mut self, random: &mut Random, pids: &[u32]) {
        if random.percent(20) {
            self.let_go();
        }
        if pids.is_empty() || random.percent(80) {
            return;
        }
        let victim = random.pick(pids);
        // Read before the kill, because the worker's task may be lost at once.
        let begun = self.begun.contains(&victim);
        if random.percent(50) {
            if begun || self.newcomers < NEWCOMERS {
                self.newcomers += u32::from(!begun);
                self.killed.insert(victim);
                signal(victim, Signal::KILL);
            }
        } else if begun && signal(victim, Signal::STOP) {
            self.stopped.push(victim);
        }
    }

    /// Continues all stopped workers.
    pub(crate) fn let_go(&mut self) {
        self.stopped.drain(..).for_each(|pid| _ = signal(pid, Signal::CONT));
        self.newcomers = 0;
    }

    /// Records that this worker has done a task.
    pub(crate) fn has_done(&mut self, worker: u32) {
        self.begun.insert(worker);
    }
}

impl Worker {
    /// Runs tasks until the round has ended. `copies` is `true` if worker processes may be forked from this
    /// process.
    pub(crate) fn own_pool(&mut self, copies: bool) -> mp::AnyResult<()> {
        let method = self.random.pick(copies::methods(copies));
        let pool = Pool::builder().processes(WORKERS).start_method(method).build()?;
        let mut torment = Torment::default();
        loop {
            let tries = self.random.below(3) as u32;
            let mut results = Vec::new();
            for _ in 0..=self.random.below(IN_POOL) {
                let Some(number) = self.ledger.begin().filter(|_| !self.row.over()) else { break };
                self.row.note(Op::Submit, number);
                let job = Job::new(number, self.mark, &self.common, &mut self.random)?;
                let task = Task { job, once: tries == 0, ledger: self.ledger.clone() };
                results.push((number, pool.task(answer).retries(tries).apply_async(task)));
                self.ledger.put(number);
            }
            if results.is_empty() {
                break;
            }
            while !results.iter().all(|(_, result)| result.ready()) {
                torment.go_on(&mut self.random, &pool.pids());
                // sleep: the pace of the torture
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            torment.let_go();
            for (number, result) in results {
                self.collect(number, result, &mut torment)?;
            }
        }
        self.row.note(Op::Leave, 0);
        if self.random.percent(50) {
            pool.join()?;
        }
        Ok(())
    }

    fn collect(
        &mut self,
        number: u64,
        result: AsyncResult<TaskResult>,
        torment: &mut Torment,
    ) -> mp::AnyResult<()> {
        self.row.note(Op::Collect, number);
        match result.get() {
            Ok(TaskResult { worker, parcel }) if parcel.job.number == number => {
                torment.has_done(worker);
                parcel.check()?;
                self.ledger.done(number)
            }
            Ok(done) => Err(format!("torn: the result of {} for {number}", done.parcel.job.number).into()),
            Err(TaskError::WorkerLost(lost)) => {
                match lost.exit {
                    ExitStatus::Signal { signal: mp::process::Signal::KILL, .. }
                        if torment.killed.remove(&lost.pid) =>
                    {
                        self.ledger.lost(number)
                    }
                    _ => Err(format!("lost: task {number}: {lost}; it wasn't killed, or it had another one")
                        .into()),
                }
            }
            Err(error) => Err(format!("task {number}: {error}").into()),
        }
    }
}
