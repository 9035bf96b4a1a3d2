//! Error of a value that can't be sent.

use std::sync::Arc;

/// Reason why a value can't be sent.
#[derive(Debug)]
pub(crate) struct EncodeError {
    pub(crate) why: String,
    pub(crate) cause: Option<Arc<mp_reduce::Error>>,
}

impl EncodeError {
    /// Creates the reason with only a description.
    pub(crate) fn new(why: impl Into<String>) -> Self {
        Self { why: why.into(), cause: None }
    }

    /// Returns `true` if the value can be sent after other messages have been received.
    pub(crate) fn is_out_of_space(&self) -> bool {
        use mp_reduce::Error::Memory;
        matches!(self.cause.as_deref(), Some(Memory(why)) if why.is_out_of_envelopes())
    }
}

impl From<mp_reduce::Error> for EncodeError {
    fn from(error: mp_reduce::Error) -> Self {
        Self { why: error.to_string(), cause: Some(Arc::new(error)) }
    }
}
