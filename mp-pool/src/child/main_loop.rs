//! Main loop of a worker: it takes one chunk of tasks after the other, and answers each before it takes the
//! next.
//!
//! The chunk word ([`steps::chunk`](crate::steps::chunk)) contains the current task of the chunk; the worker
//! changes it before each task. Results are collected in a *part*, which is one reply. A part is sent at the
//! end of the chunk, a millisecond after the previous part, and before a reply about a single task (an error,
//! a result with attachments). Until a part is sent, its results are also in the worker's journal
//! ([`steps::journal`](crate::steps::journal)).
//!
//! A task is *timed* if it has a time limit: see [`clock`](crate::child::clock).
//!
//! | the worker is killed | its queue | its chunk |
//! |---|---|---|
//! | before it has taken a chunk | still contains the chunk | is sent to another worker |
//! | between taking a chunk and beginning its first task | still contains the other chunks | the first task is lost, the others are sent to another worker |
//! | in a task | still contains the other chunks | that task is lost; earlier tasks are done, later ones are sent to another worker |
//! | between two tasks, or before it has sent the last part | still contains the other chunks | finished tasks are done: their results are in the journal; the others are sent to another worker |
//! | after a task whose result needs a reply of its own, before it has sent that reply | still contains the other chunks | that task is lost |
//! | after it has sent the last part | still contains the other chunks | is done |
//!
//! A chunk may arrive before its function: while the pool withdraws unread messages, it may withdraw the
//! function just before the worker takes the chunk. The pool sends the function again, and the chunk waits
//! for it. If the worker dies while chunks wait, the first task of each waiting chunk is lost.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::OnceLock;

use mp_core::fork::PerProcess;
use mp_core::message::Outgoing;
use mp_core::user_code::UserValue;
use mp_queue::{GetError, PutError, Queue};
use mp_spawn::{CallFailure, Closure};
use serde::{Deserialize, Serialize};

use crate::child::clock::TaskClock;
use crate::child::item_cursor::{ItemCursor, ReplyPart};
use crate::child::journal_words::{WordsWriter, WorkerWords};
use crate::child::message::{
    FunctionMessage, FunctionReadError, LEAVE, ManyValues, PoolReply, SingleValue, TaskReply, WorkerRequest,
    read_function,
};
use crate::child::runner::{RunOutcome, Runner};
use crate::child::task_span::{FirstTask, WorkerLabel};
use crate::child::user_state::{StateInit, UserState, WorkerError};
use crate::child::values::TaskArgs;
use crate::steps::chunk::Turn;

/// Function that a worker calls before its first task.
pub(crate) type Initializer = Closure<(), Result<(), WorkerError>>;

/// Arguments of a worker process.
#[derive(Serialize, Deserialize)]
pub(crate) struct WorkerArgs {
    pub(crate) worker: usize,
    pub(crate) label: WorkerLabel,
    pub(crate) tasks: Queue<WorkerRequest>,
    pub(crate) replies: Queue<PoolReply>,
    pub(crate) shared_words: WorkerWords,
    /// Number of tasks after which the worker ends; 0 means never.
    pub(crate) most_tasks: u64,
    pub(crate) initializer: Option<Initializer>,
    /// Function that creates the worker's state.
    pub(crate) state: Option<StateInit>,
}

static WORKER: PerProcess<OnceLock<usize>> = mp_core::per_process!(OnceLock::new());

/// Returns the number of this worker in its pool, from 0, or `None` in a process that is not a worker of a
/// pool. A replacement has the number of the worker that it replaces.
///
/// ```
/// let pool = mp_pool::Pool::new(1)?;
/// assert_eq!(pool.apply(|(): ()| mp_pool::current_worker(), ())?, Some(0));
/// assert_eq!(mp_pool::current_worker(), None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub fn current_worker() -> Option<usize> {
    WORKER.get().copied()
}

/// Main function of the process.
pub(crate) fn worker_main(args: WorkerArgs) -> Result<(), WorkerError> {
    let WorkerArgs { worker, label, tasks, replies, shared_words, most_tasks, initializer, state } = args;
    // Set once in the life of a process.
    _ = WORKER.set(worker);
    if let Some(initializer) = initializer {
        initializer.call(())?;
    }
    let mut state = UserState::new(state);
    state.make()?;
    send_reply(&replies, PoolReply::Ready { worker, pid: std::process::id() })?;
    let (known, waiting, unread) = (HashMap::new(), HashMap::new(), HashMap::new());
    install_notes(shared_words.clone());
    let (clock, words) = (TaskClock::install(shared_words.clone()), WordsWriter::new(shared_words));
    let mut life = WorkerLoop {
        worker,
        label,
        replies,
        clock,
        words,
        state,
        known,
        unread,
        waiting,
        done: 0,
        most_tasks,
        is_leaving: false,
    };
    while !life.is_over() {
        match tasks.get() {
            Ok(Some(task)) => life.take(task)?,
            Ok(None) | Err(GetError::Interrupted) => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Chunk of tasks that was received, stored under the number of its function.
struct ReceivedChunk {
    id: u64,
    timed: bool,
    first: FirstTask,
    args: TaskArgs,
}

type KnownFunction = Result<UserValue<Runner>, UnknownFunction>;

/// Reason why a function is unknown.
struct UnknownFunction {
    why: String,
    /// `true` if the function could not be read for lack of descriptors. Reading is repeated for the next
    /// chunk.
    for_now: bool,
}

struct WorkerLoop {
    worker: usize,
    label: WorkerLabel,
    replies: Queue<PoolReply>,
    clock: &'static TaskClock,
    words: WordsWriter,
    state: UserState,
    known: HashMap<u64, Rc<KnownFunction>>,
    /// Functions that could not be read for lack of descriptors.
    unread: HashMap<u64, FunctionMessage>,
    /// Chunks whose function has not arrived, by the number of the function. The pool has withdrawn the
    /// message with this function, and sends it again.
    waiting: HashMap<u64, Vec<ReceivedChunk>>,
    /// Number of tasks done.
    done: u64,
    most_tasks: u64,
    /// `true` if the pool asked the worker to end.
    is_leaving: bool,
}

impl WorkerLoop {
    /// Returns `true` if the worker ends: it has done its maximum number of tasks, was interrupted, or was
    /// asked to end. Returns `false` while chunks wait for their functions: no other process has these
    /// chunks.
    fn is_over(&self) -> bool {
        let is_done = self.most_tasks != 0 && self.done >= self.most_tasks;
        self.waiting.is_empty() && (self.is_leaving || is_done || mp_core::interrupted())
    }

    /// Returns the number of tasks that the worker runs before it compares the number of its tasks with the
    /// maximum again. At least 1.
    fn may_do(&self) -> usize {
        match self.most_tasks {
            0 => usize::MAX >> 1,
            most => most.saturating_sub(self.done).max(1) as usize,
        }
    }

    fn take(&mut self, task: WorkerRequest) -> Result<(), WorkerError> {
        let worker = self.worker;
        match task {
            WorkerRequest::Run { id, code, timeout, first, args } => {
                let run = ReceivedChunk { id, timed: timeout.is_some(), first, args };
                if let Some(runner) = self.unread.remove(&code) {
                    self.learn(code, runner);
                }
                if let Some(known) = self.known.get(&code).cloned() {
                    return self.run(&known, run);
                }
                self.waiting.entry(code).or_default().push(run);
                Ok(())
            }
            WorkerRequest::Learn { code, runner } => {
                let known = self.learn(code, runner);
                send_reply(&self.replies, PoolReply::FunctionChanged { worker, code })?;
                let waiting = self.waiting.remove(&code).unwrap_or_default();
                waiting.into_iter().try_for_each(|run| self.run(&known, run))
            }
            // Not answered: the end of the process is the answer.
            WorkerRequest::Forget { code: LEAVE } => {
                self.is_leaving = true;
                Ok(())
            }
            WorkerRequest::Forget { code } => {
                self.known.remove(&code);
                self.unread.remove(&code);
                send_reply(&self.replies, PoolReply::FunctionChanged { worker, code })
            }
        }
    }

    /// Decodes a received function, and stores it, or the reason of the failure, under its number.
    fn learn(&mut self, code: u64, runner: FunctionMessage) -> Rc<KnownFunction> {
        let known = Rc::new(match read_function(runner) {
            Ok(runner) => Ok(UserValue::new(runner)),
            Err(FunctionReadError::Invalid(why)) => Err(UnknownFunction { why, for_now: false }),
            Err(FunctionReadError::NoDescriptors(runner, why)) => {
                self.unread.insert(code, runner);
                Err(UnknownFunction { why, for_now: true })
            }
        });
        self.known.insert(code, Rc::clone(&known));
        known
    }

    /// Runs a chunk, except the tasks that are withdrawn.
    fn run(
        &mut self,
        known: &KnownFunction,
        ReceivedChunk { id, timed, first, mut args }: ReceivedChunk,
    ) -> Result<(), WorkerError> {
        let count = args.len();
        // A single task without a time limit can't be withdrawn or condemned.
        let watched = count > 1 || timed;
        let mut part = ReplyPart::of(id);
        if timed {
            self.clock.start();
        }
        if watched {
            stop_if_condemned(self.words.begin(id, count));
        }
        let mut item = 0;
        while item < count {
            let end = if timed { item + 1 } else { count.min(item + self.may_do()) };
            let mut row =
                ItemCursor::new(&mut self.words, &mut part, &mut args, item..end, (&self.label, first));
            let ran = match known.as_ref().map(UserValue::get) {
                Ok(Some(runner)) => runner.run(&mut self.state, &mut row),
                Err(UnknownFunction { why, for_now }) => {
                    let why = format!("the function can't be read: {why}");
                    if *for_now { RunOutcome::Unread(why, 0) } else { RunOutcome::Unreadable(why) }
                }
                _ => RunOutcome::Unreadable("the worker does not know the function".into()),
            };
            let (start, refused) = (row.start, row.refused);
            self.done += (row.item + 1 - item) as u64;
            item = row.item;
            if timed {
                self.clock.finish();
            }
            match refused {
                Some(Turn::Condemned) => wait_for_kill(),
                Some(_) => break,
                None => {}
            }
            if matches!(ran, RunOutcome::Done) && part.out.plain().is_some() {
                part.ends.push(part.out.bytes().len());
                if count > 1 && !self.words.append_result(&part.out.bytes()[start..]) {
                    // The journal is full, so the results are sent now.
                    stop_if_condemned(self.words.finish());
                    self.put(&mut part, count)?;
                }
            } else {
                if watched {
                    stop_if_condemned(self.words.finish());
                }
                let alone = part.split(start);
                self.put(&mut part, count)?;
                self.answer((id, item), ran, alone, &mut args)?;
                part.continue_at(item + 1);
                if count > 1 {
                    self.words.restart_journal(id, part.item);
                }
                self.recreate_state()?;
            }
            if item + 1 == count || self.is_over() {
                break;
            }
            if part.is_late(timed) {
                self.put(&mut part, count)?;
            }
            if timed {
                self.clock.start();
            }
            self.words.clear_note();
            match self.words.claim() {
                Turn::Go(_) => item += 1,
                Turn::End(_) => break,
                Turn::Condemned => wait_for_kill(),
            }
        }
        if watched {
            stop_if_condemned(self.words.finish());
        }
        self.put(&mut part, count)?;
        self.words.clear_note();
        Ok(())
    }

    /// If a task that used the state has panicked, creates a new state. The worker counts as starting until
    /// the new state is ready.
    fn recreate_state(&mut self) -> Result<(), WorkerError> {
        if !self.state.is_broken() || self.is_over() {
            return Ok(());
        }
        send_reply(&self.replies, PoolReply::StateReset { worker: self.worker })?;
        self.state.make()?;
        send_reply(&self.replies, PoolReply::Ready { worker: self.worker, pid: std::process::id() })
    }

    /// Sends the results in the part, and restarts the journal. Does nothing if there are no results.
    fn put(&mut self, part: &mut ReplyPart, count: usize) -> Result<(), WorkerError> {
        if part.ends.is_empty() {
            return Ok(());
        }
        let (id, item) = (part.id, part.item);
        let (plain, nanos) = part.take();
        let outcome = TaskReply::Results { nanos, values: ManyValues::ToSend(plain) };
        send_reply(&self.replies, PoolReply::Outcome { worker: self.worker, id, item, outcome })?;
        if part.item < count {
            self.words.restart_journal(id, part.item);
        }
        Ok(())
    }

    /// Sends the answer of a single task, or an error if the result can't be sent.
    fn answer(
        &self,
        (id, item): (u64, usize),
        ran: RunOutcome,
        alone: Outgoing,
        args: &mut TaskArgs,
    ) -> Result<(), WorkerError> {
        let note = self.words.note();
        let reply = |outcome| PoolReply::Outcome { worker: self.worker, id, item, outcome };
        let outcome = match ran {
            RunOutcome::Done => TaskReply::Done(SingleValue::ToSend(alone)),
            RunOutcome::Raised(raise) => TaskReply::Raised { note, raise },
            RunOutcome::Undecodable(arguments) => TaskReply::Undecodable(arguments),
            RunOutcome::Unread(why, fingerprint) => match args.take_unread() {
                Some(unread) => {
                    TaskReply::Unread { fingerprint, why, arguments: SingleValue::ToSend(unread) }
                }
                None => TaskReply::Unsendable { result: false, why },
            },
            RunOutcome::Unreadable(why) => TaskReply::Unsendable { result: false, why },
            RunOutcome::Unsendable(why) => TaskReply::Unsendable { result: true, why },
        };
        // Attachments are dropped here if they can't be sent. After an interrupt, the answer of the task is
        // still sent.
        let put = || match self.replies.put(reply(outcome)) {
            Ok(()) => Ok(None),
            Err(PutError::Failed { error, .. }) => Ok(Some(error.to_string())),
            Err(error) => Err(error.to_string()),
        };
        let why = match CallFailure::catch(|| mp_core::with_interrupts_masked(put)) {
            Ok(Ok(None)) => return Ok(()),
            Ok(Ok(Some(why))) => TaskReply::Unsendable { result: true, why },
            Ok(Err(error)) => return Err(error.into()),
            Err(raise) => TaskReply::Raised { note, raise },
        };
        send_reply(&self.replies, reply(why))
    }
}

/// Returns if the pool has not condemned this worker. Otherwise blocks until the worker is killed.
fn stop_if_condemned(turn: Turn) {
    if turn == Turn::Condemned {
        wait_for_kill();
    }
}

pub(crate) fn send_reply(replies: &Queue<PoolReply>, reply: PoolReply) -> Result<(), WorkerError> {
    mp_core::with_interrupts_masked(|| replies.put(reply).map_err(|error| error.to_string().into()))
}

/// Blocks until the pool kills this worker.
fn wait_for_kill() -> ! {
    loop {
        std::thread::park();
    }
}

/// Shared words of this process, if it is a worker. A fork of a worker has no words, and does not write into
/// the words of its parent.
static WORDS: PerProcess<OnceLock<WorkerWords>> = mp_core::per_process!(OnceLock::new());

/// Selects the words into which [`note()`] writes in this process.
fn install_notes(shared_words: WorkerWords) {
    // Set once in the life of a process.
    _ = WORDS.set(shared_words);
}

/// Stores a number for the task that runs in this worker, such as its progress or current step. The last
/// number is part of the error if the worker is lost ([`WorkerLost::note`](crate::WorkerLost::note)) or the
/// task [times out](crate::TaskError::TimedOut). It is also part of the error if the task returns an error or
/// panics ([`TaskRaised::note`](crate::TaskRaised::note)). [`Pool::running`](crate::Pool::running) shows the
/// number while the task runs.
///
/// ```
/// use mp_pool::{Pool, TaskError};
///
/// fn add(rows: Vec<u64>) -> u64 {
///     let mut sum = 0;
///     for (at, row) in rows.iter().enumerate() {
///         mp_pool::note(at as u64 + 1);
///         sum += if *row < 100 { *row } else { std::process::abort() };
///     }
///     sum
/// }
///
/// let pool = Pool::builder().processes(1).stderr(mp_spawn::Stdio::Null).build()?;
/// assert_eq!(pool.apply(add, vec![1, 2, 3])?, 6);
/// let sum = pool.apply(add, vec![1, 200, 3]);
/// let Err(TaskError::WorkerLost(lost)) = sum else { panic!("the worker aborts") };
/// assert_eq!(lost.note, Some(2));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// The call is one store into shared memory: cheap enough for each iteration of a loop. Each task begins
/// without a note; 0 means none. Any thread of the worker may call this function. In a process that is not a
/// worker, the call does nothing.
pub fn note(number: u64) {
    if let Some(shared_words) = WORDS.get() {
        shared_words.set_note(number);
    }
}

#[cfg(test)]
mod tests {
    use mp_core::message::Message;
    use mp_reduce::MessagePack;

    use super::*;
    use crate::child::values::{PackedRange, PackedValues};

    /// The chunk precedes its function in the queue. This happens if the pool withdraws the function just
    /// before the worker takes the chunk.
    #[test]
    fn task_arriving_before_its_function_waits() {
        // Runs in a process that ends, because the words of a process are set once.
        mp_spawn::Process::spawn(|(): ()| takes_a_task_before_its_function(), ()).unwrap().join().unwrap();
    }

    fn takes_a_task_before_its_function() {
        let (tasks, replies) = (Queue::bounded(4).unwrap(), Queue::bounded(8).unwrap());
        let args = |mut x: u32| {
            let mut out = Outgoing::default();
            x.encode::<MessagePack>(&mut out).unwrap();
            let bytes = std::mem::take(out.bytes());
            TaskArgs::Packed(PackedRange::of(PackedValues {
                ends: std::iter::once(bytes.len()).collect(),
                bytes,
            }))
        };
        let runner: Closure<(), Runner> = mp_spawn::closure!([] |_none: ()| Runner::new(|x: u32| x + 1));
        tasks
            .put(WorkerRequest::Run {
                id: 7,
                code: 1,
                timeout: None,
                first: FirstTask::default(),
                args: args(3),
            })
            .unwrap();
        tasks.put(WorkerRequest::Learn { code: 1, runner: FunctionMessage::ToSend(runner) }).unwrap();
        tasks
            .put(WorkerRequest::Run {
                id: 8,
                code: 1,
                timeout: None,
                first: FirstTask::default(),
                args: args(4),
            })
            .unwrap();
        tasks.close();
        let shared_words = WorkerWords::new().unwrap();
        let args = WorkerArgs {
            worker: 0,
            label: WorkerLabel::default(),
            tasks,
            replies: replies.clone(),
            shared_words,
            most_tasks: 2,
            initializer: None,
            state: None,
        };
        worker_main(args).unwrap();
        let mut done = Vec::new();
        while let Ok(Some(reply)) = replies.try_get() {
            if let PoolReply::Outcome { id, outcome, .. } = reply
                && let TaskReply::Results { values: ManyValues::Received(many), .. } = outcome
            {
                done.push((id, u32::decode_plain::<MessagePack>(many.get(0).unwrap()).unwrap()));
            }
        }
        assert_eq!(done, [(7, 4_u32), (8, 5)]);
    }
}
