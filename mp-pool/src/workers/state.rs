//! Which worker has which task: what the pool knows about its workers, under one lock. No code of the user
//! runs here, and nothing waits.
//!
//! Tasks go to workers in chunks, one message each. A task is in one of these places, and moves from one to the other under the
//! lock:
//!
//! | where | it goes to | when |
//! |---|---|---|
//! | in its [`Job`], not encoded | a worker's `given`, through a thread that encodes it without the lock | a worker has room |
//! | `given` to a worker: in its queue, or in its hands | settled | its reply comes, or its result is found in the worker's journal |
//! | | `returned` | it is found in the queue of a worker that is dead, too busy for it, or stopped; or it is in the chunk that such a worker has begun, which was cut before it |
//! | | its job, or settled as lost | its worker is dead, and was at it |
//! | `returned`: encoded, with no worker; or without room for a message | a worker's `given` | a worker has room |
//! | | settled as lost | too many workers in a row died while they read its function |
//!
//! A worker takes from its queue in order and answers each chunk before it takes the next, so of those it was given it has one
//! at most; the others are in the queue, told apart by the number of their message. A message's number may be used again once
//! the worker has taken it: of two that were given with the same number, it is the later one that is in the queue. How far the
//! worker is in the chunk that it has, its chunk word says (`steps::chunk`).

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

/// The most messages that a worker's queue holds.
pub(crate) const ROOM: usize = 1024;
/// The most chunks that a worker is given ahead of time.
const DEEPEST: u64 = 512;
/// How long a worker should have enough to do, when it gets no more: where workers use all processors, the pool's thread may wait for
/// its turn as long as the kernel lets each of them run.
const AHEAD_NANOS: u64 = 5_000_000;
/// Of chunks that take longer than this, a worker has one; of others, one is in its queue when it begins one.
const LONG_NANOS: u64 = 10_000_000;
/// How long a worker may be silent before the pool looks into its journal; doubled when there is nothing new.
const SILENT: Duration = Duration::from_millis(10);
/// The longest time between two such looks.
const LONGEST_SILENT: Duration = Duration::from_secs(1);
/// A worker that has left its first task in its queue for this long, while another one has nothing to do, is
/// asked for it.
const SLOW: Duration = Duration::from_millis(100);
/// The number of no function: a worker that gets a request to forget it answers, and does nothing else.
pub(crate) const NO_CODE: u64 = 0;

/// The number of a chunk; no two have the same one.
pub(crate) fn next_chunk() -> u64 {
    // fork: a copy of the process has no workers, and gives them nothing.
    static CHUNKS: AtomicU64 = AtomicU64::new(1);
    CHUNKS.fetch_add(1, Ordering::Relaxed)
}

/// What a worker was given.
pub(crate) enum Given {
    Task {
        chunk: Chunk,
        message: Option<u32>,
    },
    /// To learn or forget a function.
    Note {
        code: u64,
        /// Or to forget it.
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

/// Whether the pool takes tasks.
#[derive(Clone, Debug)]
pub(crate) enum Phase {
    Open,
    /// It takes no more.
    Closed,
    /// It drops what it has, and ends its workers.
    Terminating,
    /// As [`Terminating`](Self::Terminating), for no worker lives.
    Broken(Arc<Broken>),
}

impl Phase {
    /// What becomes of tasks that are not done.
    pub(crate) fn error(&self) -> Option<TaskError> {
        match self {
            Phase::Open | Phase::Closed => None,
            Phase::Terminating => Some(TaskError::Terminated),
            Phase::Broken(why) => Some(TaskError::Broken(Arc::clone(why))),
        }
    }
}

/// A worker, or the place of one.
pub(crate) struct Worker {
    pub(crate) tasks: Queue<Task>,
    pub(crate) watch: Watch,
    pub(crate) process: Option<Process>,
    /// Of the last process in this place; 0 before the first.
    pub(crate) pid: u32,
    /// It was initialised, and lives.
    pub(crate) ready: bool,
    /// A thread is about to give it tasks.
    pub(crate) feeding: bool,
    pub(crate) given: VecDeque<Given>,
    /// How many of `given` are tasks.
    pub(crate) outstanding: usize,
    /// How many chunks it is given ahead of time, at most.
    deepest: u64,
    /// Since when it has its first task.
    pub(crate) since: Instant,
    /// How long a chunk took lately, in nanoseconds; 0 if that is not known.
    pace: u64,
    /// The functions that it knows, or will when it has read its queue.
    pub(crate) knows: HashSet<u64>,
    /// Since when it is about to be ready: its process was started, or makes its state anew.
    pub(crate) starts_since: Option<Instant>,
    /// It was killed, because that took too long.
    pub(crate) was_late: bool,
    /// How often in a row it died before it was ready.
    pub(crate) failed_starts: u32,
    /// When it last did,
    pub(crate) failed_at: Option<Instant>,
    /// and why.
    pub(crate) failed_why: String,
    /// It was told that this place has no worker.
    pub(crate) told: bool,
    /// How often in a row it died without having had a task.
    pub(crate) idle_deaths: u32,
    pub(crate) had_tasks: bool,
    pub(crate) restart_at: Option<Instant>,
    /// The chunk and the item in it whose time is over.
    pub(crate) condemned: Option<(u64, usize)>,
    /// Whether its queue was looked into since its first task is that.
    pub(crate) looked: bool,
    /// It did not take what it was given, so it gets nothing more before it answers: its queue has a note for it.
    pub(crate) suspect: bool,
    /// After how long a silence its journal is looked into.
    silent: Duration,
    /// `true` if it was asked to end after the tasks that it has: it is given none.
    pub(crate) asked: bool,
    /// Time at which it is asked to end and tasks are taken back, if its place is not wanted.
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

    /// Makes it one of this many in an arena in which `messages` can be on their way at once: together they
    /// have a quarter of those at most.
    pub(crate) fn is_one_of(&mut self, workers: usize, messages: u32) {
        let share = u64::from(messages) / (4 * workers.max(1) as u64);
        self.deepest = share.clamp(2, DEEPEST);
    }

    /// With how many chunks it has enough to do.
    fn enough(&self) -> usize {
        match self.pace {
            0 | LONG_NANOS.. => 0,
            pace => AHEAD_NANOS.div_ceil(pace).clamp(1, self.deepest / 2) as usize,
        }
    }

    /// How many chunks it has when it was given some: half as many more, and of quick ones twice as many.
    fn depth(&self) -> usize {
        let more = (AHEAD_NANOS / 2).checked_div(self.pace).unwrap_or(0);
        self.enough() + more.clamp(1, self.deepest / 2) as usize
    }

    pub(crate) fn wants(&self) -> bool {
        // One that is stopped may have a queue full of notes, and no task.
        self.ready
            && !self.feeding
            && !self.suspect
            && self.stays()
            && self.outstanding <= self.enough()
            && (self.given.len() < ROOM)
    }

    /// How many chunks to give it.
    pub(crate) fn portion(&self) -> usize {
        let wanted = self.depth().saturating_sub(self.outstanding);
        wanted.min(ROOM.saturating_sub(self.given.len() + 1)).max(1)
    }

    /// Gives it messages, and what each is; those that it could not be given come back.
    pub(crate) fn give(
        &mut self,
        mut messages: VecDeque<EncodedMessage<Task>>,
        mut given: VecDeque<Given>,
    ) -> Vec<(EncodedMessage<Task>, Given)> {
        if self.outstanding == 0 {
            self.heard(Instant::now());
        }
        // It fails in a forked process only, where nothing is given.
        let put = self.tasks.try_put_packed_many(&mut messages).unwrap_or(0);
        let rest = given.split_off(put.min(given.len()));
        self.outstanding += given.iter().filter(|given| matches!(given, Given::Task { .. })).count();
        self.given.append(&mut given);
        messages.into_iter().zip(rest).collect()
    }

    /// A chunk that it was given.
    pub(crate) fn chunk(&mut self, id: u64) -> Option<&mut Chunk> {
        self.chunks().find(|chunk| chunk.id == id)
    }

    /// The chunks that it was given, the one that it is at first.
    fn chunks(&mut self) -> impl Iterator<Item = &mut Chunk> {
        self.given.iter_mut().filter_map(|given| match given {
            Given::Task { chunk, .. } => Some(chunk),
            Given::Note { .. } => None,
        })
    }

    /// It has answered, and lives.
    pub(crate) fn heard(&mut self, now: Instant) {
        (self.since, self.looked, self.silent) = (now, false, SILENT);
    }

    /// It has answered something of a chunk: takes that out if it was the last.
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

    /// It has answered `answered` chunks since it was last asked.
    pub(crate) fn keeps_pace(&mut self, answered: u32, now: Instant) {
        let took = now.saturating_duration_since(self.since).as_nanos() as u64 / u64::from(answered.max(1));
        // Quick to see that it is faster, slow to see that it is slower: then others help.
        self.pace = if took < self.pace || self.pace == 0 { took } else { (self.pace + took) / 2 }.max(1);
    }

    /// Takes back what it has not claimed of the chunk that it is at; `id` is for that. A second chunk is the first one, if
    /// nothing is left of it.
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

    /// The chunk that it is at, as it says itself. Those before it are finished, and their answers on the way.
    fn begun(&mut self) -> Option<&mut Chunk> {
        let word = self.watch.word();
        self.chunks().find(|chunk| word.is_of(chunk.id))
    }

    /// Returns `true` if another process than this one is ready in its place.
    pub(crate) fn is_successor_of(&self, pid: u32) -> bool {
        self.ready && self.pid != pid
    }

    /// It is ready: `pid` is the one that says so.
    pub(crate) fn is_ready_now(&mut self, now: Instant) {
        (self.ready, self.failed_starts, self.since, self.starts_since) = (true, 0, now, None);
        self.told = false;
    }

    /// It makes its state anew, and takes no tasks until it is ready again: takes back what it has not begun. A second chunk is as
    /// in [`cut`](Self::cut).
    pub(crate) fn starts_anew(&mut self, now: Instant, id: u64) -> (Vec<Ready>, Option<Chunk>) {
        (self.ready, self.starts_since) = (false, Some(now));
        self.take_back(id)
    }

    /// Takes back what it has not begun, as far as it may be recalled. A second chunk is as in [`cut`](Self::cut).
    pub(crate) fn take_back(&mut self, id: u64) -> (Vec<Ready>, Option<Chunk>) {
        let mut back = self.recall_all(false);
        let (rest, emptied) = self.cut(Share::All, id);
        back.splice(0..0, rest.map(Ready::rest));
        (back, emptied)
    }

    /// When it is too late for it to be ready.
    pub(crate) fn ready_until(&self, timeout: Option<Duration>) -> Option<Instant> {
        let timeout = timeout?;
        self.process.as_ref()?;
        self.starts_since?.checked_add(timeout)
    }

    /// It has read a note.
    pub(crate) fn noted(&mut self, code: u64) {
        self.suspect = false;
        let is = |given: &Given| matches!(given, Given::Note { code: c, .. } if *c == code);
        if let Some(at) = self.given.iter().position(is) {
            self.given.remove(at);
        }
    }

    /// Whether it may have to learn something yet that its tasks need: then all are taken back, or none, and it gets that
    /// again.
    pub(crate) fn is_learning(&self) -> bool {
        self.given.iter().any(|given| matches!(given, Given::Note { .. }))
    }

    /// Whether tasks may be taken out of its queue while it lives. What it is about to get was made for what it knows now.
    pub(crate) fn may_be_recalled(&self) -> bool {
        !(self.feeding && self.is_learning())
    }

    /// Whether it has chunks of this call beside the one that it may have begun.
    pub(crate) fn has_more_of(&self, job: &Arc<Job>) -> bool {
        let is = |given: &Given| matches!(given, Given::Task { chunk, .. } if Arc::ptr_eq(&chunk.job, job));
        self.outstanding > 1 && self.given.iter().any(is)
    }

    /// Takes back all that it has not begun of a call in the chunk that it is at.
    pub(crate) fn cut_all_of(&mut self, job: &Arc<Job>, id: u64) -> (Option<Chunk>, Option<Chunk>) {
        let is_its = self.begun().is_some_and(|chunk| Arc::ptr_eq(&chunk.job, job));
        if is_its { self.cut(Share::All, id) } else { (None, None) }
    }

    /// Returns `true` if it has taken a chunk of this call, or of any, whose tasks can be taken back once
    /// it has begun.
    pub(crate) fn is_taking(&mut self, job: Option<&Arc<Job>>) -> bool {
        let word = self.watch.word();
        let may = self.ready && self.process.is_some();
        let is_its = |chunk: &Chunk| job.is_none_or(|job| Arc::ptr_eq(&chunk.job, job));
        may && self.chunks().any(|chunk| chunk.left() > 1 && is_its(chunk) && !word.is_of(chunk.id))
    }

    /// Takes the next message out of its queue, which it has not read.
    pub(crate) fn recall(&mut self) -> Option<(EncodedMessage<Task>, Given)> {
        let packed = self.tasks.try_get_packed().ok()??;
        let number = packed.number();
        // What it has taken lies before those in its queue: numbers are used again, and the last that has this one is meant.
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

    /// Closes its queue, so that it ends after the task that it runs. Returns what it has not begun.
    pub(crate) fn takes_no_more(&mut self) -> Vec<Chunk> {
        let mut back: Vec<Chunk> = self.recall_all(true).into_iter().map(|ready| ready.chunk).collect();
        // It fails in a forked process only.
        _ = self.tasks.close();
        let (rest, emptied) = self.cut(Share::All, next_chunk());
        back.extend(rest.into_iter().chain(emptied));
        back
    }

    /// Takes all that it has not begun out of its queue.
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
        // A worker that lives may have taken a task that came after a note before that was recalled, too: it waits for the
        // note. There is room for what was there before.
        for (_, given) in self.give(notes, given_back) {
            if let Given::Note { code, learn: true, .. } = given {
                self.knows.remove(&code);
            }
        }
        recalled
    }

    /// It is dead, and what it had not begun was recalled: the chunk that it had, or the function that it was reading.
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

    /// Whether it would begin a task at once.
    pub(crate) fn is_idle(&self) -> bool {
        self.wants() && self.outstanding == 0
    }

    /// When to look whether it has begun its first task, if another one has nothing to do.
    pub(crate) fn slow_from(&self) -> Option<Instant> {
        // One that makes its state anew may have got tasks just before.
        let lives = self.ready || self.starts_since.is_some();
        let may = lives && !self.feeding && !self.looked && self.outstanding > 0;
        may.then(|| self.since + SLOW)
    }

    /// When the time of the task that it is at is over: in which chunk that is, and how long it may take.
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

    /// When to look into its journal: it may sit at a long task, with results of others that it has not sent.
    pub(crate) fn silent_until(&self) -> Option<Instant> {
        let may_have = self.ready && self.first().is_some_and(|chunk| chunk.left() > 1);
        may_have.then(|| self.since + self.silent)
    }

    /// Looks into its journal: the chunk that it is at, and what is new.
    pub(crate) fn unsent(&mut self) -> Option<(&mut Chunk, Finished)> {
        self.silent = (2 * self.silent).min(LONGEST_SILENT);
        let watch = self.watch.clone();
        let chunk = self.chunks().next()?;
        let found = watch.finished(chunk.id)?;
        Some((chunk, found))
    }
}

/// Everything that is under the lock.
pub(crate) struct State {
    pub(crate) phase: Phase,
    /// Number of workers that the pool is to have: those in the first places.
    pub(crate) wanted: usize,
    /// Number of places in which a process was ever started: files of these keep their contents.
    pub(crate) ever_started: usize,
    pub(crate) workers: Vec<Worker>,
    pub(crate) returned: VecDeque<Ready>,
    /// Calls with tasks that are still to be sent.
    pub(crate) jobs: VecDeque<Arc<Job>>,
    /// Tasks that have failed, and wait until they are tried again.
    /// under when that is, and a number of their own.
    pub(crate) later: BTreeMap<(Instant, u64), Later>,
    /// If there was no room for the messages of tasks: those are among the returned ones.
    pub(crate) short: Option<Short>,
    /// Calls all of whose tasks are sent: they may hold values of the user's, so they are dropped without the lock.
    pub(crate) sent: Vec<Arc<Job>>,
    /// Chunks that nothing is left of, to be dropped without the lock: they may hold values of the user's.
    pub(crate) emptied: Vec<Chunk>,
    /// For each function, how many workers in a row have died while they read it.
    pub(crate) deadly: HashMap<u64, u32>,
    /// When the last worker died that had been ready; `None` if there was none.
    pub(crate) last_ready: Option<Instant>,
    /// Tasks that have no outcome yet.
    pub(crate) unsettled: usize,
    /// How often a task was tried again,
    pub(crate) retried: u64,
    /// and a worker started in the place of another.
    pub(crate) restarts: u64,
    /// All workers are gone, and no more will be started.
    pub(crate) over: bool,
}

impl State {
    /// Of a pool that begins.
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

    /// The worker that most needs something to do.
    pub(crate) fn wanting(&self) -> Option<usize> {
        let wanting = self.workers.iter().enumerate().filter(|(_, worker)| worker.wants());
        wanting.min_by_key(|(_, worker)| worker.outstanding).map(|(number, _)| number)
    }

    /// Queues the tasks of a call, so that they are sent.
    pub(crate) fn enlist(&mut self, job: &Arc<Job>) {
        if !self.jobs.iter().any(|listed| Arc::ptr_eq(listed, job)) {
            self.jobs.push_back(Arc::clone(job));
        }
    }

    /// Whether a worker lives, or will.
    pub(crate) fn has_workers(&self) -> bool {
        self.workers.iter().any(|worker| worker.process.is_some())
    }

    pub(crate) fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open)
    }
    /// Whether workers that die are replaced.
    pub(crate) fn is_serving(&self) -> bool {
        matches!(self.phase, Phase::Open) || matches!(self.phase, Phase::Closed) && self.unsettled > 0
    }
}

#[cfg(test)]
pub(crate) mod tests;
