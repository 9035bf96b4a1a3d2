//! A function that is to be called in the workers, and how.

use std::collections::VecDeque;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use mp_reduce::Message;

use crate::api::result::{AsyncResult, MapResult};
use crate::api::stream::Imap;
use crate::dispatch::job::{Code, Items, Job, Order, Terms};
use crate::dispatch::shared::Shared;
use crate::error::TaskError;

/// A function that is to be called in the workers of a pool, and how: see [`Pool::task`](crate::Pool::task).
#[must_use = "nothing is called until `map` or another of its methods is"]
pub struct Call<'a, A, T> {
    shared: &'a Arc<Shared>,
    code: Arc<Code>,
    terms: Terms,
    clone: Option<fn(&A) -> A>,
    ahead: Option<usize>,
    types: PhantomData<fn(A) -> T>,
}

impl<A, T> fmt::Debug for Call<'_, A, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call").field("terms", &self.terms).field("ahead", &self.ahead).finish_non_exhaustive()
    }
}

/// There is no room for a task; here are its arguments.
#[derive(Debug)]
pub struct TryApplyError<A>(pub A);

impl<A> fmt::Display for TryApplyError<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("as many tasks wait as the pool allows")
    }
}

impl<A: fmt::Debug> std::error::Error for TryApplyError<A> {}

impl<'a, A: Message + Send, T: Message + Send> Call<'a, A, T> {
    pub(crate) fn new(shared: &'a Arc<Shared>, code: Arc<Code>) -> Self {
        Call { shared, code, terms: Terms::default(), clone: None, ahead: None, types: PhantomData }
    }

    /// How many tasks a worker gets at once. Without this, as many as it does in a millisecond, at most 64,
    /// and one if it takes longer. Tasks that a worker has not begun go to one that has nothing to do, or
    /// when it dies, to another; so a chunk is not bound to a worker.
    pub fn chunksize(mut self, tasks: usize) -> Self {
        self.terms.chunk = tasks;
        self
    }

    /// How long a task may take from its beginning; then its worker is killed, and it ends with
    /// [`TaskError::TimedOut`]. The worker is replaced, and its other tasks go on.
    ///
    /// A task that its worker does not begin, because it is stopped (SIGSTOP, a debugger), is taken back when another worker
    /// has nothing to do, a tenth of a second to about a second later, and done there; the stopped one can't begin it any
    /// more, whenever it goes on. If there is no such worker, the time runs from when it was the stopped one's turn, and the
    /// task ends as if it had begun.
    pub fn timeout(mut self, time: Duration) -> Self {
        self.terms.timeout = Some(time);
        self
    }

    /// How often a task is tried again when its worker dies. What it did before, it may do again.
    ///
    /// The arguments are kept here until it is done, so they must be `Clone`: what contains an exclusive tensor is not.
    pub fn retries(mut self, times: u32) -> Self
    where
        A: Clone,
    {
        self.terms.retries = times;
        self.clone = (times > 0).then_some(A::clone as fn(&A) -> A);
        self
    }

    /// How many items [`imap`](Self::imap) takes before their results are asked for: 64 for each worker without this.
    #[doc(alias = "buffersize")]
    pub fn ahead(mut self, items: usize) -> Self {
        self.ahead = Some(items.max(1));
        self
    }

    fn job(&self, items: &Arc<Items<A>>, order: Order) -> Arc<Job> {
        Job::new(Arc::clone(&self.code), self.terms, Arc::clone(items) as _, order)
    }

    fn send(&self, items: VecDeque<A>) -> Arc<Job> {
        let count = items.len();
        let source = Arc::new(Items::new(self.clone));
        let job = self.job(&source, Order::AsGiven);
        self.shared.wait_for_room();
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
        AsyncResult::new(Arc::clone(self.shared), self.send([args].into()))
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
        if self.shared.is_full() { Err(TryApplyError(args)) } else { Ok(self.apply_async(args)) }
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
        MapResult::new(Arc::clone(self.shared), self.send(items.into_iter().collect()))
    }

    /// Calls it for each item, results in the order of the items: see [`Pool::imap`](crate::Pool::imap).
    pub fn imap<I: IntoIterator<Item = A>>(&self, items: I) -> Imap<I::IntoIter, T> {
        self.stream(items, Order::AsGiven)
    }

    /// Calls it for each item, results in the order in which they are done.
    pub fn imap_unordered<I: IntoIterator<Item = A>>(&self, items: I) -> Imap<I::IntoIter, T> {
        self.stream(items, Order::AsDone)
    }

    fn stream<I: IntoIterator<Item = A>>(&self, items: I, order: Order) -> Imap<I::IntoIter, T> {
        let sent = Arc::new(Items::new(self.clone));
        let job = self.job(&sent, order);
        let workers = self.shared.workers;
        let ahead = self.ahead.unwrap_or(workers.saturating_mul(self.terms.chunk.saturating_mul(2).max(64)));
        Imap::new((Arc::clone(self.shared), job), (items.into_iter(), sent), (ahead, workers))
    }
}
