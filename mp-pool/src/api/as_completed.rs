//! Iterator over the results of several calls, in the order of completion.

use std::fmt;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use crate::api::result::{AsyncResult, ResultKind, Single};
use crate::api::stream::PendingError;
use crate::error::TaskError;
use mp_core::quantity;

/// Returns an iterator over the results of several calls in the order of completion. Each result comes with
/// its index in `results`.
///
/// ```
/// use mp_pool::{Pool, as_completed};
///
/// let pool = Pool::new(2)?;
/// let nap = |millis: u64| {
///     std::thread::sleep(std::time::Duration::from_millis(millis));
///     millis
/// };
/// let results = [300, 1].map(|millis| pool.apply_async(nap, millis));
/// let mut order = Vec::new();
/// for (place, result) in as_completed(results) {
///     order.push((place, result?));
/// }
/// assert_eq!(order, [(1, 1), (0, 300)]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// The calls may belong to different pools. Each may be a [`MapResult`](crate::MapResult), whose results
/// arrive together. To wait for queues and processes in addition to results, see [`mp_core::wait`].
#[doc(alias("concurrent.futures.as_completed", "concurrent.futures.wait"))]
pub fn as_completed<T, S>(results: impl IntoIterator<Item = AsyncResult<T, S>>) -> AsCompleted<T, S> {
    let (sender, done) = channel();
    let results: Vec<_> = results.into_iter().map(Some).collect();
    for (place, result) in results.iter().flatten().enumerate() {
        let sender = sender.clone();
        // The receiver may have been dropped.
        result.when_done(move || _ = sender.send(place));
    }
    AsCompleted { left: results.len(), results, done }
}

/// Iterator over results in the order of completion. Created by [`as_completed`].
///
/// # Blocking
/// `next` blocks until another result is available. When a pool is dropped or breaks, its tasks end with an
/// error, so the wait ends.
///
/// Dropping the iterator drops the remaining results. Their tasks run nevertheless.
#[must_use = "iterators are lazy"]
pub struct AsCompleted<T, S = Single> {
    results: Vec<Option<AsyncResult<T, S>>>,
    done: Receiver<usize>,
    /// Number of results that were not returned.
    left: usize,
}

impl<T, S> fmt::Debug for AsCompleted<T, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AsCompleted({} of {} left)", self.left, quantity(self.results.len(), "result"))
    }
}

/// Index of a call in the list that [`as_completed`] has received, and the result of this call.
type Completed<T, S> = (usize, Result<<S as ResultKind<T>>::Value, TaskError>);

impl<T, S: ResultKind<T>> AsCompleted<T, S> {
    /// Returns the next result, or `None` if all results were returned. Waits for at most `timeout`.
    ///
    /// # Errors
    /// [`PendingError`] if no result arrives in time. No result is lost.
    pub fn next_timeout(&mut self, timeout: Duration) -> Result<Option<Completed<T, S>>, PendingError> {
        if self.left == 0 {
            return Ok(None);
        }
        if let Some(place) = self.forked_index() {
            return Ok(self.take(place));
        }
        match self.done.recv_timeout(timeout) {
            Ok(place) => Ok(self.take(place)),
            Err(RecvTimeoutError::Timeout) => Err(PendingError { in_flight: self.left }),
            Err(RecvTimeoutError::Disconnected) => Ok(None),
        }
    }

    /// Returns the index of a result whose call was made before this process was forked. A forked child has
    /// no pool thread, so such a result would never be reported.
    fn forked_index(&self) -> Option<usize> {
        self.results.iter().position(|result| result.as_ref().is_some_and(AsyncResult::is_forked))
    }

    fn take(&mut self, place: usize) -> Option<Completed<T, S>> {
        let result = self.results.get_mut(place)?.take()?;
        self.left -= 1;
        Some((place, result.get()))
    }
}

impl<T, S: ResultKind<T>> Iterator for AsCompleted<T, S> {
    type Item = Completed<T, S>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            return None;
        }
        let place = self.forked_index().or_else(|| self.done.recv().ok())?;
        self.take(place)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl<T, S: ResultKind<T>> ExactSizeIterator for AsCompleted<T, S> {}
