//! Result of the call of a worker's function.

use std::any::TypeId;
use std::error::Error;

use mp_core::Envelope;
use mp_core::message::{IntoOutcome, Message};

use crate::protocol::payload::result::ReturnValue;
use crate::protocol::text::{cut, sources};

/// Error as text.
#[derive(Debug)]
pub(crate) struct ErrorText {
    pub(crate) message: String,
    pub(crate) chain: Vec<String>,
    pub(crate) debug: String,
}

impl ErrorText {
    fn new(error: &(dyn Error + 'static)) -> ErrorText {
        ErrorText { message: cut(error.to_string()), chain: sources(error), debug: cut(format!("{error:?}")) }
    }
}

/// Result of a call in the child that did not panic.
#[derive(Debug)]
pub(crate) enum CallOutcome {
    /// The function returned. `None` stands for `()`.
    Returned(Option<ReturnValue>),
    Failed(ErrorText),
    Undecodable(String),
    /// The arguments could not be read for lack of descriptors, and are sent back.
    Unread(String, Envelope),
}

impl CallOutcome {
    /// Packs the return value of a function.
    pub(crate) fn new<R: IntoOutcome>(returned: R) -> CallOutcome {
        match returned.into_result() {
            Err(error) => CallOutcome::Failed(ErrorText::new(&*error)),
            Ok(_) if is_unit::<R::Value>() => CallOutcome::Returned(None),
            Ok(value) => match ReturnValue::pack(value) {
                Ok(value) => CallOutcome::Returned(Some(value)),
                Err(error) => CallOutcome::Failed(ErrorText {
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
