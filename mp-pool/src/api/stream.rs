//! A call without an end: tasks are pushed and results taken one by one, as the caller likes.

use std::fmt;
use std::future::poll_fn;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use mp_core::sync::Ordering;
use mp_core::sync::shared::AtomicU64;
use mp_reduce::Message;

use crate::api::result::read;
use crate::calls::job::Job;
use crate::calls::lanes::Pushed;
use crate::calls::outcomes::Run;
use crate::calls::slots::{Refused, Slots};
use crate::dispatch::room::UntilRoom;
use crate::dispatch::shared::Shared;
use crate::error::TaskError;
use crate::metrics::running::RunningTask;

/// A task of a [`Stream`]: they are numbered from 0, as they were pushed. Equal to no ticket of another stream.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket {
    number: usize,
    stream: u64,
}

impl Ticket {
    /// Its number.
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

/// The number of a stream; no two of this process have the same one.
fn next_stream() -> u64 {
    // fork: a copy of the process takes nothing from the streams of its original.
    static STREAMS: AtomicU64 = AtomicU64::new(0);
    STREAMS.fetch_add(1, Ordering::Relaxed)
}

/// A task of a [`Stream`], and what came of it.
pub type Outcome<T> = (Ticket, Result<T, TaskError>);

/// Nothing was pushed; here are the arguments.
pub enum PushError<A> {
    /// As many tasks are on their way as the [stream](crate::Call::ahead) or the [pool](crate::PoolBuilder::max_waiting) allows.
    Full(A),
    /// The stream was closed; or this process was forked from the one that has it.
    Closed(A),
}

impl<A> PushError<A> {
    /// The arguments.
    pub fn into_args(self) -> A {
        match self {
            PushError::Full(args) | PushError::Closed(args) => args,
        }
    }
}

impl<A> fmt::Display for PushError<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PushError::Full(_) => {
                "as many tasks of the stream are on their way as may be: take results, or allow more by `Call::ahead`"
            }
            PushError::Closed(_) => "the stream is closed: it takes no tasks any more",
        })
    }
}

impl<A> fmt::Debug for PushError<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<A> std::error::Error for PushError<A> {}

/// No result is there yet, or not that one.
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct NotYet {
    /// How many tasks are on their way: pushed, and their results not taken.
    pub under_way: usize,
}

impl fmt::Display for NotYet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no result is there yet; {} tasks are on their way", self.under_way)
    }
}

mp_core::readable_debug!(NotYet);

impl std::error::Error for NotYet {}

/// A call without an end: [`Pool::stream`](crate::Pool::stream), [`Call::stream`](crate::Call::stream). Its tasks are pushed one by
/// one, and its results taken as they come: by programs that decide by themselves what is done next, and how much at once.
///
/// ```
/// use mp_pool::Pool;
///
/// let pool = Pool::new(2)?;
/// let stream = pool.task(|x: u64| x * x).retries(2).ahead(8).stream();
/// let mut next = 0..20_u64;
/// let mut sum = 0;
/// loop {
///     // As many as there is room for; a wait for more would be one for what only this thread takes.
///     while stream.under_way() < 8 && let Some(x) = next.next() {
///         stream.push(x)?;
///     }
///     if stream.under_way() == 0 {
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
/// It borrows nothing: it may be moved to another thread, or shared, so that one thread pushes and another one takes. Like
/// [`Call`](crate::Call), it does not keep the pool: tasks that are pushed when that is closed, joined or dropped end with
/// [`TaskError::Closed`], or [`TaskError::Broken`] with the reason.
///
/// # Lanes
/// Some tasks are quicker in the worker that had the one before: it has the file open that both read, or the
/// [state](crate::StatePool) that both change. Such tasks are pushed to one *lane*, a number of the caller's choice
/// ([`push_to`](Self::push_to)). They go to the worker that had this lane last; to any other if that one is dead, or if it has work
/// and the other one has none. So a lane is a hint: it costs nothing where it is wrong, delays no task while a worker is idle, and
/// promises nothing. Tasks of one lane may run at once, and a task that is tried again goes to whichever worker is free.
///
/// ```
/// use mp_pool::Pool;
///
/// /// What a worker has read so far of each file.
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
/// A stream remembers the workers of 65,536 lanes, and then begins anew.
///
/// # Room
/// A task is *on its way* from its push until its result was taken. With [`Call::ahead`](crate::Call::ahead) no more are than that:
/// a push waits until there is room, and so does a bounded pool's ([`PoolBuilder::max_waiting`](crate::PoolBuilder::max_waiting)).
/// Without either, the caller decides, by [`under_way`](Self::under_way). A thread that pushes and takes alone must not wait for room
/// that only it can make: it looks first, as above, or uses [`try_push`](Self::try_push).
///
/// # Its end
/// [`close`](Self::close) says that nothing more is pushed: then [`next`](Self::next) gives what is left, and `None`. Dropped, it
/// cancels what has not begun, and the results of what runs are dropped. What is given to the pool next waits for none of that.
///
/// What becomes of each task, by an error, a death, a time-out, is in the table at [`TaskError`]; how often it is tried again, what
/// the call says ([`Call::retry_if`](crate::Call::retry_if)). In a copy of the process that made it (`fork`) it is closed, and gives
/// nothing.
#[must_use = "nothing is called until something is pushed, and dropping it cancels its tasks"]
pub struct Stream<A, T> {
    shared: Arc<Shared>,
    job: Arc<Job>,
    pushed: Arc<Pushed<A>>,
    number: u64,
    results: PhantomData<fn() -> T>,
}

impl<A, T> fmt::Debug for Stream<A, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.job.is_ours() {
            return f.write_str("Stream(of another process)");
        }
        let slots = self.job.slots();
        let (done, total, under_way) = (slots.progress().done, slots.progress().total, slots.under_way());
        write!(f, "Stream({done} of {total} tasks done, {under_way} on their way)")
    }
}

/// How long a call waits.
#[derive(Clone, Copy)]
enum Wait {
    Not,
    Until(Option<Instant>),
}

impl Wait {
    fn at_most(timeout: Duration) -> Wait {
        if timeout.is_zero() { Wait::Not } else { Wait::Until(Instant::now().checked_add(timeout)) }
    }
}

impl<A, T> Stream<A, T> {
    pub(crate) fn new(shared: Arc<Shared>, job: Arc<Job>, pushed: Arc<Pushed<A>>) -> Self {
        Stream { shared, job, pushed, number: next_stream(), results: PhantomData }
    }

    /// From now on [`next`](Self::next) gives the results in the order in which their tasks were pushed; without this as they come.
    pub fn in_order(self) -> Self {
        if self.job.is_ours()
            && let Some(tickets) = &mut self.job.slots().tickets
        {
            tickets.in_order = true;
        }
        self
    }

    /// How many tasks are on their way: pushed, and their results not taken.
    #[must_use]
    pub fn under_way(&self) -> usize {
        if self.job.is_ours() { self.job.slots().under_way() } else { 0 }
    }

    /// What the workers are at of this stream: as of [`Pool::running`](crate::Pool::running), but only its tasks. A
    /// [`task`](crate::RunningTask::task) is the [number](Ticket::number) of a ticket.
    #[must_use]
    pub fn running(&self) -> Vec<RunningTask> {
        if self.job.is_ours() { self.shared.state.lock().running_of(Some(&self.job)) } else { Vec::new() }
    }

    /// Nothing more is pushed: [`next`](Self::next) ends when the last result was taken. What waits to push hears that it is closed.
    pub fn close(&self) {
        if self.job.is_ours() {
            self.job.close();
            self.shared.stream_is_closed();
        }
    }

    /// Waits until it is so; false if that takes too long.
    fn wait(&self, wait: Wait, so: impl Fn(&Slots) -> bool) -> bool {
        match wait {
            Wait::Not => so(&self.job.slots()),
            Wait::Until(until) => self.job.wait(until, so),
        }
    }
}

impl<A: Message + Send, T: Message + Send> Stream<A, T> {
    /// Has a task done; waits until there is [room](Self#room) for it. Its number, by which its result is known.
    ///
    /// # Errors
    /// The arguments, if the stream is closed.
    pub fn push(&self, args: A) -> Result<Ticket, PushError<A>> {
        self.push_within(None, args, Wait::Until(None))
    }

    /// As [`push`](Self::push), best to the worker that had this [lane](Self#lanes) last.
    ///
    /// # Errors
    /// The arguments, if the stream is closed.
    pub fn push_to(&self, lane: u64, args: A) -> Result<Ticket, PushError<A>> {
        self.push_within(Some(lane), args, Wait::Until(None))
    }

    /// As [`push`](Self::push), if there is room now.
    ///
    /// # Errors
    /// The arguments, if there is no room, or the stream is closed.
    pub fn try_push(&self, args: A) -> Result<Ticket, PushError<A>> {
        self.push_within(None, args, Wait::Not)
    }

    /// As [`push_to`](Self::push_to), if there is room now.
    ///
    /// # Errors
    /// As [`try_push`](Self::try_push).
    pub fn try_push_to(&self, lane: u64, args: A) -> Result<Ticket, PushError<A>> {
        self.push_within(Some(lane), args, Wait::Not)
    }

    /// As [`push`](Self::push), but waits no longer than this for room.
    ///
    /// # Errors
    /// As [`try_push`](Self::try_push).
    pub fn push_timeout(&self, args: A, timeout: Duration) -> Result<Ticket, PushError<A>> {
        self.push_within(None, args, Wait::at_most(timeout))
    }

    /// As [`push_to`](Self::push_to), but waits no longer than this for room.
    ///
    /// # Errors
    /// As [`try_push`](Self::try_push).
    pub fn push_to_timeout(&self, lane: u64, args: A, timeout: Duration) -> Result<Ticket, PushError<A>> {
        self.push_within(Some(lane), args, Wait::at_most(timeout))
    }

    /// As [`push`](Self::push), as a future: waits for room without blocking a thread. Dropped before there was room, it has pushed
    /// nothing.
    ///
    /// # Errors
    /// The arguments, if the stream is closed.
    pub async fn push_async(&self, args: A) -> Result<Ticket, PushError<A>> {
        self.push_when_ready(None, args).await
    }

    /// As [`push_to`](Self::push_to), as a future.
    ///
    /// # Errors
    /// The arguments, if the stream is closed.
    pub async fn push_to_async(&self, lane: u64, args: A) -> Result<Ticket, PushError<A>> {
        self.push_when_ready(Some(lane), args).await
    }

    fn push_within(&self, lane: Option<u64>, args: A, wait: Wait) -> Result<Ticket, PushError<A>> {
        if !self.job.is_ours() {
            return Err(PushError::Closed(args));
        }
        let pool_has_room = match wait {
            Wait::Not => !self.shared.is_full(),
            Wait::Until(until) => self.shared.wait_for_room(until, || self.job.is_closed()),
        };
        loop {
            let room = if pool_has_room { self.job.expect_one() } else { Err(Refused::Full) };
            match room {
                Ok(index) => return Ok(self.submit(index, lane, args)),
                Err(_) if self.job.is_closed() => return Err(PushError::Closed(args)),
                Err(_) => {}
            }
            if !pool_has_room || !self.wait(wait, |slots| slots.has_room() != Err(Refused::Full)) {
                return Err(PushError::Full(args));
            }
        }
    }

    async fn push_when_ready(&self, lane: Option<u64>, args: A) -> Result<Ticket, PushError<A>> {
        let mut room = Some(UntilRoom::new(&self.shared));
        let index = poll_fn(|context| {
            if !self.job.is_ours() || self.job.is_closed() {
                return Poll::Ready(Err(Refused::Closed));
            }
            if let Some(of_pool) = &mut room {
                if Pin::new(of_pool).poll(context).is_pending() {
                    // Closed just before it waited, it has told no waker.
                    let closed = self.job.is_closed();
                    return if closed { Poll::Ready(Err(Refused::Closed)) } else { Poll::Pending };
                }
                room = None;
            }
            loop {
                match self.job.expect_one() {
                    Err(Refused::Full) => {}
                    other => return Poll::Ready(other),
                }
                if self.job.wake(context.waker(), |slots| slots.has_room() != Err(Refused::Full)) {
                    return Poll::Pending;
                }
            }
        });
        // From here on nothing is awaited: a task that is expected comes.
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

    /// Whether it is of this stream, in the process that has it.
    fn may_take(&self, ticket: Option<Ticket>) -> bool {
        let is_its = ticket.is_none_or(|ticket| ticket.stream == self.number);
        self.job.is_ours() && (is_its)
    }

    /// Waits for the next result, as they come or [in order](Self::in_order); `None` if the stream is closed and all were taken.
    ///
    /// It waits also if nothing is on its way: another thread may push something, or close it.
    pub fn next(&self) -> Option<Outcome<T>> {
        self.outcome_within(None, Wait::Until(None)).ok().flatten()
    }

    /// As [`next`](Self::next), if it is there now.
    ///
    /// # Errors
    /// It is not there.
    pub fn try_next(&self) -> Result<Option<Outcome<T>>, NotYet> {
        self.outcome_within(None, Wait::Not)
    }

    /// As [`next`](Self::next), but waits no longer than this.
    ///
    /// # Errors
    /// It is not there.
    pub fn next_timeout(&self, timeout: Duration) -> Result<Option<Outcome<T>>, NotYet> {
        self.outcome_within(None, Wait::at_most(timeout))
    }

    /// As [`next`](Self::next), as a future. Dropped before it is ready, it has taken nothing.
    pub async fn next_async(&self) -> Option<Outcome<T>> {
        self.outcome(None).await
    }

    /// Waits for the result of this task; `None` if it was taken already, or the ticket is of another stream.
    pub fn take(&self, ticket: Ticket) -> Option<Result<T, TaskError>> {
        self.outcome_within(Some(ticket), Wait::Until(None)).ok().flatten().map(|(_, result)| result)
    }

    /// As [`take`](Self::take), but waits no longer than this.
    ///
    /// # Errors
    /// It is not there.
    pub fn take_timeout(
        &self,
        ticket: Ticket,
        timeout: Duration,
    ) -> Result<Option<Result<T, TaskError>>, NotYet> {
        let outcome = self.outcome_within(Some(ticket), Wait::at_most(timeout))?;
        Ok(outcome.map(|(_, result)| result))
    }

    /// As [`take`](Self::take), as a future.
    pub async fn take_async(&self, ticket: Ticket) -> Option<Result<T, TaskError>> {
        self.outcome(Some(ticket)).await.map(|(_, result)| result)
    }

    fn outcome_within(&self, ticket: Option<Ticket>, wait: Wait) -> Result<Option<Outcome<T>>, NotYet> {
        if !self.may_take(ticket) {
            return Ok(None);
        }
        loop {
            if !self.wait(wait, |slots| is_decided(slots, ticket)) {
                return Err(NotYet { under_way: self.under_way() });
            }
            if let Some(run) = self.job.take_outcome(ticket.map(Ticket::number)) {
                return Ok(Some(self.taken(run)));
            }
            // Another thread was quicker, or there is none.
            if is_over(&self.job.slots(), ticket) {
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
                if is_over(&self.job.slots(), ticket) {
                    return Poll::Ready(None);
                }
                if self.job.wake(context.waker(), |slots| is_decided(slots, ticket)) {
                    return Poll::Pending;
                }
            }
        });
        run.await.map(|run| self.taken(run))
    }

    /// Code of the user runs here, without a lock.
    fn taken(&self, mut run: Run) -> Outcome<T> {
        self.pushed.is_over(run.first);
        (self.ticket(run.first), read(&mut run, 0))
    }
}

/// Whether there is nothing to wait for: no such task, or none at all any more.
fn is_over(slots: &Slots, ticket: Option<Ticket>) -> bool {
    let Some(tickets) = &slots.tickets else { return true };
    match ticket {
        Some(Ticket { number, .. }) => tickets.is_taken(number) || number >= slots.progress().total,
        None => slots.is_over(),
    }
}

/// Whether an outcome can be taken, or will not come.
fn is_decided(slots: &Slots, ticket: Option<Ticket>) -> bool {
    let is_there = slots.tickets.as_ref().is_some_and(|tickets| match ticket {
        Some(Ticket { number, .. }) => tickets.has(number),
        None => tickets.next().is_some(),
    });
    is_there || is_over(slots, ticket)
}

impl<A, T> Drop for Stream<A, T> {
    fn drop(&mut self) {
        self.shared.cancel(&self.job);
    }
}
