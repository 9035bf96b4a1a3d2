//! What Python's manager has in its server, and what is better in shared memory: queues, locks, numbers. These live as long as any
//! process or message has a handle, also when the manager is gone, and no call of them goes through the server.

use mp_pool::Pool;
use mp_queue::{JoinableQueue, Queue};
use mp_sync::{Array, Barrier, BoundedSemaphore, Condition, Event, Lock, Plain, RLock, Semaphore};

use crate::error::CallError;
use crate::manager::ManagerHandle;
use crate::proxy::Proxy;
use crate::ready::Entry;

/// # What needs no server
///
/// These are what the crates `mp-queue` and `mp-sync` make, under the names that Python's manager has for them. They are in shared
/// memory: a put, a get, a lock and a number are operations of some ten or hundred nanoseconds there, and none waits for the server.
/// Each lives as long as any process or message has a handle; the manager's end is nothing to it.
impl ManagerHandle {
    /// A queue for up to `capacity` messages: [`Queue::bounded`].
    ///
    /// # Errors
    /// When there is no shared memory for it.
    #[doc(alias = "Queue")]
    pub fn queue<T: mp_reduce::Message>(&self, capacity: usize) -> Result<Queue<T>, CallError> {
        Ok(Queue::bounded(capacity)?)
    }

    /// A queue whose messages are counted until they are done: [`JoinableQueue::bounded`].
    ///
    /// # Errors
    /// When there is no shared memory for it.
    #[doc(alias = "JoinableQueue")]
    pub fn joinable_queue<T: Entry>(&self, capacity: usize) -> Result<JoinableQueue<T>, CallError> {
        Ok(JoinableQueue::bounded(capacity)?)
    }

    /// A value behind a lock: [`Lock::new`].
    ///
    /// ```
    /// # let manager = mp_manager::Manager::start()?;
    /// let total = manager.value(40_u64)?;
    /// *total.lock()? += 2;
    /// assert_eq!(*total.lock()?, 42);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// When there is no shared memory for it.
    #[doc(alias = "Value")]
    pub fn value<T: Plain + Send>(&self, value: T) -> Result<Lock<T>, CallError> {
        Ok(Lock::new(value)?)
    }

    /// Numbers behind a lock: [`Array::from_slice`].
    ///
    /// # Errors
    /// When there is no shared memory for it.
    #[doc(alias = "Array")]
    pub fn array<T: Plain + Send>(&self, values: &[T]) -> Result<Array<T>, CallError> {
        Ok(Array::from_slice(values)?)
    }

    /// A lock around nothing: [`Lock::new`].
    ///
    /// # Errors
    /// When there is no shared memory for it.
    #[doc(alias = "Lock")]
    pub fn lock(&self) -> Result<Lock<()>, CallError> {
        Ok(Lock::new(())?)
    }

    /// A lock that its owner may take again: [`RLock::new`].
    ///
    /// # Errors
    /// When there is no shared memory for it.
    #[doc(alias = "RLock")]
    pub fn rlock(&self) -> Result<RLock<()>, CallError> {
        Ok(RLock::new(())?)
    }

    /// Permits: [`Semaphore::new`].
    ///
    /// # Errors
    /// When there is no shared memory for it.
    #[doc(alias = "Semaphore")]
    pub fn semaphore(&self, permits: u32) -> Result<Semaphore, CallError> {
        Ok(Semaphore::new(permits)?)
    }

    /// Permits, of which no more can be given back than were taken: [`BoundedSemaphore::new`].
    ///
    /// # Errors
    /// When there is no shared memory for it.
    #[doc(alias = "BoundedSemaphore")]
    pub fn bounded_semaphore(&self, permits: u32) -> Result<BoundedSemaphore, CallError> {
        Ok(BoundedSemaphore::new(permits)?)
    }

    /// What is set or not: [`Event::new`].
    ///
    /// # Errors
    /// When there is no shared memory for it.
    #[doc(alias = "Event")]
    pub fn event(&self) -> Result<Event, CallError> {
        Ok(Event::new()?)
    }

    /// A place to wait for a change: [`Condition::new`].
    ///
    /// # Errors
    /// When there is no shared memory for it.
    #[doc(alias = "Condition")]
    pub fn condition(&self) -> Result<Condition, CallError> {
        Ok(Condition::new()?)
    }

    /// A place where `parties` threads wait for each other: [`Barrier::new`].
    ///
    /// # Errors
    /// When there is no shared memory for it.
    #[doc(alias = "Barrier")]
    pub fn barrier(&self, parties: u32) -> Result<Barrier, CallError> {
        Ok(Barrier::new(parties)?)
    }

    /// A pool of workers that is an object in the server, whose children they are: any process has tasks done by it.
    ///
    /// ```
    /// use mp_manager::Manager;
    /// use mp_pool::Pool;
    /// use mp_spawn::closure;
    ///
    /// let manager = Manager::start()?;
    /// let pool = manager.pool(2)?; // a proxy: other processes may have it, too
    /// let squares = pool.call_with(
    ///     closure!([] |pool: &mut Pool, numbers: Vec<u64>| pool.map(|x: u64| x * x, numbers)),
    ///     vec![1, 2, 3],
    /// )?;
    /// assert_eq!(squares, [1, 4, 9]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Calls of it are done in turn, each with all workers. A process that is to have tasks done beside those of others makes a
    /// [`Pool`] of its own.
    ///
    /// # Errors
    /// [`CallError::Raised`] when the workers can't be started; else see the table there.
    #[doc(alias = "Pool")]
    #[track_caller]
    pub fn pool(&self, processes: usize) -> Result<Proxy<Pool>, CallError> {
        self.try_create(mp_spawn::closure!([processes] || Pool::new(*processes)))
    }
}
