//! Messages between the pool and its workers.
//!
//! Each worker has its own queue, from which it takes one [`WorkerRequest`] at a time. All workers send their
//! [`PoolReply`]s to one queue. Arguments and results are encoded where their types are known, and remain
//! bytes and attachments until they reach code that knows the types again. Until then, no user code runs.
//!
//! Values without attachments travel [together in one message](crate::child::values). A value with
//! attachments (tensors, queues) travels alone.
//!
//! A function is sent to a worker once, as a [`Closure`] that creates the [`Runner`]. After that it is
//! identified by a number.
//!
//! Each message begins with its kind, one byte, and unencoded numbers ([`write_head`]). Most messages contain
//! no other data to encode.

use std::time::Duration;

use mp_core::Error;
use mp_core::message::{Codec, Incoming, Message, Outgoing, Undecodable, UnsentValues};
use mp_spawn::{CallFailure, LazyClosure};

use crate::child::runner::Runner;
use crate::child::task_span::FirstTask;
use crate::child::values::{PackedValues, ReceivedValues, TaskArgs};
use crate::error::TaskError;

/// Writes the kind of a message, and unencoded numbers.
fn write_head<const N: usize>(out: &mut Outgoing, kind: u8, words: [u64; N]) {
    out.bytes().push(kind);
    write_words(out, words);
}

fn write_words<const N: usize>(out: &mut Outgoing, words: [u64; N]) {
    words.iter().for_each(|word| out.bytes().extend_from_slice(&word.to_le_bytes()));
}

/// Reads the kind of a message.
fn kind(inc: &mut Incoming) -> mp_core::Result<u8> {
    let kind = *inc.rest().first().ok_or_else(too_short)?;
    inc.advance(1);
    Ok(kind)
}

/// Reads unencoded numbers.
fn words<const N: usize>(inc: &mut Incoming) -> mp_core::Result<[u64; N]> {
    let (words, _) = inc.rest().as_chunks::<8>();
    let words = words.first_chunk::<N>().ok_or_else(too_short)?.map(u64::from_le_bytes);
    inc.advance(8 * N);
    Ok(words)
}

#[cold]
fn too_short() -> Error {
    Error::Malformed("a message of a pool is too short".into())
}

#[cold]
fn not_sent_again() -> Error {
    Error::Unsendable("it was received, and is not sent again".into())
}

/// Returns the rest of a message, to be decoded later.
pub(crate) fn rest(inc: &mut Incoming) -> Box<Incoming> {
    Box::new(std::mem::take(inc))
}

/// Request to a worker.
pub(crate) enum WorkerRequest {
    /// Run a known function once for each of the arguments. If there is a time limit, the worker publishes
    /// the start of each task.
    Run { id: u64, code: u64, timeout: Option<Duration>, first: FirstTask, args: TaskArgs },
    /// Learn a function under this number. Decoding its captures is user code, and may fail.
    Learn { code: u64, runner: FunctionMessage },
    /// Forget a function that has no users.
    Forget { code: u64 },
}

/// Function number that is never assigned. [`WorkerRequest::Forget`] with this number asks a worker to end
/// after the tasks that it already has.
pub(crate) const LEAVE: u64 = u64::MAX;

/// Function in a message: to be sent, or received.
pub(crate) type FunctionMessage = LazyClosure<Runner>;

/// Decodes a received function. If decoding fails, returns the reason.
pub(crate) fn read_function(mut function: FunctionMessage) -> Result<Runner, FunctionReadError> {
    if let LazyClosure::Received(inc) = &mut function
        && let Err(error) = inc.claim()
    {
        return Err(FunctionReadError::NoDescriptors(function, error.to_string()));
    }
    let made = CallFailure::catch(|| function.read().map(|closure| closure.call(())));
    let made = made.unwrap_or_else(|raise| Err(raise.message().to_string()));
    made.map_err(FunctionReadError::Invalid)
}

/// Reason why a function can't be decoded.
pub(crate) enum FunctionReadError {
    Invalid(String),
    /// No free descriptors. Contains the function for another attempt.
    NoDescriptors(FunctionMessage, String),
}

const RUN: u8 = 0;
const RUN_TIMED: u8 = 1;
const LEARN: u8 = 2;
const FORGET: u8 = 3;
const SINGLE: u8 = 4;
const SINGLE_TIMED: u8 = 5;

impl Message for WorkerRequest {
    // Decoded later, by the runner of the function.
    const READ_LATER: bool = true;

    fn encode<C: Codec>(&mut self, out: &mut Outgoing) -> mp_core::Result<()> {
        match self {
            WorkerRequest::Run { id, code, timeout, first, args } => {
                let kind = match (&args, timeout.is_some()) {
                    (TaskArgs::Single(_), false) => SINGLE,
                    (TaskArgs::Single(_), true) => SINGLE_TIMED,
                    (_, false) => RUN,
                    (_, true) => RUN_TIMED,
                };
                write_head(out, kind, [*id, *code, args.len() as u64]);
                if let Some(timeout) = timeout {
                    write_words(out, [u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX)]);
                }
                first.write(out);
                args.write(out)
            }
            WorkerRequest::Learn { code, runner } => {
                write_head(out, LEARN, [0, *code, 0]);
                runner.write::<C>(out)
            }
            WorkerRequest::Forget { code } => {
                write_head(out, FORGET, [0, *code, 0]);
                Ok(())
            }
        }
    }

    fn take_back(&mut self, back: &mut UnsentValues) {
        if let WorkerRequest::Learn { runner: FunctionMessage::ToSend(runner), .. } = self {
            Message::take_back(runner, back);
        }
    }

    fn decode<C: Codec>(inc: &mut Incoming) -> mp_core::Result<Self> {
        let kind = kind(inc)?;
        let [id, code, count] = words(inc)?;
        match kind {
            RUN | RUN_TIMED | SINGLE | SINGLE_TIMED => {
                let timeout = match kind {
                    RUN_TIMED | SINGLE_TIMED => {
                        let [nanos] = words(inc)?;
                        Some(Duration::from_nanos(nanos))
                    }
                    _ => None,
                };
                let first = FirstTask::read(inc)?;
                let args = match kind {
                    RUN | RUN_TIMED => TaskArgs::Received(ReceivedValues::new(inc, count as usize)),
                    _ => TaskArgs::ReceivedSingle(rest(inc)),
                };
                Ok(WorkerRequest::Run { id, code, timeout, first, args })
            }
            LEARN => Ok(WorkerRequest::Learn { code, runner: FunctionMessage::rest(inc) }),
            FORGET => Ok(WorkerRequest::Forget { code }),
            other => Err(Error::Malformed(format!("a task of kind {other}"))),
        }
    }
}

/// Result with attachments, which travels alone.
pub(crate) enum SingleValue {
    ToSend(Outgoing),
    Received(Box<Incoming>),
}

/// Results that travel together.
pub(crate) enum ManyValues {
    ToSend(PackedValues),
    Received(ReceivedValues),
}

/// Reply of a worker.
pub(crate) enum PoolReply {
    /// The worker is initialized, and accepts tasks.
    Ready { worker: usize, pid: u32 },
    /// A task that used the state has panicked. The worker creates a new state, and accepts no tasks until it
    /// is [`Ready`](Self::Ready).
    StateReset { worker: usize },
    /// The worker has learnt or forgotten this function.
    FunctionChanged { worker: usize, code: u64 },
    /// Outcome of the task `item` of the chunk `id`, or of consecutive tasks from `item` on.
    Outcome { worker: usize, id: u64, item: usize, outcome: TaskReply },
    /// Sent by this process to itself, to wake the pool's thread.
    Wake,
}

/// Outcome of one or more tasks, as sent by their worker.
pub(crate) enum TaskReply {
    /// Results of consecutive tasks, and the time for all of them.
    Results { nanos: u64, values: ManyValues },
    /// Result of a task.
    Done(SingleValue),
    /// The function of a task failed. Contains its last note, or 0.
    Raised { note: u64, raise: Box<CallFailure> },
    /// The arguments could not be decoded. Contains path and reason.
    Undecodable(Box<Undecodable>),
    /// The worker has too few free descriptors to receive the descriptors in the arguments. The reply
    /// contains the unread arguments and the fingerprint of their type.
    Unread { fingerprint: u64, why: String, arguments: SingleValue },
    /// The worker could not encode the result (`result` is `true`), or could not decode the function or the
    /// arguments (`result` is `false`).
    Unsendable { result: bool, why: String },
    /// Error of a task that ran in another pool.
    Failed(Box<TaskError>),
    /// Tasks that the sender of the reply has not begun and will not begin. Contains the arguments of a
    /// single task if they have attachments.
    Returned { count: usize, arguments: Option<SingleValue> },
}

const READY: u8 = 0;
const DONE: u8 = 1;
const RAISED: u8 = 2;
const ARGUMENTS: u8 = 3;
const VALUE: u8 = 4;
const WAKE: u8 = 5;
const FUNCTION_CHANGED: u8 = 6;
const RESULTS: u8 = 7;
const STATE_RESET: u8 = 8;
const UNDECODABLE: u8 = 9;
const UNREAD: u8 = 10;
const FAILED: u8 = 11;
const RETURNED: u8 = 12;

impl PoolReply {
    /// For outcomes of tasks: returns the worker, and the duration in nanoseconds if the reply contains it.
    pub(crate) fn duration(&self) -> Option<(usize, Option<u64>)> {
        match self {
            PoolReply::Outcome { worker, outcome: TaskReply::Results { nanos, .. }, .. } => {
                Some((*worker, Some(*nanos)))
            }
            PoolReply::Outcome { worker, .. } => Some((*worker, None)),
            _ => None,
        }
    }

    /// Returns the kind of the reply, its worker, and two more numbers.
    fn head(&self) -> (u8, [u64; 3]) {
        let (kind, worker, id, item) = match self {
            PoolReply::Ready { worker, pid } => (READY, worker, u64::from(*pid), &0),
            PoolReply::StateReset { worker } => (STATE_RESET, worker, 0, &0),
            PoolReply::FunctionChanged { worker, code } => (FUNCTION_CHANGED, worker, *code, &0),
            PoolReply::Outcome { worker, id, item, outcome } => (outcome.kind(), worker, *id, item),
            PoolReply::Wake => (WAKE, &0, 0, &0),
        };
        (kind, [*worker as u64, id, *item as u64])
    }
}

impl TaskReply {
    fn kind(&self) -> u8 {
        match self {
            TaskReply::Results { .. } => RESULTS,
            TaskReply::Done(_) => DONE,
            TaskReply::Raised { .. } => RAISED,
            TaskReply::Undecodable(_) => UNDECODABLE,
            TaskReply::Unread { .. } => UNREAD,
            TaskReply::Unsendable { result: true, .. } => VALUE,
            TaskReply::Unsendable { result: false, .. } => ARGUMENTS,
            TaskReply::Failed(_) => FAILED,
            TaskReply::Returned { .. } => RETURNED,
        }
    }

    fn encode<C: Codec>(&mut self, out: &mut Outgoing) -> mp_core::Result<()> {
        match self {
            TaskReply::Results { nanos, values: ManyValues::ToSend(plain) } => {
                write_words(out, [*nanos, plain.ends.len() as u64]);
                plain.ends.write(0..plain.ends.len(), &plain.bytes, out);
                Ok(())
            }
            TaskReply::Done(SingleValue::ToSend(value)) => out.append(std::mem::take(value)),
            TaskReply::Raised { note, raise } => {
                write_words(out, [*note]);
                C::write(out, raise)
            }
            TaskReply::Undecodable(arguments) => {
                C::write(out, &arguments.to_parts())?;
                out.bytes().extend_from_slice(arguments.bytes());
                Ok(())
            }
            TaskReply::Unread { fingerprint, why, arguments: SingleValue::ToSend(arguments) } => {
                write_words(out, [*fingerprint, why.len() as u64]);
                out.bytes().extend_from_slice(why.as_bytes());
                out.append(std::mem::take(arguments))
            }
            TaskReply::Unsendable { why, .. } => C::write(out, why),
            TaskReply::Failed(error) => C::write(out, error),
            TaskReply::Returned { count, arguments } => {
                write_words(out, [*count as u64, u64::from(arguments.is_some())]);
                match arguments {
                    Some(SingleValue::ToSend(arguments)) => out.append(std::mem::take(arguments)),
                    Some(SingleValue::Received(_)) => Err(not_sent_again()),
                    None => Ok(()),
                }
            }
            TaskReply::Results { .. } | TaskReply::Done(_) | TaskReply::Unread { .. } => {
                Err(not_sent_again())
            }
        }
    }

    fn decode<C: Codec>(kind: u8, inc: &mut Incoming) -> mp_core::Result<Self> {
        Ok(match kind {
            RESULTS => {
                let [nanos, count] = words(inc)?;
                let values = ManyValues::Received(ReceivedValues::new(inc, count as usize));
                TaskReply::Results { nanos, values }
            }
            DONE => TaskReply::Done(SingleValue::Received(rest(inc))),
            RAISED => {
                let [note] = words(inc)?;
                TaskReply::Raised { note, raise: C::read(inc)? }
            }
            UNDECODABLE => {
                let parts = C::read::<[String; 3]>(inc)?;
                TaskReply::Undecodable(Box::new(Undecodable::from_parts(parts, inc.rest().to_vec())))
            }
            UNREAD => {
                let [fingerprint, len] = words(inc)?;
                let len = usize::try_from(len).map_err(|_| too_short())?;
                let why = String::from_utf8_lossy(inc.rest().get(..len).ok_or_else(too_short)?).into_owned();
                inc.advance(len);
                TaskReply::Unread { fingerprint, why, arguments: SingleValue::Received(rest(inc)) }
            }
            FAILED => TaskReply::Failed(C::read(inc)?),
            RETURNED => {
                let [count, has] = words(inc)?;
                let arguments = (has != 0).then(|| SingleValue::Received(rest(inc)));
                TaskReply::Returned { count: count as usize, arguments }
            }
            ARGUMENTS | VALUE => TaskReply::Unsendable { result: kind == VALUE, why: C::read(inc)? },
            other => return Err(Error::Malformed(format!("a reply of kind {other}"))),
        })
    }
}

impl Message for PoolReply {
    // Decoded later, by the call.
    const READ_LATER: bool = true;

    fn encode<C: Codec>(&mut self, out: &mut Outgoing) -> mp_core::Result<()> {
        if matches!(self, PoolReply::Wake) {
            // Small enough that its message needs no memory of its own.
            write_head(out, WAKE, []);
            return Ok(());
        }
        let (kind, words) = self.head();
        write_head(out, kind, words);
        if let PoolReply::Outcome { outcome, .. } = self { outcome.encode::<C>(out) } else { Ok(()) }
    }

    fn take_back(&mut self, _: &mut UnsentValues) {}

    fn decode<C: Codec>(inc: &mut Incoming) -> mp_core::Result<Self> {
        let kind = kind(inc)?;
        if kind == WAKE {
            return Ok(PoolReply::Wake);
        }
        let [worker, id, item] = words(inc)?;
        let (worker, item) = (worker as usize, item as usize);
        match kind {
            READY => Ok(PoolReply::Ready { worker, pid: id as u32 }),
            STATE_RESET => Ok(PoolReply::StateReset { worker }),
            FUNCTION_CHANGED => Ok(PoolReply::FunctionChanged { worker, code: id }),
            kind => Ok(PoolReply::Outcome { worker, id, item, outcome: TaskReply::decode::<C>(kind, inc)? }),
        }
    }
}
