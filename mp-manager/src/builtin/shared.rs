//! Queues, locks and numbers. Python's manager keeps them in its server, and this crate in shared
//! memory. They live as long as any process or message has a handle, even after the manager has ended. No
//! operation on them involves the server.

use mp_pool::Pool;
use mp_queue::{JoinableQueue, Queue};
use mp_sync::{Array, Barrier, BoundedSemaphore, Condition, Event, Lock, Plain, RLock, Semaphore};

use crate::builtin::Entry;
use crate::error::CallError;
use crate::manager::ManagerHandle;
use crate::proxy::Proxy;

/// # Objects in shared memory
///
/// These objects are created by the crates `mp-queue` and `mp-sync`, under the names of Python's manager.
/// They are in shared memory, where putting, getting, locking and changing a number take tens to hundreds of
/// nanoseconds, and do not wait for the server. Each object lives as long as any process or message has a
/// handle, even after the manager has ended.
impl ManagerHandle {
    /// Creates a queue for up to `capacity` messages: [`Queue::bounded`].
    ///
    /// # Errors
    /// `CallError::Failed` if shared memory is unavailable.
    #[doc(alias = "Queue")]
    pub fn queue<T: mp_reduce::Message>(&self, capacity: usize) -> Result<Queue<T>, CallError> {
        Ok(Queue::bounded(capacity)?)
    }

    /// Creates a queue that counts its messages until they are done: [`JoinableQueue::bounded`].
    ///
    /// # Errors
    /// `CallError::Failed` if shared memory is unavailable.
    #[doc(alias = "JoinableQueue")]
    pub fn joinable_queue<T: Entry>(&self, capacity: usize) -> Result<JoinableQueue<T>, CallError> {
        Ok(JoinableQueue::bounded(capacity)?)
    }

    /// Creates a value protected by a lock: [`Lock::new`].
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
    /// `CallError::Failed` if shared memory is unavailable.
    #[doc(alias = "Value")]
    pub fn value<T: Plain + Send>(&self, value: T) -> Result<Lock<T>, CallError> {
        Ok(Lock::new(value)?)
    }

    /// Creates numbers protected by a lock: [`Array::from_slice`].
    ///
    /// # Errors
    /// `CallError::Failed` if shared memory is unavailable.
    #[doc(alias = "Array")]
    pub fn array<T: Plain + Send>(&self, values: &[T]) -> Result<Array<T>, CallError> {
        Ok(Array::from_slice(values)?)
    }

    /// Creates a lock without a value: [`Lock::new`].
    ///
    /// # Errors
    /// `CallError::Failed` if shared memory is unavailable.
    #[doc(alias = "Lock")]
    pub fn lock(&self) -> Result<Lock<()>, CallError> {
        Ok(Lock::new(())?)
    }

    /// Creates a lock that its owner can acquire several times: [`RLock::new`].
    ///
    /// # Errors
    /// `CallError::Failed` if shared memory is unavailable.
    #[doc(alias = "RLock")]
    pub fn rlock(&self) -> Result<RLock<()>, CallError> {
        Ok(RLock::new(())?)
    }

    /// Creates a semaphore with `permits` permits: [`Semaphore::new`].
    ///
    /// # Errors
    /// `CallError::Failed` if shared memory is unavailable.
    #[doc(alias = "Semaphore")]
    pub fn semaphore(&self, permits: u32) -> Result<Semaphore, CallError> {
        Ok(Semaphore::new(permits)?)
    }

    /// Creates a semaphore to which no more permits can be returned than were acquired:
    /// [`BoundedSemaphore::new`].
    ///
    /// # Errors
    /// `CallError::Failed` if shared memory is unavailable.
    #[doc(alias = "BoundedSemaphore")]
    pub fn bounded_semaphore(&self, permits: u32) -> Result<BoundedSemaphore, CallError> {
        Ok(BoundedSemaphore::new(permits)?)
    }

    /// Creates an event, which is either set or not: [`Event::new`].
    ///
    /// # Errors
    /// `CallError::Failed` if shared memory is unavailable.
    #[doc(alias = "Event")]
    pub fn event(&self) -> Result<Event, CallError> {
        Ok(Event::new()?)
    }

    /// Creates a condition variable: [`Condition::new`].
    ///
    /// # Errors
    /// `CallError::Failed` if shared memory is unavailable.
    #[doc(alias = "Condition")]
    pub fn condition(&self) -> Result<Condition, CallError> {
        Ok(Condition::new()?)
    }

    /// Creates a barrier at which `parties` threads wait for each other: [`Barrier::new`].
    ///
    /// # Errors
    /// `CallError::Failed` if shared memory is unavailable.
    #[doc(alias = "Barrier")]
    pub fn barrier(&self, parties: u32) -> Result<Barrier, CallError> {
        Ok(Barrier::new(parties)?)
    }

    /// Creates a pool as an object in the server. The workers are children of the server, and any process can
    /// run tasks in the pool.
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
    /// Calls of the pool run one after the other, each with all workers. A process whose tasks must run
    /// independently creates its own [`Pool`].
    ///
    /// # Errors
    /// [`CallError::Raised`] if the workers can't be started. For other errors see the table at
    /// [`CallError`].
    #[doc(alias = "Pool")]
    #[track_caller]
    pub fn pool(&self, processes: usize) -> Result<Proxy<Pool>, CallError> {
        self.try_create(mp_spawn::closure!([processes] || Pool::new(*processes)))
    }
}
