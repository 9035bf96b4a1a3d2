//! Relays of channels: a member subscribes to a channel of another member once, and forwards each message to
//! a channel in its own shared memory. All receivers of its processes read that channel, so a message crosses
//! the link once, and tensors are read in place.
//!
//! A relay of a broadcast channel requests up to 64 messages in advance, so that no round trip delays them.
//! The home limits the bytes that the relay has not received. Receivers call no home, so any number of them
//! wait for one relay. A home accepts 65,536 waiting calls of a process. With more than 1,024 such relays, a
//! relay ends with the error of a refused call.
//!
//! | ended by | receivers get |
//! |---|---|
//! | no process has a receiver | – |
//! | the channel has no sender | the remaining messages, and then the end of the channel |
//! | the home is lost, or withdraws the channel | the remaining messages, and then the error |
//! | the process of the relay is killed | the remaining messages, and then an error |
//!
//! If this process has too little memory for a message, its receivers miss the message, as slow receivers do.
//! The newest value of a watch channel is then requested again.

use std::any::Any;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use mp_core::Wait;
use mp_core::message::Outgoing;
use mp_queue::{GetError, PutError, watch};
use serde::{Deserialize, Serialize};

use crate::cluster::failed;
use crate::error::{NetError, PeerLost, RemoteRecvError};
use crate::link::CallValues;
use crate::link::completion::CallResult;
use crate::reactor;
use crate::remote::connected::{ConnectedObject, HeldCall};
use crate::wire::messages::{CallOutcome, ObjectMethod, Operation};

/// Interval at which a relay checks that it has receivers.
const CHECK: Duration = Duration::from_secs(1);
/// Pause between two attempts to forward a message. While memory is short, the pause doubles up to [`CHECK`].
const PAUSE: Duration = Duration::from_millis(20);

/// Maximum number of messages that a relay of a broadcast channel requests in advance.
pub(super) const AHEAD: usize = 64;

/// Sending side of the channel of a relay.
pub(crate) trait RelayTarget: Send + 'static {
    /// Maximum number of messages that are requested in advance.
    const AHEAD: usize;
    /// Counts a message before it is sent.
    fn prepare(&mut self, message: &mut Outgoing);
    /// Sends a message. If there are too few envelopes, leaves the message unchanged.
    fn send(&self, message: &mut Outgoing) -> Result<(), PutError<()>>;
    /// Counts messages that the receivers miss.
    fn skip(&mut self, missed: u64);
    /// Returns `true` if no process has a receiver.
    fn is_closed(&self) -> bool;
}

/// Receiving side of the channel of a relay.
pub(crate) trait RelayedChannel: Send + Sync + 'static {
    /// Returns `true` if the relay has ended.
    fn is_over(&self) -> bool;
}

/// Reason for the end of a relay.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum RelayEnd {
    /// The channel has no sender.
    Closed,
    /// The member that has the channel was lost.
    Lost { rank: usize, host: String, silent: Duration, cause: String },
    /// The member that has the channel, or the relay, returned an error.
    Failed { rank: usize, host: String, text: String },
}

/// Receiver of the reason for the end of a relay.
pub(crate) type RelayEndReceiver = watch::Receiver<Option<RelayEnd>>;

/// Returns the error for receivers of a relay that has ended.
pub(crate) fn end_of(end: &RelayEndReceiver) -> RemoteRecvError {
    match end.borrow().map(|end| (*end).clone()) {
        Ok(Some(RelayEnd::Closed)) => RemoteRecvError::Closed,
        Ok(Some(RelayEnd::Lost { rank, host, silent, cause })) => {
            // The call was a receive, which has no effect without a message.
            RemoteRecvError::PeerLost(PeerLost { rank, host, silent, in_doubt: false, cause })
        }
        Ok(Some(RelayEnd::Failed { rank, host, text })) => {
            RemoteRecvError::Failed(NetError::Home { rank, host, text })
        }
        Ok(None) => {
            let text = "the process that had the connection to the channel has ended: connect again";
            RemoteRecvError::Failed(NetError::Configuration(text.into()))
        }
        Err(error) => get_error(error, end),
    }
}

/// Converts an error of the relay's channel into an error of its receivers.
pub(crate) fn get_error(error: GetError, end: &RelayEndReceiver) -> RemoteRecvError {
    match error {
        GetError::Empty => RemoteRecvError::Empty,
        GetError::Disconnected => end_of(end),
        GetError::Interrupted => RemoteRecvError::Failed(NetError::Interrupted),
        GetError::Failed(error) => error.into(),
        error => mp_reduce::Error::from(mp_core::Error::NotPut(error.to_string())).into(),
    }
}

/// Subscription to a channel of another member.
pub(crate) struct Subscription {
    object: ConnectedObject,
    /// Capacity of the channel in messages.
    pub(crate) capacity: usize,
    /// Handle whose drop ends the subscription at the home.
    _held: HeldCall,
}

impl Subscription {
    /// Subscribes, and blocks until the home has answered.
    pub(crate) fn new(channel: &ConnectedObject) -> Result<Self, NetError> {
        let (object, capacity, held) = channel.subscribe()?;
        Ok(Self { object, capacity: capacity as usize, _held: held })
    }

    /// Blocks until the first message has arrived.
    pub(crate) fn first(&self) -> Result<Outgoing, RemoteRecvError> {
        let call = self.object.call_of(Operation::Wait, ObjectMethod::Next, 0);
        let (reply, mut messages) = self.object.link.call(call, Wait::Forever)?;
        match (reply, messages.pop()) {
            (reply, Some(message)) if reply.outcome() == CallOutcome::Done => Ok(message),
            (reply, _) if reply.outcome() == CallOutcome::End => Err(RemoteRecvError::Closed),
            (reply, _) if reply.outcome() == CallOutcome::ReplyTooLarge => {
                Err(NetError::TooLarge { bytes: reply.size, limit: reply.number }.into())
            }
            (reply, _) => Err(failed(&self.object.link.peer(), reply).into()),
        }
    }

    /// Forwards all further messages, until the channel ends or no process has a receiver.
    ///
    /// # Errors
    /// Returns an error if there is not enough shared memory, or the thread for the network can't be started.
    pub(crate) fn relay(self, mut target: impl RelayTarget) -> Result<RelayEndReceiver, NetError> {
        let made = watch::channel(None);
        let (end, receiver) = made.map_err(|error| mp_core::Error::NotPut(error.to_string()))?;
        reactor::handle()?.spawn(async move {
            let mut why = self.run(&mut target).await;
            // Without a receiver, no process needs the reason.
            while why.is_some()
                && let Err(PutError::Full(unsent)) = end.send(why.take())
            {
                why = unsent;
                tokio::time::sleep(PAUSE).await;
            }
            // Dropping the sender wakes the receivers, which then read the reason.
            drop(target);
        });
        Ok(receiver)
    }

    /// Relays messages until the channel ends. Returns the reason, or `None` if no process has a receiver.
    async fn run<C: RelayTarget>(&self, target: &mut C) -> Option<RelayEnd> {
        // Replies arrive in the order of these calls.
        let mut calls = VecDeque::new();
        let (mut pause, mut ahead) = (PAUSE, 1);
        while !target.is_closed() {
            let again = u64::from(pause > PAUSE);
            while calls.len() < ahead {
                calls.push_back(self.call_next(again));
            }
            let mut next = calls.pop_front()?;
            let result = loop {
                tokio::select! {
                    result = &mut next => break result,
                    () = tokio::time::sleep(CHECK) => if target.is_closed() {
                        return None;
                    },
                }
            };
            let sent = match self.message(result) {
                Ok(ChannelReply::Message(message)) => self.send(target, message).await,
                Ok(ChannelReply::Missed(missed)) => {
                    target.skip(missed);
                    continue;
                }
                Ok(ChannelReply::TooLittleMemory(error)) => {
                    target.skip(1);
                    Ok(Some(error))
                }
                Err(end) => Err(end),
            };
            match sent {
                Ok(None) => (pause, ahead) = (PAUSE, (2 * ahead).min(C::AHEAD)),
                Ok(Some(error)) => {
                    if again == 0 {
                        log::warn!("messages of the channel {:?} are missed: {error}", self.object.name);
                    }
                    tokio::time::sleep(pause).await;
                    (pause, ahead) = ((2 * pause).min(CHECK), 1);
                }
                Err(end) => return Some(end),
            }
        }
        None
    }

    /// Requests the next message. If `again` is 1, a watch channel sends its newest value again.
    fn call_next(&self, again: u64) -> NextCall {
        let (link, call) =
            (self.object.link.clone(), self.object.call_of(Operation::Wait, ObjectMethod::Next, again));
        let mut future: NextCall = Box::pin(async move { link.call_async(call, CallValues::None).await });
        // The first poll sends the call.
        match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Pending => future,
            Poll::Ready(result) => Box::pin(std::future::ready(result)),
        }
    }

    /// Forwards a message, and waits while there are too few envelopes. Returns `Ok(Some(error))` if there is
    /// too little memory. The receivers miss that message.
    async fn send(
        &self,
        target: &mut impl RelayTarget,
        mut message: Outgoing,
    ) -> Result<Option<mp_reduce::Error>, RelayEnd> {
        target.prepare(&mut message);
        loop {
            match target.send(&mut message) {
                Ok(()) => return Ok(None),
                // The message is dropped. The caller checks if a process has a receiver.
                Err(PutError::Full(())) if target.is_closed() => return Ok(None),
                Err(PutError::Full(())) => tokio::time::sleep(PAUSE).await,
                Err(PutError::Failed { error, .. }) if is_memory(&error) => return Ok(Some(error)),
                Err(PutError::Failed { error, .. }) => return Err(self.end(error.into())),
                Err(error) => return Err(self.end(mp_core::Error::NotPut(error.to_string()).into())),
            }
        }
    }

    fn message(&self, result: CallResult) -> Result<ChannelReply, RelayEnd> {
        let (reply, mut messages) = match result {
            Ok(reply) => reply,
            Err(NetError::Value(error)) if is_memory(&error) => {
                return Ok(ChannelReply::TooLittleMemory(error));
            }
            Err(error) => return Err(self.end(error)),
        };
        match (reply.outcome(), messages.pop()) {
            (CallOutcome::Done, Some(message)) => Ok(ChannelReply::Message(message)),
            (CallOutcome::Lagged, _) => Ok(ChannelReply::Missed(reply.number)),
            (CallOutcome::End, _) => Err(RelayEnd::Closed),
            (CallOutcome::ReplyTooLarge, _) => {
                Err(self.end(NetError::TooLarge { bytes: reply.size, limit: reply.number }))
            }
            _ => Err(self.end(failed(&self.object.link.peer(), reply))),
        }
    }

    fn end(&self, error: NetError) -> RelayEnd {
        match error {
            NetError::PeerLost(PeerLost { rank, host, silent, cause, .. }) => {
                RelayEnd::Lost { rank, host, silent, cause }
            }
            NetError::Home { rank, host, text } => RelayEnd::Failed { rank, host, text },
            error => {
                let peer = self.object.link.peer();
                RelayEnd::Failed { rank: peer.rank, host: peer.host, text: error.to_string() }
            }
        }
    }
}

/// Future reply to a call for the next message. Dropping it cancels the call.
type NextCall = Pin<Box<dyn Future<Output = CallResult> + Send>>;

/// Reply to the request for the next message of a subscription.
enum ChannelReply {
    Message(Outgoing),
    Missed(u64),
    /// The message has arrived, and could not be stored.
    TooLittleMemory(mp_reduce::Error),
}

/// Returns `true` if the error reports exhausted memory or descriptors, so that a later attempt may succeed.
fn is_memory(error: &mp_reduce::Error) -> bool {
    use mp_core::Error::{ArenaFull, OutOfDescriptors, OutOfMemory, TooManyDescriptors};
    let mp_reduce::Error::Memory(error) = error else { return false };
    matches!(error, OutOfMemory { .. } | ArenaFull { .. } | OutOfDescriptors(_) | TooManyDescriptors(_))
}

/// Returns this process's relay of a channel, or starts a relay.
pub(crate) fn shared<C: RelayedChannel>(
    channel: &ConnectedObject,
    start: impl FnOnce(Subscription) -> Result<C, RemoteRecvError>,
) -> Result<Arc<C>, RemoteRecvError> {
    let relays = || channel.link.relays.lock();
    let of = |relay: &Weak<dyn Any + Send + Sync>| relay.upgrade()?.downcast::<C>().ok();
    let known = |relay: Option<&_>| relay.and_then(of).filter(|relay| !relay.is_over());
    if let Some(known) = known(relays().get(&channel.number)) {
        return Ok(known);
    }
    let started = Arc::new(start(Subscription::new(channel)?)?);
    let mut relays = relays();
    if let Some(other) = known(relays.get(&channel.number)) {
        // Another thread has started a relay first.
        return Ok(other);
    }
    relays.retain(|_, relay| relay.strong_count() > 0);
    let relay: Arc<dyn Any + Send + Sync> = started.clone();
    relays.insert(channel.number, Arc::downgrade(&relay));
    Ok(started)
}
