//! Typed functions of tasks: decode the arguments, call the function, and encode the results.

use std::fmt;

use mp_core::Error;
use mp_core::message::nesting_depth::as_separate_message;
use mp_core::message::{IntoOutcome, Message, Undecodable, encode_wide};
use mp_core::user_code::drop_caught;
use mp_reduce::{MessagePack, TypeFingerprint};
use mp_spawn::{BorrowedState, CallFailure, StateClosure};

use crate::child::clock::TaskClock;
use crate::child::item_cursor::{ItemCursor, ItemStage};
use crate::child::user_state::UserState;

/// Outcome of the last item that a [`Runner`] has run.
pub(crate) enum RunOutcome {
    /// The result is encoded.
    Done,
    Raised(Box<CallFailure>),
    /// The arguments could not be decoded.
    Undecodable(Box<Undecodable>),
    /// The worker has too few free descriptors to receive the descriptors in the arguments. Contains the
    /// fingerprint of their type; 0 if unknown.
    Unread(String, u64),
    /// The arguments could not be decoded for another reason, such as an unknown function.
    Unreadable(String),
    Unsendable(String),
}

/// Runner of tasks with one function of known types.
pub(crate) struct Runner(Box<RunItemsFn>);

type RunItemsFn = dyn Fn(&mut UserState, &mut ItemCursor<'_>) -> RunOutcome;

impl fmt::Debug for Runner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Runner")
    }
}

impl Runner {
    pub(crate) fn new<A: Message, R: IntoOutcome>(function: impl Fn(A) -> R + 'static) -> Runner {
        Runner(Box::new(move |_, row| run_items(&function, row)))
    }

    /// Creates a runner of a function that receives the worker's state.
    pub(crate) fn with_state<S: 'static, A: Message, R: IntoOutcome>(
        function: impl Fn(&mut S, A) -> R + Copy + 'static,
    ) -> Runner {
        Runner(Box::new(move |user_state, row| {
            let Some((state, lent)) = user_state.lend::<S>() else {
                return RunOutcome::Unreadable(NO_STATE.into());
            };
            let call = |args| {
                *lent = true;
                let result = function(state, args);
                *lent = false;
                result
            };
            run_items(call, row)
        }))
    }

    /// Creates a runner of a closure that receives the worker's state.
    pub(crate) fn with_state_closure<S: 'static, A: Message, R: IntoOutcome>(
        closure: StateClosure<S, A, R>,
    ) -> Runner {
        Runner(Box::new(move |user_state, row| {
            let Some(state) = user_state.take::<S>() else {
                return RunOutcome::Unreadable(NO_STATE.into());
            };
            // Declared outside of `call`: the state remains if `call` does not run, and is lost if the
            // closure panics.
            let mut lent = Some(state);
            let call = |args| {
                let state = lent.take().expect("a call that panics is the last");
                let (back, result) = closure.call((BorrowedState::new(state), args));
                lent = back.into_inner();
                result
            };
            let ran = run_items(call, row);
            user_state.give_back(lent);
            ran
        }))
    }

    /// Runs the function for the current item, and for the following items while [`ItemCursor::advance`]
    /// claims them. Returns the outcome of the last one.
    pub(crate) fn run(&self, state: &mut UserState, row: &mut ItemCursor<'_>) -> RunOutcome {
        (self.0)(state, row)
    }
}

const NO_STATE: &str = "the worker has no state of this type";

/// Calls a function for consecutive items, and appends the results to the part, until no item is claimed.
/// Everything except [`ItemCursor::advance`] is user code and may panic. After a panic, the cursor contains
/// the running item and its progress.
fn run_items<A: Message, R: IntoOutcome>(
    mut function: impl FnMut(A) -> R,
    row: &mut ItemCursor<'_>,
) -> RunOutcome {
    // Declared outside, so that it is dropped separately whatever panics.
    let mut result = None;
    let run = || {
        loop {
            #[cfg(feature = "tracing")]
            let span = row.enter_span();
            let args = match row.number().map_or_else(|| row.args(), Ok) {
                Ok(args) => args,
                Err(Error::Undecodable(arguments)) => return RunOutcome::Undecodable(arguments),
                Err(Error::OutOfDescriptors(why)) => {
                    return RunOutcome::Unread(why, TypeFingerprint::<A>::new().get());
                }
                Err(error) => return RunOutcome::Unreadable(error.to_string()),
            };
            // An error of the user is formatted and dropped here, too.
            let value = match function(args).into_result() {
                Ok(value) => result.insert(value),
                Err(error) => {
                    // An error with a backtrace takes long to format.
                    let _paused = TaskClock::pause();
                    return RunOutcome::Raised(CallFailure::error(&*error));
                }
            };
            row.reached = ItemStage::Returned;
            let out = &mut row.part.out;
            // Encoding a number calls no user code.
            let written = as_separate_message::<R::Value, _>(|| encode_wide::<_, MessagePack>(value, out));
            if let Err(error) = written {
                return RunOutcome::Unsendable(error.to_string());
            }
            row.reached = ItemStage::Encoded;
            // If the drop panics, the task is done nevertheless.
            drop(result.take());
            #[cfg(feature = "tracing")]
            drop(span);
            if !row.advance() {
                return RunOutcome::Done;
            }
        }
    };
    let ran = CallFailure::catch(run);
    drop_caught(result);
    match (ran, row.reached) {
        (Ok(ran), _) => ran,
        (Err(_), ItemStage::Encoded) => RunOutcome::Done,
        (Err(raise), ItemStage::Returned) => {
            RunOutcome::Unsendable(format!("its `Serialize` panicked: {}", raise.message()))
        }
        (Err(raise), ItemStage::Started) => RunOutcome::Raised(raise),
    }
}
