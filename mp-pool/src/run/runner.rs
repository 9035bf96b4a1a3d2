//! A function with its types: reads the arguments of tasks, calls it, and writes the results.

use std::fmt;

use mp_core::Error;
use mp_core::message::level::of_its_own;
use mp_core::message::{Incoming, IntoOutcome, Message, Undecodable};
use mp_core::user_code::drop_caught;
use mp_reduce::{MessagePack, TypeFingerprint};
use mp_spawn::{Lent, Raise, StateClosure};

use crate::clock::TaskClock;
use crate::held::Held;
use crate::run::row::{Reached, Row};

/// How a task went in its worker.
pub(crate) enum Ran {
    /// Its result is written.
    Done,
    Raised(Box<Raise>),
    /// Its arguments could not be read.
    Undecodable(Box<Undecodable>),
    /// There are too few descriptors for those in its arguments, which are of a type with this fingerprint; 0 if that is not known.
    Unread(String, u64),
    /// Nothing could read its arguments.
    Unreadable(String),
    Unsendable(String),
}

/// Runs tasks with one function: knows its types.
pub(crate) struct Runner(Box<InARow>);

type InARow = dyn Fn(&mut Held, &mut Row<'_>) -> Ran;

impl fmt::Debug for Runner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Runner")
    }
}

impl Runner {
    pub(crate) fn new<A: Message, R: IntoOutcome>(function: impl Fn(A) -> R + 'static) -> Runner {
        Runner(Box::new(move |_, row| in_a_row(&function, row)))
    }

    /// Of a function that gets the worker's state.
    pub(crate) fn with_state<S: 'static, A: Message, R: IntoOutcome>(
        function: impl Fn(&mut S, A) -> R + Copy + 'static,
    ) -> Runner {
        Runner(Box::new(move |held, row| {
            let Some((state, lent)) = held.lend::<S>() else {
                return Ran::Unreadable(NO_STATE.into());
            };
            let call = |args| {
                *lent = true;
                let result = function(state, args);
                *lent = false;
                result
            };
            in_a_row(call, row)
        }))
    }

    /// Of a closure that gets the worker's state.
    pub(crate) fn with_lent<S: 'static, A: Message, R: IntoOutcome>(
        closure: StateClosure<S, A, R>,
    ) -> Runner {
        Runner(Box::new(move |held, row| {
            let Some(state) = held.take::<S>() else {
                return Ran::Unreadable(NO_STATE.into());
            };
            // Out here it stays if nothing is called, and is gone if the closure panics.
            let mut lent = Some(state);
            let call = |args| {
                let state = lent.take().expect("a call that panics is the last");
                let (back, result) = closure.call((Lent::new(state), args));
                lent = back.into_inner();
                result
            };
            let ran = in_a_row(call, row);
            held.give_back(lent);
            ran
        }))
    }

    /// Calls it for the item that runs, and for those behind it as long as the row goes on: what came of the last one.
    pub(crate) fn run(&self, held: &mut Held, row: &mut Row<'_>) -> Ran {
        (self.0)(held, row)
    }
}

const NO_STATE: &str = "the worker has no state of this type";

/// Reads arguments that came alone.
pub(crate) fn alone<A: Message>(mut inc: Incoming) -> mp_core::Result<A> {
    // What comes before them is the pool's.
    let before = inc.whole().len() - inc.rest().len();
    let args = A::decode::<MessagePack>(&mut inc);
    // What is attached and not in the arguments is dropped here, and not kept while they are used.
    args.map_err(|error| Undecodable::of_message::<A>(error, inc.whole().get(before..).unwrap_or_default()))
}

/// Reads arguments that came with others.
#[inline]
pub(crate) fn plain<A: Message>(bytes: &[u8]) -> mp_core::Result<A> {
    A::decode_plain::<MessagePack>(bytes).map_err(|error| Undecodable::of_message::<A>(error, bytes))
}

/// Calls a function for one item after the other, and writes its results behind what the part has, until the row ends. All of it
/// but for [`Row::advance`] is code of the user, and may panic: which item that is, and how far it is, the row says.
fn in_a_row<A: Message, R: IntoOutcome>(mut function: impl FnMut(A) -> R, row: &mut Row<'_>) -> Ran {
    // Out here it is dropped by itself, whatever panics.
    let mut result = None;
    let run = || {
        loop {
            let args = match row.number().map_or_else(|| row.args(), Ok) {
                Ok(args) => args,
                Err(Error::Undecodable(arguments)) => return Ran::Undecodable(arguments),
                Err(Error::OutOfDescriptors(why)) => {
                    return Ran::Unread(why, TypeFingerprint::<A>::new().get());
                }
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
            row.reached = Reached::Result;
            let out = &mut row.part.out;
            // No code of the user writes a number.
            let written = of_its_own::<R::Value, _>(|| value.encode_wide::<MessagePack>(out));
            if let Err(error) = written {
                return Ran::Unsendable(error.to_string());
            }
            row.reached = Reached::Written;
            // If its drop panics, it is done all the same.
            drop(result.take());
            if !row.advance() {
                return Ran::Done;
            }
        }
    };
    let ran = Raise::catch(run);
    drop_caught(result);
    match (ran, row.reached) {
        (Ok(ran), _) => ran,
        (Err(_), Reached::Written) => Ran::Done,
        (Err(raise), Reached::Result) => {
            Ran::Unsendable(format!("its `Serialize` panicked: {}", raise.message()))
        }
        (Err(raise), Reached::Nothing) => Ran::Raised(raise),
    }
}
