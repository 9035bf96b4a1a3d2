//! What the pool and its workers say to each other.
//!
//! Each worker has a queue of its own, from which it takes one [`Task`] at a time; all put their [`Reply`]s into one. Arguments
//! and results are encoded with their types where those are known, and stay bytes and attachments until they are where those
//! are known again: in between no code of the user runs.
//!
//! Values without attachments travel many in one message ([`Many`]), each with the place where it ends, so that one that can't
//! be read spoils no other. A value with attachments (tensors, queues) travels alone.
//!
//! A function is sent to a worker once, as a [`Closure`] that makes the [`Runner`]; after that it is a number.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use mp_core::Error;
use mp_core::message::level::afresh;
use mp_core::message::{Codec, Incoming, IntoOutcome, Message, Outgoing, Returned, Undecodable};
use mp_core::user_code::drop_caught;
use mp_reduce::MessagePack;
use mp_spawn::{Closure, Lent, Raise, StateClosure};

use crate::clock::TaskClock;
use crate::held::Held;

/// Values that were encoded one after the other, with nothing attached to any.
#[derive(Default, Debug)]
pub(crate) struct Plain {
    /// Where each ends in `bytes`.
    pub(crate) ends: Vec<u32>,
    pub(crate) bytes: Vec<u8>,
}

impl Plain {
    /// Where value `i` is.
    fn range(&self, i: usize) -> Range<usize> {
        let start = i.checked_sub(1).map_or(0, |before| self.ends[before] as usize);
        start..self.ends[i] as usize
    }
}

/// Some values of them.
#[derive(Clone, Debug)]
pub(crate) struct Slice {
    pub(crate) plain: Arc<Plain>,
    pub(crate) items: Range<usize>,
}

impl Slice {
    pub(crate) fn of(plain: Plain) -> Slice {
        let items = 0..plain.ends.len();
        Slice { plain: Arc::new(plain), items }
    }

    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    /// Those from `from` to `to`, as numbered in here.
    pub(crate) fn part(&self, from: usize, to: usize) -> Slice {
        let first = self.items.start;
        Slice { plain: Arc::clone(&self.plain), items: first + from..first + to }
    }

    fn write(&self, out: &mut Outgoing) {
        let Range { start, end } = self.items.clone();
        let Some(last) = end.checked_sub(1).filter(|last| *last >= start) else { return };
        let bytes = self.plain.range(start).start..self.plain.range(last).end;
        write_many(out, &self.plain.ends[start..end], bytes.start as u32, &self.plain.bytes[bytes]);
    }
}

/// Writes values as [`Many`] reads them: where each ends, counted from `start`, and all of them.
fn write_many(out: &mut Outgoing, ends: &[u32], start: u32, bytes: &[u8]) {
    let to = out.bytes();
    to.reserve(4 * ends.len() + bytes.len());
    ends.iter().for_each(|end| to.extend_from_slice(&(end - start).to_le_bytes()));
    to.extend_from_slice(bytes);
}

/// Values that were received, `count` of them in one message.
#[derive(Debug)]
pub(crate) struct Many {
    inc: Box<Incoming>,
    pub(crate) count: usize,
}

impl Many {
    /// Of what a dead worker has left.
    pub(crate) fn found(ends: &[u32], bytes: &[u8]) -> Many {
        let mut out = Outgoing::default();
        write_many(&mut out, ends, 0, bytes);
        let bytes = std::mem::take(out.bytes());
        Many { inc: Box::new(Incoming::from_plain(bytes)), count: ends.len() }
    }

    /// Value `i`; `None` if it is not there, or the message is none of ours.
    #[inline]
    pub(crate) fn get(&self, i: usize) -> Option<&[u8]> {
        self.all().get(i)
    }

    /// All of them, to be read one after the other.
    #[inline]
    pub(crate) fn all(&self) -> AllOf<'_> {
        let parts = self.inc.rest().split_at_checked(self.count.saturating_mul(4));
        let (ends, bytes) = parts.unwrap_or_default();
        AllOf { ends: ends.as_chunks().0, bytes }
    }
}

/// Values of one message.
#[derive(Clone, Copy)]
pub(crate) struct AllOf<'a> {
    ends: &'a [[u8; 4]],
    bytes: &'a [u8],
}

impl<'a> AllOf<'a> {
    /// Value `i`; `None` if it is not there, or the message is none of ours.
    #[inline]
    pub(crate) fn get(self, i: usize) -> Option<&'a [u8]> {
        let end = |i: usize| self.ends.get(i).map(|end| u32::from_le_bytes(*end) as usize);
        let start = if i == 0 { 0 } else { end(i - 1)? };
        self.bytes.get(start..end(i)?)
    }
}

/// The arguments of one task or of many.
#[derive(Debug)]
pub(crate) enum Args {
    /// To be sent: of a call, nothing attached.
    Plain(Slice),
    /// To be sent: of one task.
    Alone(Outgoing),
    /// Received.
    Many(Many),
    /// Received, of one task.
    One(Box<Incoming>),
}

impl Args {
    fn write(&mut self, out: &mut Outgoing) -> mp_core::Result<()> {
        match self {
            Args::Plain(slice) => {
                slice.write(out);
                Ok(())
            }
            Args::Alone(alone) => out.append(std::mem::take(alone)),
            Args::Many(_) | Args::One(_) => {
                Err(Error::Unsendable("it was received, and is not sent again".into()))
            }
        }
    }

    /// Of how many tasks.
    pub(crate) fn len(&self) -> usize {
        match self {
            Args::Plain(slice) => slice.len(),
            Args::Many(many) => many.count,
            Args::Alone(_) | Args::One(_) => 1,
        }
    }
}

/// What is left of a message, to be read later.
fn rest(inc: &mut Incoming) -> Box<Incoming> {
    Box::new(std::mem::take(inc))
}

/// What a worker is to do.
pub(crate) enum Task {
    /// To run a function that it has learnt, once for each of the arguments. `timed`: it is to say when it begins.
    Run { id: u64, code: u64, timed: bool, args: Args },
    /// From now on this function has this number. What it captures is the user's to read, and may fail.
    Learn { code: u64, runner: Sent },
    /// This function has no user any more.
    Forget { code: u64 },
}

/// A function on its way.
pub(crate) enum Sent {
    Out(Closure<(), Runner>),
    In(Box<Incoming>),
}

impl Sent {
    /// The one that was sent as a closure; or why it can't be read.
    pub(crate) fn read(self) -> Result<Runner, String> {
        let mut inc = match self {
            Sent::In(inc) => inc,
            Sent::Out(_) => return Err("it is not there".into()),
        };
        let read = || Closure::<(), Runner>::decode::<MessagePack>(&mut inc).map(|closure| closure.call(()));
        match Raise::catch(read) {
            Ok(read) => read.map_err(|error| error.to_string()),
            Err(raise) => Err(raise.message().to_string()),
        }
    }
}

const RUN: u8 = 0;
const RUN_TIMED: u8 = 1;
const LEARN: u8 = 2;
const FORGET: u8 = 3;
const ALONE: u8 = 4;
const ALONE_TIMED: u8 = 5;

impl Message for Task {
    fn encode<C: Codec>(&mut self, out: &mut Outgoing) -> mp_core::Result<()> {
        match self {
            Task::Run { id, code, timed, args } => {
                let kind = match (&args, *timed) {
                    (Args::Alone(_), false) => ALONE,
                    (Args::Alone(_), true) => ALONE_TIMED,
                    (_, false) => RUN,
                    (_, true) => RUN_TIMED,
                };
                C::write(out, &(kind, *id, *code, args.len()))?;
                args.write(out)
            }
            Task::Learn { code, runner: Sent::Out(runner) } => {
                C::write(out, &(LEARN, 0_u64, *code, 0_usize))?;
                // Code of the user runs in here.
                Raise::catch(|| runner.encode::<C>(out)).unwrap_or_else(|raise| {
                    Err(Error::Unsendable(format!("its `Serialize` panicked: {}", raise.message())))
                })
            }
            Task::Learn { .. } => Err(Error::Unsendable("it was received, and is not sent again".into())),
            Task::Forget { code } => C::write(out, &(FORGET, 0_u64, *code, 0_usize)),
        }
    }

    fn take_back(&mut self, back: &mut Returned) {
        if let Task::Learn { runner: Sent::Out(runner), .. } = self {
            Message::take_back(runner, back);
        }
    }

    fn decode<C: Codec>(inc: &mut Incoming) -> mp_core::Result<Self> {
        let (kind, id, code, count) = C::read::<(u8, u64, u64, usize)>(inc)?;
        match kind {
            RUN | RUN_TIMED => {
                let args = Args::Many(Many { inc: rest(inc), count });
                Ok(Task::Run { id, code, timed: kind == RUN_TIMED, args })
            }
            ALONE | ALONE_TIMED => {
                Ok(Task::Run { id, code, timed: kind == ALONE_TIMED, args: Args::One(rest(inc)) })
            }
            LEARN => Ok(Task::Learn { code, runner: Sent::In(rest(inc)) }),
            FORGET => Ok(Task::Forget { code }),
            other => Err(Error::Malformed(format!("a task of kind {other}"))),
        }
    }
}

/// A result that travels alone.
pub(crate) enum Value {
    Out(Outgoing),
    In(Box<Incoming>),
}

/// Results that travel together.
pub(crate) enum Values {
    Out(Plain),
    In(Many),
}

/// What a worker says. `id` is the chunk, `item` the task in it.
pub(crate) enum Reply {
    /// It has been initialised, and takes tasks.
    Ready { worker: usize, pid: u32 },
    /// A task has panicked that had its state, which it makes anew: it takes no tasks until it is [`Ready`](Self::Ready).
    Remaking { worker: usize },
    /// It has learnt, or forgotten, this function.
    Noted { worker: usize, code: u64 },
    /// Tasks from `item` on are done; these are their results, and the time that all took.
    Part { worker: usize, id: u64, item: usize, nanos: u64, values: Values },
    /// A task is done; this is its result.
    Done { worker: usize, id: u64, item: usize, value: Value },
    /// The function of a task failed.
    Raised { worker: usize, id: u64, item: usize, raise: Box<Raise> },
    /// The arguments could not be read: where, and why.
    Undecodable { worker: usize, id: u64, item: usize, arguments: Box<Undecodable> },
    /// There is nothing that could read the arguments (`false`), or the result could not be written.
    Unsendable { worker: usize, id: u64, item: usize, result: bool, why: String },
    /// From this process to itself: there is something else to look at.
    Wake,
}

const READY: u8 = 0;
const DONE: u8 = 1;
const RAISED: u8 = 2;
const ARGUMENTS: u8 = 3;
const VALUE: u8 = 4;
const WAKE: u8 = 5;
const NOTED: u8 = 6;
const PART: u8 = 7;
const REMAKING: u8 = 8;
const UNDECODABLE: u8 = 9;

impl Reply {
    /// Which worker says here what came of tasks, and how long they took, in nanoseconds, if it says that.
    pub(crate) fn ran(&self) -> Option<(usize, Option<u64>)> {
        match self {
            Reply::Part { worker, nanos, .. } => Some((*worker, Some(*nanos))),
            Reply::Done { worker, .. }
            | Reply::Raised { worker, .. }
            | Reply::Undecodable { worker, .. }
            | Reply::Unsendable { worker, .. } => Some((*worker, None)),
            Reply::Ready { .. } | Reply::Remaking { .. } | Reply::Noted { .. } | Reply::Wake => None,
        }
    }
}

impl Message for Reply {
    fn encode<C: Codec>(&mut self, out: &mut Outgoing) -> mp_core::Result<()> {
        match self {
            Reply::Ready { worker, pid } => C::write(out, &(READY, *worker, u64::from(*pid), 0_usize)),
            Reply::Remaking { worker } => C::write(out, &(REMAKING, *worker, 0_u64, 0_usize)),
            Reply::Noted { worker, code } => C::write(out, &(NOTED, *worker, *code, 0_usize)),
            Reply::Part { worker, id, item, nanos, values: Values::Out(plain) } => {
                C::write(out, &(PART, *worker, *id, *item))?;
                C::write(out, &(*nanos, plain.ends.len()))?;
                write_many(out, &plain.ends, 0, &plain.bytes);
                Ok(())
            }
            Reply::Done { worker, id, item, value: Value::Out(value) } => {
                C::write(out, &(DONE, *worker, *id, *item))?;
                out.append(std::mem::take(value))
            }
            Reply::Raised { worker, id, item, raise } => {
                C::write(out, &(RAISED, *worker, *id, *item))?;
                C::write(out, raise)
            }
            Reply::Undecodable { worker, id, item, arguments } => {
                C::write(out, &(UNDECODABLE, *worker, *id, *item))?;
                C::write(out, &arguments.to_parts())?;
                out.bytes().extend_from_slice(arguments.bytes());
                Ok(())
            }
            Reply::Unsendable { worker, id, item, result, why } => {
                C::write(out, &(if *result { VALUE } else { ARGUMENTS }, *worker, *id, *item))?;
                C::write(out, why)
            }
            Reply::Wake => C::write(out, &(WAKE, 0_usize, 0_u64, 0_usize)),
            Reply::Part { .. } | Reply::Done { .. } => {
                Err(Error::Unsendable("it was received, and is not sent again".into()))
            }
        }
    }

    fn take_back(&mut self, _: &mut Returned) {}

    fn decode<C: Codec>(inc: &mut Incoming) -> mp_core::Result<Self> {
        let (kind, worker, id, item) = C::read::<(u8, usize, u64, usize)>(inc)?;
        match kind {
            READY => Ok(Reply::Ready { worker, pid: id as u32 }),
            REMAKING => Ok(Reply::Remaking { worker }),
            NOTED => Ok(Reply::Noted { worker, code: id }),
            PART => {
                let (nanos, count) = C::read::<(u64, usize)>(inc)?;
                Ok(Reply::Part {
                    worker,
                    id,
                    item,
                    nanos,
                    values: Values::In(Many { inc: rest(inc), count }),
                })
            }
            DONE => Ok(Reply::Done { worker, id, item, value: Value::In(rest(inc)) }),
            RAISED => Ok(Reply::Raised { worker, id, item, raise: C::read(inc)? }),
            UNDECODABLE => {
                let parts = C::read::<[String; 3]>(inc)?;
                let arguments = Box::new(Undecodable::from_parts(parts, inc.rest().to_vec()));
                Ok(Reply::Undecodable { worker, id, item, arguments })
            }
            ARGUMENTS | VALUE => {
                Ok(Reply::Unsendable { worker, id, item, result: kind == VALUE, why: C::read(inc)? })
            }
            WAKE => Ok(Reply::Wake),
            other => Err(Error::Malformed(format!("a reply of kind {other}"))),
        }
    }
}

/// How a task went in its worker.
pub(crate) enum Ran {
    /// Its result is written.
    Done,
    Raised(Box<Raise>),
    /// Its arguments could not be read.
    Undecodable(Box<Undecodable>),
    /// Nothing could read its arguments.
    Unreadable(String),
    Unsendable(String),
}

type One = dyn Fn(&mut Held, Incoming, &mut Outgoing) -> Ran;
type OfMany = dyn Fn(&mut Held, &[u8], &mut Outgoing) -> Ran;

/// Runs tasks with one function: knows its types.
pub(crate) struct Runner {
    one: Box<One>,
    of_many: Box<OfMany>,
}

impl fmt::Debug for Runner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Runner")
    }
}

impl Runner {
    pub(crate) fn new<A: Message, R: IntoOutcome>(function: impl Fn(A) -> R + 'static) -> Runner {
        let function = Arc::new(function);
        let again = Arc::clone(&function);
        Runner {
            one: Box::new(move |_, inc, out| run(&*function, || alone(inc), out)),
            of_many: Box::new(move |_, bytes, out| run(&*again, || plain(bytes), out)),
        }
    }

    /// Of a function that gets the worker's state.
    pub(crate) fn with_state<S: 'static, A: Message, R: IntoOutcome>(
        function: impl Fn(&mut S, A) -> R + Copy + 'static,
    ) -> Runner {
        Runner {
            one: Box::new(move |held, inc, out| with_state(held, function, || alone(inc), out)),
            of_many: Box::new(move |held, bytes, out| with_state(held, function, || plain(bytes), out)),
        }
    }

    /// Of a closure that gets the worker's state.
    pub(crate) fn with_lent<S: 'static, A: Message, R: IntoOutcome>(
        closure: StateClosure<S, A, R>,
    ) -> Runner {
        let again = closure.clone();
        Runner {
            one: Box::new(move |held, inc, out| with_lent(held, &closure, || alone(inc), out)),
            of_many: Box::new(move |held, bytes, out| with_lent(held, &again, || plain(bytes), out)),
        }
    }

    /// Calls it with arguments that came alone, and writes its result.
    pub(crate) fn one(&self, held: &mut Held, args: Incoming, out: &mut Outgoing) -> Ran {
        (self.one)(held, args, out)
    }

    /// Calls it with arguments that came with others, and writes its result.
    #[inline]
    pub(crate) fn of_many(&self, held: &mut Held, args: &[u8], out: &mut Outgoing) -> Ran {
        (self.of_many)(held, args, out)
    }
}

/// Reads arguments that came alone.
fn alone<A: Message>(mut inc: Incoming) -> mp_core::Result<A> {
    // What comes before them is the pool's.
    let before = inc.whole().len() - inc.rest().len();
    let args = A::decode::<MessagePack>(&mut inc);
    // What is attached and not in the arguments is dropped here, and not kept while they are used.
    args.map_err(|error| Undecodable::of_message::<A>(error, inc.whole().get(before..).unwrap_or_default()))
}

/// Reads arguments that came with others.
#[inline]
fn plain<A: Message>(bytes: &[u8]) -> mp_core::Result<A> {
    A::decode_plain::<MessagePack>(bytes).map_err(|error| Undecodable::of_message::<A>(error, bytes))
}

/// As [`run`], for a function that gets the state.
fn with_state<S: 'static, A: Message, R: IntoOutcome>(
    held: &mut Held,
    function: impl Fn(&mut S, A) -> R,
    read: impl FnOnce() -> mp_core::Result<A>,
    out: &mut Outgoing,
) -> Ran {
    let Some((state, lent)) = held.lend::<S>() else {
        return Ran::Unreadable(NO_STATE.into());
    };
    let call = |args| {
        *lent = true;
        let result = function(state, args);
        *lent = false;
        result
    };
    run(call, read, out)
}

const NO_STATE: &str = "the worker has no state of this type";

/// As [`run`], for a closure that is lent the state.
fn with_lent<S: 'static, A: Message, R: IntoOutcome>(
    held: &mut Held,
    closure: &StateClosure<S, A, R>,
    read: impl FnOnce() -> mp_core::Result<A>,
    out: &mut Outgoing,
) -> Ran {
    let Some(state) = held.take::<S>() else {
        return Ran::Unreadable(NO_STATE.into());
    };
    // Out here it stays if nothing is called, and is gone if the closure panics.
    let mut lent = Some(state);
    let call = |args| {
        let state = lent.take().expect("it is called once");
        let (back, result) = closure.call((Lent::new(state), args));
        lent = back.into_inner();
        result
    };
    let ran = run(call, read, out);
    held.give_back(lent);
    ran
}

/// Calls a function, and writes its result behind what `out` has. Everything in here is code of the user, and may panic.
#[inline]
fn run<A: Message, R: IntoOutcome>(
    function: impl FnOnce(A) -> R,
    read: impl FnOnce() -> mp_core::Result<A>,
    out: &mut Outgoing,
) -> Ran {
    // Out here it is dropped by itself, whatever panics.
    let mut result = None;
    let mut written = false;
    let call = || {
        let args = match read() {
            Ok(args) => args,
            Err(Error::Undecodable(arguments)) => return Ran::Undecodable(arguments),
            Err(error) => return Ran::Unreadable(error.to_string()),
        };
        // An error of the user's is shown and dropped in here, too.
        let value = match function(args).into_result() {
            Ok(value) => result.insert(value),
            Err(error) => {
                // One with a backtrace takes its time.
                let _paused = TaskClock::pause();
                return Ran::Raised(Raise::error(&*error));
            }
        };
        if let Err(error) = afresh(|| value.encode::<MessagePack>(out)) {
            return Ran::Unsendable(error.to_string());
        }
        written = true;
        Ran::Done
    };
    let ran = Raise::catch(call);
    let returned = result.is_some();
    drop_caught(result);
    match ran {
        Ok(ran) => ran,
        Err(_) if written => Ran::Done,
        Err(raise) if returned => Ran::Unsendable(format!("its `Serialize` panicked: {}", raise.message())),
        Err(raise) => Ran::Raised(raise),
    }
}
