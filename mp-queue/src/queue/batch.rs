//! Puts and gets of several messages. They advance the ring's hint and wake sleepers once per batch.

use std::fmt;

use mp_core::{Message, Wait, quantity};
use mp_reduce::Error;

use crate::error::{GetError, PutError};
use crate::queue::Queue;
use crate::raw::RawQueue;
use crate::raw::payload::Payload;
use crate::raw::pending::PendingMessage;
use crate::ring::{Position, PutOutcome};

/// Largest number of messages that are put or taken before sleepers are woken.
const MOST: u32 = 64;

/// Error returned when not all values were put. It contains the values that were not put.
///
/// This error can't be sent, because its iterator can't be sent. Send its [`error`](Self::error) instead.
#[non_exhaustive]
pub struct PutManyError<T, I> {
    /// Number of values that were put before the error.
    pub put: usize,
    /// Error for the first value that was not put. Contains that value.
    pub error: PutError<T>,
    /// Values that follow the value in `error`.
    pub rest: I,
}

impl<T, I> fmt::Debug for PutManyError<T, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut f = f.debug_struct("PutManyError");
        f.field("put", &self.put).field("error", &self.error).finish_non_exhaustive()
    }
}

impl<T, I> fmt::Display for PutManyError<T, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "put before the error: {}; {}", quantity(self.put, "value"), self.error)
    }
}

impl<T, I> std::error::Error for PutManyError<T, I> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(&self.error)
    }
}

/// Batch of puts or gets in one segment, with the positions since sleepers were last woken.
pub(crate) struct BatchOperation<'a> {
    raw: &'a RawQueue,
    segment: u32,
    putting: bool,
    positions: Option<(Position, Position)>,
    count: u32,
}

impl<'a> BatchOperation<'a> {
    pub(crate) fn new(raw: &'a RawQueue, putting: bool) -> Self {
        let segment = if putting { raw.tail_segment() } else { raw.head_segment() };
        Self { raw, segment, putting, positions: None, count: 0 }
    }

    fn last(&self) -> Option<Position> {
        self.positions.map(|(_, last)| last)
    }

    fn add(&mut self, position: Position) {
        let first = self.positions.map_or(position, |(first, _)| first);
        self.positions = Some((first, position));
        self.count += 1;
        if self.count == MOST {
            self.flush();
        }
    }

    /// Puts the next message. Returns `false` if the message can't be put into the current segment.
    pub(crate) fn put(&mut self, payload: &mut Payload) -> Result<bool, Error> {
        // In the last segment of a growing queue, messages in earlier segments count, too.
        let segments = self.raw.memory().segments();
        if segments > 1 && self.segment + 1 == segments {
            return Ok(false);
        }
        match self.raw.memory().put_next(self.segment, payload, self.last())? {
            PutOutcome::Done(position) => self.add(position),
            PutOutcome::Full(()) | PutOutcome::Closed(()) => return Ok(false),
        }
        Ok(true)
    }

    /// Takes the next message, or returns `None` if the segment has no message.
    fn get(&mut self) -> Result<Option<Payload>, Error> {
        let Some((payload, position)) = self.raw.memory().get_next(self.segment, self.last())? else {
            return Ok(None);
        };
        self.add(position);
        Ok(Some(payload))
    }

    pub(crate) fn flush(&mut self) {
        let Some((first, last)) = self.positions.take() else { return };
        let (memory, count) = (self.raw.memory(), std::mem::take(&mut self.count));
        if self.putting {
            memory.advance_tail(self.segment, first, last);
            memory.not_empty().wake_some(count);
        } else {
            memory.advance_head(self.segment, first, last);
            memory.wake_producers(count);
        }
    }
}

impl Drop for BatchOperation<'_> {
    fn drop(&mut self) {
        // Sleepers are also woken if the code of a value panics.
        self.flush();
    }
}

impl<T: Message> Queue<T> {
    /// Puts all values, in their order. Waits while the queue is full. Returns the number of values.
    ///
    /// ```
    /// use mp_queue::Queue;
    ///
    /// let queue = Queue::bounded(100)?;
    /// assert_eq!(queue.put_many(0..50)?, 50);
    /// let mut got = Vec::new();
    /// assert_eq!(queue.get_many(&mut got, 20)?, 20);
    /// assert!(got.into_iter().eq(0..20));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Messages of other producers may be interleaved with these values. Sleeping consumers are woken once
    /// for up to 64 messages, so use this for values that exist already or that the iterator produces
    /// quickly.
    ///
    /// # Errors
    /// Returns the same errors as [`put`](Self::put), at the first value that can't be put. The error
    /// contains this value and all values after it.
    #[track_caller]
    pub fn put_many<I: IntoIterator<Item = T>>(
        &self,
        values: I,
    ) -> Result<usize, PutManyError<T, I::IntoIter>> {
        self.put_many_wait(values.into_iter(), Wait::Forever)
    }

    mp_core::forms! {
        "Puts values": put_many[I: IntoIterator<Item = T>](values: I) -> Result<usize, PutManyError<T, I::IntoIter>>,
        or "[`PutError::Full`] with the first value that found no room. The time limit is for the whole call";
        |queue, wait| queue.put_many_wait(values.into_iter(), wait);
        never try_put_many;
        at_most put_many_timeout;
        until put_many_deadline;
    }

    #[track_caller]
    fn put_many_wait<I: Iterator<Item = T>>(
        &self,
        mut values: I,
        wait: Wait,
    ) -> Result<usize, PutManyError<T, I>> {
        let raw = self.raw();
        let mut run = BatchOperation::new(raw, true);
        let mut put = 0;
        loop {
            let Some(mut value) = values.next() else { return Ok(put) };
            let fingerprint = self.fingerprint();
            let written = match PendingMessage::encode_once(raw, fingerprint, &mut value) {
                Ok(unsent) => Ok(unsent),
                Err(error) => {
                    // The consumers that will make room may be asleep: wake them.
                    run.flush();
                    PendingMessage::encode_waiting(raw, fingerprint, &mut value, error, wait)
                }
            };
            let mut unsent = match written {
                Ok(unsent) => unsent,
                Err(e) => return Err(PutManyError { put, error: e.with(value), rest: values }),
            };
            let end = match run.put(&mut unsent.payload) {
                Ok(true) => Ok(()),
                Ok(false) => {
                    // The consumers that will make room may be asleep: wake them.
                    run.flush();
                    let end = raw.put(&mut unsent.payload, wait);
                    end.map(|()| run = BatchOperation::new(raw, true))
                }
                Err(error) => Err(PutError::Failed { value: (), error }),
            };
            if let Err(e) = end {
                let error = e.with(unsent.into_value(value));
                return Err(PutManyError { put, error, rest: values });
            }
            unsent.commit(value);
            put += 1;
        }
    }

    /// Takes up to `most` of the oldest messages and appends them to `into`. Waits for the first message,
    /// then takes further messages without waiting. Returns the number of messages taken. 0 means that the
    /// queue is closed and drained.
    ///
    /// # Errors
    /// Returns the same errors as [`get`](Self::get). `into` contains the messages that were taken before the
    /// error. A consumer that dies in this call loses the messages that it has taken, as with
    /// [`get`](Self::get).
    #[track_caller]
    pub fn get_many(&self, into: &mut Vec<T>, most: usize) -> Result<usize, GetError> {
        self.get_many_wait(into, most, Wait::Forever)
    }

    mp_core::forms! {
        "Takes up to `most` messages": get_many(into: &mut Vec<T>, most: usize) -> Result<usize, GetError>,
        or "[`GetError::Empty`], unless a message was taken";
        |queue, wait| queue.get_many_wait(into, most, wait);
        never try_get_many;
        at_most get_many_timeout;
        until get_many_deadline;
    }

    #[track_caller]
    fn get_many_wait(&self, into: &mut Vec<T>, most: usize, wait: Wait) -> Result<usize, GetError> {
        if most == 0 {
            return Err(GetError::Empty);
        }
        let Some(first) = self.get_wait(wait)? else { return Ok(0) };
        into.push(first);
        let mut got = 1;
        let mut run = BatchOperation::new(self.raw(), false);
        while got < most {
            let Some(payload) = run.get()? else { break };
            into.push(payload.unpack_from(self.raw(), self.fingerprint()).map_err(GetError::from)?);
            got += 1;
        }
        Ok(got)
    }
}
