//! The life of a worker: it takes one task after the other, and answers each before it takes the next.
//!
//! A task is *timed* if it may take only so long. Then the worker's words of the *watch* say since when (by the system's
//! monotonic clock, written by the worker before the other word), and what it runs:
//!
//! | word | meaning | changed by |
//! |---|---|---|
//! | 0 | no timed task runs | the worker → `id`; the pool, when the time of the next task is over and the worker is stopped → `id` + [`CONDEMNED`] |
//! | `id` | task `id` runs | the worker, when it is done → 0; the pool, when its time is over → `id` + [`CONDEMNED`] |
//! | `id` + [`CONDEMNED`] | its time was over before it was done, or before it began: the worker will be killed, and does nothing more | the pool, while no worker lives → 0 |
//!
//! One compare-and-swap decides whether the task was done in time, so that no other task dies with the worker; and one,
//! whether it was begun at all by a worker that was stopped, and may go on in any moment.
//!
//! | the worker is killed | its queue | the task |
//! |---|---|---|
//! | before it has taken a task | has it still | is given to another worker |
//! | between taking it and putting the reply | has the others still | is lost: the one that can be |
//! | after it has put the reply | has the others still | is done |
//!
//! A task may come before its function, if the pool takes back what the worker has not read just when it reads again: the
//! function's note is given once more, and the task waits for it. Until then more than one can be lost with the worker.

use std::collections::HashMap;
use std::sync::OnceLock;

use mp_core::fork::{GENERATIONS, PerProcess};
use mp_core::user_code::Apart;
use mp_queue::{PutError, Queue};
use mp_spawn::{Closure, Raise};
use mp_tensor::SharedTensor;
use serde::{Deserialize, Serialize};

use crate::message::{Body, Ran, Reply, Runner, Task};

/// Added to a task's id: its time was over.
pub(crate) const CONDEMNED: u64 = 1 << 63;

type Failure = Box<dyn std::error::Error + Send + Sync>;
/// What a worker calls before its first task.
pub(crate) type Initializer = Closure<(), Result<(), Failure>>;

/// The words of a worker in the watch: what it runs.
pub(crate) fn what(worker: usize) -> usize {
    2 * worker
}

/// And since when.
pub(crate) fn since(worker: usize) -> usize {
    2 * worker + 1
}

/// Nanoseconds on a clock that all processes read alike.
pub(crate) fn now() -> u64 {
    mp_core::monotonic().as_nanos() as u64
}

/// What a worker is given.
#[derive(Serialize, Deserialize)]
pub(crate) struct Orders {
    pub(crate) worker: usize,
    pub(crate) tasks: Queue<Task>,
    pub(crate) replies: Queue<Reply>,
    pub(crate) watch: SharedTensor<u64>,
    /// After this many tasks it ends; 0 is never.
    pub(crate) most_tasks: u64,
    pub(crate) initializer: Option<Initializer>,
}

static WORKER: PerProcess<OnceLock<usize>> = PerProcess::new([const { OnceLock::new() }; GENERATIONS]);

/// The number of this worker in its pool, from 0; `None` in a process that is no worker of a pool. A worker that takes the
/// place of another has its number.
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

/// The function of the process.
pub(crate) fn work(orders: Orders) -> Result<(), Failure> {
    let Orders { worker, tasks, replies, watch, most_tasks, initializer } = orders;
    // Once in the life of a process.
    _ = WORKER.set(worker);
    if let Some(initializer) = initializer {
        initializer.call(())?;
    }
    say(&replies, Reply::Ready { worker, pid: std::process::id() })?;
    let mut life = Life { worker, replies, watch, known: HashMap::new(), waiting: HashMap::new(), done: 0 };
    while let Some(task) = tasks.get()? {
        life.take(task)?;
        // What waits is this process's alone.
        if most_tasks != 0
            && life.done >= most_tasks + u64::from(mp_core::mutant!("pool.maxtasks.one-too-many"))
            && life.waiting.is_empty()
        {
            break;
        }
    }
    Ok(())
}

/// A task, without the number of its function.
struct Run {
    id: u64,
    timed: bool,
    args: Body,
}

struct Life {
    worker: usize,
    replies: Queue<Reply>,
    watch: SharedTensor<u64>,
    known: HashMap<u64, Result<Apart<Runner>, String>>,
    /// Tasks of functions that it is about to learn: the note was taken back with other tasks, by the pool, and comes again.
    waiting: HashMap<u64, Vec<Run>>,
    done: u64,
}

impl Life {
    fn take(&mut self, task: Task) -> Result<(), Failure> {
        let worker = self.worker;
        match task {
            Task::Run { id, code, timed, args } => {
                let run = Run { id, timed, args };
                if self.known.contains_key(&code) {
                    return self.run(code, run);
                }
                if !mp_core::mutant!("pool.early-task-dropped") {
                    self.waiting.entry(code).or_default().push(run);
                }
                Ok(())
            }
            Task::Learn { code, runner } => {
                self.known.insert(code, Runner::read(runner).map(Apart::new));
                say(&self.replies, Reply::Noted { worker, code })?;
                let waiting = self.waiting.remove(&code).unwrap_or_default();
                waiting.into_iter().try_for_each(|run| self.run(code, run))
            }
            Task::Forget { code } => {
                self.known.remove(&code);
                say(&self.replies, Reply::Noted { worker, code })
            }
        }
    }

    fn run(&mut self, code: u64, Run { id, timed, args }: Run) -> Result<(), Failure> {
        let (worker, watch) = (self.worker, &self.watch);
        if timed {
            watch.store(since(worker), now());
            if watch.compare_exchange(what(worker), 0, id).is_err() {
                wait_for_the_end();
            }
        }
        let ran = match (self.known.get(&code).map(|known| known.as_ref().map(Apart::get)), args.received()) {
            (Some(Ok(Some(runner))), Some(args)) => runner.run(*args),
            (Some(Err(why)), _) => Ran::Undecodable(format!("the function can't be read: {why}")),
            _ => Ran::Undecodable("the worker does not know the function".into()),
        };
        if timed
            && watch.compare_exchange(what(worker), id, 0).is_err()
            && !mp_core::mutant!("pool.condemned.answers")
        {
            wait_for_the_end();
        }
        self.done += 1;
        answer(&self.replies, worker, id, ran)
    }
}

/// Puts the reply; if the result can't be sent, another one that says so.
fn answer(replies: &Queue<Reply>, worker: usize, id: u64, ran: Ran) -> Result<(), Failure> {
    let reply = match ran {
        Ran::Done(value) => Reply::Done { worker, id, value: Body::out(value) },
        Ran::Raised(raise) => Reply::Raised { worker, id, raise },
        Ran::Undecodable(why) => Reply::Unsendable { worker, id, result: false, why },
    };
    // Code of the user runs in here; what it raises there is what the task ends with.
    let put = || match replies.put(reply) {
        Ok(()) => Ok(None),
        Err(PutError::Failed { error, .. }) => Ok(Some(error.to_string())),
        Err(error) => Err(error.to_string()),
    };
    let why = match Raise::catch(put) {
        Ok(Ok(None)) => return Ok(()),
        Ok(Ok(Some(why))) => Reply::Unsendable { worker, id, result: true, why },
        Ok(Err(error)) => return Err(error.into()),
        Err(raise) => Reply::Raised { worker, id, raise },
    };
    say(replies, why)
}

fn say(replies: &Queue<Reply>, reply: Reply) -> Result<(), Failure> {
    replies.put(reply).map_err(|error| error.to_string().into())
}

/// The pool has decided to kill this worker.
fn wait_for_the_end() -> ! {
    loop {
        std::thread::park();
    }
}

#[cfg(test)]
mod tests {
    use mp_tensor::Tensor;

    use super::*;

    /// As when the pool took the note back just before, and the worker this task.
    #[test]
    fn a_task_that_comes_before_its_function_waits_for_it() {
        let (tasks, replies) = (Queue::bounded(4).unwrap(), Queue::bounded(8).unwrap());
        let watch = Tensor::zeros(&[2]).unwrap().share();
        let args = |x: u32| Body::out(Box::new(x));
        let runner: Closure<(), Runner> = mp_spawn::closure!([] |_none: ()| Runner::new(|x: u32| x + 1));
        tasks.put(Task::Run { id: 7, code: 1, timed: false, args: args(3) }).unwrap();
        tasks.put(Task::Learn { code: 1, runner: Body::out(Box::new(runner)) }).unwrap();
        tasks.put(Task::Run { id: 8, code: 1, timed: false, args: args(4) }).unwrap();
        tasks.close();
        let orders =
            Orders { worker: 0, tasks, replies: replies.clone(), watch, most_tasks: 2, initializer: None };
        work(orders).unwrap();
        let mut done = Vec::new();
        while let Ok(Some(reply)) = replies.try_get() {
            if let Reply::Done { id, value, .. } = reply {
                let mut value = value.received().unwrap();
                done.push((
                    id,
                    mp_core::message::Message::decode::<mp_reduce::MessagePack>(&mut value).unwrap(),
                ));
            }
        }
        assert_eq!(done, [(7, 4_u32), (8, 5)]);
    }
}
