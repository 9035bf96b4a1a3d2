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
use crate::queue::waitable::EnvelopeReady;
use crate::raw::RawQueue;
use crate::raw::handles::{Capabilities, WaitPurpose};
use crate::raw::pending::PendingMessage;
use crate::raw::waiting::PeerGone;

/// Stream of the messages of a [`Queue`] or a [`Receiver`]: see [`Queue::stream`].
pub struct QueueStream<Q> {
    of: Q,
    watch: Option<WakeRegistration>,
    terminated: bool,
}

mod sealed {
    /// A handle into which messages are put.
    pub trait SinkTarget {
        /// Type of the messages.
        type Message;
    }
}
use sealed::SinkTarget;

impl<T: Message> SinkTarget for Queue<T> {
    type Message = T;
}
impl<T: Message> SinkTarget for Sender<T> {
    type Message = T;
}

/// Sink into a [`Queue`] or a [`Sender`]: see [`Queue::sink`].
pub struct QueueSink<Q: SinkTarget> {
    of: Q,
    watch: Option<WakeRegistration>,
    waiting: Option<(Q::Message, PendingMessage)>,
}

/// No field is pinned.
impl<Q: SinkTarget> Unpin for QueueSink<Q> {}

impl<Q: fmt::Debug> fmt::Debug for QueueStream<Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("QueueStream").field(&self.of).finish()
    }
}

impl<Q: SinkTarget + fmt::Debug> fmt::Debug for QueueSink<Q> {
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
        QueueStream { of: self.with_capabilities(Capabilities::GET), watch: None, terminated: false }
    }

    /// Returns the queue as a sink. The sink buffers at most one message, which is dropped with the sink. It
    /// accepts the next message when the previous one is put. Closing the sink flushes it and does not close
    /// the queue.
    pub fn sink(&self) -> QueueSink<Self> {
        QueueSink { of: self.with_capabilities(Capabilities::PUT), watch: None, waiting: None }
    }
}

impl<T: Message> Receiver<T> {
    /// Returns the received messages as a stream, which ends when there are no senders: see
    /// [`Queue::stream`].
    pub fn stream(&self) -> QueueStream<Self> {
        QueueStream { of: self.clone(), watch: None, terminated: false }
    }
}

impl<T: Message> Sender<T> {
    /// Returns the channel as a sink: see [`Queue::sink`].
    pub fn sink(&self) -> QueueSink<Self> {
        QueueSink { of: self.clone(), watch: None, waiting: None }
    }
}

macro_rules! stream {
    ($of:ident, $raw:expr, $peer_gone:expr, $watched:expr) => {
        impl<T: Message> Stream for QueueStream<$of<T>> {
            type Item = Result<T, GetError>;

            fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
                let Self { of, watch, terminated } = self.get_mut();
                if *terminated {
                    return Poll::Ready(None);
                }
                let raw: fn(&$of<T>) -> &RawQueue = $raw;
                let peer_gone: fn(&$of<T>) -> Option<PeerGone> = $peer_gone;
                let watched: fn(&$of<T>) -> SharedWaitable = $watched;
                let what = || watched(of);
                let got = match ready!(poll_get(watch, cx, raw(of), || peer_gone(of), what)) {
                    Ok(Some(payload)) => {
                        Some(payload.unpack_from(raw(of), of.fingerprint()).map_err(GetError::from))
                    }
                    Ok(None) | Err(GetError::Disconnected) => None,
                    Err(e) => Some(Err(e)),
                };
                *terminated = !matches!(got, Some(Ok(_) | Err(GetError::Failed(_))));
                Poll::Ready(got)
            }
        }

        impl<T: Message> FusedStream for QueueStream<$of<T>> {
            fn is_terminated(&self) -> bool {
                self.terminated
            }
        }
    };
}

/// Polls until there may be an envelope for one more message. Returns at once for unbounded queues, whose
/// puts don't wait.
fn poll_envelope<T>(
    watch: &mut Option<WakeRegistration>,
    cx: &Context<'_>,
    raw: &RawQueue,
) -> Poll<Result<(), PutError<T>>> {
    if raw.memory().is_unbounded() {
        return Poll::Ready(Ok(()));
    }
    let envelopes = EnvelopeReady(raw.clone());
    let poll = || Ok::<_, Error>(envelopes.is_ready().then_some(()));
    poll_until(watch, cx, || Arc::new(EnvelopeReady(raw.clone())), poll)
        // If waiting fails, the attempt to put returns the error.
        .map(|_| Ok(()))
}

macro_rules! sink {
    ($of:ident, $raw:expr, $peer_gone:expr, $room:expr) => {
        impl<T: Message> QueueSink<$of<T>> {
            fn poll_empty(&mut self, cx: &Context<'_>) -> Poll<Result<(), PutError<T>>> {
                let Self { of, watch, waiting } = self;
                let Some((_, unsent)) = waiting else { return Poll::Ready(Ok(())) };
                let raw: fn(&$of<T>) -> &RawQueue = $raw;
                let peer_gone: fn(&$of<T>) -> Option<PeerGone> = $peer_gone;
                let room: fn(&$of<T>, u64) -> SharedWaitable = $room;
                let put =
                    ready!(poll_put(watch, cx, raw(of), || peer_gone(of), |weight| room(of, weight), unsent));
                let Some((value, unsent)) = waiting.take() else { return Poll::Ready(Ok(())) };
                Poll::Ready(match put {
                    Ok(()) => Ok(unsent.commit(value)),
                    Err(e) => Err(e.map(|()| unsent.into_value(value))),
                })
            }
        }

        impl<T: Message> Sink<T> for QueueSink<$of<T>> {
            type Error = PutError<T>;

            fn poll_ready(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
                let this = self.get_mut();
                ready!(this.poll_empty(cx))?;
                let raw: fn(&$of<T>) -> &RawQueue = $raw;
                poll_envelope(&mut this.watch, cx, raw(&this.of))
            }

            fn start_send(self: Pin<&mut Self>, mut value: T) -> Result<(), Self::Error> {
                let this = self.get_mut();
                if this.waiting.is_some() {
                    return Err(PutError::Full(value));
                }
                let raw: fn(&$of<T>) -> &RawQueue = $raw;
                match PendingMessage::try_encode(raw(&this.of), this.of.fingerprint(), &mut value) {
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

stream!(Queue, |q| q.raw(), |q| q.raw().deserted(WaitPurpose::Message), |q| Arc::new(q.for_waiting()));
stream!(Receiver, |r| r.end().raw(), |r| r.end().peer_gone(), |r| Arc::new(r.clone()));
sink!(Queue, |q| q.raw(), |q| q.raw().deserted(WaitPurpose::Room), |q, weight| Arc::new(
    q.put_ready_for(weight)
));
sink!(Sender, |s| s.end().raw(), |s| s.end().peer_gone(), |s, _| Arc::new(s.clone()));
