//! Asynchronous put and get, for any runtime.
//!
//! A future attempts its operation when it is polled. One thread of the process sleeps for all tasks and
//! wakes them ([`mp_core::WakeRegistration`]). A message is taken in the same call of `poll` that returns it,
//! so no state of the future holds a message. Dropping a future loses no message. A message to be put stays
//! in the future until there is room.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use mp_core::{Leased, Message, SharedWaitable, Wait, WaitPoint, Waitable, WakeRegistration, poll_until};
use mp_reduce::{Error, TypeFingerprint};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{GetError, PutError};
use crate::queue::Queue;
use crate::queue::channel::{ChannelEnd, Receiver, Sender};
use crate::queue::joinable::{JoinableQueue, JoinableQueueError, join_result};
use crate::queue::lease::{Lease, read};
use crate::queue::waitable::{EnvelopeReady, LeaseReady};
use crate::raw::RawQueue;
use crate::raw::handles::WaitPurpose;
use crate::raw::payload::Payload;
use crate::raw::pending::PendingMessage;
use crate::raw::waiting::{PeerGone, WaitError};
use crate::ring::GetOutcome;

/// Polls for a message. Returns `None` if the queue is closed and drained.
pub(crate) fn poll_get(
    watch: &mut Option<WakeRegistration>,
    cx: &Context<'_>,
    raw: &RawQueue,
    peer_gone: impl Fn() -> Option<PeerGone>,
    what: impl FnOnce() -> SharedWaitable,
) -> Poll<Result<Option<Payload>, GetError>> {
    let poll = || {
        let mut payload = None;
        let mut attempt = || match raw.get(&mut payload, Wait::Never, || None) {
            Err(GetError::Empty) => None,
            end => Some(end),
        };
        let end = attempt().or_else(|| {
            let peer_gone = peer_gone()?;
            // The producers may have put messages before they were gone.
            Some(attempt().unwrap_or_else(|| Err(WaitError::PeerGone(peer_gone).into())))
        });
        Ok::<_, Error>(end.map(|end| end.map(|()| payload)))
    };
    poll_until(watch, cx, what, poll).map(|found| found?)
}

/// Polls until the message is put. Until then, the caller owns it. `what` returns a waitable for room for its
/// weight.
pub(crate) fn poll_put(
    watch: &mut Option<WakeRegistration>,
    cx: &Context<'_>,
    raw: &RawQueue,
    peer_gone: impl Fn() -> Option<PeerGone>,
    what: impl FnOnce(u64) -> SharedWaitable,
    unsent: &mut PendingMessage,
) -> Poll<Result<(), PutError<()>>> {
    let weight = unsent.payload.weight();
    let poll = || {
        Ok::<_, Error>(match raw.put(&mut unsent.payload, Wait::Never, || None) {
            Err(PutError::Full(())) => {
                peer_gone().map(|peer_gone| Err(WaitError::PeerGone(peer_gone).into()))
            }
            end => Some(end),
        })
    };
    let end = poll_until(watch, cx, || what(weight), poll);
    end.map(|end| end.unwrap_or_else(|error| Err(PutError::Failed { value: (), error })))
}

/// A value and its encoded form, or `None` if the value was encoded earlier.
type EncodedValue<T> = Option<(T, PendingMessage)>;

/// Polls until the value in `value` is encoded. Waits only if there are too many messages. Until then, the
/// value stays in `value`.
pub(crate) fn poll_write<T: Message>(
    watch: &mut Option<WakeRegistration>,
    cx: &Context<'_>,
    raw: &RawQueue,
    fingerprint: TypeFingerprint<T>,
    peer_gone: impl Fn() -> Option<PeerGone>,
    value: &mut Option<T>,
) -> Poll<Result<EncodedValue<T>, PutError<T>>> {
    let poll = || {
        let Some(mut unwritten) = value.take() else { return Ok(Some(Ok(None))) };
        let end = match PendingMessage::try_encode(raw, fingerprint, &mut unwritten) {
            Ok(unsent) => return Ok(Some(Ok(Some((unwritten, unsent))))),
            Err(PutError::Full(())) => peer_gone().map(|peer_gone| WaitError::PeerGone(peer_gone).into()),
            Err(e) => Some(e),
        };
        Ok::<_, Error>(match end {
            Some(e) => Some(Err(e.map(|()| unwritten))),
            None => {
                *value = Some(unwritten);
                None
            }
        })
    };
    let what = || Arc::new(EnvelopeReady(raw.clone())) as SharedWaitable;
    let written = poll_until(watch, cx, what, poll);
    written.map(|written| match (written, value.take()) {
        (Ok(written), _) => written,
        (Err(error), Some(value)) => Err(PutError::Failed { value, error }),
        (Err(_), None) => Ok(None),
    })
}

/// An encoded message that is being put. If this is dropped before the put, the value is moved back to
/// `from`.
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

/// Puts the value in `from`, if any. `what` is called with its weight.
async fn put<T: Message>(
    raw: &RawQueue,
    fingerprint: TypeFingerprint<T>,
    from: &mut Option<T>,
    peer_gone: impl Fn() -> Option<PeerGone>,
    what: impl Fn(u64) -> SharedWaitable,
) -> Result<(), PutError<T>> {
    let mut watch = None;
    let written = poll_fn(|cx| poll_write(&mut watch, cx, raw, fingerprint, &peer_gone, from)).await?;
    let Some(unsent) = written else { return Ok(()) };
    let mut lent = PutGuard { from, unsent: Some(unsent) };
    let mut watch = None;
    let end = poll_fn(|cx| {
        let Some((_, unsent)) = &mut lent.unsent else { return Poll::Ready(Ok(())) };
        poll_put(&mut watch, cx, raw, &peer_gone, &what, unsent)
    });
    let end = end.await;
    let Some((value, unsent)) = lent.unsent.take() else { return Ok(()) };
    match end {
        Ok(()) => {
            unsent.commit(value);
            Ok(())
        }
        Err(e) => Err(e.map(|()| unsent.into_value(value))),
    }
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
        let what = || Arc::new(self.for_waiting()) as SharedWaitable;
        let peer_gone = || self.raw().deserted(WaitPurpose::Message);
        let mut watch = None;
        let got = poll_fn(|cx| poll_get(&mut watch, cx, self.raw(), peer_gone, what)).await?;
        Ok(got.map(|payload| payload.unpack_from(self.raw(), self.fingerprint())).transpose()?)
    }

    /// Puts a message, asynchronously. Waits while the queue is full, like [`put`](Self::put).
    ///
    /// The future owns the message. If it is dropped before it is ready, it has put nothing and drops the
    /// message. If this may happen (a time-out, `select!`) and the message is still needed, use
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
    /// assert!(!poll_once(queue.put_async_from(&mut batch))); // given up while the queue is full
    /// assert_eq!(batch.as_ref().expect("it is here again")[[0]], 0.5);
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
        let what = |weight| Arc::new(self.put_ready_for(weight)) as SharedWaitable;
        put(self.raw(), self.fingerprint(), value, || self.raw().deserted(WaitPurpose::Room), what).await
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
        let found = mp_core::until(
            || Arc::new(LeaseReady(raw.clone())),
            || poll_lease(raw, || raw.deserted(WaitPurpose::Message)),
        )
        .await?;
        found?.map(|leased| read(raw, self.fingerprint(), leased)).transpose()
    }
}

/// Leases a message, if there is one. Returns `Ok(Some(Ok(None)))` at the end.
fn poll_lease(
    raw: &RawQueue,
    peer_gone: impl Fn() -> Option<PeerGone>,
) -> Result<Option<Result<Option<Leased>, GetError>>, Error> {
    raw.arena().me()?;
    raw.memory().enable_redelivery();
    let mut leased = None;
    let mut found = raw.attempt_lease(&mut leased)?;
    let gone = if let GetOutcome::Empty = found { peer_gone() } else { None };
    if gone.is_some() {
        // The producers may have put messages before they were gone.
        found = raw.attempt_lease(&mut leased)?;
    }
    Ok(match found {
        GetOutcome::Done(()) => {
            raw.memory().wake_producers(1);
            Some(Ok(leased))
        }
        GetOutcome::Empty => gone.map(|peer_gone| Err(WaitError::PeerGone(peer_gone).into())),
        // Messages that other processes work on may be given back.
        GetOutcome::Closed => (!raw.has_other_leases()).then_some(Ok(None)),
    })
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
        let done = || {
            self.queue().raw().arena().me()?;
            let found = self.queue().raw().memory().census();
            Ok::<_, Error>((found.unfinished == 0).then_some(found))
        };
        let found = mp_core::until(|| Arc::new(JoinReady(self.queue().for_waiting())), done).await;
        join_result(found.map_err(JoinableQueueError::Failed)?)
    }
}

/// Ready when no task is unfinished.
struct JoinReady<T: Serialize + DeserializeOwned + 'static>(Queue<T>);

impl<T: Serialize + DeserializeOwned + 'static> Waitable for JoinReady<T> {
    fn wait_point(&self) -> WaitPoint<'_> {
        WaitPoint::Parking(self.0.raw().memory().finished().into())
    }

    fn is_ready(&self) -> bool {
        self.0.raw().arena().me().is_err() || self.0.raw().memory().census().unfinished == 0
    }
}

pub(crate) async fn recv<T: Message>(
    end: &ChannelEnd,
    fingerprint: TypeFingerprint<T>,
    what: impl Fn() -> SharedWaitable,
) -> Result<T, GetError> {
    let mut watch = None;
    match poll_fn(|cx| poll_get(&mut watch, cx, end.raw(), || end.peer_gone(), &what)).await? {
        Some(payload) => Ok(payload.unpack_from(end.raw(), fingerprint)?),
        None => Err(GetError::Disconnected),
    }
}

impl<T: Message> Receiver<T> {
    /// Receives the oldest message, asynchronously: see [`Queue::get_async`].
    ///
    /// # Errors
    /// Returns the same errors as [`recv`](Self::recv).
    pub async fn recv_async(&self) -> Result<T, GetError> {
        recv(self.end(), self.fingerprint(), || Arc::new(self.clone())).await
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
        if self.end().peer_gone().is_some() {
            return value.take().map_or(Ok(()), |value| Err(PutError::Disconnected(value)));
        }
        let what = |_| Arc::new(self.clone()) as SharedWaitable;
        put(self.end().raw(), self.fingerprint(), value, || self.end().peer_gone(), what).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_put_before_the_last_one_left_is_got() {
        for wait in [Wait::Until(std::time::Instant::now()), Wait::Forever] {
            let queue = Queue::bounded(1).unwrap();
            let puts_and_leaves = || {
                queue.try_put(5_u32).unwrap();
                Some(PeerGone::Disconnected)
            };
            let mut into = None;
            let end = queue.raw().get(&mut into, wait, puts_and_leaves);
            assert!(end.is_ok() && into.is_some(), "{end:?} after {wait:?}");
        }
    }

    #[test]
    fn what_was_put_before_the_last_one_left_is_leased() {
        let queue = Queue::bounded(1).unwrap();
        let puts_and_leaves = || {
            queue.try_put(5_u32).unwrap();
            Some(PeerGone::Disconnected)
        };
        let found = poll_lease(queue.raw(), puts_and_leaves).unwrap();
        let Some(Ok(Some(leased))) = found else { panic!("{found:?}") };
        drop(queue.raw().memory().finish(&leased).unwrap());
    }
}
