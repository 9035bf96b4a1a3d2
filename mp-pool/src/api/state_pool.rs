//! Pools whose workers keep a state between tasks.

use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use mp_core::message::IntoOutcome;
use mp_reduce::Message;
use mp_spawn::{CapturesNothing, StateClosure};

use crate::api::call::Call;
use crate::api::call_methods::call_methods;
use crate::api::imap::Imap;
use crate::api::pool::Pool;
use crate::api::result::{AsyncResult, MapResult};
use crate::api::stream::TaskStream;
use crate::api::tuple_fn::TupleStateFn;
use crate::dispatcher::settings::PoolSettings;
use crate::error::{PoolError, TaskError};

/// Pool in which each worker creates a state of type `S`. Tasks receive the state as `&mut S`.
///
/// ```
/// use mp_pool::{Pool, StatePool};
///
/// /// Loaded once in each worker. No message could contain it.
/// struct Model {
///     weights: std::rc::Rc<[f64]>,
///     asked: u64,
/// }
///
/// fn load((path, size): (String, usize)) -> Result<Model, std::io::Error> {
///     # let path = if path == "weights" { "/proc/self/stat".to_string() } else { path };
///     let bytes = std::fs::read(path)?;
///     Ok(Model { weights: vec![bytes.len() as f64; size].into(), asked: 0 })
/// }
///
/// let args = ("weights".to_string(), 3);
/// let pool: StatePool<Model> = Pool::builder().processes(2).try_state(load, args).build()?;
/// let scale = |model: &mut Model, x: f64| {
///     model.asked += 1;
///     model.weights.iter().all(|w| *w > 0.0) && x > 0.5
/// };
/// assert_eq!(pool.map(scale, [0.0, 1.0])?, [false, true]);
/// assert!(pool.apply(|model, (): ()| model.asked, ())? <= 2); // what this worker was asked
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// `S` needs neither serde nor `Send`: it never leaves its worker, and is dropped when the worker ends by
/// itself. Changes by a task are visible to the next task of the same worker. Which worker runs a task is not
/// specified.
///
/// # When something goes wrong
/// | event | effect |
/// |---|---|
/// | creating the state fails or panics, or the worker dies while creating it | The start has failed. It is retried in a new process, with a delay that grows up to a second. After five failures in a row in all workers, each task ends with [`TaskError::Broken`], which [contains](crate::BrokenPool) the number of failures and the last cause. A pool that has worked before breaks only after ten seconds. |
/// | creating the state never ends | Tasks wait. With [`start_timeout`](crate::PoolBuilder::start_timeout) the worker is killed, and the start has failed. |
/// | a task returns `Err` | The state is kept: the task could leave it consistent. |
/// | a task panics | The error is [`Raised`](TaskError::Raised), as in any pool. The state may be inconsistent, so it is dropped, and the worker creates a new one before its next task. Tasks that waited for this worker move to other workers. If creating the state fails, the worker ends, and the start has failed. |
/// | a worker dies | The replacement creates its own state. |
///
/// All other methods are on the [pool](Self::pool): [`metrics`](Pool::metrics), [`pids`](Pool::pids),
/// [`close`](Pool::close), [`terminate`](Pool::terminate), and tasks without a state, which the same workers
/// run.
pub struct StatePool<S> {
    pool: Pool,
    state: PhantomData<fn() -> S>,
}

impl<S> fmt::Debug for StatePool<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = std::any::type_name::<S>();
        f.debug_struct("StatePool").field("pool", &self.pool).field("state", &state).finish()
    }
}

/// Builder of a pool with a state. Set all options of [`PoolBuilder`](crate::PoolBuilder) before the state.
#[must_use = "no pool is there until `build` is called"]
pub struct StatePoolBuilder<S> {
    settings: Result<PoolSettings, mp_reduce::Error>,
    state: PhantomData<fn() -> S>,
}

impl<S> fmt::Debug for StatePoolBuilder<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StatePoolBuilder").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl<S: 'static> StatePoolBuilder<S> {
    pub(crate) fn new(settings: Result<PoolSettings, mp_reduce::Error>) -> Self {
        StatePoolBuilder { settings, state: PhantomData }
    }

    /// Starts the workers, and returns without waiting for their states.
    ///
    /// # Errors
    /// Same as [`PoolBuilder::build`](crate::PoolBuilder::build), and [`PoolError::Failed`] if the state's
    /// arguments can't be encoded.
    pub fn build(self) -> Result<StatePool<S>, PoolError> {
        Ok(StatePool { pool: Pool::start(self.settings?)?, state: PhantomData })
    }
}

impl<S: 'static> StatePool<S> {
    /// Creates a [`Call`] of a function of the state and arguments, for options and for all kinds of calls.
    ///
    /// ```
    /// use mp_pool::Pool;
    ///
    /// let pool = Pool::with_state(1, Vec::<u32>::new)?;
    /// let keep = pool.task(|kept: &mut Vec<u32>, x: u32| {
    ///     kept.push(x);
    ///     kept.len()
    /// });
    /// assert_eq!(keep.map([7, 8, 9])?, [1, 2, 3]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn task<F, A, R>(&self, function: F) -> Call<A, R::Value>
    where
        F: Fn(&mut S, A) -> R + CapturesNothing,
        A: Message + Send,
        R: IntoOutcome,
    {
        let shared = &self.pool.shared;
        Call::new(shared, shared.function_with_state(function))
    }

    /// Creates a [`Call`] of a closure with captures, made by [`closure!`](mp_spawn::closure!) with the state
    /// as its first argument. The captures are sent to each worker once.
    ///
    /// ```
    /// use mp_pool::Pool;
    /// use mp_spawn::closure;
    ///
    /// let pool = Pool::with_state(1, Vec::<u64>::new)?;
    /// let factor = 3;
    /// let keep = pool.task_closure(closure!([factor] |kept: &mut Vec<u64>, x: u64| {
    ///     kept.push(factor * x);
    ///     kept.iter().sum::<u64>()
    /// }));
    /// assert_eq!(keep.map([1, 2, 3])?, [3, 9, 18]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn task_closure<A, R>(&self, closure: StateClosure<S, A, R>) -> Call<A, R::Value>
    where
        A: Message + Send,
        R: IntoOutcome,
    {
        let shared = &self.pool.shared;
        Call::new(shared, shared.closure_with_state(closure))
    }

    call_methods! {
        TupleStateFn, state: S;
        imap {
            /// Calls `function(state, item)` for each item, and returns an iterator over the results: see
            /// [`Pool::imap`].
        }
        stream {
            /// Calls `function(state, item)` for each item that is pushed, until the stream is closed: see
            /// [`TaskStream`]. With a lane, related tasks run in the worker whose state they need.
        }
        starmap {
            /// Like [`map`](Self::map), for a function of the state and up to six arguments. Each item is a
            /// tuple of the arguments.
            ///
            /// ```
            /// let pool = mp_pool::Pool::with_state(2, || 10_u64)?;
            /// let power = |base: &mut u64, factor: u64, exponent: u32| factor * base.pow(exponent);
            /// assert_eq!(pool.starmap(power, [(2, 3), (3, 2)])?, [2000, 300]);
            /// # Ok::<(), Box<dyn std::error::Error>>(())
            /// ```
            ///
            /// # Errors
            /// Same as [`Pool::map`].
        }
    }

    /// Returns the pool: its metrics, its shutdown, and tasks without a state.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Stops accepting tasks, and blocks until all tasks are done and the workers have ended: see
    /// [`Pool::join`].
    ///
    /// # Errors
    /// Same as [`Pool::join`].
    #[track_caller]
    pub fn join(self) -> Result<(), PoolError> {
        self.pool.join()
    }

    /// Like [`join`](Self::join), but waits for at most `timeout`. Returns `true` if the workers have ended.
    ///
    /// # Errors
    /// Same as [`Pool::join_timeout`].
    #[track_caller]
    pub fn join_timeout(&self, timeout: Duration) -> Result<bool, PoolError> {
        self.pool.join_timeout(timeout)
    }
}
