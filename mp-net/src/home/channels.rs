//! Channels of this process whose messages other members receive.

use std::sync::Arc;

use mp_core::message::Outgoing;
use mp_queue::broadcast::{self, RecvError};
use mp_queue::{GetError, watch};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::home::object::{Answer, Answering, MethodCall, SharedObject};
use crate::object_type::ObjectType;
use crate::wire::messages::{CallOutcome, ObjectMethod};

/// A watch channel, or a subscription to it, whose receiver tracks which value was sent.
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

/// A broadcast channel, or a subscription to it, whose receiver has its position.
pub(crate) struct SharedBroadcast<T>(pub(crate) broadcast::Receiver<T>);

impl<T: Serialize + DeserializeOwned + Send + Sync + 'static> SharedObject for SharedBroadcast<T> {
    fn object_type(&self) -> ObjectType {
        ObjectType::broadcast::<T>()
    }

    fn subscribe(&self) -> Option<(Arc<dyn SharedObject>, usize)> {
        let receiver = self.0.resubscribe().ok()?;
        let capacity = receiver.capacity();
        Some((Arc::new(Self(receiver)), capacity))
    }

    fn call(self: Arc<Self>, call: MethodCall) -> Answering {
        Box::pin(async move {
            match call.method {
                ObjectMethod::Next => match self.0.recv_encoded().await {
                    Err(RecvError::Closed) => Answer::plain(CallOutcome::End),
                    Err(RecvError::Lagged(missed)) => {
                        let mut answer = Answer::number(missed);
                        answer.reply.set_outcome(CallOutcome::Lagged);
                        answer
                    }
                    next => received(next),
                },
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
