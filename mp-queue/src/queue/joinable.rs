//! A queue that knows when all its tasks are done.

use std::fmt;

use mp_core::waits::Call;
use mp_core::{AdaptiveSpin, Wait};
use mp_reduce::Error;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::{GetError, Leaseholder, PutError, list};
use crate::queue::Queue;
use crate::queue::batch::PutManyError;
use crate::queue::lease::{Holders, Lease};
use crate::queue::options::QueueOptions;
use crate::queue::waitable::PutReady;
use crate::raw::waiting::{At, Unmet};
use crate::ring::Counted;

/// A queue of tasks that can wait until all of them are done.
///
/// ```
/// use mp_queue::JoinableQueue;
///
/// let tasks = JoinableQueue::unbounded()?;
/// tasks.put(3)?;
/// tasks.put(4)?;
/// while let Ok(Some(task)) = tasks.try_get() {
///     println!("{}", *task * *task);
///     task.ack();
/// }
/// tasks.join()?; // nothing is left
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A task is unfinished from [`put`](Self::put) until [`Lease::ack`] (Python's `task_done`, which can't be forgotten or
/// called once too often here). A task whose consumer dies, panics or drops it before that is not done again, and not
/// waited for: [`join`](Self::join) reports it, and [`dead_letter`](Self::dead_letter) gives it back.
///
/// The queue can be cloned and sent to other processes. Tasks are serde types; what is in a task is kept until it is done.
#[derive(Serialize, Deserialize)]
#[serde(bound = "", transparent)]
pub struct JoinableQueue<T: Serialize + DeserializeOwned + 'static> {
    queue: Queue<T>,
}

impl<T: Serialize + DeserializeOwned + 'static> Clone for JoinableQueue<T> {
    fn clone(&self) -> Self {
        Self { queue: self.queue.clone() }
    }
}

impl<T: Serialize + DeserializeOwned + 'static> fmt::Debug for JoinableQueue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Joinable{:?}", self.queue)
    }
}

/// Why [`JoinableQueue::join`] ended otherwise than with everything done.
#[derive(Serialize, Deserialize)]
#[non_exhaustive]
pub enum JoinableQueueError {
    /// Nothing is left to wait for, but this many tasks were not done: their consumers died, panicked or
    /// dropped them.
    Lost(usize),
    /// The time is over, and not everything is done.
    Unfinished {
        /// How many tasks are unfinished still: not begun, or leased by a consumer.
        tasks: usize,
        /// The processes that work on some of them. One that is stopped keeps what it has.
        holders: Vec<Leaseholder>,
    },
    /// This process can't see the queue: it was forked.
    Failed(Error),
}

impl fmt::Display for JoinableQueueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JoinableQueueError::Lost(n) => {
                write!(
                    f,
                    "{n} tasks were not done: their consumers died or gave up (dead_letter returns them)"
                )
            }
            JoinableQueueError::Unfinished { tasks, holders } => {
                write!(f, "{tasks} tasks are not done yet")?;
                list(f, holders)
            }
            JoinableQueueError::Failed(e) => e.fmt(f),
        }
    }
}

mp_core::readable_debug!(JoinableQueueError);

impl std::error::Error for JoinableQueueError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            JoinableQueueError::Failed(e) => std::error::Error::source(e),
            _ => None,
        }
    }
}

/// Nothing is left to wait for: whether all was done.
pub(crate) fn over(found: Counted) -> Result<(), JoinableQueueError> {
    match found.lost {
        0 => Ok(()),
        lost => Err(JoinableQueueError::Lost(lost)),
    }
}

impl<T: Serialize + DeserializeOwned + 'static> JoinableQueue<T> {
    /// A queue for up to `capacity` tasks that are not begun.
    ///
    /// # Errors
    /// As [`Queue::bounded`].
    pub fn bounded(capacity: usize) -> Result<Self, Error> {
        Self::made(QueueOptions::new().capacity(capacity))
    }

    /// A queue that grows, as [`Queue::unbounded`].
    ///
    /// # Errors
    /// As [`Queue::unbounded`].
    pub fn unbounded() -> Result<Self, Error> {
        Self::made(QueueOptions::new())
    }

    /// Gives it a name, as [`Queue::named`].
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        Self { queue: self.queue.named(name) }
    }

    /// The name that some process [gave](Self::named) it.
    pub fn given_name(&self) -> Option<String> {
        self.queue.given_name()
    }

    pub(crate) fn queue(&self) -> &Queue<T> {
        &self.queue
    }

    fn made(options: QueueOptions) -> Result<Self, Error> {
        let queue = options.deliveries(1).create()?;
        // From the first task on, also if a consumer dies in its very first `get`.
        queue.raw().memory().redeliver();
        Ok(Self { queue })
    }

    /// Puts a task; waits while the queue is full.
    ///
    /// # Errors
    /// As [`Queue::put`].
    pub fn put(&self, task: T) -> Result<(), PutError<T>> {
        self.queue.put(task)
    }

    mp_core::forms! {
        "Puts a task": put(task: T) -> Result<(), PutError<T>>, or "[`PutError::Full`]";
        |tasks, wait| tasks.queue.put_within(task, wait);
        never try_put;
        at_most put_timeout;
        until put_deadline;
    }

    /// Takes the oldest task; waits while there is none. `None` when the queue is closed and no other process works on a
    /// task any more.
    ///
    /// # Errors
    /// As [`Queue::get_ack`].
    pub fn get(&self) -> Result<Option<Lease<T>>, GetError> {
        self.queue.get_ack()
    }

    mp_core::forms! {
        "Takes the oldest task": get() -> Result<Option<Lease<T>>, GetError>,
        or "[`GetError::Empty`]; [`GetError::Leased`], with the processes, if the queue is closed and what they work on may \
            come back";
        |tasks, wait| tasks.queue.lease_within(wait);
        never try_get;
        at_most get_timeout;
        until get_deadline;
    }

    /// Puts all tasks, in their order; waits while the queue is full. Returns how many they were. See
    /// [`Queue::put_many`].
    ///
    /// # Errors
    /// As [`Queue::put_many`].
    pub fn put_many<I: IntoIterator<Item = T>>(
        &self,
        tasks: I,
    ) -> Result<usize, PutManyError<T, I::IntoIter>> {
        self.queue.put_many(tasks)
    }

    /// Takes tasks until the queue is closed and no other process works on a task any more.
    ///
    /// ```
    /// use mp_queue::JoinableQueue;
    ///
    /// let tasks = JoinableQueue::unbounded()?;
    /// tasks.put_many(["a", "b"].map(String::from))?;
    /// tasks.close();
    /// for task in tasks.iter() {
    ///     assert!(["a", "b"].contains(&task?.ack().as_str()));
    /// }
    /// tasks.join()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn iter(&self) -> impl Iterator<Item = Result<Lease<T>, GetError>> + '_ {
        std::iter::from_fn(|| self.get().transpose())
    }

    /// Its room for tasks, as something to wait for: see [`Queue::put_ready`]. For tasks, wait for the queue itself.
    pub fn put_ready(&self) -> PutReady<T> {
        self.queue.put_ready()
    }

    /// Waits until no task is unfinished.
    ///
    /// # Errors
    /// [`JoinableQueueError::Lost`] when all others are done, but some never will be.
    pub fn join(&self) -> Result<(), JoinableQueueError> {
        self.join_within(Wait::Forever)
    }

    mp_core::forms! {
        "Waits until no task is unfinished": join() -> Result<(), JoinableQueueError>, or "[`JoinableQueueError::Unfinished`]";
        |tasks, wait| tasks.join_within(wait);
        at_most join_timeout;
        until join_deadline;
    }

    fn join_within(&self, wait: Wait) -> Result<(), JoinableQueueError> {
        let raw = self.queue.raw();
        raw.arena().me().map_err(|e| JoinableQueueError::Failed(e.into()))?;
        let patience = AdaptiveSpin::none();
        let mut found = Counted::default();
        let done = || {
            found = raw.memory().census();
            (found.unfinished == 0).then_some(Ok(()))
        };
        let at = At { parking: raw.memory().finished(), what: None, call: Call::QueueJoin };
        match raw.within(wait, (&patience, None), at, done, || None) {
            Ok(()) => over(found),
            Err(Unmet::Failed(error)) => Err(JoinableQueueError::Failed(error)),
            Err(Unmet::Interrupted) => Err(JoinableQueueError::Failed(mp_core::Error::Interrupted.into())),
            Err(Unmet::Waited | Unmet::Alone(_)) => Err(JoinableQueueError::Unfinished {
                tasks: found.unfinished,
                holders: raw.leaseholders(Holders::All),
            }),
        }
    }

    /// How many tasks are unfinished: not begun, or leased by a consumer. A snapshot; 0 only if there
    /// was a moment at which none was.
    pub fn unfinished(&self) -> usize {
        if self.queue.raw().arena().me().is_err() {
            return 0;
        }
        self.queue.raw().memory().census().unfinished
    }

    /// Takes a task whose consumer lost it; `None` if there is none.
    ///
    /// # Errors
    /// As [`Queue::dead_letter`].
    pub fn dead_letter(&self) -> Result<Option<T>, GetError> {
        self.queue.dead_letter()
    }

    /// Closes the queue; see [`Queue::close`].
    pub fn close(&self) -> bool {
        self.queue.close()
    }

    /// How many tasks are not begun: a snapshot.
    #[doc(alias = "qsize")]
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Whether as many as fit are not begun: a snapshot.
    #[doc(alias = "full")]
    pub fn is_full(&self) -> bool {
        self.queue.is_full()
    }

    /// How many tasks that are not begun fit; of a queue without a bound, how many the arena has room for.
    pub fn capacity(&self) -> usize {
        self.queue.capacity()
    }

    /// Whether no task waits to be begun: a snapshot.
    #[doc(alias = "empty")]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}
