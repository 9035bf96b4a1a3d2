//! Objects that other members call.

use std::fmt::Display;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use mp_core::message::Outgoing;
use mp_core::{Message, WakeRegistration, poll_until};
use mp_queue::{DesertedWhen, EncodedLease, EncodedMessage, GetError, PutError, Queue};
use mp_reduce::encode_for_relay;

use crate::object_type::ObjectType;
use crate::sync::AtomicBool;
use crate::wire::held::{HeldMessage, HeldSource};
use crate::wire::messages::{CallOutcome, CallReply, ObjectMethod, Value};
use crate::wire::value::{describe, parts};

/// Pause between two attempts to return a message.
const PAUSE: Duration = Duration::from_millis(20);

/// Answer of an object, and the message whose memory follows it.
pub(crate) struct Answer {
    pub(crate) reply: CallReply,
    pub(crate) memory: Option<Arc<HeldMessage>>,
    /// Lease of the message or another part of the object, until it is acknowledged.
    pub(crate) hold: Option<Box<dyn CallerHold>>,
}

/// Part of an object that a caller holds. Dropping it gives it back.
pub(crate) trait CallerHold: Send {
    /// Removes the part from the object.
    fn acknowledge(self: Box<Self>);
}

impl CallerHold for EncodedLease {
    fn acknowledge(self: Box<Self>) {
        self.ack();
    }
}

impl Answer {
    /// Creates an answer without a value.
    pub(crate) fn plain(outcome: CallOutcome) -> Self {
        Self::with_text(outcome, String::new())
    }

    pub(crate) fn with_text(outcome: CallOutcome, text: String) -> Self {
        let reply = CallReply { outcome: outcome.into(), text, ..CallReply::default() };
        Self { reply, memory: None, hold: None }
    }

    pub(crate) fn number(number: u64) -> Self {
        let mut answer = Self::plain(CallOutcome::Done);
        answer.reply.number = number;
        answer
    }

    pub(crate) fn value(value: Value, memory: Arc<HeldMessage>) -> Self {
        let mut answer = Self::plain(CallOutcome::Done);
        answer.reply.value = Some(value);
        answer.memory = Some(memory);
        answer
    }

    pub(crate) fn failed(error: &impl Display) -> Self {
        Self::with_text(CallOutcome::Failed, error.to_string())
    }

    /// Creates an answer with an encoded value.
    pub(crate) fn encoded(message: Outgoing) -> Self {
        match parts(&message) {
            Ok(relayed) => {
                let (value, sizes) = describe(relayed);
                Self::value(value, HeldMessage::value(message, sizes))
            }
            Err(error) => Self::failed(&error),
        }
    }

    /// Creates an answer with an error that the caller decodes.
    pub(crate) fn raised<E: Message + Display>(mut error: E) -> Self {
        let Ok(message) = encode_for_relay(&mut error) else { return Self::failed(&error) };
        let mut answer = Self::encoded(message);
        answer.reply.set_outcome(CallOutcome::Raised);
        answer
    }

    pub(crate) fn unknown_method() -> Self {
        Self::with_text(CallOutcome::Failed, "the object has no such method".into())
    }
}

/// Outcome of an attempt to put.
pub(crate) enum PutNow {
    Done(Box<Answer>),
    /// The queue is full.
    Waits(Answering),
}

/// A future answer.
pub(crate) type Answering = Pin<Box<dyn Future<Output = Answer> + Send>>;

/// A call of a method.
pub(crate) struct MethodCall {
    pub(crate) method: ObjectMethod,
    /// Number whose meaning the method defines.
    pub(crate) number: u64,
    /// `true` after the session of the caller has ended.
    pub(crate) lost: Arc<AtomicBool>,
}

/// An object of this process.
pub(crate) trait SharedObject: Send + Sync {
    /// Returns its kind and the type of its messages.
    fn object_type(&self) -> ObjectType;
    /// Calls a method. Dropping the future cancels it.
    fn call(self: Arc<Self>, call: MethodCall) -> Answering {
        drop(call);
        Box::pin(std::future::ready(Answer::unknown_method()))
    }
    /// Answers a request of a [service](crate::service). Dropping the future cancels it.
    fn serve(self: Arc<Self>, request: Option<Outgoing>) -> Answering {
        drop(request);
        Box::pin(std::future::ready(Answer::unknown_method()))
    }
    /// Returns a subscription, and the capacity of the channel, if it is one.
    fn subscribe(&self) -> Option<(Arc<dyn SharedObject>, usize)> {
        None
    }
    /// Returns the object as a queue, if it is one.
    fn as_queue(self: Arc<Self>) -> Option<Arc<dyn SharedMessages>> {
        None
    }
}

/// A queue of this process, of any type.
pub(crate) trait SharedMessages: Send + Sync {
    /// Puts a message at once if there is room.
    fn put_now(self: Arc<Self>, message: Outgoing) -> PutNow;
    /// Puts a message. Pending while the queue is full.
    fn put(self: Arc<Self>, message: Outgoing) -> Answering;
    /// Takes a message. Pending while the queue is empty. Dropping the future loses no message.
    fn get(self: Arc<Self>) -> Answering;
    /// Takes a message with acknowledgement, like [`get`](Self::get).
    fn lease(self: Arc<Self>) -> Answering;
    /// Closes the queue. Returns `true` if it was open.
    fn close(&self) -> bool;
    /// Returns the number of messages.
    fn len(&self) -> usize;
}

/// A queue that other members call.
pub(crate) struct SharedQueue<T: Message>(Queue<T>);

impl<T: Message> SharedQueue<T> {
    pub(crate) fn new(queue: &Queue<T>) -> Self {
        queue.allow_put_back();
        // Members come and go: their waits end by their own limits.
        Self(queue.clone().deserted_when(DesertedWhen::Never))
    }

    /// Puts `packed`, or else `message`.
    async fn put_when_possible(
        &self,
        mut message: Outgoing,
        mut packed: Option<EncodedMessage<T>>,
    ) -> Result<(), PutError<()>> {
        let mut watch: Option<WakeRegistration> = None;
        let queue = &self.0;
        std::future::poll_fn(|cx| {
            let weight = packed.as_ref().map_or(0, EncodedMessage::weight);
            let ready = || {
                let ready: mp_core::SharedWaitable = Arc::new(queue.put_ready_for(weight.max(1)));
                ready
            };
            poll_until(&mut watch, cx, ready, || {
                let encoded = match packed.take() {
                    Some(encoded) => encoded,
                    None => match queue.pack_relayed(&mut message) {
                        Ok(encoded) => encoded,
                        Err(PutError::Full(())) => return Ok(None),
                        Err(error) => return Ok(Some(Err(error))),
                    },
                };
                Ok::<_, mp_core::Error>(match queue.try_put_packed(encoded) {
                    Ok(()) => Some(Ok(())),
                    Err(PutError::Full(encoded)) => {
                        packed = Some(encoded);
                        None
                    }
                    Err(error) => Some(Err(error.forget())),
                })
            })
        })
        .await
        .unwrap_or_else(|error| Err(PutError::Failed { value: (), error: error.into() }))
    }
}

/// A message that was taken for another member.
struct TakenFrom<T: Message> {
    message: EncodedMessage<T>,
    queue: Queue<T>,
}

impl<T: Message> HeldSource for TakenFrom<T> {
    fn memory(&self, attachment: usize) -> &[u8] {
        self.message.relayed_memory(attachment)
    }

    fn give_back(self: Box<Self>) {
        let Self { message, queue } = *self;
        if let Err(mut message) = queue.put_back(message) {
            // A message that was put before the queue was published, and has no envelope.
            let again = async move {
                loop {
                    match queue.try_put_packed(message) {
                        Err(PutError::Full(unsent)) => message = unsent,
                        Err(error) => {
                            return log::warn!("a message can't return to its queue: {}", error.forget());
                        }
                        Ok(()) => return,
                    }
                    // Room in the queue is not enough if there are too few envelopes.
                    tokio::time::sleep(PAUSE).await;
                    _ = mp_core::wait_async(queue.put_ready()).await;
                }
            };
            if let Ok(runtime) = crate::reactor::handle() {
                runtime.spawn(again);
            }
        }
    }
}

fn put_answer(end: Result<(), PutError<()>>) -> Answer {
    match end {
        Ok(()) => Answer::plain(CallOutcome::Done),
        Err(PutError::Closed(())) => Answer::plain(CallOutcome::Closed),
        Err(error @ PutError::TooLarge { limit, .. }) => {
            let mut answer = Answer::with_text(CallOutcome::TooLarge, error.to_string());
            answer.reply.number = limit;
            answer
        }
        Err(error) => Answer::failed(&error),
    }
}

impl<T: Message> SharedObject for SharedQueue<T> {
    fn object_type(&self) -> ObjectType {
        ObjectType::queue::<T>(self.0.type_fingerprint())
    }

    fn as_queue(self: Arc<Self>) -> Option<Arc<dyn SharedMessages>> {
        Some(self)
    }
}

impl<T: Message> SharedMessages for SharedQueue<T> {
    fn put_now(self: Arc<Self>, mut message: Outgoing) -> PutNow {
        let packed = match self.0.pack_relayed(&mut message) {
            Ok(packed) => packed,
            Err(PutError::Full(())) => return PutNow::Waits(self.put(message)),
            Err(error) => return PutNow::Done(Box::new(put_answer(Err(error)))),
        };
        match self.0.try_put_packed(packed) {
            Err(PutError::Full(packed)) => PutNow::Waits(Box::pin(async move {
                put_answer(self.put_when_possible(Outgoing::default(), Some(packed)).await)
            })),
            end => PutNow::Done(Box::new(put_answer(end.map_err(PutError::forget)))),
        }
    }

    fn put(self: Arc<Self>, message: Outgoing) -> Answering {
        Box::pin(async move { put_answer(self.put_when_possible(message, None).await) })
    }

    fn get(self: Arc<Self>) -> Answering {
        Box::pin(async move {
            let queue = &self.0;
            let look = || {
                Ok::<_, mp_core::Error>(match queue.try_get_packed() {
                    Err(GetError::Empty) => None,
                    end => Some(end),
                })
            };
            let ready = || {
                let ready: mp_core::SharedWaitable = Arc::new(queue.clone());
                ready
            };
            match mp_core::until(ready, look)
                .await
                .unwrap_or_else(|error| Err(GetError::Failed(error.into())))
            {
                Ok(None) => Answer::plain(CallOutcome::End),
                Ok(Some(message)) => {
                    let relayed = message.relayed();
                    let taken = Box::new(TakenFrom { message, queue: queue.clone() });
                    match relayed {
                        Ok(relayed) => {
                            let (value, sizes) = describe(relayed);
                            Answer::value(value, HeldMessage::taken(taken, sizes))
                        }
                        Err(error) => {
                            taken.give_back();
                            Answer::failed(&error)
                        }
                    }
                }
                Err(error) => Answer::failed(&error),
            }
        })
    }

    fn lease(self: Arc<Self>) -> Answering {
        Box::pin(async move {
            let queue = &self.0;
            let ready = || {
                let ready: mp_core::SharedWaitable = Arc::new(queue.encoded_lease_ready());
                ready
            };
            let look = || Ok::<_, mp_core::Error>(queue.poll_encoded_lease());
            match mp_core::until(ready, look)
                .await
                .unwrap_or_else(|error| Err(GetError::Failed(error.into())))
            {
                Ok(None) => Answer::plain(CallOutcome::End),
                Ok(Some(lease)) => match lease.read().map(Answer::encoded) {
                    Ok(mut answer) if answer.reply.value.is_some() => {
                        answer.reply.number = lease.deliveries().into();
                        answer.hold = Some(Box::new(lease));
                        answer
                    }
                    Ok(failed) => failed,
                    Err(error) => Answer::failed(&error),
                },
                Err(error) => Answer::failed(&error),
            }
        })
    }

    fn close(&self) -> bool {
        self.0.close()
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}
