//! One call of the pool: the tasks that are still to be sent, and the outcomes that have come back.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Weak};
use std::task::Waker;
use std::time::{Duration, Instant};

use mp_core::message::Incoming;
use mp_core::mutex::{Condvar, Mutex, MutexGuard};
use mp_core::user_code::{Apart, Each, caught, drop_caught};
use mp_reduce::Message;
use mp_spawn::{Closure, Raise};

use crate::dispatch::shared::Shared;
use crate::error::{TaskError, Unsendable};
use crate::message::{Runner, Write};

/// A function, as the workers know it.
pub(crate) struct Code {
    pub(crate) number: u64,
    /// It holds what the user's closure captures.
    pub(crate) runner: Apart<Closure<(), Runner>>,
    /// The pool that is notified when its last user is gone.
    pub(crate) pool: Weak<Shared>,
}

impl Drop for Code {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.upgrade() {
            pool.is_unused(self.number);
        }
    }
}

/// How the tasks of a call are treated.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Terms {
    /// How many are given to a worker at once; 0: as it turns out to be best.
    pub(crate) chunk: usize,
    pub(crate) timeout: Option<Duration>,
    pub(crate) retries: u32,
}

/// The arguments of one task.
pub(crate) struct Item {
    pub(crate) index: usize,
    /// How often it was begun before.
    pub(crate) tries: u32,
    /// Or why there are none.
    pub(crate) args: Result<Box<dyn Write>, Unsendable>,
    pub(crate) kept: Option<Kept>,
}

/// Arguments that were kept; dropping them lets no panic out.
pub(crate) type Kept = Apart<Box<dyn Keep>>;

/// Arguments that were kept for another attempt.
pub(crate) trait Keep: Send {
    fn again(&self) -> Result<Box<dyn Write>, Unsendable>;
}

struct Original<A>(A, fn(&A) -> A);

impl<A: Message + Send> Keep for Original<A> {
    fn again(&self) -> Result<Box<dyn Write>, Unsendable> {
        Ok(Box::new(cloned(&self.0, self.1)?))
    }
}

/// Calls the user's `clone`, which may panic.
fn cloned<A>(args: &A, clone: fn(&A) -> A) -> Result<A, Unsendable> {
    let panicked = |raise: Box<Raise>| Unsendable::said(format!("its `Clone` panicked: {}", raise.message()));
    Raise::catch(|| clone(args)).map_err(panicked)
}

/// Where arguments come from; knows their type.
pub(crate) trait Source: Send + Sync {
    fn take(&self, most: usize, into: &mut Vec<Item>);
    fn left(&self) -> usize;
    /// Takes what is left: which they were, and themselves, to be dropped when nothing depends on it.
    fn clear(&self) -> (Range<usize>, Rubbish);
}

/// Arguments that are there already.
pub(crate) struct Items<A> {
    /// And the index of the first.
    queue: Mutex<(Each<A>, usize)>,
    clone: Option<fn(&A) -> A>,
}

impl<A> Items<A> {
    pub(crate) fn new(clone: Option<fn(&A) -> A>) -> Self {
        Self { queue: Mutex::new((Each::default(), 0)), clone }
    }

    /// The first items, all at once.
    pub(crate) fn bring(&self, items: VecDeque<A>) {
        self.queue.lock().0 = Each::from(items);
    }

    pub(crate) fn push(&self, items: impl Iterator<Item = A>) {
        self.queue.lock().0.extend(items);
    }
}

impl<A: Message + Send> Source for Items<A> {
    fn take(&self, most: usize, into: &mut Vec<Item>) {
        let (taken, first) = {
            let mut queue = self.queue.lock();
            let count = most.min(queue.0.len());
            let first = queue.1;
            queue.1 += count;
            (queue.0.drain(..count).collect::<Vec<A>>(), first)
        };
        // Code of the user runs here, without the lock.
        into.extend(taken.into_iter().zip(first..).map(|(args, index)| {
            let keep = |clone| {
                let copy = cloned(&args, clone)?;
                Ok(Apart::new(Box::new(Original(copy, clone)) as Box<dyn Keep>))
            };
            match self.clone.map(keep).transpose() {
                Ok(kept) => Item { index, tries: 0, args: Ok(Box::new(args)), kept },
                Err(why) => {
                    drop_caught(args);
                    Item { index, tries: 0, args: Err(why), kept: None }
                }
            }
        }));
    }

    fn left(&self) -> usize {
        self.queue.lock().0.len()
    }

    fn clear(&self) -> (Range<usize>, Rubbish) {
        let mut queue = self.queue.lock();
        let items = std::mem::take(&mut queue.0);
        let first = queue.1;
        queue.1 += items.len();
        let range = first..first + items.len();
        (range, Box::new(items))
    }
}

/// What the user has made and nothing needs any more; dropping it lets no panic out.
pub(crate) type Rubbish = Box<dyn Send>;

/// What came of a task: bytes and attachments of its result, not read yet.
pub(crate) type Outcome = Result<Box<Incoming>, TaskError>;

/// How outcomes are handed out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    /// By the index of the task.
    AsGiven,
    /// As they come.
    AsDone,
}

/// How far a call is.
///
/// ```
/// let pool = mp_pool::Pool::new(2)?;
/// let squares = pool.map_async(|x: u64| x * x, 0..100);
/// squares.wait();
/// assert_eq!((squares.progress().done, squares.progress().total), (100, 100));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Progress {
    /// Tasks that are done, well or not.
    pub done: usize,
    /// Those among them that have no result.
    pub failed: usize,
    /// All tasks.
    pub total: usize,
}

/// The outcomes so far.
pub(crate) struct Slots {
    order: Order,
    /// The index of the first outcome in here.
    base: usize,
    outcomes: VecDeque<Option<Outcome>>,
    progress: Progress,
    wakers: Vec<Apart<Waker>>,
    on_done: Option<Apart<Box<dyn FnOnce() + Send>>>,
    cancelled: bool,
}

impl Slots {
    /// The next outcome, in the order of this call.
    pub(crate) fn next(&mut self) -> Option<Outcome> {
        let next = self.outcomes.pop_front_if(|slot| slot.is_some()).flatten();
        self.base += usize::from(next.is_some());
        next
    }

    pub(crate) fn has_next(&self) -> bool {
        matches!(self.outcomes.front(), Some(Some(_)))
    }
    pub(crate) fn all_done(&self) -> bool {
        self.progress.done == self.progress.total
    }
    pub(crate) fn progress(&self) -> Progress {
        self.progress
    }
    fn will_wake(&self, waker: &Waker) -> bool {
        self.wakers.iter().any(|known| known.get().is_some_and(|known| known.will_wake(waker)))
    }
}

/// A task that was lost with its worker and is to be tried again.
pub(crate) struct Lost {
    pub(crate) index: usize,
    pub(crate) tries: u32,
    pub(crate) kept: Kept,
}

/// One call.
pub(crate) struct Job {
    /// The process that made it. In a copy of that, nothing here is locked: other threads may have held the locks when it
    /// was copied, and no thread settles its tasks.
    owner: u32,
    pub(crate) code: Arc<Code>,
    pub(crate) terms: Terms,
    source: Arc<dyn Source>,
    lost: Mutex<Vec<Lost>>,
    slots: Mutex<Slots>,
    changed: Condvar,
}

impl Job {
    pub(crate) fn new(code: Arc<Code>, terms: Terms, source: Arc<dyn Source>, order: Order) -> Arc<Job> {
        let progress = Progress { done: 0, failed: 0, total: 0 };
        let slots = Slots {
            order,
            base: 0,
            outcomes: VecDeque::new(),
            progress,
            wakers: Vec::new(),
            on_done: None,
            cancelled: false,
        };
        let (owner, lost) = (std::process::id(), Mutex::new(Vec::new()));
        Arc::new(Job { owner, code, terms, source, lost, slots: Mutex::new(slots), changed: Condvar::new() })
    }

    /// Whether this process made it.
    pub(crate) fn is_ours(&self) -> bool {
        self.owner == std::process::id()
    }

    /// Expects outcomes of `tasks` more tasks.
    pub(crate) fn expect(&self, tasks: usize) {
        let mut slots = self.slots.lock();
        slots.progress.total += tasks - usize::from(mp_core::mutant!("pool.total.one-too-few") && tasks > 1);
        if slots.order == Order::AsGiven {
            let len = slots.outcomes.len() + tasks;
            slots.outcomes.resize_with(len, || None);
        }
    }

    /// Takes tasks that are to be sent.
    pub(crate) fn take(&self, most: usize) -> Vec<Item> {
        let lost = {
            let mut lost = self.lost.lock();
            let count = most.min(lost.len());
            lost.drain(..count).collect::<Vec<_>>()
        };
        let again = |Lost { index, tries, kept }| {
            let args =
                kept.get().map_or_else(|| Err(Unsendable::said("they were not kept")), |kept| kept.again());
            Item { index, tries, args, kept: Some(kept) }
        };
        let mut items: Vec<Item> = lost.into_iter().map(again).collect();
        if items.len() < most {
            self.source.take(most - items.len(), &mut items);
        }
        items
    }

    /// How many tasks are to be sent.
    pub(crate) fn left(&self) -> usize {
        self.lost.lock().len() + self.source.left()
    }

    /// This task is to be sent once more.
    pub(crate) fn again(&self, index: usize, tries: u32, kept: Kept) {
        self.lost.lock().push(Lost { index, tries, kept });
    }

    /// Sends no more tasks; which ones were not sent, for the caller to settle, and what they were to be sent with.
    pub(crate) fn cancel(&self) -> (Vec<Lost>, Range<usize>, Rubbish) {
        self.slots.lock().cancelled = true;
        let lost = if mp_core::mutant!("pool.cancel.retries-kept") { Vec::new() } else { self.dead_letter() };
        let (rest, rubbish) = self.source.clear();
        (lost, rest, rubbish)
    }

    /// Takes those that were to be tried again.
    pub(crate) fn dead_letter(&self) -> Vec<Lost> {
        std::mem::take(&mut *self.lost.lock())
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.slots.lock().cancelled
    }

    /// Notes what came of a task; whether it had no outcome yet. [`notify`](Self::notify) wakes waiters.
    pub(crate) fn settle(&self, index: usize, outcome: Outcome) -> bool {
        let slots = &mut *self.slots.lock();
        let failed = outcome.is_err();
        match slots.order {
            Order::AsDone => slots.outcomes.push_back(Some(outcome)),
            Order::AsGiven => match index.checked_sub(slots.base).and_then(|i| slots.outcomes.get_mut(i)) {
                Some(slot) if slot.is_none() || mp_core::mutant!("pool.settled-twice") => {
                    *slot = Some(outcome)
                }
                _ => return false,
            },
        }
        slots.progress.done += 1;
        slots.progress.failed += usize::from(failed);
        true
    }

    /// Tells waiters that outcomes have come.
    pub(crate) fn notify(&self) {
        let (wakers, on_done) = {
            let mut slots = self.slots.lock();
            let wakers = std::mem::take(&mut slots.wakers);
            let done = slots.all_done();
            (wakers, if done { slots.on_done.take() } else { None })
        };
        self.changed.notify_all();
        // The panic hook has shown what panics in them; the pool goes on.
        for waker in wakers {
            caught(|| waker.into_inner().map(Waker::wake));
        }
        if let Some(on_done) = on_done {
            caught(|| on_done.into_inner().map(|call| call()));
        }
    }

    /// Calls this when all is done: at once if it is.
    pub(crate) fn on_done(&self, call: Box<dyn FnOnce() + Send>) {
        self.slots.lock().on_done = Some(Apart::new(call));
        self.notify();
    }

    pub(crate) fn slots(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock()
    }

    /// Has this waker woken when more outcomes come; false if all are there.
    pub(crate) fn wake(&self, waker: &Waker) -> bool {
        {
            let slots = self.slots.lock();
            if slots.all_done() || slots.will_wake(waker) {
                return !slots.all_done();
            }
        }
        // Without the lock: cloning is code of the user, and so is dropping it.
        let waker = Apart::new(waker.clone());
        let mut slots = self.slots.lock();
        let waits = !slots.all_done();
        if waits {
            slots.wakers.push(waker);
            return true;
        }
        drop(slots);
        false
    }

    /// Waits until something is so; false when the time is over.
    pub(crate) fn wait(&self, until: Option<Instant>, so: impl Fn(&Slots) -> bool) -> bool {
        let mut slots = self.slots.lock();
        while !so(&slots) {
            match until {
                None => self.changed.wait(&mut slots),
                Some(until) if self.changed.wait_until(&mut slots, until).timed_out() => return so(&slots),
                Some(_) => {}
            }
        }
        true
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use mp_spawn::Closure;

    use super::*;
    use crate::error::TaskError;

    pub(crate) fn job(tasks: usize, terms: Terms) -> Arc<Job> {
        let function = |_: u64| 0_u64;
        let runner = Closure::from_parts((), move |(): &(), (): ()| Runner::new(function));
        let code = Code { number: 1, runner: Apart::new(runner), pool: Weak::new() };
        let source = Arc::new(Items::<u64>::new(None));
        let job = Job::new(Arc::new(code), terms, source, Order::AsGiven);
        job.expect(tasks);
        job
    }

    /// A worker that is ended for its task may have answered it just before.
    #[test]
    fn a_task_has_one_outcome() {
        let job = job(2, Terms::default());
        assert!(job.settle(0, Err(TaskError::Terminated)));
        assert!(!job.settle(0, Err(TaskError::Terminated)));
        assert_eq!(job.slots.lock().progress().done, 1);
    }

    /// Else its call would wait for it for ever.
    #[test]
    fn a_task_that_is_to_be_tried_again_ends_with_its_call() {
        let job = job(1, Terms::default());
        let kept: Box<dyn Keep> = Box::new(Original(7_u64, Clone::clone));
        job.again(0, 1, Apart::new(kept));
        let (lost, ..) = job.cancel();
        assert_eq!(lost.iter().map(|lost| lost.index).collect::<Vec<_>>(), [0]);
    }
}
