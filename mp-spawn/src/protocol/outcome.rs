//! Result of the call of a worker's function.

use std::any::TypeId;
use std::error::Error;

use mp_core::Envelope;
use mp_core::message::{IntoOutcome, Message};

use crate::protocol::message::{cut, sources};
use crate::protocol::payload::Value;

/// Error as text.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) message: String,
    pub(crate) chain: Vec<String>,
    pub(crate) debug: String,
}

impl Fault {
    fn new(error: &(dyn Error + 'static)) -> Fault {
        Fault { message: cut(error.to_string()), chain: sources(error), debug: cut(format!("{error:?}")) }
    }
}

/// Result of a call in the child that did not panic.
#[derive(Debug)]
pub(crate) enum Ended {
    /// The function returned. `None` stands for `()`.
    Returned(Option<Value>),
    Failed(Fault),
    Undecodable(String),
    /// The arguments could not be read for lack of descriptors, and are sent back.
    Unread(String, Envelope),
}

impl Ended {
    /// Packs the return value of a function.
    pub(crate) fn new<R: IntoOutcome>(returned: R) -> Ended {
        match returned.into_result() {
            Err(error) => Ended::Failed(Fault::new(&*error)),
            Ok(_) if is_unit::<R::Value>() => Ended::Returned(None),
            Ok(value) => match Value::pack(value) {
                Ok(value) => Ended::Returned(Some(value)),
                Err(error) => Ended::Failed(Fault {
                    message: cut(format!("what the function returned can't be sent: {error}")),
                    chain: Vec::new(),
                    debug: cut(format!("{error:?}")),
                }),
            },
        }
    }
}

/// Returns `true` if a value of this type carries no information, and need not be sent.
pub(crate) fn is_unit<T: Message>() -> bool {
    TypeId::of::<T>() == TypeId::of::<()>()
}
