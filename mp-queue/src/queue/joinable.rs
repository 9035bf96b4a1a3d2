//! A queue that tracks unfinished tasks.

use std::fmt;

use mp_core::waits::BlockingCall;
use mp_core::{AdaptiveSpin, Wait, WaitPoint, Waitable, quantity};
use mp_reduce::Error;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::{GetError, HolderList, Leaseholder, PutError};
use crate::queue::Queue;
use crate::queue::batch::PutManyError;
use crate::queue::lease::Lease;
use crate::queue::waitable::{LeaseReady, PutReady};
use crate::raw::options::QueueOptions;
use crate::raw::waiting::{WaitError, WaitSite};
use crate::ring::MessageCounts;

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
/// tasks.join()?; // returns at once: all tasks are done
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A task is unfinished from [`put`](Self::put) until [`Lease::ack`] (Python's `task_done`, which here can't
/// be forgotten or called once too often). If its consumer dies, panics or drops the lease before that, the
/// task is lost and not redelivered. [`join`](Self::join) does not wait for a lost task and reports it, and
/// [`dead_letter`](Self::dead_letter) returns it.
///
/// The queue can be cloned and sent to other processes. Tasks are serde types. Memory in a task stays
/// allocated until the task is done.
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

/// Error returned by [`JoinableQueue::join`] if not all tasks were done.
#[derive(thiserror::Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum JoinableQueueError {
    /// No task is unfinished, but some tasks were lost: their consumers died, panicked or dropped the leases.
    /// Contains the number of lost tasks.
    #[error(
        "{} not done: consumers died or gave tasks back (dead_letter() returns the tasks)",
        quantity(.0, "task")
    )]
    Lost(usize),
    /// The time has expired, and some tasks are unfinished.
    #[error("{} not done yet{}", quantity(tasks, "task"), HolderList(holders))]
    Unfinished {
        /// Number of unfinished tasks: in the queue, or leased by a consumer.
        tasks: usize,
        /// Processes that have leased some of these tasks. A stopped process keeps its leases.
        holders: Vec<Leaseholder>,
    },
    /// This process was forked and can't access the queue.
    #[error(transparent)]
    Failed(Error),
}

mp_core::readable_debug!(JoinableQueueError);

/// Returns the result of a join when no task is unfinished: an error if tasks were lost.
pub(crate) fn join_result(found: MessageCounts) -> Result<(), JoinableQueueError> {
    match found.lost {
        0 => Ok(()),
        lost => Err(JoinableQueueError::Lost(lost)),
    }
}

impl<T: Serialize + DeserializeOwned + 'static> JoinableQueue<T> {
    /// Creates a queue for up to `capacity` tasks, not counting tasks that consumers have leased.
    ///
    /// # Errors
    /// Returns the same errors as [`Queue::bounded`].
    pub fn bounded(capacity: usize) -> Result<Self, Error> {
        Self::made(QueueOptions::new().capacity(capacity))
    }

    /// Creates a queue that grows, like [`Queue::unbounded`].
    ///
    /// # Errors
    /// Returns the same errors as [`Queue::unbounded`].
    pub fn unbounded() -> Result<Self, Error> {
        Self::made(QueueOptions::new())
    }

    /// Names the queue, like [`Queue::named`].
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        Self { queue: self.queue.named(name) }
    }

    /// Returns the name that a process has [given](Self::named) the queue.
    pub fn given_name(&self) -> Option<String> {
        self.queue.given_name()
    }

    /// Returns the queue of tasks that no consumer has taken, for methods that this type lacks. A task that
    /// is taken by [`Queue::get`] counts as done at once.
    pub fn queue(&self) -> &Queue<T> {
        &self.queue
    }

    /// Creates a queue with these options. A task is delivered once: the option
    /// [`deliveries`](QueueOptions::deliveries) is ignored.
    ///
    /// # Errors
    /// Returns the same errors as [`QueueOptions::create`].
    pub fn with_options(options: QueueOptions) -> Result<Self, Error> {
        Self::made(options)
    }

    fn made(options: QueueOptions) -> Result<Self, Error> {
        let queue = options.deliveries(1).create()?;
        // Applies from the first task on, also if a consumer dies in its first `get`.
        queue.raw().memory().enable_redelivery();
        Ok(Self { queue })
    }

    /// Puts a task. Waits while the queue is full.
    ///
    /// # Errors
    /// Returns the same errors as [`Queue::put`].
    #[track_caller]
    pub fn put(&self, task: T) -> Result<(), PutError<T>> {
        self.queue.put(task)
    }

    mp_core::forms! {
        "Puts a task": put(task: T) -> Result<(), PutError<T>>, or "[`PutError::Full`]";
        |tasks, wait| tasks.queue.put_wait(task, wait);
        never try_put;
        at_most put_timeout;
        until put_deadline;
    }

    /// Takes the oldest task. Waits while the queue is empty. Returns `None` if the queue is closed and no
    /// other process has leased a task.
    ///
    /// # Errors
    /// Returns the same errors as [`Queue::get_lease`].
    #[track_caller]
    pub fn get(&self) -> Result<Option<Lease<T>>, GetError> {
        self.queue.get_lease()
    }

    mp_core::forms! {
        "Takes the oldest task": get() -> Result<Option<Lease<T>>, GetError>,
        or "[`GetError::Empty`], or [`GetError::Leased`] with the leaseholders if the queue is closed and \
            their messages may be given back";
        |tasks, wait| tasks.queue.lease_wait(wait);
        never try_get;
        at_most get_timeout;
        until get_deadline;
    }

    /// Puts all tasks, in their order. Waits while the queue is full. Returns the number of tasks. See
    /// [`Queue::put_many`].
    ///
    /// # Errors
    /// Returns the same errors as [`Queue::put_many`].
    #[track_caller]
    pub fn put_many<I: IntoIterator<Item = T>>(
        &self,
        tasks: I,
    ) -> Result<usize, PutManyError<T, I::IntoIter>> {
        self.queue.put_many(tasks)
    }

    /// Returns an iterator that takes tasks until the queue is closed and no other process has leased a task.
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
        QueueTasks(self)
    }

    /// Returns a `Waitable` for room: see [`Queue::put_ready`]. To wait for tasks, wait for the queue itself.
    pub fn put_ready(&self) -> PutReady<T> {
        self.queue.put_ready()
    }

    /// Waits until no task is unfinished.
    ///
    /// # Errors
    /// Returns [`JoinableQueueError::Lost`] if tasks were lost and all others are done.
    #[track_caller]
    pub fn join(&self) -> Result<(), JoinableQueueError> {
        self.join_wait(Wait::Forever)
    }

    mp_core::forms! {
        "Waits until no task is unfinished": join() -> Result<(), JoinableQueueError>,
        or "[`JoinableQueueError::Unfinished`]";
        |tasks, wait| tasks.join_wait(wait);
        at_most join_timeout;
        until join_deadline;
    }

    #[track_caller]
    fn join_wait(&self, wait: Wait) -> Result<(), JoinableQueueError> {
        let raw = self.queue.raw();
        raw.arena().me().map_err(|e| JoinableQueueError::Failed(e.into()))?;
        let patience = AdaptiveSpin::none();
        let mut found = MessageCounts::default();
        let done = || {
            found = raw.memory().census();
            (found.unfinished == 0).then_some(Ok(()))
        };
        let at = WaitSite { parking: raw.memory().finished(), purpose: None, call: BlockingCall::QueueJoin };
        match raw.attempt_until(wait, (&patience, None), at, done) {
            Ok(()) => join_result(found),
            Err(WaitError::Failed(error)) => Err(JoinableQueueError::Failed(error)),
            Err(WaitError::Interrupted) => {
                Err(JoinableQueueError::Failed(mp_core::Error::Interrupted.into()))
            }
            Err(WaitError::TimedOut | WaitError::Deserted(..) | WaitError::Disconnected) => {
                Err(JoinableQueueError::Unfinished {
                    tasks: found.unfinished,
                    holders: raw.leaseholders(None),
                })
            }
        }
    }

    /// Returns the number of unfinished tasks: in the queue, or leased by a consumer. This is a snapshot. The
    /// result is 0 only if at some moment during the call no task was unfinished.
    pub fn unfinished(&self) -> usize {
        if self.queue.raw().arena().me().is_err() {
            return 0;
        }
        self.queue.raw().memory().census().unfinished
    }

    /// Returns the number of tasks that were lost by their consumers and not yet returned by
    /// [`dead_letter`](Self::dead_letter). This is a snapshot, which is exact if no task is unfinished.
    ///
    /// ```
    /// let tasks = mp_queue::JoinableQueue::unbounded()?;
    /// tasks.put(3)?;
    /// drop(tasks.get()?);
    /// assert_eq!((tasks.unfinished(), tasks.lost()), (0, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn lost(&self) -> usize {
        if self.queue.raw().arena().me().is_err() {
            return 0;
        }
        self.queue.raw().memory().census().lost
    }

    /// Takes a task that was lost by its consumer. Returns `None` if there is no such task.
    ///
    /// # Errors
    /// Returns the same errors as [`Queue::dead_letter`].
    pub fn dead_letter(&self) -> Result<Option<T>, GetError> {
        self.queue.dead_letter()
    }

    /// Closes the queue. See [`Queue::close`].
    pub fn close(&self) -> bool {
        self.queue.close()
    }

    /// Returns the number of tasks that no consumer has taken: a snapshot.
    #[doc(alias = "qsize")]
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Returns `true` if the queue has no room for another task: a snapshot. Leased tasks use no room.
    #[doc(alias = "full")]
    pub fn is_full(&self) -> bool {
        self.queue.is_full()
    }

    /// Returns the number of tasks that the queue can contain, not counting leased tasks. For a queue without
    /// a bound, this is the arena's number of messages.
    pub fn capacity(&self) -> usize {
        self.queue.capacity()
    }

    /// Returns `true` if consumers have taken all tasks: a snapshot.
    #[doc(alias = "empty")]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

/// Ready when [`try_get`](JoinableQueue::try_get) would not return [`Empty`](crate::GetError::Empty): there
/// is a task, or the queue is at its end. A queue is at its end when it is closed and no other process has
/// leased a task that might be given back.
impl<T: Serialize + DeserializeOwned + 'static> Waitable for JoinableQueue<T> {
    fn wait_point(&self) -> WaitPoint<'_> {
        LeaseReady::place_of(self.queue().raw())
    }

    fn is_ready(&self) -> bool {
        LeaseReady::ready_of(self.queue().raw())
    }
}

/// Iterator over the tasks of a joinable queue.
struct QueueTasks<'a, T: Serialize + DeserializeOwned + 'static>(&'a JoinableQueue<T>);

impl<T: Serialize + DeserializeOwned + 'static> Iterator for QueueTasks<'_, T> {
    type Item = Result<Lease<T>, GetError>;

    #[track_caller]
    fn next(&mut self) -> Option<Self::Item> {
        self.0.get().transpose()
    }
}
