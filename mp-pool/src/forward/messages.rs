//! Requests to a served pool, and its replies.
//!
//! Each message begins with a head, which serde encodes. A function, arguments or a result may follow the
//! head, and are decoded later, where an error can be reported.

use std::time::Duration;

use mp_core::Error;
use mp_core::message::{Codec, Incoming, Message, Outgoing, UnsentValues};
use mp_net::service::RemoteService;
use serde::{Deserialize, Serialize, Serializer};

use crate::child::message::{FunctionMessage, SingleValue, rest};
use crate::child::values::{ReceivedValues, TaskArgs};
use crate::error::TaskError;
use crate::steps::chunk::MOST_ITEMS;

/// Service of a served pool.
pub(crate) type ServedPoolService = RemoteService<ForwardRequest, ForwardReply>;

/// Random numbers of a pool and of one of its forwarders.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub(crate) struct ForwarderId {
    pub(crate) pool: u64,
    pub(crate) forwarder: u64,
}

/// Request to a served pool. `most` is the size of the largest reply in bytes.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Self")]
pub(crate) enum ForwardRequest {
    /// Register a forwarder, until its process ends or its session is lost.
    Begin { from: ForwarderId },
    /// Return the number of workers, if their state is of this kind.
    Size { kind: String },
    /// Store a function.
    Learn {
        pool: u64,
        code: u64,
        #[serde(skip, default = "no_function")]
        runner: FunctionMessage,
    },
    /// Return whether a function is stored.
    Knows { pool: u64, code: u64 },
    /// Forget a function without users.
    Forget { pool: u64, code: u64 },
    /// Run a stored function once for each of the arguments. `chunk` is the number of the chunk in its pool.
    /// `count` is the number of arguments without attachments, or `None` for one task with attachments.
    Run {
        from: ForwarderId,
        chunk: u64,
        code: u64,
        timeout: Option<Duration>,
        most: u64,
        count: Option<usize>,
        #[serde(skip, default = "no_arguments")]
        args: TaskArgs,
    },
    /// Cancel the tasks of these chunks that have not begun. Chunks that have not arrived are cancelled on
    /// arrival. Each pair is the number of a forwarder and of its chunk.
    Cancel { pool: u64, chunks: Vec<(u64, u64)> },
    /// Return the outcomes of a chunk's tasks from `item` on. Earlier outcomes are dropped.
    Rest { from: ForwarderId, chunk: u64, item: usize, most: u64 },
}

/// Placeholder in a request whose function has not been read.
fn no_function() -> FunctionMessage {
    FunctionMessage::Received(Box::default())
}

/// Placeholder in a request whose arguments have not been read.
fn no_arguments() -> TaskArgs {
    TaskArgs::ReceivedSingle(Box::default())
}

/// Serde encoding of a message's head, for sending. A separate type, because a message that implemented
/// `Serialize` would be sent as its head alone.
struct HeadToSend<'m, M>(&'m M);

/// Request after its head was decoded.
#[derive(Deserialize)]
#[serde(transparent)]
struct ReceivedRequest(#[serde(with = "ForwardRequest")] ForwardRequest);

/// Reply after its head was decoded.
#[derive(Deserialize)]
#[serde(transparent)]
struct ReceivedReply(#[serde(with = "ForwardReply")] ForwardReply);

impl Serialize for HeadToSend<'_, ForwardRequest> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        ForwardRequest::serialize(self.0, s)
    }
}

impl Serialize for HeadToSend<'_, ForwardReply> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        ForwardReply::serialize(self.0, s)
    }
}

impl Message for ForwardRequest {
    const READ_LATER: bool = true;

    fn encode<C: Codec>(&mut self, out: &mut Outgoing) -> mp_core::Result<()> {
        C::write(out, &HeadToSend(self))?;
        match self {
            ForwardRequest::Learn { runner, .. } => runner.write::<C>(out),
            ForwardRequest::Run { args, .. } => args.write(out),
            _ => Ok(()),
        }
    }

    fn take_back(&mut self, _: &mut UnsentValues) {}

    fn decode<C: Codec>(inc: &mut Incoming) -> mp_core::Result<Self> {
        let ReceivedRequest(mut request) = C::read(inc)?;
        match &mut request {
            ForwardRequest::Learn { runner, .. } => *runner = FunctionMessage::rest(inc),
            ForwardRequest::Run { count: Some(count), .. } if *count > MOST_ITEMS => {
                return Err(Error::Malformed(format!("a chunk of {count} tasks")));
            }
            ForwardRequest::Run { count: Some(count), args, .. } => {
                *args = TaskArgs::Received(ReceivedValues::new(inc, *count));
            }
            ForwardRequest::Run { count: None, args, .. } => *args = TaskArgs::ReceivedSingle(rest(inc)),
            _ => {}
        }
        Ok(request)
    }
}

/// Outcome of consecutive tasks.
#[derive(Serialize, Deserialize)]
pub(crate) enum ForwardedOutcome {
    /// Results, encoded like a [`ReceivedValues`], and the time for all of them.
    Values { count: usize, nanos: u64, bytes: Vec<u8> },
    /// Result with attachments, which follow the reply.
    Single,
    /// Error of the task.
    Failed(Box<TaskError>),
    /// The task was not begun, because the pool has ended.
    NotBegun,
    /// The task was not begun, because the pool has ended. Its arguments had attachments, and are lost.
    Dropped,
    /// The tasks were cancelled.
    Cancelled { count: usize },
}

/// Reply of a served pool.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Self")]
pub(crate) enum ForwardReply {
    /// Number of workers.
    Size(usize),
    /// Kind of the workers' state, which differs from the requested kind.
    OtherKind(String),
    Done,
    /// The pool has ended.
    Ended,
    /// Another forwarder is sending the function.
    Later,
    /// The function has to be sent. Contains arguments with attachments, if the request had any.
    UnknownFunction(#[serde(with = "presence")] Option<SingleValue>),
    /// The function can't be decoded.
    Unreadable(String),
    /// The chunk has not arrived. Its tasks are not begun when it arrives.
    UnknownChunk,
    /// Outcomes, each with the position of its first task. `single` is the value of the outcome with
    /// attachments. `more` is `true` if other outcomes follow.
    Outcomes {
        outcomes: Vec<(usize, ForwardedOutcome)>,
        #[serde(with = "presence")]
        single: Option<SingleValue>,
        more: bool,
    },
}

/// Encodes an optional value in the head of a reply: `true` if the value follows the head.
mod presence {
    use serde::{Deserialize, Deserializer, Serializer};

    use crate::child::message::SingleValue;

    pub(super) fn serialize<S: Serializer>(value: &Option<SingleValue>, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_bool(value.is_some())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<SingleValue>, D::Error> {
        Ok(bool::deserialize(from)?.then(|| SingleValue::Received(Box::default())))
    }
}

impl ForwardReply {
    /// Returns the value that follows the head of the reply, if any.
    fn single(&mut self) -> Option<&mut SingleValue> {
        match self {
            ForwardReply::UnknownFunction(single) | ForwardReply::Outcomes { single, .. } => single.as_mut(),
            _ => None,
        }
    }
}

impl Message for ForwardReply {
    const READ_LATER: bool = true;

    fn encode<C: Codec>(&mut self, out: &mut Outgoing) -> mp_core::Result<()> {
        C::write(out, &HeadToSend(self))?;
        match self.single() {
            Some(SingleValue::ToSend(value)) => out.append(std::mem::take(value)),
            Some(SingleValue::Received(_)) => {
                Err(Error::Unsendable("it was received, and is not sent again".into()))
            }
            None => Ok(()),
        }
    }

    fn take_back(&mut self, _: &mut UnsentValues) {}

    fn decode<C: Codec>(inc: &mut Incoming) -> mp_core::Result<Self> {
        let ReceivedReply(mut reply) = C::read(inc)?;
        if let Some(single) = reply.single() {
            *single = SingleValue::Received(rest(inc));
        }
        Ok(reply)
    }
}
