//! The pool's thread: receives replies and deaths, replaces workers, enforces time limits, and shuts the pool
//! down.
//!
//! All replies arrive through one queue, in the order in which they were sent. The death of a worker arrives
//! as an event from the thread that reaps processes. Before the thread handles an event, it takes all replies
//! that were sent before. So all answers of a worker are known when its death is handled, and the tasks in
//! its queue were not begun. For the chunk that was begun and not answered, the worker's words in shared
//! memory contain the rest: unsent results, the running task, and the tasks that were not begun.
//!
//! | phase | tasks | a worker that dies | the pool has ended |
//! |---|---|---|---|
//! | open | are accepted and assigned | is replaced | |
//! | closed | are assigned, no more are accepted | is replaced while there are tasks | when the last task is settled and the workers, whose queues are then closed, have ended |
//! | terminating, broken | are settled with an error at once | is not replaced | when all workers have ended: their queues are closed, and idle workers end; busy ones get the finish period, SIGTERM, the grace period, SIGKILL; or ten seconds after the SIGKILL, if a worker does not obey it |

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mp_core::pauses::PauseDetector;
use mp_queue::GetError;
use mp_reduce::Unread;
use mp_spawn::{CallFailure, ExitStatus, FailureReports, ProcessName, ProcessStatus, SpawnError};

use crate::child::message::{ManyValues, PoolReply, SingleValue, TaskReply, WorkerRequest};
use crate::dispatcher::retry::FailedTask;
use crate::dispatcher::settlements::{
    Settlements, cut_if_cancelled, report_items, report_journal, take_apart,
};
use crate::dispatcher::shared::{PoolShared, WorkerExit};
use crate::dispatcher::shutdown::Shutdown;
use crate::dispatcher::start::{
    WorkerDeath, list_in_dumps, not_started, report_failed_starts, start, why_not_ready, without_process_name,
};
use crate::error::{Attempts, BrokenPool, EncodeError, PoolError, TaskError, TaskRaised, WorkerLost};
use crate::slots::slot::NO_CODE;
use crate::slots::start_backoff::back_off;
use crate::tasks::chunk::ReadyChunk;
use crate::tasks::outcome_run::{OutcomeData, OutcomeRun};

/// Maximum number of replies that are taken at once.
const REPLIES: usize = 64;
/// Number of consecutive workers that may die while they read a function. Each further death costs a task,
/// because the function may cause the deaths.
const MOST_DEATHS: u32 = 4;
/// Maximum sleep of this thread while the pool has no worker, or while the program has not acknowledged an
/// interrupt.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum sleep of this thread while the pool has a worker and no interrupt waits for an acknowledgement.
/// Events wake the thread, except a death for whose report no message can be allocated.
const LONG: Duration = Duration::from_secs(1);

pub(crate) struct Dispatcher {
    pub(super) shared: Arc<PoolShared>,
    pub(super) shutdown: Shutdown,
    /// Last reason why a worker could not be started.
    why: String,
    cause: Option<SpawnError>,
    deaths: FailureReports,
    /// `true` if a worker has become ready.
    has_ready: bool,
    pub(super) pauses: PauseDetector,
    /// Start of the time by which deadlines were not moved yet: the end of this thread's last sleep, or the
    /// last call of [`excuse_work`](Dispatcher::excuse_work).
    pub(super) awake_since: Instant,
    /// Ends of this thread's recent pauses on the clock of [`clock::now`], in nanoseconds, and their
    /// durations.
    pub(super) paused: VecDeque<(u64, Duration)>,
}

impl Dispatcher {
    pub(crate) fn new(shared: Arc<PoolShared>) -> Dispatcher {
        list_in_dumps(&shared);
        Dispatcher {
            shared,
            shutdown: Shutdown::NotStarted,
            why: String::new(),
            cause: None,
            deaths: FailureReports::default(),
            has_ready: false,
            pauses: PauseDetector::default(),
            awake_since: Instant::now(),
            paused: VecDeque::new(),
        }
    }

    /// Runs until the pool has ended. If this function panics, callers are woken nevertheless.
    pub(crate) fn run(self) {
        let shared = Arc::clone(&self.shared);
        // Set once: a pool has one such thread.
        _ = shared.thread.set(std::thread::current().id());
        if CallFailure::catch(|| self.serve()).is_err() {
            shared.break_with_reason("the thread of the pool has panicked");
        }
        // Workers exist here only after a panic, or if a worker survives the SIGKILL in an uninterruptible
        // system call.
        let mut settled = Settlements::new(&shared);
        let mut ended = Vec::new();
        let calls = {
            let mut state = shared.state.lock();
            for worker in &mut state.workers {
                worker.kill();
                ended.extend(worker.process.take());
                worker.bury().0.into_iter().for_each(|chunk| settled.add(chunk, TaskError::Terminated));
            }
            let (calls, chunks) = state.tasks.take_all();
            settled.add_chunks(chunks, &TaskError::Terminated);
            calls
        };
        settled.deliver();
        drop((ended, calls));
        shared.release_startup();
        #[cfg(feature = "net")]
        shared.places.release();
        shared.state.lock().over = true;
        shared.changed.notify_all();
    }

    fn serve(mut self) {
        let mut replies = Vec::with_capacity(REPLIES);
        while !self.shutdown.is_over(&self.shared) {
            let (until, shortest) = self.next_deadline();
            // Callers receive an interrupt of this process. The pool's thread ignores it unless the pool is
            // to be notified.
            if self.shared.handles_interrupts() && !mp_core::interrupted() {
                self.receive_replies((until, shortest), &mut replies);
            } else {
                mp_core::with_interrupts_masked(|| self.receive_replies((until, shortest), &mut replies));
            }
            mp_core::with_interrupts_masked(|| self.handle_events((until, shortest), &mut replies));
        }
    }

    fn handle_events(
        &mut self,
        (until, shortest): (Option<Instant>, Option<Duration>),
        replies: &mut Vec<PoolReply>,
    ) {
        let interrupted = self.shared.is_interrupted();
        if interrupted {
            self.shared.interrupt();
        }
        let died = self.reap_dead_workers(replies);
        if died {
            // Other workers run the lost tasks, and don't wait for the starts.
            self.shared.feed();
        }
        // Skipped without such an event, so that short tasks don't pay for this work.
        if interrupted || died || until.is_some_and(|until| until <= Instant::now()) {
            // An answer that has arrived ends a time limit.
            for _ in 0..=self.shared.replies.len() / REPLIES {
                if self.shared.replies.try_get_many(replies, REPLIES).is_ok_and(|count| count > 0) {
                    self.handle_replies(replies);
                }
            }
            let now = Instant::now();
            if let Some(shortest) = shortest {
                self.excuse_work(now, shortest);
            }
            self.enforce_time_limits(now);
            self.read_journals();
            self.relieve_slow_workers();
            self.shared.dismiss_surplus();
            let gone = self.shared.state.lock().remove_slots();
            drop(gone);
            self.restart();
            self.shared.state.lock().tasks.retry_due(Instant::now());
        }
        #[cfg(feature = "net")]
        if (died || std::mem::take(&mut self.has_ready)) && self.shared.settings.cluster.is_some() {
            self.has_ready = !self.shared.move_workers();
        }
        self.forget_unused_functions();
        self.shared.feed();
        self.shutdown.advance(&self.shared);
    }

    /// Waits for replies and other events.
    fn receive_replies(
        &mut self,
        (until, shortest): (Option<Instant>, Option<Duration>),
        replies: &mut Vec<PoolReply>,
    ) {
        // A death may be reported without a message, if memory for one was unavailable.
        let far = || {
            // After an interrupt, checks often whether the program has acknowledged it: from then on, the
            // next interrupt counts.
            Instant::now() + if self.shared.is_interrupted() { POLL_INTERVAL } else { LONG }
        };
        let until = until.map_or_else(far, |until| until.min(far()));
        let until = match shortest {
            Some(shortest) => self.begin_watch(until, shortest),
            None => until,
        };
        match self.shared.replies.get_many_deadline(replies, REPLIES, until) {
            Ok(_) => {}
            Err(GetError::Empty | GetError::Interrupted) => {}
            Err(GetError::Deserted { .. }) => {
                // No worker exists, so only this process can cause events.
                let mut events = self.shared.events.lock();
                if events.is_empty() {
                    let next = Instant::now() + POLL_INTERVAL;
                    self.shared.event_added.wait_until(&mut events, until.min(next));
                }
            }
            Err(error) => self.shared.break_with_reason(error.to_string()),
        }
        self.note_pause();
        self.handle_replies(replies);
    }

    /// Handles replies.
    fn handle_replies(&mut self, replies: &mut Vec<PoolReply>) {
        if replies.is_empty() {
            return;
        }
        let mut settled = Settlements::new(&self.shared);
        let now = Instant::now();
        let mut state = self.shared.state.lock();
        let mut answered = vec![0_u32; state.workers.len()];
        // For each worker with replies: number of tasks that it answers one by one, and duration of the tasks
        // that it answers together.
        let mut heard = vec![None; state.workers.len()];
        for (worker, took) in replies.iter().filter_map(PoolReply::duration) {
            if let Some(heard) = heard.get_mut(worker) {
                let (alone, nanos) = heard.unwrap_or((0_u32, 0_u64));
                *heard = Some(took.map_or((alone + 1, nanos), |took| (alone, nanos.saturating_add(took))));
            }
        }
        for reply in replies.drain(..) {
            let (number, id, item, outcome) = match reply {
                PoolReply::Wake => continue,
                PoolReply::FunctionChanged { worker, code } => {
                    if let Some(worker) = state.workers.get_mut(worker) {
                        worker.function_changed(code);
                    }
                    state.reader_deaths.remove(&code);
                    continue;
                }
                PoolReply::Ready { worker, pid } => {
                    if let Some(worker) = state.workers.get_mut(worker).filter(|worker| worker.pid == pid) {
                        worker.mark_ready(now);
                        self.has_ready = true;
                    }
                    continue;
                }
                PoolReply::StateReset { worker } => {
                    state.reset_worker_state(worker, now);
                    continue;
                }
                PoolReply::Outcome { worker, id, item, outcome } => (worker, id, item, outcome),
            };
            if let TaskReply::Returned { count, arguments } = outcome {
                state.take_returned((number, id), item..item + count, arguments, &mut settled);
                continue;
            }
            let Some(worker) = state.workers.get_mut(number) else { continue };
            let (pid, since) = (worker.pid, worker.since);
            let Some(chunk) = worker.chunk(id) else { continue };
            let (mut count, mut took) = (1, None);
            if let TaskReply::Results { nanos, values: ManyValues::Received(many) } = &outcome {
                (count, took) = (many.count, Some(Duration::from_nanos(*nanos)));
                chunk.job.record_duration(*nanos, count);
            }
            let who = || ProcessName::new(Some(number), self.shared.settings.worker_name(number), pid);
            let Some(data) = outcome_data(outcome, chunk.reported.saturating_sub(item), who) else {
                continue;
            };
            // Replies that arrive together have the same arrival time. Most contain their duration, and the
            // others share the remaining time.
            let rest = || {
                let (alone, nanos) = heard[number].unwrap_or_default();
                now.saturating_duration_since(since).saturating_sub(Duration::from_nanos(nanos))
                    / alone.max(1)
            };
            let run_time = took.map_or_else(rest, |took| took / u32::try_from(count).unwrap_or(1).max(1));
            report_items(chunk, item, (count, Some(run_time)), data, &mut settled);
            cut_if_cancelled(worker, id, &mut settled);
            if let Some(chunk) = worker.finish_chunk(id) {
                answered[number] += 1;
                settled.drop_later(chunk);
            }
        }
        // Updated last: all work in these replies was done since the previous replies.
        for (number, worker) in state.workers.iter_mut().enumerate().filter(|(n, _)| heard[*n].is_some()) {
            if answered[number] > 0 {
                worker.record_pace(answered[number], now);
            }
            worker.record_reply(now);
        }
        drop(state);
        settled.deliver();
    }

    /// Handles the ends of workers, and settles their tasks. Returns `true` if any worker had ended.
    fn reap_dead_workers(&mut self, replies: &mut Vec<PoolReply>) -> bool {
        let events = std::mem::take(&mut *self.shared.events.lock());
        if events.is_empty() {
            return false;
        }
        // Answers before the death are handled first.
        while self.shared.replies.try_get_many(replies, REPLIES).is_ok_and(|count| count > 0) {
            self.handle_replies(replies);
        }
        for event in events {
            self.bury(event);
        }
        true
    }

    fn bury(&mut self, WorkerExit { worker: number, pid }: WorkerExit) {
        let shared = Arc::clone(&self.shared);
        let mut settled = Settlements::new(&shared);
        let mut state = shared.state.lock();
        let (end, is_wanted) = (state.phase.error(), number < state.wanted);
        let Some(worker) = state.workers.get_mut(number).filter(|worker| worker.pid == pid) else { return };
        let Some(process) = worker.process.take() else { return };
        let (was_ready, returned) = (worker.ready, std::mem::take(&mut worker.start_timed_out));
        let (condemned, asked_to_leave) = (worker.condemned.take(), worker.asked_to_leave);
        let mut recalled = worker.recall_all(true);
        let (chunks, reading) = worker.bury();
        let mut lost = Vec::new();
        for chunk in chunks {
            let rest = take_apart(worker, chunk, condemned, &mut lost, &mut settled);
            recalled.splice(0..0, rest.map(ReadyChunk::unpacked));
        }
        let note = worker.shared_words.note();
        worker.shared_words.clear();
        let exit = process.exit().unwrap_or(ExitStatus::Unknown);
        let mut failure = match process.status() {
            ProcessStatus::Failed(error) => Some(error),
            _ => None,
        };
        match &mut failure {
            Some(SpawnError::ProcessRaised(raised)) => raised.who.rank = Some(number),
            Some(SpawnError::ProcessExited(exited)) => exited.who.rank = Some(number),
            _ => {}
        }
        let mut report = false;
        // A worker that died before it took any task would otherwise be replaced endlessly without delay.
        let was_given = reading.is_some() && !recalled.is_empty();
        let had_tasks = std::mem::take(&mut worker.had_tasks) || was_given || !lost.is_empty();
        if was_ready {
            worker.idle_deaths = if had_tasks || asked_to_leave { 0 } else { worker.idle_deaths + 1 };
            let delay = back_off(worker.idle_deaths);
            worker.restart_at = is_wanted.then(|| Instant::now() + delay);
            state.last_ready = Some(Instant::now());
        } else if is_wanted {
            let time = self.shared.settings.start_timeout.filter(|_| returned);
            self.why = why_not_ready((number, pid), failure.as_ref(), time, exit);
            self.cause = failure.clone().filter(|_| !returned);
            let why = self.cause.as_ref().map_or_else(|| self.why.clone(), without_process_name);
            let has_other_ready = state.has_other_ready(number);
            report |=
                state.workers[number].start_failed(Instant::now(), why, has_other_ready) && end.is_none();
        }
        state.shorten_delays(Instant::now());
        // No worker reads a function without a task of it, so a death counts only if such a task was
        // recalled.
        let its = |ready: &ReadyChunk| reading == Some(ready.chunk.job.code.number);
        if let (Some(code), Some(at)) = (reading, recalled.iter().position(its)) {
            let deaths = state.reader_deaths.entry(code).or_insert(0);
            *deaths += 1;
            if *deaths > MOST_DEATHS {
                let mut chunk = recalled.remove(at).chunk;
                let rest = chunk.split_off(1);
                lost.push((chunk, 0));
                recalled.extend(rest.map(ReadyChunk::unpacked));
            }
        }
        for mut ready in recalled.into_iter().rev() {
            match &end {
                Some(end) => settled.add(ready.chunk, end.clone()),
                // The task was not begun, and its time has expired.
                None if condemned == Some((ready.chunk.id, 0)) => {
                    let rest = ready.chunk.split_off(1);
                    state.tasks.put_first(rest.map(ReadyChunk::unpacked).into_iter());
                    lost.push((ready.chunk, 0));
                }
                None => state.tasks.ready.push_front(ready),
            }
        }
        // Read only if a task needs it, because it may be long.
        let last_words = if lost.is_empty() { None } else { process.stderr().last_lines() };
        let detail = match &failure {
            Some(SpawnError::ProcessExited(exited)) => exited.detail.clone(),
            _ => None,
        };
        for (mut chunk, item) in lost {
            let index = chunk.first + item;
            let timed_out = chunk.job.options.timeout.filter(|_| condemned == Some((chunk.id, item)));
            let (worker, pool, attempts) = (number, shared.settings.name.clone(), Attempts::default());
            if let Some(end) = &end {
                settled.add_run(&chunk.job, OutcomeRun::failed(index..index + 1, end.clone()));
            } else {
                let error = if let Some(timeout) = timed_out {
                    TaskError::TimedOut { worker, pid, pool, timeout, note, attempts }
                } else {
                    let (detail, stderr) = (detail.clone(), last_words.clone());
                    let lost = WorkerLost { worker, pid, pool, exit, detail, stderr, attempts, note };
                    TaskError::WorkerLost(Box::new(lost))
                };
                settled.add_failed(FailedTask { chunk: chunk.item(item), error, run_time: None });
            }
            settled.drop_later(chunk);
        }
        drop(state);
        drop(process);
        settled.deliver();
        let unexpected = was_ready && condemned.is_none() && !returned;
        let failure = failure.as_ref().filter(|_| unexpected);
        WorkerDeath { number, pid, exit, failure }.report(&self.shared, &mut self.deaths);
        if report {
            report_failed_starts(&self.shared, number);
        }
    }

    /// Starts workers whose restart is due.
    fn restart(&mut self) {
        let now = Instant::now();
        let due: Vec<usize> = {
            let state = self.shared.state.lock();
            if !state.is_serving() {
                return;
            }
            let due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
            let workers = state.workers.iter().enumerate();
            let workers = workers.take(state.wanted);
            workers.filter(|(_, w)| w.process.is_none() && due(w.restart_at)).map(|(i, _)| i).collect()
        };
        for number in due {
            if let Err(error) = start(&self.shared, number) {
                (self.why, self.cause) = match error {
                    PoolError::Start(error) => (error.to_string(), Some(error)),
                    other => (other.to_string(), None),
                };
                not_started(&self.shared, number, self.why.clone());
            }
        }
        let starts = {
            let state = self.shared.state.lock();
            let wanted = state.workers.iter().take(state.wanted);
            state.is_hopeless().then(|| wanted.map(|worker| worker.failed_starts).sum())
        };
        if let Some(starts) = starts {
            let (why, cause) = (std::mem::take(&mut self.why), self.cause.take());
            let pool = self.shared.settings.name.clone();
            self.shared.break_pool(BrokenPool { pool, why, starts, cause });
        }
    }

    /// Finds unsent results of workers that run a long task.
    fn read_journals(&self) {
        let now = Instant::now();
        let mut settled = Settlements::new(&self.shared);
        let mut state = self.shared.state.lock();
        for worker in &mut state.workers {
            if worker.journal_due().is_none_or(|until| until > now) {
                continue;
            }
            if let Some((chunk, found)) = worker.read_journal() {
                report_journal(chunk, &found, usize::MAX, &mut settled);
            }
        }
        drop(state);
        settled.deliver();
    }

    /// Takes tasks away from stopped workers, which have not begun them, and gives them to idle workers.
    fn relieve_slow_workers(&self) {
        let note = || self.shared.packed(WorkerRequest::Forget { code: NO_CODE }).ok();
        self.shared.state.lock().relieve_slow_workers(Instant::now(), note);
    }

    /// Makes the workers forget functions without users.
    fn forget_unused_functions(&self) {
        for code in self.shared.take_unused() {
            let know: Vec<usize> = {
                let mut state = self.shared.state.lock();
                state.reader_deaths.remove(&code);
                let workers = state.workers.iter().enumerate();
                workers
                    .filter(|(_, w)| w.ready && w.known_functions.contains(&code))
                    .map(|(number, _)| number)
                    .collect()
            };
            know.into_iter().for_each(|number| self.shared.forget(number, code));
        }
    }
}

/// Returns the outcome in a reply, or `None` if the reply contains no outcome. Results of items before `from`
/// are skipped, because they were reported earlier. `who` returns the name of the worker's process.
fn outcome_data(reply: TaskReply, from: usize, who: impl FnOnce() -> ProcessName) -> Option<OutcomeData> {
    let error = match reply {
        TaskReply::Results { values: ManyValues::Received(many), .. } => {
            return Some(OutcomeData::Values(many, from));
        }
        TaskReply::Done(SingleValue::Received(value)) => return Some(OutcomeData::Single(value)),
        TaskReply::Raised { note, raise } => {
            TaskError::Raised(Box::new(TaskRaised::new(raise.into_raised(who()), note)))
        }
        TaskReply::Undecodable(arguments) => {
            let error = mp_reduce::Error::Memory(mp_core::Error::Undecodable(arguments));
            TaskError::arguments(error.into())
        }
        TaskReply::Unread { fingerprint, why, arguments: SingleValue::Received(arguments) } => {
            TaskError::unread_arguments(why, Unread::new(arguments, fingerprint))
        }
        TaskReply::Unsendable { result: true, why } => TaskError::value(why),
        TaskReply::Unsendable { result: false, why } => TaskError::arguments(EncodeError::new(why)),
        TaskReply::Failed(error) => *error,
        TaskReply::Results { .. }
        | TaskReply::Done(_)
        | TaskReply::Unread { .. }
        | TaskReply::Returned { .. } => return None,
    };
    Some(OutcomeData::Failed(Box::new(error)))
}
