//! Failure of a function that a worker called and survived, for layers that call one function after another.

use std::error::Error;
use std::panic::{self, AssertUnwindSafe};

use serde::{Deserialize, Serialize};

use crate::child::panic_hook;
use crate::error::backtrace::__rust_begin_short_backtrace;
use crate::error::process_name::ProcessName;
use crate::error::{ProcessRaised, RaisedKind};
use crate::protocol::message::PanicNote;
use crate::protocol::text::{cut, sources};

/// Error or panic as text, to be sent to the process that requested the call.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CallFailure {
    panicked: bool,
    /// `true` for an error after Ctrl-C, of which the process is notified.
    interrupted: bool,
    message: String,
    chain: Vec<String>,
    debug: String,
    location: Option<String>,
    backtrace: Option<String>,
}

impl CallFailure {
    /// Calls a function that may panic. In a worker the place of the panic is recorded.
    ///
    /// # Errors
    /// The panic.
    pub fn catch<R>(function: impl FnOnce() -> R) -> Result<R, Box<CallFailure>> {
        panic::catch_unwind(AssertUnwindSafe(|| __rust_begin_short_backtrace(function))).map_err(|payload| {
            let PanicNote { message, location, backtrace } = panic_hook::caught(&*payload);
            // Dropping the payload may panic again.
            mp_core::user_code::drop_payload(payload);
            let (chain, debug) = (Vec::new(), String::new());
            Box::new(CallFailure {
                panicked: true,
                interrupted: false,
                message,
                chain,
                debug,
                location,
                backtrace,
            })
        })
    }

    /// Creates the text of an error, with all its sources.
    pub fn error(error: &(dyn Error + 'static)) -> Box<CallFailure> {
        Box::new(CallFailure {
            panicked: false,
            interrupted: mp_core::interrupted(),
            message: cut(error.to_string()),
            chain: sources(error),
            debug: cut(format!("{error:?}")),
            location: None,
            backtrace: None,
        })
    }

    /// Returns the message.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Converts this into the failure of a process.
    pub fn into_raised(self, who: ProcessName) -> ProcessRaised {
        let CallFailure { panicked, interrupted, message, chain, debug, location, backtrace } = self;
        let kind = match (panicked, interrupted) {
            (true, _) => RaisedKind::Panic,
            (false, true) => RaisedKind::Interrupted,
            (false, false) => RaisedKind::Error,
        };
        ProcessRaised { who, kind, message, chain, debug, location, backtrace }
    }
}
