//! A pool whose workers keep something between tasks.

use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use mp_core::message::IntoOutcome;
use mp_reduce::Message;
use mp_spawn::{CapturesNothing, StateClosure};

use crate::api::call::Call;
use crate::api::imap::Imap;
use crate::api::pool::Pool;
use crate::api::result::{AsyncResult, MapResult};
use crate::api::stream::Stream;
use crate::dispatch::settings::Settings;
use crate::error::{PoolError, TaskError};
use crate::tuple_fn::TupleStateFn;

/// A pool each of whose workers has a state of type `S`, which it makes for itself: tasks get it as `&mut S`.
///
/// ```
/// use mp_pool::{Pool, StatePool};
///
/// /// Read once in each worker; it holds what no message could.
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
/// `S` needs neither serde nor `Send`: it never leaves its worker, and is dropped when that ends by itself. What tasks change in it
/// stays for the next task of the same worker; which worker a task goes to is not known beforehand.
///
/// # When something goes wrong
/// | what happens | then |
/// |---|---|
/// | making the state fails or panics, or the worker dies in it | a failed start: tried again in a new process, later each time, up to a second; after five times in a row in all workers each task ends with [`TaskError::Broken`], which [says](crate::Broken) how often, and has the last cause (a pool that has worked before: only after ten seconds) |
/// | it takes for ever | tasks wait, or, with [`start_timeout`](crate::PoolBuilder::start_timeout), the worker is killed and that was a failed start |
/// | a task returns `Err` | the state is kept: the task had the chance to leave it whole |
/// | a task panics | its error is [`Raised`](TaskError::Raised) as ever. The state may be half changed, so it is dropped, and the worker makes a new one, before its next task; what waited for it goes to other workers meanwhile. If making it fails, the worker ends, and that was a failed start |
/// | a worker dies | the one in its place makes its own |
///
/// The [pool](Self::pool) itself has what is beside tasks: [`metrics`](Pool::metrics), [`pids`](Pool::pids), [`close`](Pool::close),
/// [`terminate`](Pool::terminate), and tasks without a state, which these workers do as well.
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

/// How a pool with a state is made: all options of [`PoolBuilder`](crate::PoolBuilder) come before the state.
#[must_use = "no pool is there until `build` is called"]
pub struct StatePoolBuilder<S> {
    settings: Result<Settings, mp_reduce::Error>,
    state: PhantomData<fn() -> S>,
}

impl<S> fmt::Debug for StatePoolBuilder<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StatePoolBuilder").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl<S: 'static> StatePoolBuilder<S> {
    pub(crate) fn new(settings: Result<Settings, mp_reduce::Error>) -> Self {
        StatePoolBuilder { settings, state: PhantomData }
    }

    /// Starts the workers, which make their states while this returns.
    ///
    /// # Errors
    /// Those of [`PoolBuilder::build`](crate::PoolBuilder::build), and [`PoolError::Failed`] when the state's arguments can't be
    /// encoded.
    pub fn build(self) -> Result<StatePool<S>, PoolError> {
        Ok(StatePool { pool: Pool::start(self.settings?)?, state: PhantomData })
    }
}

impl<S: 'static> StatePool<S> {
    /// A function of the state and arguments, to be called in the workers, with options, and in all forms: see [`Call`].
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
        self.pool.state_task(function)
    }

    /// A closure with captures, made by [`closure!`](mp_spawn::closure!) with the state as its first argument, to be called in the
    /// workers. What it captures is sent to each of them once.
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
        self.pool.state_task_closure(closure)
    }

    /// Calls `function(state, args)` in a worker, and waits for its result.
    ///
    /// # Errors
    /// What became of the task: see [`TaskError`].
    pub fn apply<F, A, R>(&self, function: F, args: A) -> Result<R::Value, TaskError>
    where
        F: Fn(&mut S, A) -> R + CapturesNothing,
        A: Message + Send,
        R: IntoOutcome,
    {
        self.task(function).apply(args)
    }

    /// As [`apply`](Self::apply), but returns without waiting for the result.
    pub fn apply_async<F, A, R>(&self, function: F, args: A) -> AsyncResult<R::Value>
    where
        F: Fn(&mut S, A) -> R + CapturesNothing,
        A: Message + Send,
        R: IntoOutcome,
    {
        self.task(function).apply_async(args)
    }

    /// As [`apply_async`](Self::apply_async), as a future that waits for room: see [`Call::submit_async`].
    pub async fn submit_async<F, A, R>(&self, function: F, args: A) -> AsyncResult<R::Value>
    where
        F: Fn(&mut S, A) -> R + CapturesNothing,
        A: Message + Send,
        R: IntoOutcome,
    {
        self.task(function).submit_async(args).await
    }

    /// Calls `function(state, item)` for each item, and waits for all; the results are in the order of the items.
    ///
    /// # Errors
    /// As [`Pool::map`].
    pub fn map<F, A, R>(
        &self,
        function: F,
        items: impl IntoIterator<Item = A>,
    ) -> Result<Vec<R::Value>, TaskError>
    where
        F: Fn(&mut S, A) -> R + CapturesNothing,
        A: Message + Send,
        R: IntoOutcome,
    {
        self.task(function).map(items)
    }

    /// As [`map`](Self::map), but returns without waiting for the results.
    pub fn map_async<F, A, R>(&self, function: F, items: impl IntoIterator<Item = A>) -> MapResult<R::Value>
    where
        F: Fn(&mut S, A) -> R + CapturesNothing,
        A: Message + Send,
        R: IntoOutcome,
    {
        self.task(function).map_async(items)
    }

    /// Calls `function(state, item)` for each item, and gives the results one after the other: see [`Pool::imap`].
    pub fn imap<F, A, R, I>(&self, function: F, items: I) -> Imap<I::IntoIter, R::Value>
    where
        F: Fn(&mut S, A) -> R + CapturesNothing,
        A: Message + Send,
        R: IntoOutcome,
        I: IntoIterator<Item = A>,
    {
        self.task(function).imap(items)
    }

    /// As [`imap`](Self::imap), in the order in which they are done.
    pub fn imap_unordered<F, A, R, I>(&self, function: F, items: I) -> Imap<I::IntoIter, R::Value>
    where
        F: Fn(&mut S, A) -> R + CapturesNothing,
        A: Message + Send,
        R: IntoOutcome,
        I: IntoIterator<Item = A>,
    {
        self.task(function).imap_unordered(items)
    }

    /// Calls `function(state, item)` for each item that is pushed, until no more are: see [`Stream`], whose lanes keep tasks together
    /// with the state that they need.
    pub fn stream<F, A, R>(&self, function: F) -> Stream<A, R::Value>
    where
        F: Fn(&mut S, A) -> R + CapturesNothing,
        A: Message + Send,
        R: IntoOutcome,
    {
        self.task(function).stream()
    }

    /// As [`map`](Self::map), for a function of the state and up to six arguments, each item a tuple of these.
    ///
    /// ```
    /// let pool = mp_pool::Pool::with_state(2, || 10_u64)?;
    /// let power = |base: &mut u64, factor: u64, exponent: u32| factor * base.pow(exponent);
    /// assert_eq!(pool.starmap(power, [(2, 3), (3, 2)])?, [2000, 300]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Pool::map`].
    pub fn starmap<F, A>(
        &self,
        function: F,
        items: impl IntoIterator<Item = A>,
    ) -> Result<Vec<<F::Output as IntoOutcome>::Value>, TaskError>
    where
        F: TupleStateFn<S, A>,
        A: Message + Send,
    {
        self.starmap_async(function, items).get()
    }

    /// As [`starmap`](Self::starmap), but returns without waiting for the results.
    pub fn starmap_async<F, A>(
        &self,
        function: F,
        items: impl IntoIterator<Item = A>,
    ) -> MapResult<<F::Output as IntoOutcome>::Value>
    where
        F: TupleStateFn<S, A>,
        A: Message + Send,
    {
        self.task(move |state: &mut S, args: A| function.call(state, args)).map_async(items)
    }

    /// The pool itself: its metrics, its end, and tasks without a state.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Waits until all tasks are done, and the workers have ended: [`Pool::join`].
    ///
    /// # Errors
    /// As [`Pool::join`].
    pub fn join(self) -> Result<(), PoolError> {
        self.pool.join()
    }

    /// As [`join`](Self::join), but waits no longer than this; whether the workers have ended.
    ///
    /// # Errors
    /// As [`Pool::join_timeout`].
    pub fn join_timeout(&self, timeout: Duration) -> Result<bool, PoolError> {
        self.pool.join_timeout(timeout)
    }
}
