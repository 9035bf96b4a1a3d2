//! Many messages for a queue of another member.

use std::collections::VecDeque;
use std::fmt;
use std::iter::{Chain, Fuse};
use std::sync::Arc;
use std::vec::IntoIter;

use mp_core::user_code::drop_caught;
use mp_core::{Message, Wait, quantity};
use mp_reduce::restore_unsent;

use crate::error::RemotePutError;
use crate::link::batch::{EncodedPut, PutBatch};
use crate::link::{CallValues, PendingReply};
use crate::remote::queue::RemoteQueue;
use crate::wire::messages::Operation;

/// Number of unanswered puts at which [`RemoteQueue::put_many`] waits before it begins another call.
const AHEAD: usize = 4096;
/// Size in bytes of unanswered puts above which [`RemoteQueue::put_many`] waits as well.
const AHEAD_BYTES: u64 = 64 << 20;

/// Error returned when not all values were put. It contains the values that were not put.
///
/// This error can't be sent, because its iterator can't be sent. Send its [`error`](Self::error) instead.
#[non_exhaustive]
pub struct RemotePutManyError<T, I> {
    /// Number of values that were put.
    pub put: usize,
    /// Error of the first value that was not put, with that value.
    pub error: RemotePutError<T>,
    /// Values that were not put after the value in `error`, in their order, and then the rest of the
    /// iterator.
    pub rest: Chain<IntoIter<T>, Fuse<I>>,
    /// `true` if the member that has the queue was lost, so that values in `error` and `rest` may have been
    /// put.
    pub in_doubt: bool,
}

impl<T, I> fmt::Debug for RemotePutManyError<T, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<T, I> fmt::Display for RemotePutManyError<T, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "put before the error: {}; {}", quantity(self.put, "value"), self.error)
    }
}

impl<T, I> std::error::Error for RemotePutManyError<T, I> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(&self.error)
    }
}

impl<T: Message> RemoteQueue<T> {
    /// Puts messages in their order. Blocks until all are put, and returns their number. The messages are
    /// sent without waiting for each reply: about 4,096 messages and 64 MiB can be unanswered, or fewer if
    /// the [credits](crate::ClusterConfig::credits) of the member that has the queue are lower.
    ///
    /// Small messages are sent together, up to 256 messages and 32 KiB in one call.
    ///
    /// # Errors
    /// [`RemotePutManyError`] with the first error, the value that caused it, and all other values that were
    /// not put. Later values may have been put, if they were sent before this process received the error. The
    /// variants with a time limit send one call at a time, so no later value was put.
    pub fn put_many<I: IntoIterator<Item = T>>(
        &self,
        values: I,
    ) -> Result<usize, Box<RemotePutManyError<T, I::IntoIter>>> {
        self.put_many_wait(values.into_iter(), Wait::Forever)
    }

    mp_core::forms! {
        "Puts messages":
        put_many[I: IntoIterator<Item = T>](values: I)
            -> Result<usize, Box<RemotePutManyError<T, I::IntoIter>>>,
        or "[`RemotePutError::Full`] with the first value that found no room. All values share the time";
        |queue, wait| queue.put_many_wait(values.into_iter(), wait);
        never try_put_many;
        at_most put_many_timeout;
        until put_many_deadline;
    }

    fn put_many_wait<I: Iterator<Item = T>>(
        &self,
        values: I,
        wait: Wait,
    ) -> Result<usize, Box<RemotePutManyError<T, I>>> {
        let mut values = values.fuse();
        let mut puts = UnansweredPuts {
            queue: self,
            wait,
            calls: VecDeque::new(),
            count: 0,
            size: 0,
            put: 0,
            failed: None,
            unsent: Vec::new(),
            in_doubt: false,
        };
        while puts.failed.is_none()
            && let Some(mut value) = values.next()
        {
            match self.encode(&mut value) {
                Ok(encoded) => puts.add(value, encoded),
                Err(error) => {
                    puts.finish();
                    puts.fail(value, RemotePutError::Failed { value: (), error });
                }
            }
        }
        puts.finish();
        let UnansweredPuts { put, failed, unsent, in_doubt, .. } = puts;
        match failed {
            None => Ok(put),
            Some(error) => {
                let rest = unsent.into_iter().chain(values);
                Err(Box::new(RemotePutManyError { put, error, rest, in_doubt }))
            }
        }
    }
}

/// Values of one call whose reply has not arrived.
struct SentPuts<T> {
    values: Vec<T>,
    size: u64,
    batch: Arc<PutBatch>,
    pending: PendingReply,
}

/// State of one [`RemoteQueue::put_many`]: its calls without replies, and its results so far.
struct UnansweredPuts<'q, T> {
    queue: &'q RemoteQueue<T>,
    wait: Wait,
    calls: VecDeque<SentPuts<T>>,
    /// Number of messages of `calls`. The next field is their size in bytes.
    count: usize,
    size: u64,
    /// Number of messages that were put.
    put: usize,
    /// First error, with its value. The next field has the later values that were not put.
    failed: Option<RemotePutError<T>>,
    unsent: Vec<T>,
    /// `true` if the member that has the queue was lost, so that values in `failed` and `unsent` may have
    /// been put.
    in_doubt: bool,
}

impl<T: Message> UnansweredPuts<'_, T> {
    fn is_full(&self, most: usize, next: u64) -> bool {
        self.count >= most || (self.size > 0 && self.size + next > AHEAD_BYTES)
    }

    /// Adds a put to the last call if that call was not sent and has room. Otherwise begins a new call.
    fn add(&mut self, mut value: T, put: EncodedPut) {
        let size = put.size();
        let unsent = match self.calls.back() {
            Some(last) => last.batch.join(put),
            None => Some(put),
        };
        if let Some(put) = unsent {
            self.make_room(size);
            if self.failed.is_some() {
                restore_unsent(&mut value, put.message);
                self.finish();
                return self.unsent.push(value);
            }
            let batch = PutBatch::new(put);
            let call = self.queue.call(Operation::Put);
            let pending = self.queue.object.link.begin(call, CallValues::Batch(batch.clone()), self.wait);
            self.calls.push_back(SentPuts { values: Vec::new(), size: 0, batch, pending });
        }
        if let Some(last) = self.calls.back_mut() {
            last.values.push(value);
            last.size += size;
        }
        self.count += 1;
        self.size += size;
    }

    /// Waits for replies while too many puts are unanswered. Returns early if a put fails.
    fn make_room(&mut self, size: u64) {
        // With a time limit, an earlier call may fail and a later one succeed, which would change the order.
        let is_limited = !matches!(self.wait, Wait::Forever);
        // Waits until only half are unanswered: waking this thread for each call would cost more than the
        // puts.
        let most = if self.is_full(AHEAD, size) { AHEAD / 2 } else { AHEAD };
        while self.failed.is_none()
            && let Some(oldest) = self.calls.front()
            && (is_limited || self.is_full(most, size) || oldest.pending.is_over())
        {
            self.finish_oldest();
        }
    }

    /// Waits for the reply to the oldest call.
    fn finish_oldest(&mut self) {
        let Some(SentPuts { values, size, batch, pending }) = self.calls.pop_front() else { return };
        self.count -= values.len();
        self.size -= size;
        let result = self.queue.object.link.wait(pending);
        let put = result.as_ref().map_or(0, |(reply, _)| reply.put as usize).min(values.len());
        let Some(error) = self.queue.put_end(result) else {
            self.put += values.len();
            return values.into_iter().for_each(drop_caught);
        };
        self.put += put;
        self.in_doubt |= error.peer_lost().is_some_and(|lost| lost.in_doubt);
        let mut messages = batch.reclaim().into_iter().skip(put);
        let mut error = Some(error);
        let mut values = values.into_iter();
        values.by_ref().take(put).for_each(drop_caught);
        for mut value in values {
            if let Some(message) = messages.next() {
                restore_unsent(&mut value, message);
            }
            match error.take() {
                Some(error) => self.fail(value, error),
                None => self.unsent.push(value),
            }
        }
    }

    /// Records a value that was not put, and its error if it is the first one.
    fn fail(&mut self, value: T, error: RemotePutError<()>) {
        match self.failed {
            None => self.failed = Some(error.with(value)),
            Some(_) => self.unsent.push(value),
        }
    }

    /// Waits for all replies. After an error, cancels the calls.
    fn finish(&mut self) {
        let mut is_cancelled = false;
        while !self.calls.is_empty() {
            if self.failed.is_some() && !std::mem::replace(&mut is_cancelled, true) {
                self.calls.iter().for_each(|call| self.queue.object.link.cancel(&call.pending));
            }
            self.finish_oldest();
        }
    }
}
