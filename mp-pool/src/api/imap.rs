//! Lazy iterator over the results of a call.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mp_core::quantity;
use mp_core::user_code::UserValues;
use mp_reduce::Message;

use crate::api::result::read_values;
use crate::api::stream::PendingError;
use crate::dispatcher::shared::PoolShared;
use crate::error::TaskError;
use crate::tasks::call_outcomes::CallOutcomes;
use crate::tasks::call_state::CallState;
use crate::tasks::outcome_run::OutcomeRun;
use crate::tasks::source::ItemSource;

/// Maximum number of results that are decoded at once.
const READ_AT_ONCE: usize = 256;

/// Iterator over the results of [`Pool::imap`](crate::Pool::imap) and
/// [`Pool::imap_unordered`](crate::Pool::imap_unordered).
///
/// [`next`](Iterator::next) takes items from the source iterator, in the calling thread, up to a
/// [bound](crate::Call::max_in_flight) before their results are requested. Dropping the iterator cancels the
/// tasks that have not begun.
///
/// In a fork of the process that created the iterator, `next` returns the values that were read before the
/// fork, then one [`TaskError::Terminated`], then `None`. An exhausted iterator returns only `None`.
#[must_use = "nothing is called until results are asked for"]
pub struct Imap<I: Iterator, T> {
    shared: Arc<PoolShared>,
    job: Arc<CallState>,
    iter: I,
    items: Arc<ItemSource<I::Item>>,
    /// Maximum number of tasks in flight. Grows for short tasks unless the user set it.
    ahead: usize,
    chosen: bool,
    /// Run of outcomes that is being read, and the number of its outcomes that were already read.
    run: Option<(OutcomeRun, usize)>,
    /// Decoded values that were not returned yet. `error` is returned after them.
    values: UserValues<T>,
    error: Option<TaskError>,
    sent: usize,
    received: usize,
    exhausted: bool,
}

impl<I: Iterator, T> fmt::Debug for Imap<I, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (received, sent) = (self.received, self.sent);
        let (received, sent) = (quantity(received, "result"), quantity(sent, "task"));
        write!(f, "Imap({received} of {sent}, {} ahead)", self.ahead)
    }
}

impl<I: Iterator, T> Imap<I, T> {
    pub(crate) fn new(
        (shared, job): (Arc<PoolShared>, Arc<CallState>),
        (iter, items): (I, Arc<ItemSource<I::Item>>),
        (ahead, chosen): (usize, bool),
    ) -> Self {
        let (run, values, error) = (None, UserValues::default(), None);
        let (sent, received, exhausted) = (0, 0, false);
        Imap { shared, job, iter, items, ahead, chosen, run, values, error, sent, received, exhausted }
    }

    /// Returns `true` if the next result can be returned without waiting.
    fn has_next(&self) -> bool {
        !self.values.is_empty() || self.error.is_some() || self.run.is_some()
    }

    /// Sends more tasks, unless enough are in flight.
    fn send(&mut self) {
        let mut in_flight = self.sent - self.received;
        // If more than `ahead` tasks are in flight, tasks are short. New tasks are then sent only when no
        // result is at hand.
        if !self.chosen && in_flight > self.ahead && self.has_next() {
            return;
        }
        let workers = self.shared.workers();
        let ahead = if self.chosen { self.ahead } else { self.job.target_in_flight(workers, self.ahead) };
        if in_flight > ahead / 2 {
            return;
        }
        while !self.exhausted && in_flight < ahead {
            // The source iterator may be slow: no caller waits for an item while workers have something to do
            // and a result is available.
            if in_flight >= workers && (self.has_next() || self.job.outcomes().has_next()) {
                return;
            }
            let portion = in_flight.max(1).min(ahead - in_flight);
            // Items before a panic of the iterator are sent. The iterator is not polled again.
            let mut items = UserValues::default();
            let panicked = catch_unwind(AssertUnwindSafe(|| {
                while items.len() < portion
                    && let Some(item) = self.iter.next()
                {
                    items.push_back(item);
                }
            }));
            self.exhausted = panicked.is_err() || items.len() < portion;
            let count = items.len();
            self.sent += count;
            in_flight += count;
            let store = || self.items.push(items);
            self.exhausted |= count > 0 && !self.shared.submit(&self.job, count, store);
            if let Err(payload) = panicked {
                resume_unwind(payload);
            }
        }
    }
}

/// Value of [`Imap::next_timeout`]: a result or an error, or `None` at the end.
type NextResult<T> = Option<Result<T, TaskError>>;

impl<I: Iterator, T: Message> Imap<I, T> {
    /// Returns the next result, or `None` at the end. Waits for at most `timeout`.
    ///
    /// ```
    /// use std::time::Duration;
    /// use mp_pool::Pool;
    ///
    /// let pool = Pool::new(1)?;
    /// let nap = |millis: u64| std::thread::sleep(Duration::from_millis(millis));
    /// let mut results = pool.imap(nap, [300]);
    /// let late = results.next_timeout(Duration::from_millis(1)).unwrap_err();
    /// assert_eq!(late.in_flight, 1);
    /// assert!(results.next_timeout(Duration::from_secs(60))?.is_some_and(|result| result.is_ok()));
    /// assert!(results.next_timeout(Duration::ZERO)?.is_none()); // its end
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Blocking
    /// The time-out interrupts neither the source iterator, which is polled first, nor the decoding of a
    /// result.
    ///
    /// # Errors
    /// [`PendingError`] if no result arrives in time. No result is lost: a later call returns it.
    #[doc(alias = "IMapIterator.next")]
    #[track_caller]
    pub fn next_timeout(&mut self, timeout: Duration) -> Result<NextResult<T>, PendingError> {
        self.next_until(Instant::now().checked_add(timeout))
    }

    #[track_caller]
    fn next_until(&mut self, until: Option<Instant>) -> Result<NextResult<T>, PendingError> {
        // The usual case: a value was read with others, in this process or before its fork, and enough tasks
        // are in flight.
        if !self.chosen
            && self.sent - self.received > self.ahead
            && let Some(value) = self.values.pop_front()
        {
            self.received += 1;
            return Ok(Some(Ok(value)));
        }
        if !self.job.is_ours() {
            let over = self.exhausted && self.received == self.sent;
            (self.exhausted, self.received) = (true, self.sent);
            return Ok((!over).then_some(Err(TaskError::Terminated)));
        }
        self.send();
        if self.received == self.sent {
            return Ok(None);
        }
        if self.values.is_empty() && self.error.is_none() {
            if self.run.is_none() {
                if !self.job.wait(until, CallOutcomes::has_next) {
                    return Err(PendingError { in_flight: self.sent - self.received });
                }
                self.run = self.job.outcomes().next().map(|run| (run, 0));
            }
            let Some((run, at)) = self.run.as_mut() else { return Ok(None) };
            let which = *at..run.count.min(*at + READ_AT_ONCE);
            self.error = read_values(run, which, &mut self.values);
            *at += self.values.len() + usize::from(self.error.is_some());
            if *at == run.count {
                self.run = None;
            }
        }
        let result = match self.values.pop_front() {
            Some(value) => Ok(value),
            None => match self.error.take() {
                Some(error) => Err(error),
                None => return Ok(None),
            },
        };
        self.received += 1;
        Ok(Some(result))
    }
}

impl<I: Iterator, T: Message> Iterator for Imap<I, T> {
    type Item = Result<T, TaskError>;

    #[track_caller]
    fn next(&mut self) -> Option<Self::Item> {
        // Without a time limit the result is never `PendingError`.
        self.next_until(None).ok().flatten()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let in_flight = self.sent - self.received;
        if self.exhausted {
            return (in_flight, Some(in_flight));
        }
        let (least, most) = self.iter.size_hint();
        (least.saturating_add(in_flight), most.and_then(|most| most.checked_add(in_flight)))
    }
}

impl<I: Iterator, T> Drop for Imap<I, T> {
    fn drop(&mut self) {
        self.shared.cancel(&self.job);
    }
}
