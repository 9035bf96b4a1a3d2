//! State that a worker keeps between tasks. Tasks receive the state as `&mut S`.
//!
//! # Ownership, and effects of a death
//! The state is in private memory of the worker, and no other process has access to it. Its arguments are
//! encoded once, by the process that creates the pool, unless they have attachments ([`InitArgs`]).
//!
//! | event | worker | pool |
//! |---|---|---|
//! | the worker starts | creates the state before it sends [`Ready`](crate::child::message::PoolReply::Ready) | sends it no tasks yet; kills it after [`start_timeout`](crate::PoolBuilder::start_timeout) |
//! | the worker dies, fails or panics while creating the state | – | the start has failed: it is retried later, within the limits in the table at [`TaskError`](crate::TaskError) |
//! | a task that used the state panics | answers that task, sends [`StateReset`](crate::child::message::PoolReply::StateReset), drops the state, creates a new one, and sends `Ready` | from `StateReset` on the worker counts as starting: tasks that it has not begun go to other workers, and the time limit is that of a start |
//! | the worker dies, fails or panics between the answer and `StateReset` | – | the worker died between two tasks: no task is lost |
//! | the worker dies, fails or panics between `StateReset` and `Ready` | – | the start has failed; no task is lost |
//! | the worker ends by itself | drops the state | |

use std::any::Any;

use mp_core::message::nesting_depth::with_nested_message;
use mp_core::message::{Message, Outgoing};
use mp_core::user_code::UserValue;
use mp_reduce::MessagePack;
use mp_spawn::{CallFailure, Capture, Closure};
use serde::{Deserialize, Serialize};

use crate::child::shared_bytes::SharedBytes;

/// Reason why a worker can't continue.
pub(crate) type WorkerError = Box<dyn std::error::Error + Send + Sync>;

/// Function that creates the state of a worker.
pub(crate) type StateInit = Closure<(), Result<Box<dyn Any>, WorkerError>>;

/// Returns a function that creates a state of type `S` from arguments. The arguments are encoded here, once
/// for all workers.
///
/// # Errors
/// The arguments can't be encoded.
pub(crate) fn state_init<F, A, S, E>(init: F, args: A) -> Result<StateInit, mp_reduce::Error>
where
    F: Fn(A) -> Result<S, E> + Copy + Send + 'static,
    A: Capture + Clone,
    S: 'static,
    E: Into<WorkerError>,
{
    Ok(Closure::from_parts((InitArgs::encode(args)?, ()), move |(args, ()): &(InitArgs<A>, ()), (): ()| {
        let made = init(args.read()?).map_err(Into::into)?;
        Ok(Box::new(made) as Box<dyn Any>)
    }))
}

/// Arguments that are encoded once for all workers.
#[derive(Clone, Serialize, Deserialize)]
enum InitArgs<A> {
    /// Bytes of the arguments in shared memory.
    Encoded(SharedBytes),
    /// Arguments with attachments (tensors, queues), encoded separately for each worker, because each message
    /// holds its attachments. The attachments are not copied.
    PerWorker(A),
}

impl<A: Capture + Clone> InitArgs<A> {
    fn encode(mut args: A) -> Result<InitArgs<A>, mp_reduce::Error> {
        let mut out = Outgoing::in_band();
        CallFailure::catch_encode(|| with_nested_message(|| args.encode::<MessagePack>(&mut out)))?;
        match out.plain() {
            Some(bytes) if !bytes.is_empty() => Ok(InitArgs::Encoded(SharedBytes::new(bytes)?)),
            _ => Ok(InitArgs::PerWorker(args)),
        }
    }

    fn read(&self) -> Result<A, WorkerError> {
        match self {
            InitArgs::Encoded(bytes) => Ok(A::decode_plain::<MessagePack>(bytes.as_slice())?),
            InitArgs::PerWorker(args) => Ok(args.clone()),
        }
    }
}

/// State of this worker, and the function that creates it.
#[derive(Default)]
pub(crate) struct UserState {
    make: Option<StateInit>,
    value: Option<UserValue<Box<dyn Any>>>,
    /// `true` while a task uses the state. If still `true` after the task, the task has panicked.
    lent: bool,
}

impl UserState {
    pub(crate) fn new(make: Option<StateInit>) -> UserState {
        UserState { make, ..UserState::default() }
    }

    /// Drops the previous state, if any, and creates a new one. Both are user code, and a panic ends the
    /// worker.
    pub(crate) fn make(&mut self) -> Result<(), WorkerError> {
        self.value = None;
        self.lent = false;
        if let Some(make) = &self.make {
            self.value = Some(UserValue::new(make.call(())?));
        }
        Ok(())
    }

    /// Returns `true` if a task that used the state has panicked.
    pub(crate) fn is_broken(&self) -> bool {
        self.lent
    }

    /// Takes the state for a task, which returns it to [`give_back`](Self::give_back).
    pub(crate) fn take<S: 'static>(&mut self) -> Option<Box<S>> {
        let value = self.value.take()?.into_inner()?;
        match value.downcast() {
            Ok(state) => Some(state),
            Err(other) => {
                self.value = Some(UserValue::new(other));
                None
            }
        }
    }

    /// Puts the state back. `None` means that the task using it has panicked.
    pub(crate) fn give_back<S: 'static>(&mut self, state: Option<Box<S>>) {
        self.lent = state.is_none();
        self.value = state.map(|state| UserValue::new(state as Box<dyn Any>));
    }

    /// Borrows the state for a task, and the flag that must be `true` while the task uses it.
    pub(crate) fn lend<S: 'static>(&mut self) -> Option<(&mut S, &mut bool)> {
        let state = self.value.as_mut()?.get_mut()?.downcast_mut()?;
        Some((state, &mut self.lent))
    }
}
