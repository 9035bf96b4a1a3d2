//! Report of a child on the call of its function.

use std::any::{Any, TypeId};

use mp_core::EnvelopeTicket;
use mp_core::message::{IntoOutcome, Message};
use serde::{Deserialize, Serialize};

use crate::error::{CallFailure, FunctionError, RaisedKind, cut};
use crate::protocol::payload::Packed;
use crate::sys::now;

/// Result of the function.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Report {
    /// The function returned without an error. This report has its own frame, without a payload.
    #[serde(skip)]
    Done,
    /// The function returned this value.
    Plain(Vec<u8>),
    /// The function returned a value, and the child waits until the parent has taken it.
    Value(EnvelopeTicket),
    /// The function returned an error or panicked.
    Raised { at: u64, failure: Box<CallFailure> },
    /// The function was not called: the reference to it is invalid in this process.
    Refused(FunctionError),
    /// The function was not called: its arguments could not be decoded.
    Undecodable(String),
    /// The function was not called: the process has no spare descriptors for its arguments, and waits until
    /// the parent has taken them back.
    Unread(String, EnvelopeTicket),
    /// The function was not called: the process lacks a resource that it needs.
    Unable(String),
}

impl Report {
    /// Packs the return value of a function.
    pub(crate) fn returned<R: IntoOutcome>(returned: R) -> Report {
        match returned.into_result() {
            Err(error) => Report::raised(CallFailure::error(&*error)),
            Ok(_) if is_unit::<R::Value>() => Report::Done,
            Ok(value) => match Packed::new(value) {
                Ok(Packed::Plain(bytes)) => Report::Plain(bytes),
                Ok(Packed::Shared(envelope)) => Report::Value(EnvelopeTicket::leave(envelope)),
                Err(error) => Report::raised(Box::new(CallFailure {
                    kind: RaisedKind::Error,
                    message: cut(format!("what the function returned can't be sent: {error}")),
                    chain: Vec::new(),
                    debug: cut(format!("{error:?}")),
                    location: None,
                    backtrace: None,
                })),
            },
        }
    }

    /// Reports a failure that happened now.
    pub(crate) fn raised(failure: Box<CallFailure>) -> Report {
        Report::Raised { at: now(), failure }
    }
}

/// Returns `true` if a value of this type carries no information, and need not be sent.
pub(crate) fn is_unit<T: Message>() -> bool {
    TypeId::of::<T>() == TypeId::of::<()>()
}

/// Returns `()` if `T` is that type.
pub(crate) fn unit<T: 'static>() -> Option<T> {
    let unit: Box<dyn Any> = Box::new(());
    unit.downcast().ok().map(|unit| *unit)
}
