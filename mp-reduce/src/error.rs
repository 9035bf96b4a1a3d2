//! What can go wrong between a value and its bytes.

use std::fmt;

/// `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong between a value and its bytes.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// Shared memory: none left, forked, and so on.
    Memory(mp_core::Error),
    /// A message of one type arrived where another was expected.
    TypeMismatch {
        /// The name of the expected type.
        expected: &'static str,
        /// The name or fingerprint of the type that arrived.
        found: String,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Memory(e) => e.fmt(f),
            Error::TypeMismatch { expected, found } => {
                write!(f, "a message of type {found} arrived where {expected} is expected")
            }
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Memory(e) => e.source(),
            Error::TypeMismatch { .. } => None,
        }
    }
}

impl From<mp_core::Error> for Error {
    fn from(e: mp_core::Error) -> Self {
        Error::Memory(e)
    }
}
