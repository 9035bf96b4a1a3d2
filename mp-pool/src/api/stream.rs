//! Open-ended calls: the caller pushes tasks and takes results one by one.

use std::fmt;
use std::future::poll_fn;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use mp_core::quantity;
use mp_core::sync::Ordering;
use mp_core::sync::shared::AtomicU64;
use mp_reduce::Message;

use crate::api::result::read;
use crate::dispatcher::shared::PoolShared;
use crate::dispatcher::submit::RoomFuture;
use crate::error::TaskError;
use crate::metrics::running::RunningTask;
use crate::tasks::call_outcomes::{CallOutcomes, Progress, PushRefusal};
use crate::tasks::call_state::CallState;
use crate::tasks::lanes::PushedTasks;
use crate::tasks::outcome_run::OutcomeRun;

/// Identifier of a task of a [`TaskStream`]. Tickets are numbered from 0 in push order. Tickets of different
/// streams are never equal.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket {
    number: usize,
    stream: u64,
}

impl Ticket {
    /// Returns the number of the task in its stream.
    #[must_use]
    pub fn number(self) -> usize {
        self.number
    }
}

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "task {}", self.number)
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Ticket").field(&self.number).finish()
    }
}

/// Returns a number that is unique to a stream in this process.
fn next_stream() -> u64 {
    // fork: a forked process takes nothing from the streams of its parent.
    static STREAMS: AtomicU64 = AtomicU64::new(0);
    STREAMS.fetch_add(1, Ordering::Relaxed)
}

/// Ticket of a task of a [`TaskStream`], and the task's result.
pub type Outcome<T> = (Ticket, Result<T, TaskError>);

/// Error returned when a task was not pushed. Contains the arguments.
#[derive(thiserror::Error)]
pub enum PushError<A> {
    /// The number of tasks in flight has reached the limit of the [stream](crate::Call::max_in_flight) or of
    /// the [pool](crate::PoolBuilder::max_waiting).
    #[error(
        "the stream has reached its limit of tasks in flight: take results, or allow more by \
         `Call::max_in_flight`"
    )]
    Full(A),
    /// The stream is closed, or belongs to the process from which this process was forked.
    #[error("the stream is closed: it accepts no more tasks")]
    Closed(A),
}

impl<A> PushError<A> {
    /// Returns the arguments.
    pub fn into_args(self) -> A {
        match self {
            PushError::Full(args) | PushError::Closed(args) => args,
        }
    }
}

impl<A> fmt::Debug for PushError<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Error returned when a result is not available yet: the next one, or the requested one.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no result is ready yet; in flight: {}", quantity(in_flight, "task"))]
#[non_exhaustive]
pub struct PendingError {
    /// Number of tasks in flight: pushed, with a result that was not taken.
    pub in_flight: usize,
}

mp_core::readable_debug!(PendingError);

/// Open-ended call, created by [`Pool::stream`](crate::Pool::stream) or
/// [`Call::stream`](crate::Call::stream). Tasks are pushed one by one, and results are taken as they
/// complete. Suited to programs that choose the next task and the number of tasks in flight themselves.
///
/// ```
/// use mp_pool::Pool;
///
/// let pool = Pool::new(2)?;
/// let stream = pool.task(|x: u64| x * x).retries(2).max_in_flight(8).stream();
/// let mut next = 0..20_u64;
/// let mut sum = 0;
/// loop {
///     // Push only while there is room: a blocking push could wait for results that only this thread takes.
///     while stream.in_flight() < 8 && let Some(x) = next.next() {
///         stream.push(x)?;
///     }
///     if stream.in_flight() == 0 {
///         break;
///     }
///     if let Some((_ticket, square)) = stream.next() {
///         sum += square?;
///     }
/// }
/// assert_eq!(sum, 2470);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A `TaskStream` borrows nothing: it can be moved to another thread, or shared, so that one thread pushes
/// and another takes. Like [`Call`](crate::Call), it does not keep the pool alive: tasks that are pushed
/// after the pool was closed, joined or dropped end with [`TaskError::Closed`], or with [`TaskError::Broken`]
/// and the reason.
///
/// # Lanes
/// Some tasks run faster in the worker that ran a related task before: this worker has a file open that both
/// tasks read, or the [state](crate::StatePool) that both change. Push such tasks to one *lane*, a number
/// chosen by the caller ([`push_to`](Self::push_to)). The pool sends these tasks to the worker that ran the
/// lane last. If this worker is dead, or is busy while another worker is idle, the pool sends the tasks to
/// another worker. A lane is only a hint: a wrong lane costs nothing, and no task waits while a worker is
/// idle. Tasks of one lane may run at the same time, and a retried task goes to any free worker.
///
/// ```
/// use mp_pool::Pool;
///
/// /// Number of parts that a worker has read of each file.
/// type Files = std::collections::HashMap<u64, u64>;
///
/// let pool = Pool::with_state(2, Files::new)?;
/// let stream = pool.stream(|files: &mut Files, file: u64| {
///     let read = files.entry(file).or_default();
///     *read += 1;
///     (file, *read)
/// });
/// (0..4).try_for_each(|file| stream.push_to(file, file).map(drop))?;
/// let mut chunks = 0;
/// while chunks < 40
///     && let Some((_, chunk)) = stream.next()
/// {
///     let (file, _) = chunk?;
///     chunks += 1;
///     stream.push_to(file, file)?; // as a rule to the worker that has it open
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A stream stores the last workers of at most 65,536 lanes. When a further lane is used, the stream forgets
/// the workers of all lanes.
///
/// # Room
/// A task is *in flight* from its push until its result is taken.
/// [`Call::max_in_flight`](crate::Call::max_in_flight) limits the number of tasks in flight: a push blocks
/// until there is room. A bounded pool ([`PoolBuilder::max_waiting`](crate::PoolBuilder::max_waiting)) blocks
/// pushes as well. Without a limit, the caller decides, using [`in_flight`](Self::in_flight). If one thread
/// both pushes and takes, it must not wait for room that only it can make: check first, as above, or use
/// [`try_push`](Self::try_push).
///
/// # Shutdown
/// [`close`](Self::close) ends the input: [`next`](Self::next) then returns the remaining results, and
/// `None`. Dropping the stream cancels the tasks that have not begun, and drops the results of running tasks.
/// New tasks of the pool do not wait for cancelled tasks.
///
/// [`TaskError`] lists the outcome of each task after an error, a death or a time-out. Retries are set on the
/// call ([`Call::retry_if`](crate::Call::retry_if)). In a fork of the process that created it, the stream is
/// closed and returns no results.
#[must_use = "nothing is called until something is pushed, and dropping it cancels its tasks"]
pub struct TaskStream<A, T> {
    shared: Arc<PoolShared>,
    job: Arc<CallState>,
    pushed: Arc<PushedTasks<A>>,
    number: u64,
    results: PhantomData<fn() -> T>,
}

impl<A, T> fmt::Debug for TaskStream<A, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.job.is_ours() {
            return f.write_str("TaskStream(of another process)");
        }
        let outcomes = self.job.outcomes();
        let (done, total, in_flight) =
            (outcomes.progress.done, outcomes.progress.total, outcomes.in_flight());
        write!(f, "TaskStream({done} of {} done, {in_flight} in flight)", quantity(total, "task"))
    }
}

/// Time limit of a wait.
#[derive(Clone, Copy)]
enum WaitLimit {
    NoWait,
    Until(Option<Instant>),
}

impl WaitLimit {
    fn at_most(timeout: Duration) -> WaitLimit {
        if timeout.is_zero() {
            WaitLimit::NoWait
        } else {
            WaitLimit::Until(Instant::now().checked_add(timeout))
        }
    }
}

impl<A, T> TaskStream<A, T> {
    pub(crate) fn new(shared: Arc<PoolShared>, job: Arc<CallState>, pushed: Arc<PushedTasks<A>>) -> Self {
        TaskStream { shared, job, pushed, number: next_stream(), results: PhantomData }
    }

    /// Makes [`next`](Self::next) return the results in push order. By default they are in the order of
    /// completion.
    pub fn in_order(self) -> Self {
        if self.job.is_ours()
            && let Some(tickets) = &mut self.job.outcomes().tickets
        {
            tickets.in_order = true;
        }
        self
    }

    /// Returns the number of tasks in flight: pushed, with a result that was not taken.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        if self.job.is_ours() { self.job.outcomes().in_flight() } else { 0 }
    }

    /// Returns the number of pushed tasks, and the number of tasks with an outcome, taken or not.
    ///
    /// ```
    /// let pool = mp_pool::Pool::new(1)?;
    /// let stream = pool.stream(|x: u64| x + 1);
    /// stream.push(1)?;
    /// assert!(stream.next().is_some());
    /// stream.push(2)?;
    /// assert_eq!(stream.progress().total, 2);
    /// assert!(stream.next().is_some());
    /// assert_eq!(stream.progress().done, 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn progress(&self) -> Progress {
        if !self.job.is_ours() {
            return Progress::default();
        }
        self.job.outcomes().progress
    }

    /// Returns the running tasks of this stream, like [`Pool::running`](crate::Pool::running). Their
    /// [`task`](crate::RunningTask::task) is the [number](Ticket::number) of a ticket.
    #[must_use]
    pub fn running(&self) -> Vec<RunningTask> {
        if self.job.is_ours() { self.shared.state.lock().running_of(Some(&self.job)) } else { Vec::new() }
    }

    /// Ends the input: [`next`](Self::next) returns `None` after the last result. Blocked pushes fail with
    /// `PushError::Closed`.
    pub fn close(&self) {
        if self.job.is_ours() {
            self.job.close();
            self.shared.wake_stream_pushers();
        }
    }

    /// Waits until `condition` returns `true`. Returns `false` at the time limit.
    #[track_caller]
    fn wait(&self, wait: WaitLimit, condition: impl Fn(&CallOutcomes) -> bool) -> bool {
        match wait {
            WaitLimit::NoWait => condition(&self.job.outcomes()),
            WaitLimit::Until(until) => self.job.wait(until, condition),
        }
    }
}

impl<A: Message + Send, T: Message + Send> TaskStream<A, T> {
    /// Pushes a task, and returns its ticket. Blocks until there is [room](Self#room) for it.
    ///
    /// # Errors
    /// `PushError::Closed` with the arguments if the stream is closed.
    #[track_caller]
    pub fn push(&self, args: A) -> Result<Ticket, PushError<A>> {
        self.push_within(None, args, WaitLimit::Until(None))
    }

    /// Like [`push`](Self::push), preferring the worker that ran this [lane](Self#lanes) last.
    ///
    /// # Errors
    /// Same as [`push`](Self::push).
    #[track_caller]
    pub fn push_to(&self, lane: u64, args: A) -> Result<Ticket, PushError<A>> {
        self.push_within(Some(lane), args, WaitLimit::Until(None))
    }

    /// Like [`push`](Self::push), without waiting for room.
    ///
    /// # Errors
    /// `PushError` with the arguments if there is no room or the stream is closed.
    pub fn try_push(&self, args: A) -> Result<Ticket, PushError<A>> {
        self.push_within(None, args, WaitLimit::NoWait)
    }

    /// Like [`push_to`](Self::push_to), without waiting for room.
    ///
    /// # Errors
    /// Same as [`try_push`](Self::try_push).
    pub fn try_push_to(&self, lane: u64, args: A) -> Result<Ticket, PushError<A>> {
        self.push_within(Some(lane), args, WaitLimit::NoWait)
    }

    /// Like [`push`](Self::push), but waits for room for at most `timeout`.
    ///
    /// # Errors
    /// Same as [`try_push`](Self::try_push).
    #[track_caller]
    pub fn push_timeout(&self, args: A, timeout: Duration) -> Result<Ticket, PushError<A>> {
        self.push_within(None, args, WaitLimit::at_most(timeout))
    }

    /// Like [`push_to`](Self::push_to), but waits for room for at most `timeout`.
    ///
    /// # Errors
    /// Same as [`try_push`](Self::try_push).
    #[track_caller]
    pub fn push_to_timeout(&self, lane: u64, args: A, timeout: Duration) -> Result<Ticket, PushError<A>> {
        self.push_within(Some(lane), args, WaitLimit::at_most(timeout))
    }

    /// Like [`push`](Self::push), but waits for room without blocking a thread. If the future is dropped
    /// before there was room, nothing is pushed.
    ///
    /// # Errors
    /// Same as [`push`](Self::push).
    pub async fn push_async(&self, args: A) -> Result<Ticket, PushError<A>> {
        self.push_when_ready(None, args).await
    }

    /// Like [`push_to`](Self::push_to), but waits for room without blocking a thread.
    ///
    /// # Errors
    /// Same as [`push`](Self::push).
    pub async fn push_to_async(&self, lane: u64, args: A) -> Result<Ticket, PushError<A>> {
        self.push_when_ready(Some(lane), args).await
    }

    #[track_caller]
    fn push_within(&self, lane: Option<u64>, args: A, wait: WaitLimit) -> Result<Ticket, PushError<A>> {
        if !self.job.is_ours() {
            return Err(PushError::Closed(args));
        }
        let pool_has_room = match wait {
            WaitLimit::NoWait => !self.shared.is_full(),
            WaitLimit::Until(until) => self.shared.wait_for_room(until, || self.job.is_closed()),
        };
        loop {
            let room = if pool_has_room { self.job.expect_one() } else { Err(PushRefusal::Full) };
            match room {
                Ok(index) => return Ok(self.submit(index, lane, args)),
                Err(_) if self.job.is_closed() => return Err(PushError::Closed(args)),
                Err(_) => {}
            }
            if !pool_has_room || !self.wait(wait, |outcomes| outcomes.check_room() != Err(PushRefusal::Full))
            {
                return Err(PushError::Full(args));
            }
        }
    }

    async fn push_when_ready(&self, lane: Option<u64>, args: A) -> Result<Ticket, PushError<A>> {
        let mut room = Some(RoomFuture::new(&self.shared));
        let index = poll_fn(|context| {
            if !self.job.is_ours() || self.job.is_closed() {
                return Poll::Ready(Err(PushRefusal::Closed));
            }
            if let Some(of_pool) = &mut room {
                if Pin::new(of_pool).poll(context).is_pending() {
                    // If the stream was closed just before this future began to wait, no waker was woken.
                    let closed = self.job.is_closed();
                    return if closed { Poll::Ready(Err(PushRefusal::Closed)) } else { Poll::Pending };
                }
                room = None;
            }
            loop {
                match self.job.expect_one() {
                    Err(PushRefusal::Full) => {}
                    other => return Poll::Ready(other),
                }
                if self.job.register_waker(context.waker(), |outcomes| {
                    outcomes.check_room() != Err(PushRefusal::Full)
                }) {
                    return Poll::Pending;
                }
            }
        });
        // No await point follows a successful `expect_one`, so an expected task is always submitted.
        match index.await {
            Ok(index) => Ok(self.submit(index, lane, args)),
            Err(_) => Err(PushError::Closed(args)),
        }
    }

    fn submit(&self, index: usize, lane: Option<u64>, args: A) -> Ticket {
        self.shared.submit_expected(&self.job, index..index + 1, || self.pushed.push(index, lane, args));
        self.ticket(index)
    }

    fn ticket(&self, number: usize) -> Ticket {
        Ticket { number, stream: self.number }
    }

    /// Returns `true` if this process owns the stream, and `ticket` is `None` or a ticket of this stream.
    fn may_take(&self, ticket: Option<Ticket>) -> bool {
        let is_its = ticket.is_none_or(|ticket| ticket.stream == self.number);
        self.job.is_ours() && (is_its)
    }

    /// Blocks until the next result is available, in the order of completion or [in push
    /// order](Self::in_order). Returns `None` if the stream is closed and all results were taken.
    ///
    /// Blocks even if no task is in flight: another thread may push a task or close the stream.
    #[track_caller]
    pub fn next(&self) -> Option<Outcome<T>> {
        self.outcome_within(None, WaitLimit::Until(None)).ok().flatten()
    }

    /// Like [`next`](Self::next), without waiting.
    ///
    /// # Errors
    /// `PendingError` if no result is available.
    pub fn try_next(&self) -> Result<Option<Outcome<T>>, PendingError> {
        self.outcome_within(None, WaitLimit::NoWait)
    }

    /// Like [`next`](Self::next), but waits for at most `timeout`.
    ///
    /// # Errors
    /// `PendingError` if no result is available in time.
    #[track_caller]
    pub fn next_timeout(&self, timeout: Duration) -> Result<Option<Outcome<T>>, PendingError> {
        self.outcome_within(None, WaitLimit::at_most(timeout))
    }

    /// Like [`next`](Self::next), without blocking a thread. If the future is dropped before it is ready, no
    /// result is taken.
    pub async fn next_async(&self) -> Option<Outcome<T>> {
        self.outcome(None).await
    }

    /// Blocks until the result of this task is available. Returns `None` if the result was already taken, or
    /// the ticket belongs to another stream.
    #[track_caller]
    pub fn take(&self, ticket: Ticket) -> Option<Result<T, TaskError>> {
        self.outcome_within(Some(ticket), WaitLimit::Until(None)).ok().flatten().map(|(_, result)| result)
    }

    /// Like [`take`](Self::take), but waits for at most `timeout`.
    ///
    /// # Errors
    /// `PendingError` if the result is not available in time.
    #[track_caller]
    pub fn take_timeout(
        &self,
        ticket: Ticket,
        timeout: Duration,
    ) -> Result<Option<Result<T, TaskError>>, PendingError> {
        let outcome = self.outcome_within(Some(ticket), WaitLimit::at_most(timeout))?;
        Ok(outcome.map(|(_, result)| result))
    }

    /// Like [`take`](Self::take), without blocking a thread.
    pub async fn take_async(&self, ticket: Ticket) -> Option<Result<T, TaskError>> {
        self.outcome(Some(ticket)).await.map(|(_, result)| result)
    }

    #[track_caller]
    fn outcome_within(
        &self,
        ticket: Option<Ticket>,
        wait: WaitLimit,
    ) -> Result<Option<Outcome<T>>, PendingError> {
        if !self.may_take(ticket) {
            return Ok(None);
        }
        loop {
            if !self.wait(wait, |outcomes| is_decided(outcomes, ticket)) {
                return Err(PendingError { in_flight: self.in_flight() });
            }
            if let Some(run) = self.job.take_outcome(ticket.map(Ticket::number)) {
                return Ok(Some(self.taken(run)));
            }
            // Another thread took the outcome, or there is none.
            if is_over(&self.job.outcomes(), ticket) {
                return Ok(None);
            }
        }
    }

    async fn outcome(&self, ticket: Option<Ticket>) -> Option<Outcome<T>> {
        let run = poll_fn(|context| {
            if !self.may_take(ticket) {
                return Poll::Ready(None);
            }
            loop {
                if let Some(run) = self.job.take_outcome(ticket.map(Ticket::number)) {
                    return Poll::Ready(Some(run));
                }
                if is_over(&self.job.outcomes(), ticket) {
                    return Poll::Ready(None);
                }
                if self.job.register_waker(context.waker(), |outcomes| is_decided(outcomes, ticket)) {
                    return Poll::Pending;
                }
            }
        });
        run.await.map(|run| self.taken(run))
    }

    /// Decodes the outcome. Decoding runs user code, so no lock is held.
    fn taken(&self, mut run: OutcomeRun) -> Outcome<T> {
        self.pushed.forget_lane(run.first);
        (self.ticket(run.first), read(&mut run, 0))
    }
}

/// Returns `true` if the requested outcome will never be available: the task is unknown, its outcome was
/// taken, or the stream has ended.
fn is_over(outcomes: &CallOutcomes, ticket: Option<Ticket>) -> bool {
    let Some(tickets) = &outcomes.tickets else { return true };
    match ticket {
        Some(Ticket { number, .. }) => tickets.is_taken(number) || number >= outcomes.progress.total,
        None => outcomes.is_over(),
    }
}

/// Returns `true` if an outcome can be taken, or will never arrive.
fn is_decided(outcomes: &CallOutcomes, ticket: Option<Ticket>) -> bool {
    let is_there = outcomes.tickets.as_ref().is_some_and(|tickets| match ticket {
        Some(Ticket { number, .. }) => tickets.has(number),
        None => tickets.next().is_some(),
    });
    is_there || is_over(outcomes, ticket)
}

impl<A, T> Drop for TaskStream<A, T> {
    fn drop(&mut self) {
        let Progress { done, total, .. } = self.progress();
        if done < total {
            self.shared.cancel(&self.job);
        }
    }
}
