//! A function that is to be called in the workers, and how.

use std::collections::VecDeque;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use mp_core::user_code::Each;
use mp_reduce::Message;
use mp_spawn::Backoff;

use crate::api::imap::Imap;
use crate::api::result::{AsyncResult, MapResult};
use crate::api::stream::Stream;
use crate::calls::job::{Code, Job, Terms};
use crate::calls::lanes::Pushed;
use crate::calls::slots::Order;
use crate::calls::source::{Items, Source};
use crate::calls::tickets::Tickets;
use crate::dispatch::room::UntilRoom;
use crate::dispatch::shared::Shared;
use crate::error::TaskError;

/// A function that is to be called in the workers of a pool, and how: see [`Pool::task`](crate::Pool::task).
///
/// It borrows nothing: it may be kept, in a field or a static variable, and be called from several threads at once. A clone of it
/// is the same function, which the workers have once, with options of its own.
///
/// ```
/// use mp_pool::{Call, Pool, TaskError};
///
/// struct Service {
///     hash: Call<String, u64>,
/// }
///
/// let pool = Pool::new(2)?;
/// let service = Service { hash: pool.task(|text: String| text.bytes().map(u64::from).sum::<u64>()) };
/// let patient = service.hash.clone().retries(3);
/// let thread = std::thread::spawn(move || patient.apply("ab".into()));
/// assert_eq!(service.hash.apply("cd".into())?, 199);
/// assert_eq!(thread.join().unwrap()?, 195);
///
/// drop(pool); // its workers end, whatever calls are kept
/// assert!(matches!(service.hash.apply("ef".into()), Err(TaskError::Closed { .. })));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// It does not keep the pool: once that is closed, joined or dropped, each task ends with [`TaskError::Closed`], or with
/// [`TaskError::Broken`] and the reason if no worker lived. What a kept one keeps is a little memory, and what its closure
/// captures.
#[must_use = "nothing is called until `map` or another of its methods is"]
pub struct Call<A, T> {
    shared: Arc<Shared>,
    code: Arc<Code>,
    terms: Terms,
    ahead: Option<usize>,
    types: PhantomData<fn(A) -> T>,
}

impl<A, T> Clone for Call<A, T> {
    fn clone(&self) -> Self {
        let Call { shared, code, terms, ahead, types } = self;
        let (shared, code) = (Arc::clone(shared), Arc::clone(code));
        Call { shared, code, terms: terms.clone(), ahead: *ahead, types: *types }
    }
}

impl<A, T> fmt::Debug for Call<A, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call").field("terms", &self.terms).field("ahead", &self.ahead).finish_non_exhaustive()
    }
}

/// There is no room for a task; here are its arguments.
pub struct TryApplyError<A>(pub A);

impl<A> fmt::Display for TryApplyError<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("as many tasks wait as the pool allows")
    }
}

impl<A> fmt::Debug for TryApplyError<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<A> std::error::Error for TryApplyError<A> {}

impl<A: Message + Send, T: Message + Send> Call<A, T> {
    pub(crate) fn new(shared: &Arc<Shared>, code: Arc<Code>) -> Self {
        let shared = Arc::clone(shared);
        Call { shared, code, terms: Terms::default(), ahead: None, types: PhantomData }
    }

    /// How many tasks a worker gets as one message, at most 65,535. Without this, as many as take about half a millisecond, as
    /// measured while the call runs, and fewer towards its end; one if it takes longer. A chunk is not bound to a worker: what
    /// one has not begun of it goes to another that has nothing to do, or takes its place when it dies, and each task is
    /// begun once. Tasks whose arguments hold tensors, queues or other handles, or are longer than 64 KiB, go by themselves.
    pub fn chunksize(mut self, tasks: usize) -> Self {
        self.terms.chunk = tasks;
        self
    }

    /// How long a task may take from its beginning; then its worker is killed, and it ends with
    /// [`TaskError::TimedOut`]. The worker is replaced, and its other tasks go on.
    ///
    /// A panic is no time-out: while one is described, by the panic hooks of the worker, the time stands still, for ten seconds
    /// at most. (With `RUST_BACKTRACE` the first one in a process takes long: the symbols of the program are read.) So it does
    /// while an error that the function has returned is put into words.
    ///
    /// A task that its worker does not begin, because it is stopped (SIGSTOP, a debugger), is taken back when another worker
    /// has nothing to do, a tenth of a second to about a second later, and done there; the stopped one can't begin it any
    /// more, whenever it goes on. If there is no such worker, the time runs from when it was the stopped one's turn, and the
    /// task ends as if it had begun.
    ///
    /// While the whole program is stopped (SIGSTOP of its process group, a frozen cgroup, a paused virtual machine), the time stands
    /// still, to within an eighth of it.
    ///
    /// A time of zero ends each task as soon as the pool finds that it has begun; a quick one may be done before.
    pub fn timeout(mut self, time: Duration) -> Self {
        self.terms.timeout = Some(time);
        self
    }

    /// How often a task is tried again when its worker dies: [`retry_if`](Self::retry_if) after [`TaskError::WorkerLost`].
    pub fn retries(self, times: u32) -> Self {
        self.retry_if(times, |error| matches!(error, TaskError::WorkerLost(_)))
    }

    /// Tries a task again that has failed, `times` times at most, as long as `when` says so of its error: of a death, a time-out, an
    /// error that it returned, a panic. It is the last error that is told, and how often a task was tried again is
    /// [counted](crate::PoolMetrics::retried). Between two attempts it waits for as long as [`backoff`](Self::backoff) says.
    ///
    /// ```
    /// use std::time::Duration;
    /// use mp_pool::{Backoff, Pool, TaskError};
    /// use mp_tensor::{SharedTensor, Tensor};
    ///
    /// /// Busy at first.
    /// fn fetch((asked, page): (SharedTensor<u64>, u64)) -> Result<u64, String> {
    ///     if asked.fetch_add(0, 1) < 2 { Err("busy".into()) } else { Ok(page) }
    /// }
    ///
    /// let busy = |error: &TaskError| matches!(error, TaskError::Raised(raised) if raised.message == "busy");
    /// let pool = Pool::new(1)?;
    /// let fetch = pool.task(fetch).retry_if(5, busy).backoff(Backoff::new(Duration::from_millis(5)));
    /// let asked = Tensor::zeros([1])?.share();
    /// assert_eq!(fetch.apply((asked, 7))?, 7);
    /// assert_eq!(pool.metrics().retried, 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// What a task did before it failed, it may do again. Items of a [chunk](Self::chunksize) are tried again one by one: the others
    /// have their results, and keep them. What is not begun, cancelled or refused is not tried again.
    ///
    /// The arguments are kept here until the task is done: as bytes, or, if tensors, queues or the like are attached to them, as they
    /// are, which copies no tensor. An exclusive tensor can't be kept, as it moves to the worker that gets it first: such a task is
    /// refused, with [`TaskError::Arguments`]; freeze or share it.
    ///
    /// `when` is called in the pool's thread, which does nothing else meanwhile: so it should be quick, and must not wait for a result of
    /// this pool. If it panics, the task is not tried again. A later call of this or of [`retries`](Self::retries) takes the place
    /// of an earlier one.
    pub fn retry_if(mut self, times: u32, when: impl Fn(&TaskError) -> bool + Send + Sync + 'static) -> Self {
        self.terms.retry.set(times, when);
        self
    }

    /// How long a task waits before it is tried again, as a [`Duration`] or a [`Backoff`]; not at all without this.
    /// Meanwhile no worker is occupied by it; cancelled, or with its pool's end, it ends at once.
    pub fn backoff(mut self, backoff: impl Into<Backoff>) -> Self {
        self.terms.retry.backoff = backoff.into();
        self
    }

    /// How many items [`imap`](Self::imap) takes before their results are asked for; without this 64 for each worker, and more if
    /// they are quick. How many tasks of a [`stream`](Self::stream) may be on their way; without this any number.
    #[doc(alias = "buffersize")]
    pub fn ahead(mut self, items: usize) -> Self {
        self.ahead = Some(items.max(1));
        self
    }

    fn job(&self, items: Arc<dyn Source>, order: Order) -> Arc<Job> {
        Job::new(Arc::clone(&self.code), self.terms.clone(), items, order)
    }

    /// Sends tasks, if there is room or not.
    fn send(&self, items: VecDeque<A>) -> Arc<Job> {
        let (count, items) = (items.len(), Each::from(items));
        let source = Arc::new(Items::new(self.terms.retry.times > 0));
        let job = self.job(Arc::clone(&source) as _, Order::AsGiven);
        self.shared.submit(&job, count, || source.bring(items));
        job
    }

    /// Calls it, and waits for its result.
    ///
    /// # Errors
    /// What became of the task: see [`TaskError`].
    pub fn apply(&self, args: A) -> Result<T, TaskError> {
        self.apply_async(args).get()
    }

    /// Calls it, and returns without waiting for its result; for room it waits if
    /// [as many tasks wait](crate::PoolBuilder::max_waiting) as the pool allows.
    pub fn apply_async(&self, args: A) -> AsyncResult<T> {
        self.shared.wait_for_room(None, || false);
        self.submit(args)
    }

    fn submit(&self, args: A) -> AsyncResult<T> {
        AsyncResult::new(Arc::clone(&self.shared), self.send([args].into()))
    }

    /// Calls it, as a future that waits for room without blocking a thread, and then gives the handle of the result, which is a
    /// future, too. So a program of tasks on a runtime gives a pool no more than [it allows](crate::PoolBuilder::max_waiting),
    /// and its other tasks go on meanwhile; where there is no bound, this waits for nothing.
    ///
    /// ```
    /// # fn block_on<F: Future>(future: F) -> F::Output {
    /// #     let mut future = std::pin::pin!(future);
    /// #     let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    /// #     loop {
    /// #         match future.as_mut().poll(&mut context) {
    /// #             std::task::Poll::Ready(value) => return value,
    /// #             _ => std::thread::yield_now(),
    /// #         }
    /// #     }
    /// # }
    /// let pool = mp_pool::Pool::builder().processes(1).max_waiting(2).build()?;
    /// let square = pool.task(|x: u64| x * x);
    /// let sum = async {
    ///     let mut results = Vec::new();
    ///     for x in 0..10 {
    ///         results.push(square.submit_async(x).await); // two have no result yet at most
    ///     }
    ///     let mut sum = 0;
    ///     for result in results {
    ///         sum += result.await?;
    ///     }
    ///     Ok::<u64, mp_pool::TaskError>(sum)
    /// };
    /// assert_eq!(block_on(sum)?, 285); // on any runtime
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Those that wait get room in the order in which they began to wait, unless a call that does not is quicker. Dropped before
    /// there was room, nothing is called, and the arguments are dropped. When the pool is closed or its workers are lost for good,
    /// the wait ends, and the error is that of the result.
    pub async fn submit_async(&self, args: A) -> AsyncResult<T> {
        UntilRoom::new(&self.shared).await;
        self.submit(args)
    }

    /// Calls it if not too many tasks wait.
    ///
    /// ```
    /// let pool = mp_pool::Pool::builder().processes(1).max_waiting(1).build()?;
    /// let (_tell, told) = std::os::unix::net::UnixStream::pair()?;
    /// let name = |x: u32| std::thread::sleep(std::time::Duration::from_millis(u64::from(x)));
    /// let first = pool.task(name).try_apply_async(50).unwrap();
    /// assert_eq!(pool.task(name).try_apply_async(7).unwrap_err().0, 7);
    /// first.get()?;
    /// # drop(told);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The arguments, if there is no room for the task.
    pub fn try_apply_async(&self, args: A) -> Result<AsyncResult<T>, TryApplyError<A>> {
        if self.shared.is_full() { Err(TryApplyError(args)) } else { Ok(self.submit(args)) }
    }

    /// Calls it for each item, and waits for all: see [`Pool::map`](crate::Pool::map).
    ///
    /// # Errors
    /// Of those that failed, the first in the order of the items.
    pub fn map(&self, items: impl IntoIterator<Item = A>) -> Result<Vec<T>, TaskError> {
        self.map_async(items).get()
    }

    /// Calls it for each item, and returns without waiting for the results.
    pub fn map_async(&self, items: impl IntoIterator<Item = A>) -> MapResult<T> {
        let items = items.into_iter().collect();
        self.shared.wait_for_room(None, || false);
        MapResult::new(Arc::clone(&self.shared), self.send(items))
    }

    /// Calls it for each item, results in the order of the items: see [`Pool::imap`](crate::Pool::imap).
    pub fn imap<I: IntoIterator<Item = A>>(&self, items: I) -> Imap<I::IntoIter, T> {
        self.imap_in(items, Order::AsGiven)
    }

    /// Calls it for each item, results in the order in which they are done.
    pub fn imap_unordered<I: IntoIterator<Item = A>>(&self, items: I) -> Imap<I::IntoIter, T> {
        self.imap_in(items, Order::AsDone)
    }

    /// Calls it for each item that is pushed, until no more are: see [`Stream`]. No more than [`ahead`](Self::ahead) says are on
    /// their way.
    pub fn stream(&self) -> Stream<A, T> {
        let pushed = Arc::new(Pushed::new(self.terms.retry.times > 0));
        let job = self.job(Arc::clone(&pushed) as _, Order::AsDone);
        job.slots().tickets = Some(Tickets::new(self.ahead.unwrap_or(usize::MAX)));
        Stream::new(Arc::clone(&self.shared), job, pushed)
    }

    fn imap_in<I: IntoIterator<Item = A>>(&self, items: I, order: Order) -> Imap<I::IntoIter, T> {
        let sent = Arc::new(Items::new(self.terms.retry.times > 0));
        let job = self.job(Arc::clone(&sent) as _, order);
        let workers = self.shared.workers();
        let ahead = self.ahead.unwrap_or(workers.saturating_mul(self.terms.chunk.saturating_mul(2).max(64)));
        let chosen = self.ahead.is_some();
        Imap::new((Arc::clone(&self.shared), job), (items.into_iter(), sent), (ahead, chosen))
    }
}
