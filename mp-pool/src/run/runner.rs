//! Typed functions of tasks: decode the arguments, call the function, and encode the results.

use std::fmt;

use mp_core::Error;
use mp_core::message::level::as_separate_message;
use mp_core::message::{Incoming, IntoOutcome, Message, Undecodable};
use mp_core::user_code::drop_caught;
use mp_reduce::{MessagePack, TypeFingerprint};
use mp_spawn::{BorrowedState, CallFailure, StateClosure};

use crate::clock::TaskClock;
use crate::held::Held;
use crate::run::row::{Reached, Row};

/// Outcome of a task in its worker.
pub(crate) enum Ran {
    /// The result is encoded.
    Done,
    Raised(Box<CallFailure>),
    /// The arguments could not be decoded.
    Undecodable(Box<Undecodable>),
    /// There are too few descriptors for those in the arguments. Contains the fingerprint of their type; 0 if
    /// unknown.
    Unread(String, u64),
    /// Nothing could decode the arguments.
    Unreadable(String),
    Unsendable(String),
}

/// Runner of tasks with one function, whose types it knows.
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

    /// Creates a runner of a function that receives the worker's state.
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

    /// Creates a runner of a closure that receives the worker's state.
    pub(crate) fn with_borrowed_state<S: 'static, A: Message, R: IntoOutcome>(
        closure: StateClosure<S, A, R>,
    ) -> Runner {
        Runner(Box::new(move |held, row| {
            let Some(state) = held.take::<S>() else {
                return Ran::Unreadable(NO_STATE.into());
            };
            // Declared outside: it remains if nothing is called, and is lost if the closure panics.
            let mut lent = Some(state);
            let call = |args| {
                let state = lent.take().expect("a call that panics is the last");
                let (back, result) = closure.call((BorrowedState::new(state), args));
                lent = back.into_inner();
                result
            };
            let ran = in_a_row(call, row);
            held.give_back(lent);
            ran
        }))
    }

    /// Runs the function for the current item, and for the following ones while the row continues. Returns
    /// the outcome of the last one.
    pub(crate) fn run(&self, held: &mut Held, row: &mut Row<'_>) -> Ran {
        (self.0)(held, row)
    }
}

const NO_STATE: &str = "the worker has no state of this type";

/// Decodes arguments that arrived alone.
pub(crate) fn alone<A: Message>(mut inc: Incoming) -> mp_core::Result<A> {
    // The bytes before the arguments were written by the pool.
    let before = inc.whole().len() - inc.rest().len();
    let args = A::decode::<MessagePack>(&mut inc);
    // Attachments that are not part of the arguments are dropped here, not kept while the arguments are used.
    args.map_err(|error| Undecodable::of_message::<A>(error, inc.whole().get(before..).unwrap_or_default()))
}

/// Decodes arguments that arrived with others.
#[inline]
pub(crate) fn plain<A: Message>(bytes: &[u8]) -> mp_core::Result<A> {
    A::decode_plain::<MessagePack>(bytes).map_err(|error| Undecodable::of_message::<A>(error, bytes))
}

/// Calls a function for one item after the other, and appends its results to the part, until the row ends.
/// Everything except [`Row::advance`] is user code and may panic. The row contains the current item and its
/// progress.
fn in_a_row<A: Message, R: IntoOutcome>(mut function: impl FnMut(A) -> R, row: &mut Row<'_>) -> Ran {
    // Declared outside, so that it is dropped separately whatever panics.
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
            // An error of the user is formatted and dropped here, too.
            let value = match function(args).into_result() {
                Ok(value) => result.insert(value),
                Err(error) => {
                    // An error with a backtrace takes long to format.
                    let _paused = TaskClock::pause();
                    return Ran::Raised(CallFailure::error(&*error));
                }
            };
            row.reached = Reached::Result;
            let out = &mut row.part.out;
            // Encoding a number calls no user code.
            let written = as_separate_message::<R::Value, _>(|| value.encode_wide::<MessagePack>(out));
            if let Err(error) = written {
                return Ran::Unsendable(error.to_string());
            }
            row.reached = Reached::Written;
            // If the drop panics, the task is done nevertheless.
            drop(result.take());
            if !row.advance() {
                return Ran::Done;
            }
        }
    };
    let ran = CallFailure::catch(run);
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
