//! Requests to a served pool, and its replies.

use std::time::Duration;

use mp_core::Error;
use mp_core::message::{Codec, Incoming, Message, Outgoing, UnsentValues};
use mp_net::service::RemoteService;
use serde::{Deserialize, Serialize};

use crate::child::message::{FunctionMessage, SingleValue, kind, rest, words, write_head};
use crate::child::values::{ReceivedValues, TaskArgs, encode_caught};
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
pub(crate) enum ForwardRequest {
    /// Add a forwarder, which holds a value of the service from then on.
    Begin { from: ForwarderId },
    /// Return the number of workers, if their state is of this kind.
    Size { kind: String },
    /// Store a function.
    Learn { pool: u64, code: u64, runner: FunctionMessage },
    /// Return whether a function is stored.
    Knows { pool: u64, code: u64 },
    /// Forget a function without users.
    Forget { pool: u64, code: u64 },
    /// Run a stored function once for each of the arguments. `chunk` is the number of the chunk in its pool.
    Run { from: ForwarderId, chunk: u64, code: u64, timeout: Option<Duration>, most: u64, args: TaskArgs },
    /// Cancel the tasks of these chunks that have not begun. Chunks that have not arrived are cancelled on
    /// arrival. Each pair is the number of a forwarder and of its chunk.
    Cancel { pool: u64, chunks: Vec<(u64, u64)> },
    /// Return the outcomes of a chunk's tasks from `item` on. Earlier outcomes are dropped.
    Rest { from: ForwarderId, chunk: u64, item: usize, most: u64 },
}

const SIZE: u8 = 0;
const LEARN: u8 = 1;
const FORGET: u8 = 2;
const RUN: u8 = 3;
const RUN_SINGLE: u8 = 4;
const REST: u8 = 5;
const KNOWS: u8 = 6;
const CANCEL: u8 = 7;
const BEGIN: u8 = 8;

/// Number that stands for no time limit.
const NO_LIMIT: u64 = u64::MAX;

fn unknown(kind: u8) -> Error {
    Error::Malformed(format!("a message of kind {kind} for a served pool"))
}

fn not_sent_again() -> Error {
    Error::Unsendable("it was received, and is not sent again".into())
}

impl Message for ForwardRequest {
    const READ_LATER: bool = true;

    fn encode<C: Codec>(&mut self, out: &mut Outgoing) -> mp_core::Result<()> {
        match self {
            ForwardRequest::Begin { from } => write_head(out, BEGIN, [from.pool, from.forwarder]),
            ForwardRequest::Size { kind } => {
                write_head(out, SIZE, []);
                return C::write(out, kind);
            }
            ForwardRequest::Learn { pool, code, runner: FunctionMessage::ToSend(runner) } => {
                write_head(out, LEARN, [*pool, *code]);
                return encode_caught(|| runner.encode::<C>(out));
            }
            ForwardRequest::Learn { .. } => return Err(not_sent_again()),
            ForwardRequest::Knows { pool, code } => write_head(out, KNOWS, [*pool, *code]),
            ForwardRequest::Forget { pool, code } => write_head(out, FORGET, [*pool, *code]),
            ForwardRequest::Run { from, chunk, code, timeout, most, args } => {
                let single = matches!(args, TaskArgs::Single(_));
                let limit = timeout.map_or(NO_LIMIT, |time| {
                    u64::try_from(time.as_nanos()).unwrap_or(NO_LIMIT).min(NO_LIMIT - 1)
                });
                let ForwarderId { pool, forwarder } = *from;
                let kind = if single { RUN_SINGLE } else { RUN };
                write_head(out, kind, [pool, forwarder, *chunk, *code, limit, *most, args.len() as u64]);
                return args.write(out);
            }
            ForwardRequest::Cancel { pool, chunks } => {
                write_head(out, CANCEL, [*pool]);
                return C::write(out, chunks);
            }
            ForwardRequest::Rest { from, chunk, item, most } => {
                write_head(out, REST, [from.pool, from.forwarder, *chunk, *item as u64, *most]);
            }
        }
        Ok(())
    }

    fn take_back(&mut self, _: &mut UnsentValues) {}

    fn decode<C: Codec>(inc: &mut Incoming) -> mp_core::Result<Self> {
        Ok(match kind(inc)? {
            BEGIN => {
                let [pool, forwarder] = words(inc)?;
                ForwardRequest::Begin { from: ForwarderId { pool, forwarder } }
            }
            SIZE => ForwardRequest::Size { kind: C::read(inc)? },
            LEARN => {
                let [pool, code] = words(inc)?;
                ForwardRequest::Learn { pool, code, runner: FunctionMessage::Received(rest(inc)) }
            }
            KNOWS => {
                let [pool, code] = words(inc)?;
                ForwardRequest::Knows { pool, code }
            }
            FORGET => {
                let [pool, code] = words(inc)?;
                ForwardRequest::Forget { pool, code }
            }
            kind @ (RUN | RUN_SINGLE) => {
                let [pool, forwarder, chunk, code, limit, most, count] = words(inc)?;
                if count > MOST_ITEMS as u64 {
                    return Err(Error::Malformed(format!("a chunk of {count} tasks")));
                }
                let args = if kind == RUN {
                    TaskArgs::Received(ReceivedValues::new(inc, count as usize))
                } else {
                    TaskArgs::ReceivedSingle(rest(inc))
                };
                let timeout = (limit != NO_LIMIT).then(|| Duration::from_nanos(limit));
                let from = ForwarderId { pool, forwarder };
                ForwardRequest::Run { from, chunk, code, timeout, most, args }
            }
            CANCEL => {
                let [pool] = words(inc)?;
                ForwardRequest::Cancel { pool, chunks: C::read(inc)? }
            }
            REST => {
                let [pool, forwarder, chunk, item, most] = words(inc)?;
                let (from, item) = (ForwarderId { pool, forwarder }, item as usize);
                ForwardRequest::Rest { from, chunk, item, most }
            }
            other => return Err(unknown(other)),
        })
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
pub(crate) enum ForwardReply {
    /// Number of workers.
    Size(usize),
    /// The workers have a state of this kind, which is not the requested one.
    OtherKind(String),
    Done,
    /// The pool has ended.
    Ended,
    /// Another forwarder is sending the function.
    Later,
    /// The function has to be sent. Contains arguments with attachments, if the request had any.
    UnknownFunction(Option<SingleValue>),
    /// The function can't be decoded.
    Unreadable(String),
    /// The chunk has not arrived. Its tasks are not begun when it arrives.
    UnknownChunk,
    /// Outcomes, each with the position of its first task. `single` is the value of the outcome with
    /// attachments. `more` is `true` if other outcomes follow.
    Outcomes {
        outcomes: Vec<(usize, ForwardedOutcome)>,
        single: Option<SingleValue>,
        more: bool,
    },
}

const DONE: u8 = 1;
const UNKNOWN: u8 = 2;
const UNREADABLE: u8 = 3;
const OUTCOMES: u8 = 4;
const OTHER_KIND: u8 = 5;
const ENDED: u8 = 6;
const LATER: u8 = 7;
const UNKNOWN_CHUNK: u8 = 8;

fn write_single(value: &mut Option<SingleValue>, out: &mut Outgoing) -> mp_core::Result<()> {
    match value {
        Some(SingleValue::ToSend(value)) => out.append(std::mem::take(value)),
        Some(SingleValue::Received(_)) => Err(not_sent_again()),
        None => Ok(()),
    }
}

impl Message for ForwardReply {
    const READ_LATER: bool = true;

    fn encode<C: Codec>(&mut self, out: &mut Outgoing) -> mp_core::Result<()> {
        let unreadable = matches!(self, ForwardReply::Unreadable(_));
        match self {
            ForwardReply::Size(workers) => write_head(out, SIZE, [*workers as u64]),
            ForwardReply::Done => write_head(out, DONE, []),
            ForwardReply::Ended => write_head(out, ENDED, []),
            ForwardReply::Later => write_head(out, LATER, []),
            ForwardReply::UnknownChunk => write_head(out, UNKNOWN_CHUNK, []),
            ForwardReply::UnknownFunction(back) => {
                write_head(out, UNKNOWN, [u64::from(back.is_some())]);
                return write_single(back, out);
            }
            ForwardReply::Unreadable(text) | ForwardReply::OtherKind(text) => {
                let kind = if unreadable { UNREADABLE } else { OTHER_KIND };
                write_head(out, kind, []);
                return C::write(out, text);
            }
            ForwardReply::Outcomes { outcomes, single, more } => {
                write_head(out, OUTCOMES, [u64::from(*more)]);
                C::write(out, outcomes)?;
                return write_single(single, out);
            }
        }
        Ok(())
    }

    fn take_back(&mut self, _: &mut UnsentValues) {}

    fn decode<C: Codec>(inc: &mut Incoming) -> mp_core::Result<Self> {
        Ok(match kind(inc)? {
            SIZE => {
                let [workers] = words(inc)?;
                ForwardReply::Size(workers as usize)
            }
            DONE => ForwardReply::Done,
            ENDED => ForwardReply::Ended,
            LATER => ForwardReply::Later,
            UNKNOWN_CHUNK => ForwardReply::UnknownChunk,
            UNKNOWN => {
                let [back] = words(inc)?;
                ForwardReply::UnknownFunction((back != 0).then(|| SingleValue::Received(rest(inc))))
            }
            UNREADABLE => ForwardReply::Unreadable(C::read(inc)?),
            OTHER_KIND => ForwardReply::OtherKind(C::read(inc)?),
            OUTCOMES => {
                let [more] = words(inc)?;
                let outcomes = C::read::<Vec<(usize, ForwardedOutcome)>>(inc)?;
                let has_single =
                    outcomes.iter().any(|(_, outcome)| matches!(outcome, ForwardedOutcome::Single));
                let single = has_single.then(|| SingleValue::Received(rest(inc)));
                ForwardReply::Outcomes { outcomes, single, more: more != 0 }
            }
            other => return Err(unknown(other)),
        })
    }
}
