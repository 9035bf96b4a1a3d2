//! Objects that other members call.

use std::collections::VecDeque;
use std::fmt::Display;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use mp_core::message::Outgoing;
use mp_core::{Message, WakeRegistration, poll_until};
use mp_queue::{DesertedWhen, EncodedLease, EncodedMessage, GetError, PutError, Queue};
use mp_reduce::encode_for_relay;

use crate::sync::{AtomicBool, AtomicU64, Ordering};
use crate::type_and_build::ObjectType;
use crate::wire::held::{HeldMessage, HeldSource};
use crate::wire::messages::{CallOutcome, CallReply, Node, ObjectMethod, Value};
use crate::wire::value::{describe, heads, parts, size_of};
use crate::wire::{LONGEST, MOST_VALUES, TOGETHER};

/// Pause between two attempts to return a message to its queue.
const PAUSE: Duration = Duration::from_millis(20);

/// Answer to a call: the reply, and the memory that is sent after the reply.
pub(crate) struct Answer {
    pub(crate) reply: CallReply,
    pub(crate) memory: Option<Arc<HeldMessage>>,
    /// Resource of the object that the caller holds after this answer, such as a leased message or a permit.
    pub(crate) hold: Option<Box<dyn CallerHold>>,
}

/// Leased message, permit, subscription or another resource of an object that a caller holds. Dropping this
/// value gives the resource back to the object.
pub(crate) trait CallerHold: Send {
    /// Removes the resource from the object, so that it is not given back.
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

    fn values(values: Vec<Value>, memory: Arc<HeldMessage>) -> Self {
        let mut answer = Self::plain(CallOutcome::Done);
        answer.reply.values = values;
        answer.memory = Some(memory);
        answer
    }

    /// Creates an answer with messages of a queue, whose attachments have these sizes in bytes.
    pub(crate) fn taken(messages: Vec<Box<dyn HeldSource>>, values: Vec<Value>, sizes: Vec<u64>) -> Self {
        let memory = HeldMessage::taken(messages, &values, sizes);
        Self::values(values, memory)
    }

    pub(crate) fn failed(error: &impl Display) -> Self {
        Self::with_text(CallOutcome::Failed, error.to_string())
    }

    /// Creates an answer with an encoded value.
    pub(crate) fn encoded(message: Outgoing) -> Self {
        match parts(&message) {
            Ok(relayed) => {
                let (value, sizes) = describe(relayed);
                Self::values(vec![value], HeldMessage::value(message, sizes))
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

/// Messages of one put, in their order. A message that can't be stored in the arena is replaced by the answer
/// that refuses it.
pub(crate) type ArrivedMessages = VecDeque<Result<Outgoing, Box<Answer>>>;

/// Outcome of [`SharedMessages::put_now`].
pub(crate) enum PutNow {
    Done(Box<Answer>),
    /// The queue is full. The future puts the remaining messages.
    Waits(Answering),
}

/// Future that returns the answer to a call.
pub(crate) type Answering = Pin<Box<dyn Future<Output = Answer> + Send>>;

/// Method to call, its argument, and its caller.
pub(crate) struct MethodCall {
    pub(crate) method: ObjectMethod,
    /// Number whose meaning the method defines.
    pub(crate) number: u64,
    /// Becomes `true` when the session of the caller ends.
    pub(crate) lost: Arc<AtomicBool>,
    /// Process that calls the method.
    pub(crate) caller: Arc<Node>,
}

/// Object of this process that other members call.
pub(crate) trait SharedObject: Send + Sync {
    /// Returns the kind of the object and the type of its messages.
    fn object_type(&self) -> ObjectType;
    /// Calls a method. Dropping the future cancels the call.
    fn call(self: Arc<Self>, call: MethodCall) -> Answering {
        drop(call);
        Box::pin(std::future::ready(Answer::unknown_method()))
    }
    /// Answers a request of a [service](crate::service). Dropping the future cancels the request.
    fn serve(self: Arc<Self>, request: Option<Outgoing>) -> Answering {
        drop(request);
        Box::pin(std::future::ready(Answer::unknown_method()))
    }
    /// Answers a request of a service that was withdrawn.
    fn serve_withdrawn(self: Arc<Self>, request: Option<Outgoing>) -> Answering {
        drop(request);
        Box::pin(std::future::ready(Answer::plain(CallOutcome::NotFound)))
    }
    /// Creates a subscription to a channel. Returns the subscription and the capacity of the channel, or
    /// `None` if the object is not a channel.
    fn subscribe(&self) -> Option<(Arc<dyn SharedObject>, usize)> {
        None
    }
    /// Returns the object as a queue, or `None` if the object is not a queue.
    fn as_queue(self: Arc<Self>) -> Option<Arc<dyn SharedMessages>> {
        None
    }
}

/// A queue of this process, of any type.
pub(crate) trait SharedMessages: Send + Sync {
    /// Puts messages in their order, and counts them in `put`. If the queue becomes full, returns a future
    /// that puts the remaining messages.
    fn put_now(self: Arc<Self>, messages: ArrivedMessages, put: Arc<AtomicU64>) -> PutNow;
    /// Returns a future that puts messages in their order, and counts them in `put`. The future is pending
    /// while the queue is full.
    fn put(self: Arc<Self>, messages: ArrivedMessages, put: Arc<AtomicU64>) -> Answering;
    /// Returns a future that takes between one and `most` available messages. Only the first of them can
    /// exceed `largest` bytes. The future is pending while the queue is empty. Dropping the future loses no
    /// message.
    fn get(self: Arc<Self>, most: u64, largest: u64) -> Answering;
    /// Returns a future that takes one message, which stays in the queue until the caller acknowledges it.
    /// Otherwise like [`get`](Self::get).
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
        // The queue is not deserted without other local processes, because members can join later. Waits of
        // members end by their own limits.
        Self(queue.clone().deserted_when(DesertedWhen::Never))
    }

    /// Puts messages until the queue is full, and then returns `None`. After the last message, or at a
    /// message that can't be put, returns the answer to the call. The answer lacks the number of messages
    /// put, which the caller adds.
    fn advance(&self, run: &mut PutRun<T>) -> Option<Box<Answer>> {
        loop {
            self.pack(run);
            let before = run.packed.len();
            let end = self.0.try_put_packed_many(&mut run.packed);
            // Also correct after an error: a message that could not be put is the first of `packed` again.
            run.put.fetch_add((before - run.packed.len()) as u64, Ordering::Relaxed);
            if let Err(error) = end {
                return Some(Box::new(Answer::failed(&error)));
            }
            let Some(first) = run.packed.pop_front() else {
                return match run.arrived.pop_front() {
                    None => Some(Box::new(Answer::plain(CallOutcome::Done))),
                    Some(Err(answer)) => Some(answer),
                    Some(unpacked) => {
                        run.arrived.push_front(unpacked);
                        None
                    }
                };
            };
            match self.0.try_put_packed(first) {
                Ok(()) => _ = run.put.fetch_add(1, Ordering::Relaxed),
                Err(PutError::Full(first)) => {
                    run.packed.push_front(first);
                    return None;
                }
                Err(error) => return Some(put_refusal(error.forget())),
            }
        }
    }

    /// Packs arrived messages, until the memory for messages is exhausted or a message is refused.
    fn pack(&self, run: &mut PutRun<T>) {
        while let Some(next) = run.arrived.front_mut() {
            let Ok(message) = next else { return };
            match self.0.pack_relayed(message) {
                Ok(packed) => {
                    run.packed.push_back(packed);
                    run.arrived.pop_front();
                }
                Err(PutError::Full(())) => return,
                Err(error) => *next = Err(put_refusal(error)),
            }
        }
    }

    /// Puts all messages of a run, and waits for room while the queue is full. Returns the answer without the
    /// number of messages put.
    async fn put_when_possible(&self, mut run: PutRun<T>) -> Box<Answer> {
        let mut watch: Option<WakeRegistration> = None;
        let queue = &self.0;
        std::future::poll_fn(|cx| {
            let weight = run.packed.front().map_or(0, EncodedMessage::weight);
            let ready = || {
                let ready: mp_core::SharedWaitable = Arc::new(queue.put_ready_for(weight.max(1)));
                ready
            };
            poll_until(&mut watch, cx, ready, || Ok::<_, mp_core::Error>(self.advance(&mut run)))
        })
        .await
        .unwrap_or_else(|error| Box::new(Answer::failed(&error)))
    }
}

/// Messages of one put, in their order: first the packed ones, then the arrived ones.
struct PutRun<T: Message> {
    packed: VecDeque<EncodedMessage<T>>,
    arrived: ArrivedMessages,
    /// Number of messages that were put.
    put: Arc<AtomicU64>,
}

/// A message that was taken out of `queue` for another member.
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
            // The message was put before the queue was published, so it has no envelope.
            let again = async move {
                loop {
                    match queue.try_put_packed(message) {
                        Err(PutError::Full(unsent)) => message = unsent,
                        Err(error) => {
                            return log::warn!("a message can't return to its queue: {}", error.forget());
                        }
                        Ok(()) => return,
                    }
                    // The pause is needed if the queue has room, but there are too few envelopes.
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

/// Messages that one call takes.
#[derive(Default)]
struct TakenRun {
    messages: Vec<Box<dyn HeldSource>>,
    values: Vec<Value>,
    sizes: Vec<u64>,
    /// Size of all messages in bytes, including attachments and [`heads`].
    size: u64,
}

impl TakenRun {
    fn has_room(&self, most: u64) -> bool {
        (self.values.len() as u64) < most.min(MOST_VALUES as u64) && self.size <= TOGETHER / 2
    }

    /// Adds a message to the messages of the call. Returns `true` if it was added. Otherwise gives the
    /// message back to its queue: if it can't be sent, or if it is not the first message and exceeds
    /// `largest` bytes or a frame.
    fn take<T: Message>(
        &mut self,
        message: EncodedMessage<T>,
        queue: &Queue<T>,
        largest: u64,
    ) -> Result<bool, mp_reduce::Error> {
        let relayed = message.relayed();
        let taken = Box::new(TakenFrom { message, queue: queue.clone() });
        let fits = |value: &Value| size_of(value) <= largest && value.bytes.len() <= LONGEST;
        match relayed.map(describe) {
            Ok((value, sizes)) if self.values.is_empty() || fits(&value) => {
                self.size = self.size.saturating_add(size_of(&value)).saturating_add(heads(&value));
                self.messages.push(taken);
                self.values.push(value);
                self.sizes.extend(sizes);
                Ok(true)
            }
            Ok(_) => {
                taken.give_back();
                Ok(false)
            }
            Err(error) => {
                taken.give_back();
                Err(error)
            }
        }
    }
}

fn put_refusal(error: PutError<()>) -> Box<Answer> {
    Box::new(match error {
        PutError::Closed(()) => Answer::plain(CallOutcome::Closed),
        PutError::TooLarge { limit, .. } => {
            let mut answer = Answer::with_text(CallOutcome::TooLarge, error.to_string());
            answer.reply.number = limit;
            answer
        }
        error => Answer::failed(&error),
    })
}

/// Sets the number of put messages in an answer, and returns the answer.
fn with_count(mut answer: Box<Answer>, put: &AtomicU64) -> Box<Answer> {
    answer.reply.put = put.load(Ordering::Relaxed);
    answer
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
    fn put_now(self: Arc<Self>, arrived: ArrivedMessages, put: Arc<AtomicU64>) -> PutNow {
        let mut run = PutRun { packed: VecDeque::new(), arrived, put: put.clone() };
        match self.advance(&mut run) {
            Some(answer) => PutNow::Done(with_count(answer, &put)),
            None => {
                PutNow::Waits(Box::pin(async move { *with_count(self.put_when_possible(run).await, &put) }))
            }
        }
    }

    fn put(self: Arc<Self>, arrived: ArrivedMessages, put: Arc<AtomicU64>) -> Answering {
        let run = PutRun { packed: VecDeque::new(), arrived, put: put.clone() };
        Box::pin(async move { *with_count(self.put_when_possible(run).await, &put) })
    }

    fn get(self: Arc<Self>, most: u64, largest: u64) -> Answering {
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
                    let mut run = TakenRun::default();
                    if let Err(error) = run.take(message, queue, largest) {
                        return Answer::failed(&error);
                    }
                    while run.has_room(most) {
                        let Ok(Some(message)) = queue.try_get_packed() else { break };
                        if !run.take(message, queue, largest).is_ok_and(|taken| taken) {
                            break;
                        }
                    }
                    Answer::taken(run.messages, run.values, run.sizes)
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
                    Ok(mut answer) if !answer.reply.values.is_empty() => {
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

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};

    use super::*;

    #[test]
    fn messages_given_back_to_a_home_return_to_its_queue() {
        let queue = Queue::<u32>::bounded(10).unwrap();
        let shared = Arc::new(SharedQueue::new(&queue));
        queue.put_many(0..5).map_err(|e| e.error).unwrap();
        let mut taking = shared.get(3, u64::MAX);
        let Poll::Ready(answer) = taking.as_mut().poll(&mut Context::from_waker(Waker::noop())) else {
            panic!("the queue has messages");
        };
        assert_eq!((answer.reply.values.len(), queue.len()), (3, 2));
        answer.memory.unwrap().give_back();
        let mut taken = Vec::new();
        while queue.get_many_timeout(&mut taken, 10, Duration::ZERO).is_ok() {}
        taken.sort_unstable();
        assert_eq!(taken, [0, 1, 2, 3, 4]);
    }
}
