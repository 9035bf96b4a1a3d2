//! Asynchronous put and get, for any runtime.
//!
//! A future attempts its operation when it is polled. One thread of the process sleeps for all tasks and
//! wakes them ([`mp_core::WakeRegistration`]). A get takes a message in the same call of `poll` that returns
//! the message. So dropping its future loses no message. The future of a put contains the message until there
//! is room in the queue.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use mp_core::{Message, Wait, WakeRegistration, poll_until};
use mp_reduce::{Error, TypeFingerprint};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{GetError, PutError};
use crate::queue::Queue;
use crate::queue::channel::{Receiver, Sender};
use crate::queue::joinable::{JoinableQueue, JoinableQueueError, join_result};
use crate::queue::lease::{Lease, read};
use crate::raw::RawQueue;
use crate::raw::handles::WaitPurpose;
use crate::raw::payload::Payload;
use crate::raw::pending::PendingMessage;

/// Polls a get. Ready with a message, or with `None` if the queue is closed and drained.
pub(crate) fn poll_get(
    watch: &mut Option<WakeRegistration>,
    cx: &Context<'_>,
    raw: &RawQueue,
) -> Poll<Result<Option<Payload>, GetError>> {
    let poll = || {
        let mut payload = None;
        let mut attempt = || match raw.get(&mut payload, Wait::Never) {
            Err(GetError::Empty) => None,
            end => Some(end),
        };
        let end = attempt().or_else(|| raw.end_if_gone(Some(WaitPurpose::Message), Wait::Never, attempt));
        Ok::<_, Error>(end.map(|end| end.map(|()| payload)))
    };
    let ready = || raw.ready_at(raw.memory().not_empty(), RawQueue::has_message);
    let since = watch.as_ref().map(WakeRegistration::since);
    let found = poll_until(watch, cx, ready, poll);
    if let Some(since) = since.filter(|_| matches!(found, Poll::Ready(Ok(Ok(Some(_)))))) {
        raw.memory().record_wait(false, since);
    }
    found.map(|found| found?)
}

/// Polls a put. The caller owns the message until the put succeeds.
pub(crate) fn poll_put(
    watch: &mut Option<WakeRegistration>,
    cx: &Context<'_>,
    raw: &RawQueue,
    unsent: &mut PendingMessage,
) -> Poll<Result<(), PutError<()>>> {
    let weight = unsent.payload.weight();
    let poll = || {
        Ok::<_, Error>(match raw.put(&mut unsent.payload, Wait::Never) {
            Err(PutError::Full(())) => raw.peer_gone(WaitPurpose::Room).map(|gone| Err(gone.into())),
            end => Some(end),
        })
    };
    let ready = || raw.ready_at(raw.memory().not_full(), move |raw| raw.has_room(weight));
    let since = watch.as_ref().map(WakeRegistration::since);
    let end = poll_until(watch, cx, ready, poll);
    if let Some(since) = since.filter(|_| matches!(end, Poll::Ready(Ok(Ok(_))))) {
        raw.memory().record_wait(true, since);
    }
    end.map(|end| end.unwrap_or_else(|error| Err(PutError::Failed { value: (), error })))
}

/// Polls an attempt that needs an envelope. Calls `poll` when an envelope may be free, until `poll` returns a
/// result.
pub(crate) fn poll_envelope<R>(
    watch: &mut Option<WakeRegistration>,
    cx: &Context<'_>,
    raw: &RawQueue,
    poll: impl FnMut() -> Result<Option<R>, Error>,
) -> Poll<Result<R, Error>> {
    poll_until(watch, cx, || raw.ready_at(raw.memory().not_full(), RawQueue::has_envelope), poll)
}

/// Value and its encoded message, or `None` if there was no value to encode.
type EncodedValue<T> = Option<(T, PendingMessage)>;

/// Polls the encoding of `value`. Pending only while there are too many messages, and `value` then stays
/// unchanged.
fn poll_write<T: Message>(
    watch: &mut Option<WakeRegistration>,
    cx: &Context<'_>,
    raw: &RawQueue,
    fingerprint: TypeFingerprint<T>,
    value: &mut Option<T>,
) -> Poll<Result<EncodedValue<T>, PutError<T>>> {
    let poll = || {
        let Some(mut unwritten) = value.take() else { return Ok(Some(Ok(None))) };
        let end = match PendingMessage::try_encode(raw, fingerprint, &mut unwritten) {
            Ok(unsent) => return Ok(Some(Ok(Some((unwritten, unsent))))),
            Err(PutError::Full(())) => raw.peer_gone(WaitPurpose::Room).map(PutError::from),
            Err(e) => Some(e),
        };
        Ok(match end {
            Some(e) => Some(Err(e.with(unwritten))),
            None => {
                *value = Some(unwritten);
                None
            }
        })
    };
    let written = poll_envelope(watch, cx, raw, poll);
    written.map(|written| match (written, value.take()) {
        (Ok(written), _) => written,
        (Err(error), Some(value)) => Err(PutError::Failed { value, error }),
        (Err(_), None) => Ok(None),
    })
}

/// Encoded message of a value that was taken out of `from`. If the guard is dropped before the put, the value
/// is moved back.
struct PutGuard<'a, T: Message> {
    from: &'a mut Option<T>,
    unsent: Option<(T, PendingMessage)>,
}

/// No field is pinned.
impl<T: Message> Unpin for PutGuard<'_, T> {}

impl<T: Message> Drop for PutGuard<'_, T> {
    fn drop(&mut self) {
        if let Some((value, unsent)) = self.unsent.take() {
            *self.from = Some(unsent.into_value(value));
        }
    }
}

/// Puts the value in `from`, asynchronously. Does nothing if `from` is `None`.
async fn put<T: Message>(
    raw: &RawQueue,
    fingerprint: TypeFingerprint<T>,
    from: &mut Option<T>,
) -> Result<(), PutError<T>> {
    let mut watch = None;
    let written = poll_fn(|cx| poll_write(&mut watch, cx, raw, fingerprint, from)).await?;
    let Some(unsent) = written else { return Ok(()) };
    let mut lent = PutGuard { from, unsent: Some(unsent) };
    let mut watch = None;
    let end = poll_fn(|cx| match &mut lent.unsent {
        Some((_, unsent)) => poll_put(&mut watch, cx, raw, unsent),
        None => Poll::Ready(Ok(())),
    });
    let end = end.await;
    match lent.unsent.take() {
        Some((value, unsent)) => unsent.end(value, end),
        None => Ok(()),
    }
}

/// Takes and decodes a message, asynchronously. Returns `None` if the queue is closed and drained.
pub(crate) async fn get<T: Message>(
    raw: &RawQueue,
    fingerprint: TypeFingerprint<T>,
) -> Result<Option<T>, GetError> {
    let mut watch = None;
    let got = poll_fn(|cx| poll_get(&mut watch, cx, raw)).await?;
    Ok(got.map(|payload| payload.unpack_from(raw, fingerprint)).transpose()?)
}

impl<T: Message> Queue<T> {
    /// Takes the oldest message, asynchronously. Returns `None` if the queue is closed and drained.
    ///
    /// ```
    /// # fn block_on<F: Future>(future: F) -> F::Output {
    /// #     use std::task::{Context, Poll, Wake, Waker};
    /// #     struct Unpark(std::thread::Thread);
    /// #     impl Wake for Unpark { fn wake(self: std::sync::Arc<Self>) { self.0.unpark() } }
    /// #     let waker = Waker::from(std::sync::Arc::new(Unpark(std::thread::current())));
    /// #     let mut future = std::pin::pin!(future);
    /// #     loop {
    /// #         match future.as_mut().poll(&mut Context::from_waker(&waker)) {
    /// #             Poll::Ready(v) => return v,
    /// #             Poll::Pending => std::thread::park(),
    /// #         }
    /// #     }
    /// # }
    /// use mp_queue::Queue;
    ///
    /// let queue = Queue::bounded(1)?;
    /// let producer = queue.clone();
    /// std::thread::spawn(move || producer.put("from wherever".to_string()));
    /// let got = block_on(async { queue.get_async().await })?; // on any runtime
    /// assert_eq!(got.as_deref(), Some("from wherever"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// A message is taken in the call of `poll` that returns it, so a future that is dropped before it is
    /// ready has taken nothing. A waiting future blocks no thread: one thread of the process sleeps for all
    /// tasks. While there are messages, the future is always ready at once. A loop should yield now and then
    /// to let other tasks of its thread run.
    ///
    /// # Errors
    /// Returns the same errors as [`get`](Self::get).
    #[doc(alias("async", "await"))]
    pub async fn get_async(&self) -> Result<Option<T>, GetError> {
        get(self.raw(), self.fingerprint()).await
    }

    /// Puts a message, asynchronously. Waits while the queue is full, like [`put`](Self::put).
    ///
    /// The future owns the message. A future that is dropped before it is ready has put nothing, and drops
    /// the message. If this may happen (a time-out, `select!`) and the message is still needed, use
    /// [`put_async_from`](Self::put_async_from).
    ///
    /// # Errors
    /// Returns the same errors as [`put`](Self::put). The error contains the value.
    pub async fn put_async(&self, value: T) -> Result<(), PutError<T>> {
        self.put_async_from(&mut Some(value)).await
    }

    /// Puts the message in `value`, asynchronously and without loss. If the future is dropped before it is
    /// ready, the message is moved back into `value`. `None` puts nothing and is ready at once. See
    /// [`put_async`](Self::put_async).
    ///
    /// ```
    /// # fn poll_once(future: impl Future) -> bool {
    /// #     let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    /// #     std::pin::pin!(future).poll(&mut cx).is_ready()
    /// # }
    /// use mp_tensor::Tensor;
    /// use mp_queue::Queue;
    ///
    /// let queue = Queue::bounded(1)?;
    /// queue.put(Tensor::<f32>::zeros(&[4])?)?;
    /// let mut batch = Some(Tensor::full(&[4], 0.5)?);
    /// assert!(!poll_once(queue.put_async_from(&mut batch))); // dropped while the queue is full
    /// assert_eq!(batch.as_ref().expect("the future has moved it back")[[0]], 0.5);
    /// queue.get()?;
    /// assert!(poll_once(queue.put_async_from(&mut batch)));
    /// assert!(batch.is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// The value is encoded when the future is first polled, and decoded when it is moved back. The value is
    /// lost if its `Deserialize` refuses the output of its `Serialize`.
    ///
    /// # Errors
    /// Returns the same errors as [`put`](Self::put). The error then contains the value, and `value` is
    /// `None`.
    pub async fn put_async_from(&self, value: &mut Option<T>) -> Result<(), PutError<T>> {
        put(self.raw(), self.fingerprint(), value).await
    }
}

impl<T: Serialize + DeserializeOwned + 'static> Queue<T> {
    /// Takes the oldest message, asynchronously. The message stays in the queue until it is
    /// [acknowledged](Lease::ack): see [`get_lease`](Self::get_lease).
    ///
    /// # Errors
    /// Returns the same errors as [`get_lease`](Self::get_lease).
    pub async fn get_lease_async(&self) -> Result<Option<Lease<T>>, GetError> {
        let raw = self.raw();
        let poll = || Ok::<_, Error>(raw.poll_lease());
        let found = mp_core::until(|| Arc::new(self.lease_ready()), poll).await?;
        found?.map(|leased| read(raw, self.fingerprint(), leased)).transpose()
    }
}

impl<T: Serialize + DeserializeOwned + 'static> JoinableQueue<T> {
    /// Puts a task, asynchronously: see [`Queue::put_async`].
    ///
    /// # Errors
    /// Returns the same errors as [`put`](Self::put).
    pub async fn put_async(&self, task: T) -> Result<(), PutError<T>> {
        self.queue().put_async(task).await
    }

    /// Puts the task in `task`, asynchronously and without loss: see [`Queue::put_async_from`].
    ///
    /// # Errors
    /// Returns the same errors as [`put`](Self::put). The error then contains the task.
    pub async fn put_async_from(&self, task: &mut Option<T>) -> Result<(), PutError<T>> {
        self.queue().put_async_from(task).await
    }

    /// Takes the oldest task, asynchronously: see [`get`](Self::get).
    ///
    /// # Errors
    /// Returns the same errors as [`get`](Self::get).
    pub async fn get_async(&self) -> Result<Option<Lease<T>>, GetError> {
        self.queue().get_lease_async().await
    }

    /// Waits asynchronously until no task is unfinished: see [`join`](Self::join).
    ///
    /// # Errors
    /// Returns the same errors as [`join`](Self::join).
    pub async fn join_async(&self) -> Result<(), JoinableQueueError> {
        let raw = self.queue().raw();
        let done = || {
            raw.arena().me()?;
            let found = raw.memory().census();
            Ok::<_, Error>((found.unfinished == 0).then_some(found))
        };
        let is_done = |raw: &RawQueue| raw.memory().census().unfinished == 0;
        let found = mp_core::until(|| raw.ready_at(raw.memory().finished(), is_done), done).await;
        join_result(found.map_err(JoinableQueueError::Failed)?)
    }
}

impl<T: Message> Receiver<T> {
    /// Receives the oldest message, asynchronously: see [`Queue::get_async`].
    ///
    /// # Errors
    /// Returns the same errors as [`recv`](Self::recv).
    pub async fn recv_async(&self) -> Result<T, GetError> {
        get(self.end().raw(), self.fingerprint()).await?.ok_or(GetError::Disconnected)
    }
}

impl<T: Message> Sender<T> {
    /// Sends a message, asynchronously: see [`Queue::put_async`].
    ///
    /// # Errors
    /// Returns the same errors as [`send`](Self::send).
    pub async fn send_async(&self, value: T) -> Result<(), PutError<T>> {
        self.send_async_from(&mut Some(value)).await
    }

    /// Sends the message in `value`, asynchronously and without loss: see [`Queue::put_async_from`].
    ///
    /// # Errors
    /// Returns the same errors as [`send`](Self::send). The error then contains the value.
    pub async fn send_async_from(&self, value: &mut Option<T>) -> Result<(), PutError<T>> {
        if self.is_disconnected() {
            return value.take().map_or(Ok(()), |value| Err(PutError::Disconnected(value)));
        }
        put(self.end().raw(), self.fingerprint(), value).await
    }
}
