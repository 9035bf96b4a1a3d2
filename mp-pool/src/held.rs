//! What a worker keeps between tasks: the state that its tasks get as `&mut S`.
//!
//! # Who changes it, and what a death leaves
//! The state is in private memory of the worker, and no other process sees it. Its arguments are encoded once, by the process that
//! makes the pool ([`Once`]); each worker reads them from there.
//!
//! | moment | the worker | the pool |
//! |---|---|---|
//! | it starts | makes the state before it says [`Ready`](crate::message::Reply::Ready) | gives it nothing yet; after [`start_timeout`](crate::PoolBuilder::start_timeout) it is killed |
//! | it dies, fails or panics in that | – | a failed start: tried again later, and given up as the table at [`TaskError`](crate::TaskError) says |
//! | a task that had the state panics | answers that task; says [`Remaking`](crate::message::Reply::Remaking); drops the state, and makes a new one; says `Ready` | from `Remaking` on it is a worker that starts: what it has not begun goes to others, and its time is that of a start |
//! | it dies, fails or panics between the answer and `Remaking` | – | a worker that died between two tasks: none is lost |
//! | … between `Remaking` and `Ready` | – | a failed start; no task is lost |
//! | it ends by itself | drops the state | |

use std::any::Any;
use std::fmt;

use mp_core::message::level::afresh;
use mp_core::message::{Message, Outgoing};
use mp_core::user_code::Apart;
use mp_reduce::MessagePack;
use mp_spawn::{Capture, Closure, Raise};
use serde::{Deserialize, Serialize};

use crate::shared_bytes::SharedBytes;

/// Why a worker can't go on.
pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Makes the state of a worker.
pub(crate) type MakeState = Closure<(), Result<Box<dyn Any>, Failure>>;

/// What makes a state of type `S` with arguments that are encoded here, once for all workers.
///
/// # Errors
/// The arguments can't be encoded.
pub(crate) fn make_with<F, A, S, E>(init: F, args: A) -> Result<MakeState, mp_reduce::Error>
where
    F: Fn(A) -> Result<S, E> + Copy + Send + 'static,
    A: Capture + Clone,
    S: 'static,
    E: Into<Failure>,
{
    Ok(Closure::from_parts((Once::encode(args)?, ()), move |(args, ()): &(Once<A>, ()), (): ()| {
        let made = init(args.read()?).map_err(Into::into)?;
        Ok(Box::new(made) as Box<dyn Any>)
    }))
}

/// Arguments that are encoded once, however many workers read them.
#[derive(Clone, Serialize, Deserialize)]
enum Once<A> {
    /// Their bytes, in shared memory.
    Bytes(SharedBytes),
    /// Something is attached to them (tensors, queues), which each message has to hold for itself: they are encoded for each
    /// worker, and what is attached is not copied.
    Each(A),
}

impl<A: Capture + Clone> Once<A> {
    fn encode(mut args: A) -> Result<Once<A>, mp_reduce::Error> {
        let mut out = Outgoing::in_band();
        match Raise::catch(|| afresh(|| args.encode::<MessagePack>(&mut out))) {
            Ok(written) => written?,
            Err(raise) => {
                let why = format!("its `Serialize` panicked: {}", raise.message());
                return Err(mp_core::Error::Unsendable(why).into());
            }
        }
        match out.plain() {
            Some(bytes) if !bytes.is_empty() => Ok(Once::Bytes(SharedBytes::new(bytes)?)),
            _ => Ok(Once::Each(args)),
        }
    }

    fn read(&self) -> Result<A, Failure> {
        match self {
            Once::Bytes(bytes) => Ok(A::decode_plain::<MessagePack>(bytes.as_slice())?),
            Once::Each(args) => Ok(args.clone()),
        }
    }
}

/// The state of this worker, and how it is made.
#[derive(Default)]
pub(crate) struct Held {
    make: Option<MakeState>,
    value: Option<Apart<Box<dyn Any>>>,
    /// A task has it: still so when the task is over, it has panicked.
    lent: bool,
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held").field("make", &self.make).finish_non_exhaustive()
    }
}

impl Held {
    pub(crate) fn new(make: Option<MakeState>) -> Held {
        Held { make, ..Held::default() }
    }

    /// Makes it, in the place of what was there. All in here is code of the user's: a panic ends the worker.
    pub(crate) fn make(&mut self) -> Result<(), Failure> {
        self.value = None;
        self.lent = false;
        if let Some(make) = &self.make {
            self.value = Some(Apart::new(make.call(())?));
        }
        Ok(())
    }

    /// Whether a task has panicked that had it.
    pub(crate) fn is_broken(&self) -> bool {
        self.lent
    }

    /// Takes it out, for a task that gives it [back](Self::give_back).
    pub(crate) fn take<S: 'static>(&mut self) -> Option<Box<S>> {
        let value = self.value.take()?.into_inner()?;
        match value.downcast() {
            Ok(state) => Some(state),
            Err(other) => {
                self.value = Some(Apart::new(other));
                None
            }
        }
    }

    /// It is back; or the task has panicked that had it.
    pub(crate) fn give_back<S: 'static>(&mut self, state: Option<Box<S>>) {
        self.lent = state.is_none();
        self.value = state.map(|state| Apart::new(state as Box<dyn Any>));
    }

    /// It, for a task, and what is to be said of it: true as long as the task has it.
    pub(crate) fn lend<S: 'static>(&mut self) -> Option<(&mut S, &mut bool)> {
        let state = self.value.as_mut()?.get_mut()?.downcast_mut()?;
        Some((state, &mut self.lent))
    }
}
