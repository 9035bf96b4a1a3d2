//! Queues of other members.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::Arc;

use mp_core::message::Outgoing;
use mp_core::user_code::drop_caught;
use mp_core::{Message, Wait};
use mp_reduce::{Error, TypeFingerprint, decode_relayed, encode_for_relay, restore_unsent};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::cluster::{Cluster, failed};
use crate::error::{NetError, RemoteGetError, RemotePutError};
use crate::link::CallValues;
use crate::link::batch::EncodedPut;
use crate::link::completion::CallResult;
use crate::remote::connected::{ConnectedObject, HeldCall};
use crate::type_and_build::ObjectType;
use crate::wire::LONGEST;
use crate::wire::held::HeldMessage;
use crate::wire::messages::{CallOutcome, ObjectMethod, Operation, RemoteCall};
use crate::wire::value::{describe, parts};

/// A queue of another member of the cluster, with most methods of [`Queue`](mp_queue::Queue).
///
/// ```
/// use mp_net::{Cluster, ClusterConfig, RemoteQueue};
/// use mp_queue::Queue;
/// use mp_tensor::Tensor;
///
/// let here = Cluster::join(&ClusterConfig::new(0, 1, "127.0.0.1:29742"))?;
/// let batches = Queue::<Tensor<f32>>::bounded(8)?;
/// here.publish("batches", &batches)?;
///
/// // On any host of the cluster.
/// let remote = RemoteQueue::<Tensor<f32>>::connect(&here, "batches")?;
/// remote.put(Tensor::full(&[1000], 2.0)?)?;
/// assert_eq!(batches.get()?.expect("it is open").iter().sum::<f32>(), 2000.0);
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
///
/// # What travels
/// A message may contain everything that a local queue accepts, except shared tensors, handles (queues,
/// locks, events), files and device tensors. `put` returns such a value in an error. An exclusive tensor
/// moves: its memory is copied into a frame, and from there into the arena of the member that has the queue
/// (its home), once on each side. A frozen tensor is copied.
///
/// # Blocking
/// [`put`](Self::put) blocks until the home has put the message into its queue, and [`get`](Self::get) until
/// a message has arrived. If the connection is interrupted, a call ends with [`PeerLost`](crate::PeerLost)
/// after the [lease](crate::ClusterConfig::lease) and the [grace](crate::ClusterConfig::grace) at the latest,
/// whatever its time limit.
///
/// If the queue is closed and another member leases its last message,
/// [`get_lease`](mp_queue::Queue::get_lease) of a process on the home's host returns the end of the queue.
/// Other members wait until the message is acknowledged.
///
/// A message that can't leave its host, or exceeds
/// [`largest_message`](crate::ClusterConfig::largest_message) of its receiver, goes back to the front of the
/// queue. Calls of other members return errors until a process of the home's host, or a member that accepts
/// the message, has taken it. Messages that return to the queue for another reason are taken before all
/// others, in any order.
///
/// # Methods that are missing
/// | method of [`Queue`](mp_queue::Queue) | reason |
/// |---|---|
/// | `capacity`, `is_full`, `put_ready`, `lease_ready` | the result could change before it arrives: use [`try_put`](Self::try_put) or a time limit |
/// | `stream`, `sink`, waits by `select` and `wait` | they wait on the memory of this host: use the asynchronous methods |
/// | `dead_letter`, `checkpoint`, `spinning`, `deserted_when` | they belong to the home |
///
/// # What can be lost or doubled
/// | fault | a put that returned `Ok` | a put that returned `PeerLost` | messages that were taken |
/// |---|---|---|---|
/// | none; a connection that breaks and returns within the grace | in the queue, once | – | taken once |
/// | the caller is killed, or ends without [`flush`](Self::flush) or [`leave`](Cluster::leave) | in the queue | in the queue or not | return to the queue, unless the home knows that they were received |
/// | the home is killed | lost with its queue | lost | messages that were received stay with the caller |
/// | the caller and the home can't reach each other for longer than lease and grace, or one is stopped | in the queue | in the queue, once, or not: [`in_doubt`](crate::PeerLost::in_doubt) | a message that was received in the last moments before may be taken twice |
pub struct RemoteQueue<T> {
    pub(super) object: ConnectedObject,
    messages: PhantomData<fn(T) -> T>,
}

impl<T> Clone for RemoteQueue<T> {
    fn clone(&self) -> Self {
        Self::of(self.object.clone())
    }
}

impl<T> fmt::Debug for RemoteQueue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RemoteQueue{:?}", self.object)
    }
}

/// Handles can be part of messages and arguments. The receiver connects to the home itself. A worker process
/// uses the rank of its parent, and another member uses its own rank.
impl<T: Message> Serialize for RemoteQueue<T> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        self.object.serialize(queue_type::<T>(), s)
    }
}

impl<'de, T: Message> Deserialize<'de> for RemoteQueue<T> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        ConnectedObject::deserialize(&queue_type::<T>(), d).map(Self::of)
    }
}

impl<T> RemoteQueue<T> {
    fn of(object: ConnectedObject) -> Self {
        Self { object, messages: PhantomData }
    }
}

fn queue_type<T: Message>() -> ObjectType {
    ObjectType::queue::<T>(TypeFingerprint::<T>::new().get())
}

impl<T: Message> RemoteQueue<T> {
    /// Opens the queue that a member has [published](Cluster::publish) under a name. Blocks until the name
    /// is published, for up to the [time limit](crate::ClusterConfig::timeout).
    ///
    /// # Errors
    /// [`NetError::NotPublished`] with the names that are published. [`NetError::WrongType`] with both types.
    /// [`NetError::PeerLost`], [`NetError::Unreachable`] or [`NetError::Refused`] if rank 0 or the member
    /// that has the queue can't be reached.
    pub fn connect(cluster: &Cluster, name: &str) -> Result<Self, NetError> {
        ConnectedObject::connect(cluster, name, queue_type::<T>()).map(Self::of)
    }

    pub(super) fn call(&self, operation: Operation) -> RemoteCall {
        self.object.call_of(operation, ObjectMethod::NoMethod, 0)
    }

    pub(super) fn encode(&self, value: &mut T) -> Result<EncodedPut, NetError> {
        let message = encode_for_relay(value)?;
        let (head, sizes) = match parts(&message) {
            Ok(relayed) => describe(relayed),
            Err(error) => {
                restore_unsent(value, message);
                return Err(error.into());
            }
        };
        if head.bytes.len() > LONGEST {
            restore_unsent(value, message);
            return Err(NetError::TooLarge { bytes: head.bytes.len() as u64, limit: LONGEST as u64 });
        }
        Ok(EncodedPut { head, message, sizes })
    }

    /// Returns the call of one put, and the message whose attachments are sent after the call.
    fn put_call(&self, put: EncodedPut) -> (RemoteCall, Arc<HeldMessage>) {
        let EncodedPut { head, message, sizes } = put;
        let call = RemoteCall { values: vec![head], ..self.call(Operation::Put) };
        (call, HeldMessage::value(message, sizes))
    }

    /// Returns the error of a put, without the value. Returns `None` if the value was put.
    pub(super) fn put_end(&self, result: CallResult) -> Option<RemotePutError<()>> {
        let (reply, _) = match result {
            Ok(reply) => reply,
            Err(NetError::PeerLost(lost)) => return Some(RemotePutError::PeerLost { value: (), lost }),
            Err(error) => return Some(RemotePutError::Failed { value: (), error }),
        };
        let error = match reply.outcome() {
            CallOutcome::Done => return None,
            CallOutcome::Full if mp_core::interrupted() => NetError::Interrupted,
            CallOutcome::Full => return Some(RemotePutError::Full(())),
            CallOutcome::Closed => return Some(RemotePutError::Closed(())),
            CallOutcome::TooLarge if reply.text.is_empty() => {
                NetError::TooLarge { bytes: reply.size, limit: reply.number }
            }
            _ => failed(&self.object.link.peer(), reply),
        };
        Some(RemotePutError::Failed { value: (), error })
    }

    /// Puts a message. Blocks while the queue is full, and until the member that has the queue has stored the
    /// message.
    ///
    /// # Errors
    /// [`RemotePutError`], with the value.
    pub fn put(&self, value: T) -> Result<(), RemotePutError<T>> {
        self.put_wait(value, Wait::Forever)
    }

    mp_core::forms! {
        "Puts a message": put(value: T) -> Result<(), RemotePutError<T>>, or "[`RemotePutError::Full`]";
        |queue, wait| queue.put_wait(value, wait);
        never try_put;
        at_most put_timeout;
        until put_deadline;
    }

    fn put_wait(&self, mut value: T, wait: Wait) -> Result<(), RemotePutError<T>> {
        let (call, memory) = match self.encode(&mut value) {
            Ok(put) => self.put_call(put),
            Err(error) => return Err(RemotePutError::Failed { value, error }),
        };
        let pending = self.object.link.begin(call, CallValues::Held(memory.clone()), wait);
        let Some(error) = self.put_end(self.object.link.wait(pending)) else {
            drop_caught(value);
            return Ok(());
        };
        // The value is decoded after the stream has stopped reading its memory.
        if let Some(message) = memory.reclaim().pop() {
            restore_unsent(&mut value, message);
        }
        Err(error.with(value))
    }

    /// Puts a message, asynchronously. Dropping the future cancels the put. In that case the value is not
    /// returned, and the message may have been put.
    ///
    /// # Errors
    /// [`RemotePutError`], with the value.
    pub async fn put_async(&self, mut value: T) -> Result<(), RemotePutError<T>> {
        let (call, memory) = match self.encode(&mut value) {
            Ok(put) => self.put_call(put),
            Err(error) => return Err(RemotePutError::Failed { value, error }),
        };
        let result = self.object.link.call_async(call, CallValues::Held(memory.clone())).await;
        let Some(error) = self.put_end(result) else {
            drop_caught(value);
            return Ok(());
        };
        if let Some(message) = memory.reclaim_async().await.pop() {
            restore_unsent(&mut value, message);
        }
        Err(error.with(value))
    }

    /// Takes the oldest message. Blocks while the queue is empty. Returns `None` if it is closed and drained.
    ///
    /// # Errors
    /// [`RemoteGetError`].
    pub fn get(&self) -> Result<Option<T>, RemoteGetError> {
        self.get_wait(Wait::Forever)
    }

    mp_core::forms! {
        "Takes the oldest message":
        get() -> Result<Option<T>, RemoteGetError>,
        or "[`RemoteGetError::Empty`]";
        |queue, wait| queue.get_wait(wait);
        never try_get;
        at_most get_timeout;
        until get_deadline;
    }

    fn get_wait(&self, wait: Wait) -> Result<Option<T>, RemoteGetError> {
        let result = self.object.link.call(self.call(Operation::Get), wait);
        self.taken(result)?.map(|(_, message)| decode(message)).transpose()
    }

    /// Takes the oldest message, asynchronously. Dropping the future loses no message.
    ///
    /// # Errors
    /// [`RemoteGetError`].
    pub async fn get_async(&self) -> Result<Option<T>, RemoteGetError> {
        let result = self.object.link.call_async(self.call(Operation::Get), CallValues::None).await;
        self.taken(result)?.map(|(_, message)| decode(message)).transpose()
    }

    /// Takes up to `most` of the oldest messages and appends them to `into`. Blocks until the queue has one.
    /// Returns the number of messages taken; 0 if the queue is closed and drained.
    ///
    /// Each call takes at most 256 messages, and no further message after a total of 16 KiB.
    ///
    /// # Errors
    /// [`RemoteGetError`]: [`Empty`](RemoteGetError::Empty) if `most` is 0. If a message can't be decoded,
    /// `into` has the messages before it, the message itself is lost, and the messages after it return to the
    /// queue. The same holds if `T`'s `Deserialize` panics. If the queue is closed, other consumers may get
    /// the end before these messages return: call again to take them.
    pub fn get_many(&self, into: &mut Vec<T>, most: usize) -> Result<usize, RemoteGetError> {
        self.get_many_wait(into, most, Wait::Forever)
    }

    mp_core::forms! {
        "Takes up to `most` messages":
        get_many(into: &mut Vec<T>, most: usize) -> Result<usize, RemoteGetError>,
        or "[`RemoteGetError::Empty`]";
        |queue, wait| queue.get_many_wait(into, most, wait);
        never try_get_many;
        at_most get_many_timeout;
        until get_many_deadline;
    }

    fn get_many_wait(&self, into: &mut Vec<T>, most: usize, wait: Wait) -> Result<usize, RemoteGetError> {
        if most == 0 {
            return Err(RemoteGetError::Empty);
        }
        let call = RemoteCall { number: most as u64, ..self.call(Operation::Get) };
        let (result, mut unread) =
            self.object.link.wait_unread(self.object.link.begin(call, CallValues::None, wait));
        let Some((_, messages)) = self.taken_many(result)? else { return Ok(0) };
        let before = into.len();
        for message in messages {
            // Counted before the message is decoded, because its code may panic.
            unread.read += 1;
            into.push(decode(message)?);
        }
        Ok(into.len() - before)
    }

    /// Converts the reply to a `Get` or `Lease`. Returns the number of the call and the message that the call
    /// took.
    fn taken(&self, result: CallResult) -> Result<Option<(u64, Outgoing)>, RemoteGetError> {
        let taken = self.taken_many(result)?;
        Ok(taken.map(|(id, mut messages)| (id, messages.pop().unwrap_or_default())))
    }

    /// Converts the reply to a `Get`. Returns the number of the call and the messages that the call took.
    fn taken_many(&self, result: CallResult) -> Result<Option<(u64, Vec<Outgoing>)>, RemoteGetError> {
        let (reply, messages) = result?;
        match reply.outcome() {
            CallOutcome::Done if !messages.is_empty() => Ok(Some((reply.id, messages))),
            CallOutcome::End => Ok(None),
            CallOutcome::Empty if mp_core::interrupted() => Err(NetError::Interrupted.into()),
            CallOutcome::Empty => Err(RemoteGetError::Empty),
            CallOutcome::ReplyTooLarge => {
                Err(NetError::TooLarge { bytes: reply.size, limit: reply.number }.into())
            }
            _ => Err(failed(&self.object.link.peer(), reply).into()),
        }
    }

    /// Returns an iterator that takes messages until the queue is closed and drained. Each message costs a
    /// round trip, and [`get_many`](Self::get_many) takes several in one.
    ///
    /// ```
    /// # use mp_net::{Cluster, ClusterConfig, RemoteQueue};
    /// # let cluster = Cluster::join(&ClusterConfig::new(0, 1, "127.0.0.1:0"))?;
    /// # let jobs = mp_queue::Queue::<u32>::bounded(8)?;
    /// # cluster.publish("jobs", &jobs)?;
    /// let remote = RemoteQueue::<u32>::connect(&cluster, "jobs")?;
    /// remote.put(7)?;
    /// remote.close()?;
    /// assert_eq!(remote.iter().collect::<Result<Vec<u32>, _>>()?, [7]);
    /// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    pub fn iter(&self) -> impl Iterator<Item = Result<T, RemoteGetError>> + '_ {
        std::iter::from_fn(|| self.get().transpose())
    }

    /// Closes the queue: nothing more can be put, and consumers get the remaining messages and then `None`.
    /// Returns `true` if it was open.
    ///
    /// # Errors
    /// [`NetError::PeerLost`] if the member that has the queue was lost.
    pub fn close(&self) -> Result<bool, NetError> {
        Ok(self.number(Operation::Close)? != 0)
    }

    /// Returns the number of messages in the queue: a snapshot.
    ///
    /// # Errors
    /// [`NetError::PeerLost`] if the member that has the queue was lost.
    #[doc(alias = "qsize")]
    pub fn len(&self) -> Result<usize, NetError> {
        Ok(self.number(Operation::Len)? as usize)
    }

    /// Returns `true` if the queue has no messages: a snapshot.
    ///
    /// # Errors
    /// [`NetError::PeerLost`] if the member that has the queue was lost.
    pub fn is_empty(&self) -> Result<bool, NetError> {
        Ok(self.len()? == 0)
    }

    /// Blocks until the member that has the queue has recorded which messages this process has received. Call
    /// `flush` or [`Cluster::leave`] before the process ends: otherwise messages that the process has just
    /// received may return to the queue.
    ///
    /// # Errors
    /// [`NetError::PeerLost`] if, since the last flush, that member was lost before it had recorded all
    /// received messages. These messages may have returned to the queue. If several threads flush, only one
    /// of them gets the error. [`Cluster::leave`] does not report it. [`NetError::Interrupted`] if the
    /// process is interrupted while there is no connection.
    pub fn flush(&self) -> Result<(), NetError> {
        self.object.link.flush()
    }

    fn number(&self, operation: Operation) -> Result<u64, NetError> {
        Ok(self.object.done(self.object.link.call(self.call(operation), Wait::Never))?.0.number)
    }
}

fn decode<T: Message>(message: Outgoing) -> Result<T, RemoteGetError> {
    decode_relayed(message).map_err(|error: Error| RemoteGetError::Failed(error.into()))
}

/// Leased message of another member's queue. [`ack`](Self::ack) removes the message from the queue. If the
/// lease is dropped without `ack`, or this process or its host is lost, another consumer gets the message.
pub struct RemoteLease<T> {
    value: T,
    deliveries: u32,
    token: HeldCall,
}

impl<T> RemoteLease<T> {
    /// Acknowledges the message: removes it from the queue and returns its value. Blocks until the member
    /// that has the queue has confirmed this.
    ///
    /// # Errors
    /// [`NetError::PeerLost`] if the member that has the queue was lost, and [`NetError::Home`] if another
    /// consumer has got the message, because the connection was interrupted for longer than lease and grace.
    pub fn ack(self) -> Result<T, NetError> {
        let Self { value, token, .. } = self;
        token.acknowledge("the lease has ended, and the message went to another consumer")?;
        Ok(value)
    }

    /// Returns how many times the message was delivered, including this time.
    pub fn deliveries(&self) -> u32 {
        self.deliveries
    }

    /// Returns the message to the queue, from which any consumer can take it again. Dropping the lease does
    /// the same.
    #[doc(alias("nack", "requeue"))]
    pub fn give_back(self) {}
}

impl<T> Deref for RemoteLease<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: fmt::Debug> fmt::Debug for RemoteLease<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { value, deliveries, .. } = self;
        f.debug_struct("RemoteLease").field("value", value).field("deliveries", deliveries).finish()
    }
}

impl<T: Serialize + DeserializeOwned + 'static> RemoteQueue<T> {
    /// Takes the oldest message, which stays in the queue until it is [acknowledged](RemoteLease::ack): like
    /// [`Queue::get_lease`](mp_queue::Queue::get_lease).
    ///
    /// # Errors
    /// [`RemoteGetError`].
    #[doc(alias("get_ack", "acknowledge"))]
    pub fn get_lease(&self) -> Result<Option<RemoteLease<T>>, RemoteGetError> {
        self.lease_wait(Wait::Forever)
    }

    mp_core::forms! {
        "Takes the oldest message as a [`RemoteLease`]":
        get_lease() -> Result<Option<RemoteLease<T>>, RemoteGetError>, or "[`RemoteGetError::Empty`]";
        |queue, wait| queue.lease_wait(wait);
        never try_get_lease;
        at_most get_lease_timeout;
        until get_lease_deadline;
    }

    /// Takes the oldest message, asynchronously, as a [`RemoteLease`]. Dropping the future loses no message.
    ///
    /// # Errors
    /// [`RemoteGetError`].
    pub async fn get_lease_async(&self) -> Result<Option<RemoteLease<T>>, RemoteGetError> {
        self.leased(self.object.link.call_async(self.call(Operation::Lease), CallValues::None).await)
    }

    fn lease_wait(&self, wait: Wait) -> Result<Option<RemoteLease<T>>, RemoteGetError> {
        self.leased(self.object.link.call(self.call(Operation::Lease), wait))
    }

    fn leased(&self, result: CallResult) -> Result<Option<RemoteLease<T>>, RemoteGetError> {
        let deliveries = result.as_ref().map_or(0, |(reply, _)| reply.number as u32);
        let Some((id, message)) = self.taken(result)? else { return Ok(None) };
        let token = HeldCall { link: self.object.link.clone(), id, is_over: false };
        Ok(Some(RemoteLease { value: decode(message)?, deliveries, token }))
    }
}
