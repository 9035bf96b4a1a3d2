//! State of the workers and assignment of tasks, under one lock. No user code runs here, and nothing blocks.
//!
//! Tasks are sent to workers in chunks, one message each. A task is in one of these places, and moves between
//! them under the lock:
//!
//! | place | next place | condition |
//! |---|---|---|
//! | in its [`Job`], not encoded | a worker's `given`, through a thread that encodes it without the lock | a worker has room |
//! | a worker's `given`: in its queue, or taken by it | settled | its reply arrives, or its result is found in the worker's journal |
//! | same | `returned` | it is found in the queue of a worker that is dead, too busy or stopped; or it is in the chunk that such a worker has begun, which was cut before it |
//! | same | its job, or settled as lost | its worker died while running it |
//! | `returned`: encoded, without a worker; or without room for a message | a worker's `given` | a worker has room |
//! | same | settled as lost | too many consecutive workers died while they read its function |
//!
//! A worker takes messages from its queue in order, and answers each chunk before it takes the next. So it
//! has taken at most one of its chunks; the others are in the queue, identified by the number of their
//! message. A message's number may be reused after the worker has taken it: if two messages have the same
//! number, the later one is in the queue. The chunk word contains the worker's position in its chunk
//! (`steps::chunk`).

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mp_core::sync::Ordering;
use mp_core::sync::shared::AtomicU64;
use mp_queue::{EncodedMessage, Queue};
use mp_spawn::Process;

use crate::calls::chunk::{Chunk, Ready};
use crate::calls::job::Job;
use crate::error::{Broken, TaskError};
use crate::message::Task;
use crate::steps::chunk::Share;
use crate::steps::journal::Finished;
use crate::watch::Watch;
use crate::workers::later::Later;
use crate::workers::short::Short;

/// Capacity of a worker's queue in messages.
pub(crate) const ROOM: usize = 1024;
/// Maximum number of chunks that a worker has in advance.
const DEEPEST: u64 = 512;
/// Duration of the work that a worker should have when it receives no more. If workers use all processors,
/// the pool's thread may have to wait for a time slice of the kernel.
const AHEAD_NANOS: u64 = 5_000_000;
/// Chunk duration above which a worker has only one chunk. For shorter chunks, another one is in its queue
/// when it begins one.
const LONG_NANOS: u64 = 10_000_000;
/// Time without a reply after which the pool reads a worker's journal. Doubled when there are no new results.
const SILENT: Duration = Duration::from_millis(10);
/// Maximum time between two such reads.
const LONGEST_SILENT: Duration = Duration::from_secs(1);
/// Time after which the first task is withdrawn from a worker that has not taken it from its queue, while
/// another worker is idle.
const SLOW: Duration = Duration::from_millis(100);
/// Number that no function has: a worker answers a request to forget it, and does nothing else.
pub(crate) const NO_CODE: u64 = 0;

/// Returns a unique number for a chunk.
pub(crate) fn next_chunk() -> u64 {
    // fork: a forked process has no workers, and sends them nothing.
    static CHUNKS: AtomicU64 = AtomicU64::new(1);
    CHUNKS.fetch_add(1, Ordering::Relaxed)
}

/// Message that was sent to a worker.
pub(crate) enum Given {
    Task {
        chunk: Chunk,
        message: Option<u32>,
    },
    /// Request to learn or forget a function.
    Note {
        code: u64,
        /// `false` for a request to forget it.
        learn: bool,
        message: Option<u32>,
    },
}

impl Given {
    fn message(&self) -> Option<u32> {
        match self {
            Given::Task { message, .. } | Given::Note { message, .. } => *message,
        }
    }
}

/// Phase of the pool's life.
#[derive(Clone, Debug)]
pub(crate) enum Phase {
    Open,
    /// The pool accepts no more tasks.
    Closed,
    /// The pool drops its tasks, and ends its workers.
    Terminating,
    /// Like [`Terminating`](Self::Terminating), because no worker is alive.
    Broken(Arc<Broken>),
}

impl Phase {
    /// Returns the error of tasks that are not done.
    pub(crate) fn error(&self) -> Option<TaskError> {
        match self {
            Phase::Open | Phase::Closed => None,
            Phase::Terminating => Some(TaskError::Terminated),
            Phase::Broken(why) => Some(TaskError::Broken(Arc::clone(why))),
        }
    }
}

/// Slot of a worker, which may be empty.
pub(crate) struct Worker {
    pub(crate) tasks: Queue<Task>,
    pub(crate) watch: Watch,
    pub(crate) process: Option<Process>,
    /// Process id of the last process in this slot; 0 before the first.
    pub(crate) pid: u32,
    /// `true` if the worker is initialized and alive.
    pub(crate) ready: bool,
    /// `true` if a thread is about to assign tasks to it.
    pub(crate) feeding: bool,
    pub(crate) given: VecDeque<Given>,
    /// Number of tasks in `given`.
    pub(crate) outstanding: usize,
    /// Maximum number of chunks that it has in advance.
    deepest: u64,
    /// Time since which it has its first task.
    pub(crate) since: Instant,
    /// Recent duration of a chunk in nanoseconds; 0 if unknown.
    pace: u64,
    /// Functions that it knows, or will know after reading its queue.
    pub(crate) knows: HashSet<u64>,
    /// Time at which its process was started, or began to create its state again, while it is not ready.
    pub(crate) starts_since: Option<Instant>,
    /// `true` if it was killed for exceeding the start time-out.
    pub(crate) was_late: bool,
    /// Number of consecutive deaths before it was ready.
    pub(crate) failed_starts: u32,
    /// Time of the last of them,
    pub(crate) failed_at: Option<Instant>,
    /// and its reason.
    pub(crate) failed_why: String,
    /// `true` if the failed starts were reported.
    pub(crate) told: bool,
    /// Number of consecutive deaths without having had a task.
    pub(crate) idle_deaths: u32,
    pub(crate) had_tasks: bool,
    pub(crate) restart_at: Option<Instant>,
    /// Chunk and item that exceeded the time limit.
    pub(crate) condemned: Option<(u64, usize)>,
    /// `true` if its queue was checked since its first task became the first.
    pub(crate) looked: bool,
    /// `true` if it did not take its messages. It receives nothing more before it answers the note in its
    /// queue.
    pub(crate) suspect: bool,
    /// Time without a reply after which its journal is read.
    silent: Duration,
    /// `true` if it was asked to end after its remaining tasks. It receives no more.
    pub(crate) asked: bool,
    /// Time at which it is asked to end and tasks are withdrawn, if its slot is not wanted.
    pub(crate) leaves_at: Option<Instant>,
}

impl Worker {
    pub(crate) fn new(tasks: Queue<Task>, watch: Watch) -> Worker {
        Worker {
            tasks,
            watch,
            process: None,
            pid: 0,
            ready: false,
            feeding: false,
            given: VecDeque::new(),
            outstanding: 0,
            deepest: DEEPEST,
            since: Instant::now(),
            pace: 0,
            knows: HashSet::new(),
            starts_since: None,
            was_late: false,
            failed_starts: 0,
            failed_at: None,
            failed_why: String::new(),
            told: false,
            idle_deaths: 0,
            had_tasks: false,
            restart_at: None,
            condemned: None,
            looked: false,
            suspect: false,
            silent: SILENT,
            asked: false,
            leaves_at: None,
        }
    }

    /// Adapts the worker to the number of workers and the arena's capacity in messages. All workers together
    /// use at most a quarter of the messages.
    pub(crate) fn is_one_of(&mut self, workers: usize, messages: u32) {
        let share = u64::from(messages) / (4 * workers.max(1) as u64);
        self.deepest = share.clamp(2, DEEPEST);
    }

    /// Returns the number of chunks that are enough work.
    fn enough(&self) -> usize {
        match self.pace {
            0 | LONG_NANOS.. => 0,
            pace => AHEAD_NANOS.div_ceil(pace).clamp(1, self.deepest / 2) as usize,
        }
    }

    /// Returns the number of chunks after an assignment: half as many more, or twice as many if they are
    /// short.
    fn depth(&self) -> usize {
        let more = (AHEAD_NANOS / 2).checked_div(self.pace).unwrap_or(0);
        self.enough() + more.clamp(1, self.deepest / 2) as usize
    }

    pub(crate) fn wants(&self) -> bool {
        // A stopped worker may have a queue full of notes, and no task.
        self.ready
            && !self.feeding
            && !self.suspect
            && self.stays()
            && self.outstanding <= self.enough()
            && (self.given.len() < ROOM)
    }

    /// Returns the number of chunks to assign.
    pub(crate) fn portion(&self) -> usize {
        let wanted = self.depth().saturating_sub(self.outstanding);
        wanted.min(ROOM.saturating_sub(self.given.len() + 1)).max(1)
    }

    /// Sends messages, described by `given`. Returns those that did not fit into the queue.
    pub(crate) fn give(
        &mut self,
        mut messages: VecDeque<EncodedMessage<Task>>,
        mut given: VecDeque<Given>,
    ) -> Vec<(EncodedMessage<Task>, Given)> {
        if self.outstanding == 0 {
            self.heard(Instant::now());
        }
        // Fails only in a forked process, where nothing is assigned.
        let put = self.tasks.try_put_packed_many(&mut messages).unwrap_or(0);
        let rest = given.split_off(put.min(given.len()));
        self.outstanding += given.iter().filter(|given| matches!(given, Given::Task { .. })).count();
        self.given.append(&mut given);
        messages.into_iter().zip(rest).collect()
    }

    /// Returns one of its chunks.
    pub(crate) fn chunk(&mut self, id: u64) -> Option<&mut Chunk> {
        self.chunks().find(|chunk| chunk.id == id)
    }

    /// Returns its chunks, the current one first.
    fn chunks(&mut self) -> impl Iterator<Item = &mut Chunk> {
        self.given.iter_mut().filter_map(|given| match given {
            Given::Task { chunk, .. } => Some(chunk),
            Given::Note { .. } => None,
        })
    }

    /// Records a reply of the live worker.
    pub(crate) fn heard(&mut self, now: Instant) {
        (self.since, self.looked, self.silent) = (now, false, SILENT);
    }

    /// Records an answer to a chunk. Removes and returns the chunk if it was the last answer.
    pub(crate) fn answered(&mut self, id: u64) -> Option<Chunk> {
        self.suspect = false;
        self.had_tasks = true;
        let is =
            |given: &Given| matches!(given, Given::Task { chunk, .. } if chunk.id == id && chunk.left() == 0);
        let at = self.given.iter().position(is)?;
        match self.given.remove(at)? {
            Given::Task { chunk, .. } => {
                self.outstanding -= 1;
                Some(chunk)
            }
            Given::Note { .. } => None,
        }
    }

    /// Records that it answered `answered` chunks since the previous replies.
    pub(crate) fn keeps_pace(&mut self, answered: u32, now: Instant) {
        let took = now.saturating_duration_since(self.since).as_nanos() as u64 / u64::from(answered.max(1));
        // Adapts quickly to faster chunks and slowly to slower ones, because then other workers help.
        self.pace = if took < self.pace || self.pace == 0 { took } else { (self.pace + took) / 2 }.max(1);
    }

    /// Withdraws the unclaimed items of its current chunk, as a new chunk with number `id`. The second value
    /// is the current chunk if nothing is left of it.
    pub(crate) fn cut(&mut self, share: Share, id: u64) -> (Option<Chunk>, Option<Chunk>) {
        let watch = self.watch.clone();
        let Some(chunk) = self.begun() else { return (None, None) };
        if chunk.left() < 2 {
            return (None, None);
        }
        let Some(from) = watch.cut(chunk.id, share) else { return (None, None) };
        let (from, at) = (from.max(chunk.reported), chunk.id);
        (chunk.split_off(from, id), self.answered(at))
    }

    /// Returns its current chunk, from its chunk word. Earlier chunks are finished, and their answers are
    /// about to arrive.
    fn begun(&mut self) -> Option<&mut Chunk> {
        let word = self.watch.word();
        self.chunks().find(|chunk| word.is_of(chunk.id))
    }

    /// Returns `true` if a process other than `pid` is ready in its slot.
    pub(crate) fn is_successor_of(&self, pid: u32) -> bool {
        self.ready && self.pid != pid
    }

    /// Records that it is ready.
    pub(crate) fn is_ready_now(&mut self, now: Instant) {
        (self.ready, self.failed_starts, self.since, self.starts_since) = (true, 0, now, None);
        self.told = false;
    }

    /// Records that it creates its state again, and accepts no tasks until it is ready. Returns the tasks
    /// that it has not begun. The second value is as in [`cut`](Self::cut).
    pub(crate) fn starts_anew(&mut self, now: Instant, id: u64) -> (Vec<Ready>, Option<Chunk>) {
        (self.ready, self.starts_since) = (false, Some(now));
        self.take_back(id)
    }

    /// Withdraws the tasks that it has not begun, as far as they may be recalled. The second value is as in
    /// [`cut`](Self::cut).
    pub(crate) fn take_back(&mut self, id: u64) -> (Vec<Ready>, Option<Chunk>) {
        let mut back = self.recall_all(false);
        let (rest, emptied) = self.cut(Share::All, id);
        back.splice(0..0, rest.map(Ready::rest));
        (back, emptied)
    }

    /// Returns the time at which the start time-out ends.
    pub(crate) fn ready_until(&self, timeout: Option<Duration>) -> Option<Instant> {
        let timeout = timeout?;
        self.process.as_ref()?;
        self.starts_since?.checked_add(timeout)
    }

    /// Records that it has read a note.
    pub(crate) fn noted(&mut self, code: u64) {
        self.suspect = false;
        let is = |given: &Given| matches!(given, Given::Note { code: c, .. } if *c == code);
        if let Some(at) = self.given.iter().position(is) {
            self.given.remove(at);
        }
    }

    /// Returns `true` if it may have to learn a function that its tasks need. Then either all messages are
    /// withdrawn or none, and the function is sent again.
    pub(crate) fn is_learning(&self) -> bool {
        self.given.iter().any(|given| matches!(given, Given::Note { .. }))
    }

    /// Returns `true` if tasks may be withdrawn from its queue while it is alive. Tasks that a thread is
    /// about to assign assume the functions that it knows now.
    pub(crate) fn may_be_recalled(&self) -> bool {
        !(self.feeding && self.is_learning())
    }

    /// Returns `true` if it has chunks of this call in addition to a chunk that it may have begun.
    pub(crate) fn has_more_of(&self, job: &Arc<Job>) -> bool {
        let is = |given: &Given| matches!(given, Given::Task { chunk, .. } if Arc::ptr_eq(&chunk.job, job));
        self.outstanding > 1 && self.given.iter().any(is)
    }

    /// Withdraws all unclaimed items of its current chunk, if that belongs to this call.
    pub(crate) fn cut_all_of(&mut self, job: &Arc<Job>, id: u64) -> (Option<Chunk>, Option<Chunk>) {
        let is_its = self.begun().is_some_and(|chunk| Arc::ptr_eq(&chunk.job, job));
        if is_its { self.cut(Share::All, id) } else { (None, None) }
    }

    /// Returns `true` if it has taken a chunk of this call (or of any call) and not begun it. Items of such a
    /// chunk can be withdrawn once it has begun.
    pub(crate) fn is_taking(&mut self, job: Option<&Arc<Job>>) -> bool {
        let word = self.watch.word();
        let may = self.ready && self.process.is_some();
        let is_its = |chunk: &Chunk| job.is_none_or(|job| Arc::ptr_eq(&chunk.job, job));
        may && self.chunks().any(|chunk| chunk.left() > 1 && is_its(chunk) && !word.is_of(chunk.id))
    }

    /// Withdraws the next unread message from its queue.
    pub(crate) fn recall(&mut self) -> Option<(EncodedMessage<Task>, Given)> {
        let packed = self.tasks.try_get_packed().ok()??;
        let number = packed.number();
        // Chunks that it has taken precede those in its queue. Numbers are reused, so the last message with
        // this number is meant.
        let queued = self.given.len().saturating_sub(1 + self.tasks.len());
        let is = |given: &Given| given.message() == number;
        let at = match self.given.get(queued) {
            Some(given) if is(given) => queued,
            _ => self.given.iter().rposition(is)?,
        };
        let given = self.given.remove(at)?;
        self.outstanding -= usize::from(matches!(given, Given::Task { .. }));
        Some((packed, given))
    }

    /// Closes its queue, so that it ends after its running task. Returns the tasks that it has not begun.
    pub(crate) fn takes_no_more(&mut self) -> Vec<Chunk> {
        let mut back: Vec<Chunk> = self.recall_all(true).into_iter().map(|ready| ready.chunk).collect();
        // Fails only in a forked process.
        _ = self.tasks.close();
        let (rest, emptied) = self.cut(Share::All, next_chunk());
        back.extend(rest.into_iter().chain(emptied));
        back
    }

    /// Withdraws all unread messages from its queue.
    pub(crate) fn recall_all(&mut self, dead: bool) -> Vec<Ready> {
        if !dead && !self.may_be_recalled() {
            return Vec::new();
        }
        let (mut recalled, mut notes, mut given_back) = (Vec::new(), VecDeque::new(), VecDeque::new());
        while let Some((packed, given)) = self.recall() {
            match given {
                Given::Task { chunk, .. } => recalled.push(Ready::packed(chunk, packed)),
                Given::Note { .. } if dead => {}
                note => {
                    notes.push_back(packed);
                    given_back.push_back(note);
                }
            }
        }
        // Before the withdrawal, a live worker may have taken a task that came after a withdrawn note: it
        // waits for the note. There is room for notes that were in the queue before.
        for (_, given) in self.give(notes, given_back) {
            if let Given::Note { code, learn: true, .. } = given {
                self.knows.remove(&code);
            }
        }
        recalled
    }

    /// Resets the slot of a dead worker after its unread messages were withdrawn. Returns its chunks, and the
    /// function that it was reading.
    pub(crate) fn bury(&mut self) -> (Vec<Chunk>, Option<u64>) {
        self.ready = false;
        self.suspect = false;
        (self.asked, self.leaves_at) = (false, None);
        self.starts_since = None;
        self.process = None;
        self.outstanding = 0;
        self.pace = 0;
        self.knows.clear();
        let (mut lost, mut reading) = (Vec::new(), None);
        for given in self.given.drain(..) {
            match given {
                Given::Task { chunk, .. } => lost.push(chunk),
                Given::Note { code, .. } => reading = Some(code),
            }
        }
        (lost, reading)
    }

    /// Returns `true` if it would begin a task at once.
    pub(crate) fn is_idle(&self) -> bool {
        self.wants() && self.outstanding == 0
    }

    /// Returns the time of the check whether it has begun its first task, if another worker is idle.
    pub(crate) fn slow_from(&self) -> Option<Instant> {
        // A worker that creates its state again may have received tasks just before.
        let lives = self.ready || self.starts_since.is_some();
        let may = lives && !self.feeding && !self.looked && self.outstanding > 0;
        may.then(|| self.since + SLOW)
    }

    /// Returns the deadline of its running task, with its chunk and time limit.
    pub(crate) fn deadline(&self) -> Option<(&Chunk, Instant, Duration)> {
        if self.condemned.is_some() || !self.ready {
            return None;
        }
        let first = self.first()?;
        let timeout = first.job.terms.timeout?;
        Some((first, self.since.checked_add(timeout)?, timeout))
    }

    pub(crate) fn first(&self) -> Option<&Chunk> {
        self.given.iter().find_map(|given| match given {
            Given::Task { chunk, .. } => Some(chunk),
            Given::Note { .. } => None,
        })
    }

    /// Returns the time at which its journal should be read: it may run a long task, with unsent results of
    /// others.
    pub(crate) fn silent_until(&self) -> Option<Instant> {
        let may_have = self.ready && self.first().is_some_and(|chunk| chunk.left() > 1);
        may_have.then(|| self.since + self.silent)
    }

    /// Reads its journal. Returns its current chunk and the results.
    pub(crate) fn unsent(&mut self) -> Option<(&mut Chunk, Finished)> {
        self.silent = (2 * self.silent).min(LONGEST_SILENT);
        let watch = self.watch.clone();
        let chunk = self.chunks().next()?;
        let found = watch.finished(chunk.id)?;
        Some((chunk, found))
    }
}

/// Everything protected by the lock.
pub(crate) struct State {
    pub(crate) phase: Phase,
    /// Wanted number of workers, which are in the first slots.
    pub(crate) wanted: usize,
    /// Number of slots in which a process was ever started: their output files are appended to.
    pub(crate) ever_started: usize,
    pub(crate) workers: Vec<Worker>,
    pub(crate) returned: VecDeque<Ready>,
    /// Calls with tasks to be sent.
    pub(crate) jobs: VecDeque<Arc<Job>>,
    /// Failed tasks that wait for their retry, by its time and a unique number.
    pub(crate) later: BTreeMap<(Instant, u64), Later>,
    /// Present if there was no room for the messages of tasks. These tasks are in `returned`.
    pub(crate) short: Option<Short>,
    /// Calls without tasks to be sent, dropped without the lock because they may contain user values.
    pub(crate) sent: Vec<Arc<Job>>,
    /// Chunks without tasks, dropped without the lock because they may contain user values.
    pub(crate) emptied: Vec<Chunk>,
    /// Number of consecutive workers that died while they read a function, by function.
    pub(crate) deadly: HashMap<u64, u32>,
    /// Last time at which a worker was ready and died or began to create its state again; `None` if there was
    /// none.
    pub(crate) last_ready: Option<Instant>,
    /// Number of tasks without an outcome.
    pub(crate) unsettled: usize,
    /// Number of retries,
    pub(crate) retried: u64,
    /// and of replaced workers.
    pub(crate) restarts: u64,
    /// `true` if all workers have ended, and no more will be started.
    pub(crate) over: bool,
}

impl State {
    /// Creates the state of a new pool.
    pub(crate) fn new(workers: Vec<Worker>) -> State {
        State {
            phase: Phase::Open,
            wanted: workers.len(),
            ever_started: 0,
            workers,
            returned: VecDeque::new(),
            jobs: VecDeque::new(),
            later: BTreeMap::new(),
            short: None,
            sent: Vec::new(),
            emptied: Vec::new(),
            deadly: HashMap::new(),
            last_ready: None,
            unsettled: 0,
            retried: 0,
            restarts: 0,
            over: false,
        }
    }

    /// Returns the worker that most needs work.
    pub(crate) fn wanting(&self) -> Option<usize> {
        let wanting = self.workers.iter().enumerate().filter(|(_, worker)| worker.wants());
        wanting.min_by_key(|(_, worker)| worker.outstanding).map(|(number, _)| number)
    }

    /// Schedules the tasks of a call.
    pub(crate) fn enlist(&mut self, job: &Arc<Job>) {
        if !self.jobs.iter().any(|listed| Arc::ptr_eq(listed, job)) {
            self.jobs.push_back(Arc::clone(job));
        }
    }

    /// Returns `true` if a worker has a process.
    pub(crate) fn has_workers(&self) -> bool {
        self.workers.iter().any(|worker| worker.process.is_some())
    }

    pub(crate) fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open)
    }
    /// Returns `true` if workers that die are replaced.
    pub(crate) fn is_serving(&self) -> bool {
        matches!(self.phase, Phase::Open) || matches!(self.phase, Phase::Closed) && self.unsettled > 0
    }
}

#[cfg(test)]
pub(crate) mod tests;
