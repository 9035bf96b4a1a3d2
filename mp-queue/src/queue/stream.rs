//! Queues as streams and sinks.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use futures_core::stream::FusedStream;
use futures_sink::Sink;
use mp_core::{Message, WakeRegistration};
use mp_reduce::TypeFingerprint;

use crate::error::{GetError, PutError};
use crate::queue::Queue;
use crate::queue::channel::{Receiver, Sender};
use crate::queue::future::{poll_envelope, poll_get, poll_put};
use crate::raw::RawQueue;
use crate::raw::handles::Capabilities;
use crate::raw::pending::PendingMessage;

mod sealed {
    /// Handle to a queue of messages of one type.
    pub trait Endpoint: Unpin {
        /// Type of the messages.
        type Message: mp_core::Message;
    }
}
use sealed::Endpoint;

impl<T: Message> Endpoint for Queue<T> {
    type Message = T;
}
impl<T: Message> Endpoint for Sender<T> {
    type Message = T;
}
impl<T: Message> Endpoint for Receiver<T> {
    type Message = T;
}

/// Stream of the messages of a [`Queue`] or a [`Receiver`]: see [`Queue::stream`].
pub struct QueueStream<Q: Endpoint> {
    of: Q,
    raw: fn(&Q) -> &RawQueue,
    fingerprint: TypeFingerprint<Q::Message>,
    watch: Option<WakeRegistration>,
    terminated: bool,
}

/// Sink into a [`Queue`] or a [`Sender`]: see [`Queue::sink`].
pub struct QueueSink<Q: Endpoint> {
    of: Q,
    raw: fn(&Q) -> &RawQueue,
    fingerprint: TypeFingerprint<Q::Message>,
    watch: Option<WakeRegistration>,
    waiting: Option<(Q::Message, PendingMessage)>,
}

impl<Q: Endpoint> QueueStream<Q> {
    fn new(of: Q, raw: fn(&Q) -> &RawQueue, fingerprint: TypeFingerprint<Q::Message>) -> Self {
        Self { of, raw, fingerprint, watch: None, terminated: false }
    }
}

impl<Q: Endpoint> QueueSink<Q> {
    fn new(of: Q, raw: fn(&Q) -> &RawQueue, fingerprint: TypeFingerprint<Q::Message>) -> Self {
        Self { of, raw, fingerprint, watch: None, waiting: None }
    }
}

/// No field is pinned.
impl<Q: Endpoint> Unpin for QueueSink<Q> {}

impl<Q: Endpoint + fmt::Debug> fmt::Debug for QueueStream<Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("QueueStream").field(&self.of).finish()
    }
}

impl<Q: Endpoint + fmt::Debug> fmt::Debug for QueueSink<Q> {
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
    /// let mut cx = Context::from_waker(Waker::noop()); // a runtime passes its own waker
    /// assert!(matches!(stream.as_mut().poll_next(&mut cx), Poll::Ready(Some(Ok(5)))));
    /// assert!(stream.poll_next(&mut cx).is_ready()); // the end
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// As with [`get_async`](Self::get_async), dropping the stream loses no message. A message that can't be
    /// decoded is an `Err` item, and the stream continues. `Deserted` is the last item. The handle of the
    /// stream can only get. Another handle to the queue in this process can put, and so prevents the stream
    /// from ending as [deserted](crate::DesertedWhen).
    pub fn stream(&self) -> QueueStream<Self> {
        QueueStream::new(self.with_capabilities(Capabilities::GET), Queue::raw, self.fingerprint())
    }

    /// Returns the queue as a sink. The sink buffers at most one message, which is dropped with the sink. The
    /// sink accepts the next message when the previous one was put. Closing the sink flushes it and does not
    /// close the queue.
    pub fn sink(&self) -> QueueSink<Self> {
        QueueSink::new(self.with_capabilities(Capabilities::PUT), Queue::raw, self.fingerprint())
    }
}

impl<T: Message> Receiver<T> {
    /// Returns the received messages as a stream, which ends when there are no senders: see
    /// [`Queue::stream`].
    pub fn stream(&self) -> QueueStream<Self> {
        QueueStream::new(self.clone(), |receiver| receiver.end().raw(), self.fingerprint())
    }
}

impl<T: Message> Sender<T> {
    /// Returns the channel as a sink: see [`Queue::sink`].
    pub fn sink(&self) -> QueueSink<Self> {
        QueueSink::new(self.clone(), |sender| sender.end().raw(), self.fingerprint())
    }
}

impl<Q: Endpoint> Stream for QueueStream<Q> {
    type Item = Result<Q::Message, GetError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Self { of, raw, fingerprint, watch, terminated } = self.get_mut();
        let raw = raw(of);
        if *terminated {
            return Poll::Ready(None);
        }
        let got = match ready!(poll_get(watch, cx, raw)) {
            Ok(Some(payload)) => Some(payload.unpack_from(raw, *fingerprint).map_err(GetError::from)),
            Ok(None) | Err(GetError::Disconnected) => None,
            Err(e) => Some(Err(e)),
        };
        *terminated = !matches!(got, Some(Ok(_) | Err(GetError::Failed(_))));
        Poll::Ready(got)
    }
}

impl<Q: Endpoint> FusedStream for QueueStream<Q> {
    fn is_terminated(&self) -> bool {
        self.terminated
    }
}

impl<Q: Endpoint> QueueSink<Q> {
    fn poll_empty(&mut self, cx: &Context<'_>) -> Poll<Result<(), PutError<Q::Message>>> {
        let Some((_, unsent)) = &mut self.waiting else { return Poll::Ready(Ok(())) };
        let put = ready!(poll_put(&mut self.watch, cx, (self.raw)(&self.of), unsent));
        Poll::Ready(self.waiting.take().map_or(Ok(()), |(value, unsent)| unsent.end(value, put)))
    }
}

impl<Q: Endpoint> Sink<Q::Message> for QueueSink<Q> {
    type Error = PutError<Q::Message>;

    fn poll_ready(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        let this = self.get_mut();
        ready!(this.poll_empty(cx))?;
        let raw = (this.raw)(&this.of);
        // Puts into unbounded queues don't wait.
        if raw.memory().is_unbounded() {
            return Poll::Ready(Ok(()));
        }
        let poll = || Ok((raw.memory().is_accessible() && raw.has_envelope()).then_some(()));
        // If waiting fails, the attempt to put returns the error.
        poll_envelope(&mut this.watch, cx, raw, poll).map(|_| Ok(()))
    }

    fn start_send(self: Pin<&mut Self>, mut value: Q::Message) -> Result<(), Self::Error> {
        let this = self.get_mut();
        if this.waiting.is_some() {
            return Err(PutError::Full(value));
        }
        match PendingMessage::try_encode((this.raw)(&this.of), this.fingerprint, &mut value) {
            Ok(unsent) => this.waiting = Some((value, unsent)),
            Err(e) => return Err(e.with(value)),
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
