//! Services: functions of a member that other members call, for pools and managers across hosts.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mp_core::message::Outgoing;
use mp_core::{Message, Wait};
use mp_reduce::{TypeFingerprint, decode_relayed, encode_for_relay};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::cluster::{Cluster, PAUSE, failed, with};
use crate::error::NetError;
use crate::home::object::{Answer, Answering, CallerHold, SharedObject};
use crate::link::{CallValues, PendingReply};
use crate::remote::connected::{ConnectedObject, HeldCall};
use crate::type_and_build::ObjectType;
use crate::wire::LONGEST;
use crate::wire::held::HeldMessage;
use crate::wire::messages::{CallOutcome, CallReply, Operation, RemoteCall};
use crate::wire::value::{describe, parts};

/// Future reply of a service. Dropping the future cancels the call.
pub type Replying<R> = Pin<Box<dyn Future<Output = R> + Send>>;

/// Value that a service keeps for a caller, until the caller drops its [`ServiceHold`] or is lost.
pub type HeldValue = Box<dyn Send>;

/// Future reply of a service, with a value that the service keeps for the caller.
pub type HeldReplying<R> = Pin<Box<dyn Future<Output = (R, Option<HeldValue>)> + Send>>;

/// A function of a member that other members call.
pub trait NetService: Send + Sync + 'static {
    /// Type of the requests.
    type Request: Message;
    /// Type of the replies.
    type Reply: Message;

    /// Answers a request. The future is dropped when the caller is lost, or cancels the call.
    fn serve(self: Arc<Self>, request: Self::Request) -> Replying<Self::Reply>;

    /// Answers a request like [`serve`](Self::serve), and may return a value that is kept for the caller. If
    /// the reply can't be sent, the value is dropped.
    fn serve_held(self: Arc<Self>, request: Self::Request) -> HeldReplying<Self::Reply> {
        let reply = self.serve(request);
        Box::pin(async move { (reply.await, None) })
    }

    /// Answers a request that arrives after the service was withdrawn, while an earlier request is still
    /// being answered. Returns `None` for a request that a withdrawn service refuses.
    fn serve_withdrawn(self: Arc<Self>, request: Self::Request) -> Option<Replying<Self::Reply>> {
        drop(request);
        None
    }
}

/// Value that this process keeps for a caller.
struct CallerValue(#[allow(dead_code, reason = "it is only dropped")] HeldValue);

impl CallerHold for CallerValue {
    fn acknowledge(self: Box<Self>) {}
}

/// Handle to a value that a service of another member keeps for this process. Dropping the handle makes the
/// service drop the value, and does not block. The service also drops the value if this process is lost.
pub struct ServiceHold(HeldCall);

impl ServiceHold {
    /// Returns `true` if the session in which the handle was received has ended. The service drops the value
    /// of an ended session.
    pub fn is_lost(&self) -> bool {
        self.0.lost().is_some()
    }
}

impl fmt::Debug for ServiceHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServiceHold")
    }
}

/// Returns the type of a service.
fn service_type<Q: Message, R: Message>() -> ObjectType {
    let (request, reply) = (TypeFingerprint::<Q>::new().get(), TypeFingerprint::<R>::new().get());
    // Makes the fingerprint differ from the fingerprint of a queue of `Q` or `R`.
    ObjectType::service::<Q, R>(request.rotate_left(21) ^ reply.rotate_left(42) ^ 0x5e21_71ce)
}

pub(crate) struct SharedService<S>(pub(crate) Arc<S>);

impl<S: NetService> SharedService<S> {
    async fn answer(self: Arc<Self>, request: Option<Outgoing>, is_withdrawn: bool) -> Answer {
        let Some(request) = request else {
            return Answer::with_text(CallOutcome::Failed, "a call without a request".into());
        };
        let request = match decode_relayed::<S::Request>(request) {
            Ok(request) => request,
            Err(error) => return Answer::failed(&error),
        };
        let (mut reply, held) = if is_withdrawn {
            match self.0.clone().serve_withdrawn(request) {
                Some(reply) => (reply.await, None),
                None => return Answer::plain(CallOutcome::NotFound),
            }
        } else {
            self.0.clone().serve_held(request).await
        };
        match encode_for_relay(&mut reply) {
            Ok(message) => {
                let mut answer = Answer::encoded(message);
                // A caller that gets no reply does not know of the value, and could not release it.
                let held = held.filter(|_| !answer.reply.values.is_empty());
                answer.hold = held.map(|held| Box::new(CallerValue(held)) as _);
                answer
            }
            Err(error) => Answer::failed(&error),
        }
    }
}

impl<S: NetService> SharedObject for SharedService<S> {
    fn object_type(&self) -> ObjectType {
        service_type::<S::Request, S::Reply>()
    }

    fn serve(self: Arc<Self>, request: Option<Outgoing>) -> Answering {
        Box::pin(self.answer(request, false))
    }

    fn serve_withdrawn(self: Arc<Self>, request: Option<Outgoing>) -> Answering {
        Box::pin(self.answer(request, true))
    }
}

/// A service of another member.
pub struct RemoteService<Q, R> {
    object: ConnectedObject,
    types: PhantomData<fn(Q) -> R>,
}

impl<Q, R> Clone for RemoteService<Q, R> {
    fn clone(&self) -> Self {
        Self { object: self.object.clone(), types: PhantomData }
    }
}

impl<Q, R> fmt::Debug for RemoteService<Q, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RemoteService{:?}", self.object)
    }
}

impl<Q: Message, R: Message> Serialize for RemoteService<Q, R> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        self.object.serialize(service_type::<Q, R>(), s)
    }
}

impl<'de, Q: Message, R: Message> Deserialize<'de> for RemoteService<Q, R> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let object = ConnectedObject::deserialize(&service_type::<Q, R>(), d)?;
        Ok(Self { object, types: PhantomData })
    }
}

impl<Q, R> RemoteService<Q, R> {
    /// Returns the rank of the member.
    pub fn rank(&self) -> usize {
        self.object.link.peer().rank
    }

    /// Returns the size of the largest message that this process accepts, in bytes.
    pub fn largest_message(&self) -> u64 {
        self.object.link.me().config.largest
    }

    /// Returns a description of the member for error texts, such as `rank 1 (host b, process 12)`.
    pub fn place(&self) -> String {
        let peer = self.object.link.peer();
        format!("rank {} ({})", peer.rank, peer.host)
    }
}

/// Error of a call. If the error contains the request, the caller can send the request to another service.
pub struct UnservedRequest<Q> {
    /// Request. `None` if it could not be encoded, or if the service has answered it.
    pub request: Option<Q>,
    /// `true` if the service has answered the request, and the reply is too large for this process or can't
    /// be decoded.
    pub is_served: bool,
    /// Cause of the failure.
    pub error: NetError,
}

impl<Q> fmt::Debug for UnservedRequest<Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.error, f)
    }
}

impl<Q: Message, R: Message> RemoteService<Q, R> {
    /// Opens the service that a member has published under a name, like
    /// [`RemoteQueue::connect`](crate::RemoteQueue::connect).
    ///
    /// # Errors
    /// Returns the errors of [`RemoteQueue::connect`](crate::RemoteQueue::connect).
    pub fn connect(cluster: &Cluster, name: &str) -> Result<Self, NetError> {
        let object = ConnectedObject::connect(cluster, name, service_type::<Q, R>())?;
        Ok(Self { object, types: PhantomData })
    }

    /// Opens a service like [`connect`](Self::connect), without waiting for the name.
    ///
    /// # Errors
    /// Returns the errors of [`RemoteQueue::connect`](crate::RemoteQueue::connect).
    pub fn connect_now(cluster: &Cluster, name: &str) -> Result<Self, NetError> {
        let object = ConnectedObject::connect_now(cluster, name, service_type::<Q, R>())?;
        Ok(Self { object, types: PhantomData })
    }

    fn encode(&self, request: &mut Q) -> Result<(RemoteCall, Arc<HeldMessage>), NetError> {
        let message = encode_for_relay(request)?;
        let (head, sizes) = describe(parts(&message)?);
        if head.bytes.len() > LONGEST {
            let (bytes, limit) = (head.bytes.len() as u64, LONGEST as u64);
            return Err(NetError::TooLarge { bytes, limit });
        }
        let call = RemoteCall { values: vec![head], object: self.object.number, ..RemoteCall::default() };
        Ok((with(call, Operation::Serve), HeldMessage::value(message, sizes)))
    }

    fn begin(&self, request: &mut Q) -> Result<(PendingReply, Arc<HeldMessage>), NetError> {
        let (call, memory) = self.encode(request)?;
        Ok((self.object.link.begin(call, CallValues::Held(memory.clone()), Wait::Forever), memory))
    }

    /// Sends a request whose reply is not awaited. Does not block.
    ///
    /// # Errors
    /// [`NetError::TooLarge`], or another error, if the request was not sent.
    pub fn post(&self, mut request: Q) -> Result<(), NetError> {
        let (call, memory) = self.encode(&mut request)?;
        let link = self.object.link.clone();
        // Takes the reply in the background: the home stores a reply, and counts its call, until it is
        // received.
        let receive = async move { drop(link.call_async(call, CallValues::Held(memory)).await) };
        drop(crate::reactor::handle()?.spawn(receive));
        Ok(())
    }

    /// Calls the service. Blocks until its reply arrives, for at most `timeout`. Returns `None` when that
    /// time has expired. In that case the call was not sent, or the service drops the future of its reply.
    ///
    /// # Errors
    /// [`NetError::TooLarge`] if the request was not sent because of its size, or another error.
    pub fn call_within(&self, request: Q, timeout: Option<Duration>) -> Result<Option<R>, NetError> {
        Ok(self.call_held(request, timeout)?.map(|(reply, _)| reply))
    }

    /// Calls the service like [`call_within`](Self::call_within). If the service has attached a value to the
    /// reply, also returns a hold. The service keeps the value until the hold is dropped.
    ///
    /// # Errors
    /// Returns the errors of [`call_within`](Self::call_within).
    pub fn call_held(
        &self,
        mut request: Q,
        timeout: Option<Duration>,
    ) -> Result<Option<(R, Option<ServiceHold>)>, NetError> {
        let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let (pending, _) = self.begin(&mut request)?;
        self.end(pending, until)
    }

    /// Calls several services at the same time, like [`call_within`](Self::call_within). Returns the results
    /// in the same order.
    pub fn call_all(
        calls: impl IntoIterator<Item = (Self, Q)>,
        timeout: Duration,
    ) -> Vec<Result<Option<R>, NetError>> {
        let until = Instant::now().checked_add(timeout);
        let begin = |(service, mut request): (Self, Q)| {
            let (pending, _) = service.begin(&mut request)?;
            Ok((service, pending))
        };
        let begun: Vec<_> = calls.into_iter().map(begin).collect();
        let end = |begun: Result<(Self, PendingReply), NetError>| {
            let (service, pending) = begun?;
            Ok(service.end(pending, until)?.map(|(reply, _)| reply))
        };
        begun.into_iter().map(end).collect()
    }

    /// Blocks until the reply to a call arrives. Returns `None` if the reply has not arrived by `until`.
    fn end(
        &self,
        pending: PendingReply,
        until: Option<Instant>,
    ) -> Result<Option<(R, Option<ServiceHold>)>, NetError> {
        let Some(result) = self.object.link.wait_until(pending, until) else { return Ok(None) };
        let (reply, mut values) = result?;
        match values.pop() {
            Some(value) if reply.outcome() == CallOutcome::Done => {
                let hold = self.hold(&reply);
                Ok(Some((decode_relayed(value)?, hold)))
            }
            _ => Err(self.refusal(reply)),
        }
    }

    /// Returns the error of a reply without a value.
    fn refusal(&self, mut reply: CallReply) -> NetError {
        match reply.outcome() {
            CallOutcome::TooLarge => return NetError::TooLarge { bytes: reply.size, limit: reply.number },
            CallOutcome::ReplyTooLarge => {
                reply.text = format!(
                    "its reply has {} bytes, and this process accepts {} (ClusterConfig::largest_message)",
                    reply.size, reply.number
                );
            }
            _ => {}
        }
        failed(&self.object.link.peer(), reply)
    }

    /// Returns the handle to the value that the service has attached to a reply, if any.
    fn hold(&self, reply: &CallReply) -> Option<ServiceHold> {
        let (link, id) = (self.object.link.clone(), reply.id);
        reply.holds.then(|| ServiceHold(HeldCall { link, id, is_over: false }))
    }

    /// Calls the service. Blocks until its reply arrives.
    ///
    /// # Errors
    /// [`UnservedRequest`], with the request if it was encoded.
    pub fn call(&self, mut request: Q) -> Result<R, UnservedRequest<Q>> {
        let unsent = |error| UnservedRequest { request: None, is_served: false, error };
        let unread = |error| UnservedRequest { request: None, is_served: true, error };
        let (pending, memory) = self.begin(&mut request).map_err(unsent)?;
        let error = match self.object.link.wait(pending) {
            Ok((reply, mut values)) if reply.outcome() == CallOutcome::Done && !values.is_empty() => {
                drop(self.hold(&reply));
                return decode_relayed(values.pop().unwrap_or_default()).map_err(|e| unread(e.into()));
            }
            Ok((reply, _)) if reply.outcome() == CallOutcome::ReplyTooLarge => {
                return Err(unread(self.refusal(reply)));
            }
            Ok((reply, _)) => self.refusal(reply),
            Err(error) => error,
        };
        // The request is decoded after the stream has stopped reading its memory.
        let request = memory.reclaim().pop().and_then(|message| decode_relayed(message).ok());
        Err(UnservedRequest { request, is_served: false, error })
    }
}

/// Runs a function on a separate thread, where it may block. Returns the function's result, or `None` if it
/// panicked.
pub async fn blocking<R: Send + 'static>(function: impl FnOnce() -> R + Send + 'static) -> Option<R> {
    let runtime = crate::reactor::handle().ok()?;
    runtime.spawn_blocking(function).await.ok()
}

/// Runs a function on a separate thread, where it may block.
pub fn spawn_blocking(function: impl FnOnce() + Send + 'static) {
    if let Ok(runtime) = crate::reactor::handle() {
        drop(runtime.spawn_blocking(function));
    }
}

/// Runs a function after `delay`. The function must not block.
pub fn run_later(delay: Duration, function: impl FnOnce() + Send + 'static) {
    if let Ok(runtime) = crate::reactor::handle() {
        drop(runtime.spawn(async move {
            tokio::time::sleep(delay).await;
            function();
        }));
    }
}

/// Returns the output of a future of a service, or `None` if it is pending after `limit`.
pub async fn output_within<F: Future>(limit: Duration, future: F) -> Option<F::Output> {
    tokio::time::timeout(limit, future).await.ok()
}

/// Returns a random number.
///
/// # Errors
/// Returns an error if the system has no random bytes.
pub fn random_id() -> Result<u64, NetError> {
    Ok(crate::auth::random()?)
}

/// Subscription to the published names with a prefix. Dropping it ends the subscription.
pub struct FollowedNames(tokio::task::AbortHandle);

impl fmt::Debug for FollowedNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FollowedNames")
    }
}

impl Drop for FollowedNames {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Cluster {
    /// Publishes a service under a name, until the name is withdrawn.
    ///
    /// # Errors
    /// Returns the errors of [`publish`](Self::publish).
    #[doc(hidden)]
    pub fn publish_service<S: NetService>(&self, name: &str, service: Arc<S>) -> Result<(), NetError> {
        self.publish_object(name, Arc::new(SharedService(service)))
    }

    /// Calls `seen` with all published names that begin with `prefix`, and the numbers of their publications.
    /// `seen` is called at once, and again after each change. After rank 0 is lost, it is called a last time,
    /// without names.
    ///
    /// # Errors
    /// Returns an error if the thread for the network can't be started.
    #[doc(hidden)]
    pub fn follow_names(
        &self,
        prefix: &str,
        mut seen: impl FnMut(Vec<(String, u64)>) + Send + 'static,
    ) -> Result<FollowedNames, NetError> {
        let (link, prefix) = (self.first_link(), prefix.to_owned());
        // Rank 0 can lose its connection to itself, and connects again.
        let is_first = link.me().config.rank == 0;
        let follow = async move {
            let mut number = 0;
            loop {
                let call = RemoteCall { number, name: prefix.clone(), ..RemoteCall::default() };
                let reply = match link.call_async(with(call, Operation::Watch), CallValues::None).await {
                    Ok((reply, _)) => reply,
                    Err(NetError::PeerLost(_)) if is_first => {
                        tokio::time::sleep(PAUSE).await;
                        continue;
                    }
                    Err(_) => return seen(Vec::new()),
                };
                number = reply.number;
                seen(reply.names.into_iter().zip(reply.publications).collect());
            }
        };
        Ok(FollowedNames(crate::reactor::handle()?.spawn(follow).abort_handle()))
    }
}
