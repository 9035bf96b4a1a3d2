//! Channels of this process whose messages other members receive.

use std::sync::Arc;

use mp_core::message::Outgoing;
use mp_queue::broadcast::{self, RecvError};
use mp_queue::{GetError, watch};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};

use crate::home::object::{Answer, Answering, MethodCall, SharedObject};
use crate::type_and_build::ObjectType;
use crate::wire::held::HeldSource;
use crate::wire::messages::{CallOutcome, ObjectMethod};
use crate::wire::value::{describe, parts, size_of};

/// Maximum number of bytes of a subscription that were sent and not yet received by the caller. A larger
/// message is sent alone, after all earlier messages were received.
const UNRECEIVED: u32 = 1 << 20;

/// Watch channel that other members receive, or the subscription of one caller to such a channel. The
/// receiver records the value that was sent to the caller last.
pub(crate) struct SharedWatch<T>(pub(crate) watch::Receiver<T>);

impl<T: Serialize + DeserializeOwned + Send + Sync + 'static> SharedObject for SharedWatch<T> {
    fn object_type(&self) -> ObjectType {
        ObjectType::watch::<T>()
    }

    fn subscribe(&self) -> Option<(Arc<dyn SharedObject>, usize)> {
        let receiver = self.0.clone();
        // The first message is the present value.
        receiver.mark_changed();
        Some((Arc::new(Self(receiver)), 1))
    }

    fn call(self: Arc<Self>, call: MethodCall) -> Answering {
        Box::pin(async move {
            match call.method {
                ObjectMethod::Next => {
                    if call.number != 0 {
                        self.0.mark_changed();
                    }
                    match self.0.changed_encoded().await {
                        Err(GetError::Disconnected) => Answer::plain(CallOutcome::End),
                        next => received(next),
                    }
                }
                _ => Answer::unknown_method(),
            }
        })
    }
}

/// A broadcast channel that other members receive.
pub(crate) struct SharedBroadcast<T>(pub(crate) broadcast::Receiver<T>);

impl<T: Serialize + DeserializeOwned + Send + Sync + 'static> SharedObject for SharedBroadcast<T> {
    fn object_type(&self) -> ObjectType {
        ObjectType::broadcast::<T>()
    }

    fn subscribe(&self) -> Option<(Arc<dyn SharedObject>, usize)> {
        let receiver = self.0.resubscribe().ok()?;
        let capacity = receiver.capacity();
        let unreceived = Arc::new(Semaphore::new(UNRECEIVED as usize));
        let subscription = BroadcastSubscription { receiver, next: Mutex::new(None), unreceived };
        Some((Arc::new(subscription), capacity))
    }
}

/// Subscription of a caller. Its receiver stores the position of the caller in the channel. Several calls
/// that wait for the next message are answered in the order of their arrival.
struct BroadcastSubscription<T> {
    receiver: broadcast::Receiver<T>,
    /// Next message. It is sent when the caller has received enough bytes of earlier messages.
    next: Mutex<Option<Outgoing>>,
    /// Permits for bytes that may still be sent.
    unreceived: Arc<Semaphore>,
}

/// Sent message that the caller has not received yet.
struct UnreceivedMessage {
    message: Outgoing,
    _bytes: Option<OwnedSemaphorePermit>,
}

impl HeldSource for UnreceivedMessage {
    fn memory(&self, attachment: usize) -> &[u8] {
        self.message.relayed_bytes(attachment)
    }

    /// Drops the message: a message can't be returned to a broadcast channel.
    fn give_back(self: Box<Self>) {}
}

impl<T: Serialize + DeserializeOwned + Send + Sync + 'static> BroadcastSubscription<T> {
    async fn next(&self) -> Answer {
        // The first poll takes a place in the order, even if the poll budget of the task is used up.
        let mut next = tokio::task::unconstrained(self.next.lock()).await;
        if next.is_none() {
            match self.receiver.recv_encoded().await {
                Ok(message) => *next = Some(message),
                Err(RecvError::Closed) => return Answer::plain(CallOutcome::End),
                Err(RecvError::Lagged(missed)) => {
                    let mut answer = Answer::number(missed);
                    answer.reply.set_outcome(CallOutcome::Lagged);
                    return answer;
                }
                Err(error) => return Answer::failed(&error),
            }
        }
        let (value, sizes) = match parts(next.get_or_insert_default()) {
            Ok(relayed) => describe(relayed),
            Err(error) => {
                *next = None;
                return Answer::failed(&error);
            }
        };
        let bytes = size_of(&value).clamp(1, UNRECEIVED.into()) as u32;
        let bytes = self.unreceived.clone().acquire_many_owned(bytes).await.ok();
        let message = UnreceivedMessage { message: next.take().unwrap_or_default(), _bytes: bytes };
        Answer::taken(vec![Box::new(message)], vec![value], sizes)
    }
}

impl<T: Serialize + DeserializeOwned + Send + Sync + 'static> SharedObject for BroadcastSubscription<T> {
    fn object_type(&self) -> ObjectType {
        ObjectType::broadcast::<T>()
    }

    fn call(self: Arc<Self>, call: MethodCall) -> Answering {
        Box::pin(async move {
            match call.method {
                ObjectMethod::Next => self.next().await,
                _ => Answer::unknown_method(),
            }
        })
    }
}

fn received<E: std::fmt::Display>(next: Result<Outgoing, E>) -> Answer {
    match next {
        Ok(message) => Answer::encoded(message),
        Err(error) => Answer::failed(&error),
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn poll(call: &mut Answering) -> Option<Answer> {
        match call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(answer) => Some(answer),
            Poll::Pending => None,
        }
    }

    /// Returns the last byte of an answer's message, which is the number in the tuple `(Vec<u8>, u8)`.
    fn number(answer: &Answer) -> Option<u8> {
        answer.reply.values.first()?.bytes.last().copied()
    }

    #[test]
    fn home_sends_channel_messages_in_order_within_limit() {
        let (sender, receiver) = broadcast::channel::<(Vec<u8>, u8)>(64).unwrap();
        let (subscription, capacity) = SharedBroadcast(receiver).subscribe().unwrap();
        assert_eq!(capacity, 64);
        let call = |_| {
            let (number, lost) = (0, Arc::default());
            let (method, caller) = (ObjectMethod::Next, Arc::default());
            subscription.clone().call(MethodCall { method, number, lost, caller })
        };
        let mut calls: Vec<_> = (0..40).map(call).collect();
        assert!(calls.iter_mut().all(|call| poll(call).is_none()));
        (0..39).for_each(|i| sender.send((vec![0; 1 << 16], i)).unwrap());
        assert!(poll(&mut calls[1]).is_none(), "the first call is answered first");
        let mut answers: Vec<_> = calls.iter_mut().map_while(poll).collect();
        assert!(answers.iter().map(number).eq((0..15).map(Some)), "16 messages exceed the limit");
        drop(calls.drain(..16));
        assert!(poll(&mut calls[0]).is_none());
        drop(answers.remove(0));
        let next = poll(&mut calls[0]).expect("the caller has received a message");
        assert_eq!(number(&next), Some(15), "the cancelled calls lost no message");
        drop((answers, next));
        sender.send((vec![0; 2 << 20], 39)).unwrap();
        let rest = calls[1..].iter_mut().map_while(|call| number(&poll(call)?));
        assert!(rest.eq(16..39), "each message is sent after an earlier one was received");
        let (mut large, mut small) = (call(0), call(0));
        sender.send((vec![0], 40)).unwrap();
        let answer = poll(&mut large).expect("all earlier messages were received");
        assert_eq!(number(&answer), Some(39));
        assert!(poll(&mut small).is_none());
        drop(answer);
        assert_eq!(number(&poll(&mut small).expect("the large message was received")), Some(40));
    }
}
