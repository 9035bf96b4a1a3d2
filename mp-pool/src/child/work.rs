//! Main loop of a worker: it takes one chunk of tasks after the other, and answers each before it takes the
//! next.
//!
//! The chunk word ([`steps::chunk`](crate::steps::chunk)) contains the current task of the chunk; the worker
//! changes it before each task. Results are collected in a *part*, which is one reply. A part is sent at the
//! end of the chunk, a millisecond after the previous part, and before a reply about a single task (an error,
//! a result with attachments). Until a part is sent, its results are also in the worker's journal
//! ([`steps::journal`](crate::steps::journal)).
//!
//! A task is *timed* if it has a time limit: see [`clock`](crate::clock).
//!
//! | the worker is killed | its queue | its chunk |
//! |---|---|---|
//! | before it has taken a chunk | still contains the chunk | is sent to another worker |
//! | between taking it and its first task | still contains the other chunks | the first task is lost, the others are sent to another worker |
//! | in a task | still contains the other chunks | that task is lost; earlier tasks are done, later ones are sent to another worker |
//! | between two tasks, or before it has sent the last part | still contains the other chunks | finished tasks are done: their results are in the journal; the others are sent to another worker |
//! | after a task whose result needs a reply of its own, before it has sent that reply | still contains the other chunks | that task is lost |
//! | after it has sent the last part | still contains the other chunks | is done |
//!
//! A chunk may arrive before its function, if the pool withdraws unread messages at the moment when the
//! worker reads again. The pool then sends the function again, and the chunk waits for it. Until then one
//! task of each waiting chunk can be lost with the worker.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::OnceLock;

use mp_core::fork::{GENERATIONS, PerProcess};
use mp_core::message::Outgoing;
use mp_core::user_code::UserValue;
use mp_queue::{GetError, PutError, Queue};
use mp_spawn::{CallFailure, Closure};
use serde::{Deserialize, Serialize};

use crate::child::note;
use crate::clock::TaskClock;
use crate::held::{Failure, Held, MakeState};
use crate::message::{LEAVE, NotRead, Reply, Sent, Task, Value, Values};
use crate::run::row::{Part, Row};
use crate::run::runner::{Ran, Runner};
use crate::run::values::Args;
use crate::steps::chunk::Turn;
use crate::watch::{Own, Watch};

/// Function that a worker calls before its first task.
pub(crate) type Initializer = Closure<(), Result<(), Failure>>;

/// Arguments of a worker process.
#[derive(Serialize, Deserialize)]
pub(crate) struct Orders {
    pub(crate) worker: usize,
    pub(crate) tasks: Queue<Task>,
    pub(crate) replies: Queue<Reply>,
    pub(crate) watch: Watch,
    /// Number of tasks after which the worker ends; 0 means never.
    pub(crate) most_tasks: u64,
    pub(crate) initializer: Option<Initializer>,
    /// Function that creates the worker's state.
    pub(crate) state: Option<MakeState>,
}

static WORKER: PerProcess<OnceLock<usize>> = PerProcess::new([const { OnceLock::new() }; GENERATIONS]);

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
pub(crate) fn work(orders: Orders) -> Result<(), Failure> {
    let Orders { worker, tasks, replies, watch, most_tasks, initializer, state } = orders;
    // Set once in the life of a process.
    _ = WORKER.set(worker);
    if let Some(initializer) = initializer {
        initializer.call(())?;
    }
    let mut held = Held::new(state);
    held.make()?;
    say(&replies, Reply::Ready { worker, pid: std::process::id() })?;
    let (known, waiting, unread) = (HashMap::new(), HashMap::new(), HashMap::new());
    note::of_worker(watch.clone());
    let (clock, own) = (TaskClock::of_worker(watch.clone()), Own::new(watch));
    let mut life = Life {
        worker,
        replies,
        clock,
        own,
        held,
        known,
        unread,
        waiting,
        done: 0,
        most_tasks,
        leaves: false,
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

/// Chunk without the number of its function.
struct Run {
    id: u64,
    timed: bool,
    args: Args,
}

type Known = Result<UserValue<Runner>, Unknown>;

/// Reason why a function is unknown.
struct Unknown {
    why: String,
    /// `true` for lack of descriptors: the function is read again for the next tasks.
    for_now: bool,
}

struct Life {
    worker: usize,
    replies: Queue<Reply>,
    clock: &'static TaskClock,
    own: Own,
    held: Held,
    known: HashMap<u64, Rc<Known>>,
    /// Functions that could not be read for lack of descriptors.
    unread: HashMap<u64, Sent>,
    /// Chunks whose function has not arrived: the pool withdrew its message with other tasks, and sends it
    /// again.
    waiting: HashMap<u64, Vec<Run>>,
    /// Number of tasks done.
    done: u64,
    most_tasks: u64,
    /// `true` if the pool asked the worker to end.
    leaves: bool,
}

impl Life {
    /// Returns `true` if the worker has done its maximum number of tasks, was interrupted, or was asked to
    /// end. Only this process has the waiting chunks, so they are run first.
    fn is_over(&self) -> bool {
        if mp_core::interrupted() {
            return self.waiting.is_empty();
        }
        if self.leaves {
            return self.waiting.is_empty();
        }
        self.most_tasks != 0 && self.done >= self.most_tasks && self.waiting.is_empty()
    }

    /// Returns the number of tasks that may run before the maximum is checked again, at least one.
    fn may_do(&self) -> usize {
        match self.most_tasks {
            0 => usize::MAX >> 1,
            most => most.saturating_sub(self.done).max(1) as usize,
        }
    }

    fn take(&mut self, task: Task) -> Result<(), Failure> {
        let worker = self.worker;
        match task {
            Task::Run { id, code, timed, args } => {
                let run = Run { id, timed, args };
                if let Some(runner) = self.unread.remove(&code) {
                    self.learn(code, runner);
                }
                if let Some(known) = self.known.get(&code).cloned() {
                    return self.run(&known, run);
                }
                self.waiting.entry(code).or_default().push(run);
                Ok(())
            }
            Task::Learn { code, runner } => {
                let known = self.learn(code, runner);
                say(&self.replies, Reply::Noted { worker, code })?;
                let waiting = self.waiting.remove(&code).unwrap_or_default();
                waiting.into_iter().try_for_each(|run| self.run(&known, run))
            }
            // Not answered: the end of the process is the answer.
            Task::Forget { code: LEAVE } => {
                self.leaves = true;
                Ok(())
            }
            Task::Forget { code } => {
                self.known.remove(&code);
                self.unread.remove(&code);
                say(&self.replies, Reply::Noted { worker, code })
            }
        }
    }

    /// Reads a function.
    fn learn(&mut self, code: u64, runner: Sent) -> Rc<Known> {
        let known = Rc::new(match runner.read() {
            Ok(runner) => Ok(UserValue::new(runner)),
            Err(NotRead::Never(why)) => Err(Unknown { why, for_now: false }),
            Err(NotRead::Yet(runner, why)) => {
                self.unread.insert(code, runner);
                Err(Unknown { why, for_now: true })
            }
        });
        self.known.insert(code, Rc::clone(&known));
        known
    }

    /// Runs a chunk, except the tasks that are withdrawn.
    fn run(&mut self, known: &Known, Run { id, timed, mut args }: Run) -> Result<(), Failure> {
        let count = args.len();
        // A single task without a time limit can't be withdrawn or condemned.
        let watched = count > 1 || timed;
        let mut part = Part::of(id);
        if timed {
            self.clock.start();
        }
        if watched {
            go_on(self.own.begin(id, count));
        }
        let mut item = 0;
        while item < count {
            let end = if timed { item + 1 } else { count.min(item + self.may_do()) };
            let mut row = Row::new(&mut self.own, &mut part, &mut args, item..end);
            let ran = match known.as_ref().map(UserValue::get) {
                Ok(Some(runner)) => runner.run(&mut self.held, &mut row),
                Err(Unknown { why, for_now }) => {
                    let why = format!("the function can't be read: {why}");
                    if *for_now { Ran::Unread(why, 0) } else { Ran::Unreadable(why) }
                }
                _ => Ran::Unreadable("the worker does not know the function".into()),
            };
            let (start, refused) = (row.start, row.refused);
            self.done += (row.item + 1 - item) as u64;
            item = row.item;
            if timed {
                self.clock.finish();
            }
            match refused {
                Some(Turn::Condemned) => wait_for_the_end(),
                Some(_) => break,
                None => {}
            }
            if matches!(ran, Ran::Done) && part.out.plain().is_some() {
                part.ends.push(part.out.bytes().len());
                if count > 1 && !self.own.keep(&part.out.bytes()[start..]) {
                    // The journal is full, so the results are sent now.
                    go_on(self.own.finish());
                    self.put(&mut part, count)?;
                }
            } else {
                if watched {
                    go_on(self.own.finish());
                }
                let alone = part.split(start);
                self.put(&mut part, count)?;
                let note = self.own.note();
                answer(&self.replies, (self.worker, id, item), note, ran, alone, &mut args)?;
                part.go_on(item + 1);
                if count > 1 {
                    self.own.sent(id, part.item);
                }
                self.make_anew()?;
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
            self.own.clear_note();
            match self.own.claim() {
                Turn::Go(_) => item += 1,
                Turn::End(_) => break,
                Turn::Condemned => wait_for_the_end(),
            }
        }
        if watched {
            go_on(self.own.finish());
        }
        self.put(&mut part, count)?;
        self.own.clear_note();
        Ok(())
    }

    /// Creates the state again if a task has panicked that used it. Meanwhile this worker counts as starting.
    fn make_anew(&mut self) -> Result<(), Failure> {
        if !self.held.is_broken() || self.is_over() {
            return Ok(());
        }
        say(&self.replies, Reply::Remaking { worker: self.worker })?;
        self.held.make()?;
        say(&self.replies, Reply::Ready { worker: self.worker, pid: std::process::id() })
    }

    /// Sends the collected results, if any.
    fn put(&mut self, part: &mut Part, count: usize) -> Result<(), Failure> {
        if part.ends.is_empty() {
            return Ok(());
        }
        let (id, item) = (part.id, part.item);
        let (plain, nanos) = part.take();
        say(&self.replies, Reply::Part { worker: self.worker, id, item, nanos, values: Values::Out(plain) })?;
        if part.item < count {
            self.own.sent(id, part.item);
        }
        Ok(())
    }
}

/// Blocks until the worker is killed if the pool has condemned it.
fn go_on(turn: Turn) {
    if turn == Turn::Condemned {
        wait_for_the_end();
    }
}

/// Sends the answer of a single task, or an error if the result can't be sent.
fn answer(
    replies: &Queue<Reply>,
    (worker, id, item): (usize, u64, usize),
    note: u64,
    ran: Ran,
    alone: Outgoing,
    args: &mut Args,
) -> Result<(), Failure> {
    let reply = match ran {
        Ran::Done => Reply::Done { worker, id, item, value: Value::Out(alone) },
        Ran::Raised(raise) => Reply::Raised { worker, id, item, note, raise },
        Ran::Undecodable(arguments) => Reply::Undecodable { worker, id, item, arguments },
        Ran::Unread(why, fingerprint) => match args.take_unread() {
            Some(unread) => {
                Reply::Unread { worker, id, item, fingerprint, why, arguments: Value::Out(unread) }
            }
            _ => Reply::Unsendable { worker, id, item, result: false, why },
        },
        Ran::Unreadable(why) => Reply::Unsendable { worker, id, item, result: false, why },
        Ran::Unsendable(why) => Reply::Unsendable { worker, id, item, result: true, why },
    };
    // Attachments are dropped here if they can't be sent. An interrupt ends the task, but not its answer.
    let put = || match replies.put(reply) {
        Ok(()) => Ok(None),
        Err(PutError::Failed { error, .. }) => Ok(Some(error.to_string())),
        Err(error) => Err(error.to_string()),
    };
    let why = match CallFailure::catch(|| mp_core::with_interrupts_masked(put)) {
        Ok(Ok(None)) => return Ok(()),
        Ok(Ok(Some(why))) => Reply::Unsendable { worker, id, item, result: true, why },
        Ok(Err(error)) => return Err(error.into()),
        Err(raise) => Reply::Raised { worker, id, item, note, raise },
    };
    say(replies, why)
}

fn say(replies: &Queue<Reply>, reply: Reply) -> Result<(), Failure> {
    mp_core::with_interrupts_masked(|| replies.put(reply).map_err(|error| error.to_string().into()))
}

/// Blocks until the pool, which has decided to kill this worker, does so.
fn wait_for_the_end() -> ! {
    loop {
        std::thread::park();
    }
}

#[cfg(test)]
mod tests {
    use mp_core::message::Message;
    use mp_reduce::MessagePack;

    use super::*;
    use crate::run::values::{Plain, Slice};

    /// Same situation as when the pool withdraws the function just before the worker takes the task.
    #[test]
    fn a_task_that_comes_before_its_function_waits_for_it() {
        // Runs in a process that ends, because the words of a process are set once.
        mp_spawn::Process::spawn(|(): ()| takes_a_task_before_its_function(), ()).unwrap().join().unwrap();
    }

    fn takes_a_task_before_its_function() {
        let (tasks, replies) = (Queue::bounded(4).unwrap(), Queue::bounded(8).unwrap());
        let args = |mut x: u32| {
            let mut out = Outgoing::default();
            x.encode::<MessagePack>(&mut out).unwrap();
            let bytes = std::mem::take(out.bytes());
            Args::Plain(Slice::of(Plain { ends: std::iter::once(bytes.len()).collect(), bytes }))
        };
        let runner: Closure<(), Runner> = mp_spawn::closure!([] |_none: ()| Runner::new(|x: u32| x + 1));
        tasks.put(Task::Run { id: 7, code: 1, timed: false, args: args(3) }).unwrap();
        tasks.put(Task::Learn { code: 1, runner: Sent::Out(runner) }).unwrap();
        tasks.put(Task::Run { id: 8, code: 1, timed: false, args: args(4) }).unwrap();
        tasks.close();
        let watch = Watch::new().unwrap();
        let orders = Orders {
            worker: 0,
            tasks,
            replies: replies.clone(),
            watch,
            most_tasks: 2,
            initializer: None,
            state: None,
        };
        work(orders).unwrap();
        let mut done = Vec::new();
        while let Ok(Some(reply)) = replies.try_get() {
            if let Reply::Part { id, values: Values::In(many), .. } = reply {
                done.push((id, u32::decode_plain::<MessagePack>(many.get(0).unwrap()).unwrap()));
            }
        }
        assert_eq!(done, [(7, 4_u32), (8, 5)]);
    }
}
