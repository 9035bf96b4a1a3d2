//! What the pool and its workers say to each other.
//!
//! Each worker has a queue of its own, from which it takes one [`Task`] at a time; all put their [`Reply`]s into one. Arguments
//! and results are encoded with their types where those are known, and stay bytes and attachments ([`Incoming`]) until they
//! are where those are known again: in between no code of the user runs.
//!
//! A function is sent to a worker once, as a [`Closure`] that makes the [`Runner`]; after that it is a number.

use std::fmt;

use mp_core::Error;
use mp_core::message::{Codec, Incoming, IntoOutcome, Message, Outgoing, Returned};
use mp_core::user_code::Apart;
use mp_reduce::MessagePack;
use mp_spawn::{Closure, Raise};

/// A value with its type forgotten, to be written into a message.
pub(crate) trait Write: Send {
    fn write(&mut self, out: &mut Outgoing) -> mp_core::Result<()>;
    fn take_back(&mut self, back: &mut Returned);
}

impl<T: Message + Send> Write for T {
    fn write(&mut self, out: &mut Outgoing) -> mp_core::Result<()> {
        self.encode::<MessagePack>(out)
    }

    fn take_back(&mut self, back: &mut Returned) {
        Message::take_back(self, back);
    }
}

/// Something on its way: a value before it is sent, bytes and attachments after that.
pub(crate) enum Body {
    /// Its drop lets no panic out: what was sent is sent.
    Out(Apart<Box<dyn Write>>),
    In(Box<Incoming>),
}

impl Body {
    /// A value that is to be sent.
    pub(crate) fn out(value: Box<dyn Write>) -> Body {
        Body::Out(Apart::new(value))
    }

    /// Writes it. Code of the user runs here: a panic of it is an error.
    fn write(&mut self, out: &mut Outgoing) -> mp_core::Result<()> {
        match self {
            Body::Out(value) => {
                let gone = || Err(Error::Unsendable("it is not there any more".into()));
                let write = || value.get_mut().map_or_else(gone, |value| value.write(out));
                Raise::catch(write).unwrap_or_else(|raise| {
                    Err(Error::Unsendable(format!("its `Serialize` panicked: {}", raise.message())))
                })
            }
            Body::In(_) => Err(Error::Unsendable("it was received, and is not sent again".into())),
        }
    }

    /// Its message stays here.
    fn take_back(&mut self, back: &mut Returned) {
        if let Body::Out(value) = self
            && let Some(value) = value.get_mut()
        {
            value.take_back(back);
        }
    }

    /// What is left of a message, to be read later.
    fn rest(inc: &mut Incoming) -> Body {
        Body::In(Box::new(std::mem::take(inc)))
    }

    /// What was received.
    pub(crate) fn received(self) -> Option<Box<Incoming>> {
        match self {
            Body::Out(_) => None,
            Body::In(inc) => Some(inc),
        }
    }
}

/// What a worker is to do.
pub(crate) enum Task {
    /// To run a function that it has learnt. `timed`: it is to say when it begins.
    Run { id: u64, code: u64, timed: bool, args: Body },
    /// From now on this function has this number. What it captures is the user's to read, and may fail.
    Learn { code: u64, runner: Body },
    /// This function has no user any more.
    Forget { code: u64 },
}

const RUN: u8 = 0;
const RUN_TIMED: u8 = 1;
const LEARN: u8 = 2;
const FORGET: u8 = 3;

impl Message for Task {
    fn encode<C: Codec>(&mut self, out: &mut Outgoing) -> mp_core::Result<()> {
        match self {
            Task::Run { id, code, timed, args } => {
                C::write(out, &(if *timed { RUN_TIMED } else { RUN }, *id, *code))?;
                args.write(out)
            }
            Task::Learn { code, runner } => {
                C::write(out, &(LEARN, 0_u64, *code))?;
                runner.write(out)
            }
            Task::Forget { code } => C::write(out, &(FORGET, 0_u64, *code)),
        }
    }

    fn take_back(&mut self, back: &mut Returned) {
        if let Task::Run { args: body, .. } | Task::Learn { runner: body, .. } = self {
            body.take_back(back);
        }
    }

    fn decode<C: Codec>(inc: &mut Incoming) -> mp_core::Result<Self> {
        let (kind, id, code) = C::read::<(u8, u64, u64)>(inc)?;
        match kind {
            RUN | RUN_TIMED => Ok(Task::Run { id, code, timed: kind == RUN_TIMED, args: Body::rest(inc) }),
            LEARN => Ok(Task::Learn { code, runner: Body::rest(inc) }),
            FORGET => Ok(Task::Forget { code }),
            other => Err(Error::Malformed(format!("a task of kind {other}"))),
        }
    }
}

/// What a worker says.
pub(crate) enum Reply {
    /// It has been initialised, and takes tasks.
    Ready { worker: usize, pid: u32 },
    /// It has learnt, or forgotten, this function.
    Noted { worker: usize, code: u64 },
    /// A task is done; this is its result.
    Done { worker: usize, id: u64, value: Body },
    /// The function of a task failed.
    Raised { worker: usize, id: u64, raise: Box<Raise> },
    /// The arguments could not be read (`false`), or the result not be written.
    Unsendable { worker: usize, id: u64, result: bool, why: String },
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

impl Message for Reply {
    fn encode<C: Codec>(&mut self, out: &mut Outgoing) -> mp_core::Result<()> {
        match self {
            Reply::Ready { worker, pid } => C::write(out, &(READY, *worker, u64::from(*pid))),
            Reply::Noted { worker, code } => C::write(out, &(NOTED, *worker, *code)),
            Reply::Done { worker, id, value } => {
                C::write(out, &(DONE, *worker, *id))?;
                value.write(out)
            }
            Reply::Raised { worker, id, raise } => {
                C::write(out, &(RAISED, *worker, *id))?;
                C::write(out, raise)
            }
            Reply::Unsendable { worker, id, result, why } => {
                C::write(out, &(if *result { VALUE } else { ARGUMENTS }, *worker, *id))?;
                C::write(out, why)
            }
            Reply::Wake => C::write(out, &(WAKE, 0_usize, 0_u64)),
        }
    }

    fn take_back(&mut self, back: &mut Returned) {
        if let Reply::Done { value, .. } = self {
            value.take_back(back);
        }
    }

    fn decode<C: Codec>(inc: &mut Incoming) -> mp_core::Result<Self> {
        let (kind, worker, id) = C::read::<(u8, usize, u64)>(inc)?;
        match kind {
            READY => Ok(Reply::Ready { worker, pid: id as u32 }),
            NOTED => Ok(Reply::Noted { worker, code: id }),
            DONE => Ok(Reply::Done { worker, id, value: Body::rest(inc) }),
            RAISED => Ok(Reply::Raised { worker, id, raise: C::read(inc)? }),
            ARGUMENTS | VALUE => {
                Ok(Reply::Unsendable { worker, id, result: kind == VALUE, why: C::read(inc)? })
            }
            WAKE => Ok(Reply::Wake),
            other => Err(Error::Malformed(format!("a reply of kind {other}"))),
        }
    }
}

/// How a task went in its worker.
pub(crate) enum Ran {
    Done(Box<dyn Write>),
    Raised(Box<Raise>),
    Undecodable(String),
}

/// Runs tasks with one function: knows its types.
pub(crate) struct Runner(Box<dyn Fn(Incoming) -> Ran>);

impl fmt::Debug for Runner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Runner")
    }
}

impl Runner {
    pub(crate) fn new<A: Message, R: IntoOutcome>(function: impl Fn(A) -> R + 'static) -> Runner {
        Runner(Box::new(move |mut inc| {
            let decoded = Raise::catch(|| A::decode::<MessagePack>(&mut inc));
            drop(inc);
            let args = match decoded {
                Ok(Ok(args)) => args,
                Ok(Err(error)) => return Ran::Undecodable(error.to_string()),
                Err(raise) => return Ran::Raised(raise),
            };
            // An error of the user's is shown and dropped in here, too.
            let run = || match function(args).into_result() {
                Ok(value) => Ran::Done(Box::new(value)),
                Err(error) => Ran::Raised(Raise::error(&*error)),
            };
            Raise::catch(run).unwrap_or_else(Ran::Raised)
        }))
    }

    /// The one that was sent as a closure; or why it can't be read.
    pub(crate) fn read(closure: Body) -> Result<Runner, String> {
        let mut inc = closure.received().ok_or("it is not there")?;
        let read = || Closure::<(), Runner>::decode::<MessagePack>(&mut inc).map(|closure| closure.call(()));
        match Raise::catch(read) {
            Ok(read) => read.map_err(|error| error.to_string()),
            Err(raise) => Err(raise.message().to_string()),
        }
    }

    pub(crate) fn run(&self, args: Incoming) -> Ran {
        (self.0)(args)
    }
}
