//! Queues as streams and sinks.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use futures_core::stream::FusedStream;
use futures_sink::Sink;
use mp_core::{Message, SharedWaitable, Waitable, WakeRegistration, poll_until};
use mp_reduce::Error;

use crate::error::{GetError, PutError};
use crate::queue::Queue;
use crate::queue::channel::{Receiver, Sender};
use crate::queue::future::{poll_get, poll_put};
use crate::queue::waitable::Envelopes;
use crate::raw::Raw;
use crate::raw::handles::{Able, For};
use crate::raw::payload::Unsent;
use crate::raw::waiting::Alone;

/// Stream of the messages of a [`Queue`] or a [`Receiver`]: see [`Queue::stream`].
pub struct QueueStream<Q> {
    of: Q,
    watch: Option<WakeRegistration>,
    over: bool,
}

mod sealed {
    /// A handle into which messages are put.
    pub trait Sends {
        /// Type of the messages.
        type Message;
    }
}
use sealed::Sends;

impl<T: Message> Sends for Queue<T> {
    type Message = T;
}
impl<T: Message> Sends for Sender<T> {
    type Message = T;
}

/// Sink into a [`Queue`] or a [`Sender`]: see [`Queue::sink`].
pub struct QueueSink<Q: Sends> {
    of: Q,
    watch: Option<WakeRegistration>,
    waiting: Option<(Q::Message, Unsent)>,
}

/// No field is pinned.
impl<Q: Sends> Unpin for QueueSink<Q> {}

impl<Q: fmt::Debug> fmt::Debug for QueueStream<Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("QueueStream").field(&self.of).finish()
    }
}

impl<Q: Sends + fmt::Debug> fmt::Debug for QueueSink<Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueSink").field("of", &self.of).field("waiting", &self.waiting.is_some()).finish()
    }
}

impl<T: Message> Queue<T> {
    /// Returns the messages as a stream, which ends when the queue is closed and drained.
    ///
    /// ```
    /// use std::pin::pin;
    /// use std::task::{Context, Poll, Waker};
    /// use futures_core::Stream;
    /// use mp_queue::Queue;
    ///
    /// let queue = Queue::unbounded()?;
    /// queue.put(5)?;
    /// queue.close();
    /// let mut stream = pin!(queue.stream());
    /// let mut cx = Context::from_waker(Waker::noop()); // a runtime has better ones
    /// assert!(matches!(stream.as_mut().poll_next(&mut cx), Poll::Ready(Some(Ok(5)))));
    /// assert!(stream.poll_next(&mut cx).is_ready()); // the end
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// As with [`get_async`](Self::get_async), dropping the stream loses no message. A message that can't be
    /// decoded is an `Err` item, and the stream continues. `Deserted` is the last item. The stream's own
    /// handle only gets. A further handle of the queue in this process can put, so it prevents the stream
    /// from ending as [deserted](crate::DesertedWhen).
    pub fn stream(&self) -> QueueStream<Self> {
        QueueStream { of: self.able(Able::GET), watch: None, over: false }
    }

    /// Returns the queue as a sink. The sink buffers at most one message, which is dropped with the sink. It
    /// accepts the next message when the previous one is put. Closing the sink flushes it and does not close
    /// the queue.
    pub fn sink(&self) -> QueueSink<Self> {
        QueueSink { of: self.able(Able::PUT), watch: None, waiting: None }
    }
}

impl<T: Message> Receiver<T> {
    /// Returns the received messages as a stream, which ends when there are no senders: see
    /// [`Queue::stream`].
    pub fn stream(&self) -> QueueStream<Self> {
        QueueStream { of: self.clone(), watch: None, over: false }
    }
}

impl<T: Message> Sender<T> {
    /// Returns the channel as a sink: see [`Queue::sink`].
    pub fn sink(&self) -> QueueSink<Self> {
        QueueSink { of: self.clone(), watch: None, waiting: None }
    }
}

macro_rules! stream {
    ($of:ident, $raw:expr, $alone:expr, $watched:expr) => {
        impl<T: Message> Stream for QueueStream<$of<T>> {
            type Item = Result<T, GetError>;

            fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
                let Self { of, watch, over } = self.get_mut();
                if *over {
                    return Poll::Ready(None);
                }
                let raw: fn(&$of<T>) -> &Raw = $raw;
                let alone: fn(&$of<T>) -> Option<Alone> = $alone;
                let watched: fn(&$of<T>) -> SharedWaitable = $watched;
                let what = || watched(of);
                let got = match ready!(poll_get(watch, cx, raw(of), || alone(of), what)) {
                    Ok(Some(payload)) => {
                        Some(payload.unpack_of(raw(of), of.fingerprint()).map_err(GetError::from))
                    }
                    Ok(None) | Err(GetError::Disconnected) => None,
                    Err(e) => Some(Err(e)),
                };
                *over = !matches!(got, Some(Ok(_) | Err(GetError::Failed(_))));
                Poll::Ready(got)
            }
        }

        impl<T: Message> FusedStream for QueueStream<$of<T>> {
            fn is_terminated(&self) -> bool {
                self.over
            }
        }
    };
}

/// Polls until there may be an envelope for one more message. Returns at once for unbounded queues, whose
/// puts don't wait.
fn poll_envelope<T>(
    watch: &mut Option<WakeRegistration>,
    cx: &Context<'_>,
    raw: &Raw,
) -> Poll<Result<(), PutError<T>>> {
    if raw.memory().is_unbounded() {
        return Poll::Ready(Ok(()));
    }
    let envelopes = Envelopes(raw.clone());
    let look = || Ok::<_, Error>(envelopes.is_ready().then_some(()));
    poll_until(watch, cx, || Arc::new(Envelopes(raw.clone())), look)
        // If waiting fails, the attempt to put returns the error.
        .map(|_| Ok(()))
}

macro_rules! sink {
    ($of:ident, $raw:expr, $alone:expr, $room:expr) => {
        impl<T: Message> QueueSink<$of<T>> {
            fn poll_empty(&mut self, cx: &Context<'_>) -> Poll<Result<(), PutError<T>>> {
                let Self { of, watch, waiting } = self;
                let Some((_, unsent)) = waiting else { return Poll::Ready(Ok(())) };
                let raw: fn(&$of<T>) -> &Raw = $raw;
                let alone: fn(&$of<T>) -> Option<Alone> = $alone;
                let room: fn(&$of<T>, u64) -> SharedWaitable = $room;
                let put =
                    ready!(poll_put(watch, cx, raw(of), || alone(of), |weight| room(of, weight), unsent));
                let Some((value, unsent)) = waiting.take() else { return Poll::Ready(Ok(())) };
                Poll::Ready(match put {
                    Ok(()) => Ok(unsent.sent(value)),
                    Err(e) => Err(e.map(|()| unsent.back(value))),
                })
            }
        }

        impl<T: Message> Sink<T> for QueueSink<$of<T>> {
            type Error = PutError<T>;

            fn poll_ready(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
                let this = self.get_mut();
                ready!(this.poll_empty(cx))?;
                let raw: fn(&$of<T>) -> &Raw = $raw;
                poll_envelope(&mut this.watch, cx, raw(&this.of))
            }

            fn start_send(self: Pin<&mut Self>, mut value: T) -> Result<(), Self::Error> {
                let this = self.get_mut();
                if this.waiting.is_some() {
                    return Err(PutError::Full(value));
                }
                let raw: fn(&$of<T>) -> &Raw = $raw;
                match Unsent::attempt(raw(&this.of), this.of.fingerprint(), &mut value) {
                    Ok(unsent) => this.waiting = Some((value, unsent)),
                    Err(e) => return Err(e.map(|()| value)),
                }
                Ok(())
            }

            fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
                self.get_mut().poll_empty(cx)
            }

            fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
                self.get_mut().poll_empty(cx)
            }
        }
    };
}

stream!(Queue, |q| q.raw(), |q| q.raw().deserted(For::Message), |q| Arc::new(q.to_wait_with()));
stream!(Receiver, |r| r.end().raw(), |r| r.end().alone(), |r| Arc::new(r.clone()));
sink!(Queue, |q| q.raw(), |q| q.raw().deserted(For::Room), |q, weight| Arc::new(q.put_ready_for(weight)));
sink!(Sender, |s| s.end().raw(), |s| s.end().alone(), |s, _| Arc::new(s.clone()));
