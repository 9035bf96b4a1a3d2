//! Errors of encoding and decoding.

use std::fmt;

use mp_core::message::Undecodable;
use serde::{Deserialize, Serialize};

/// `Result` with any error, for functions that run in workers, for functions of a dataset, and for `main`.
///
/// ```
/// fn worker(rank: usize, numbers: Vec<String>) -> mp_reduce::AnyResult<u32> {
///     Ok(numbers.get(rank).ok_or("a number for each rank")?.parse()?) // any error, by `?`
/// }
///
/// assert_eq!(worker(1, vec!["7".into(), "8".into()])?, 8);
/// assert!(worker(2, vec![]).is_err());
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
pub type AnyResult<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

/// `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Error of encoding or decoding a value.
#[derive(Serialize, Deserialize)]
#[non_exhaustive]
pub enum Error {
    /// Shared memory is exhausted or not usable, or a value can't be encoded or decoded.
    Memory(mp_core::Error),
    /// A message of one type arrived where another type was expected.
    TypeMismatch {
        /// Name of the expected type.
        // (Written in full: for plain `str`, serde would borrow from its input.)
        #[serde(with = "mp_core::serde_with::text")]
        expected: &'static std::primitive::str,
        /// Name of the received type, or `None` if the message does not contain it.
        found: Option<String>,
        /// Bytes of the message, so that it is not lost.
        bytes: Vec<u8>,
    },
}

impl Error {
    /// Returns the details of a decoding error: type, position and reason. Returns `None` for other errors.
    pub fn undecodable(&self) -> Option<&Undecodable> {
        match self {
            Error::Memory(mp_core::Error::Undecodable(undecodable)) => Some(undecodable),
            _ => None,
        }
    }

    /// Returns the bytes of a message that could not be decoded or has another type. Returns `None` for other
    /// errors.
    ///
    /// ```
    /// use mp_reduce::{from_bytes, to_bytes, TypeFingerprint};
    ///
    /// let there = TypeFingerprint::<Vec<u8>>::new().get();
    /// let error = from_bytes::<String>(to_bytes(&mut vec![1_u8, 2])?, there).unwrap_err();
    /// assert_eq!(error.bytes(), Some(&[3, 0x92, 1, 2][..]));
    /// # Ok::<(), mp_reduce::Error>(())
    /// ```
    pub fn bytes(&self) -> Option<&[u8]> {
        match self {
            Error::TypeMismatch { bytes, .. } => Some(bytes),
            Error::Memory(_) => self.undecodable().map(Undecodable::bytes),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Memory(e) => e.fmt(f),
            Error::TypeMismatch { expected, found: Some(found), .. } => {
                write!(
                    f,
                    "a message has type {found}, and {expected} is expected; both programs must use the \
                     same type name: define the type in a crate that both programs use, or send tuples or \
                     bytes"
                )
            }
            Error::TypeMismatch { expected, found: None, .. } => write!(
                f,
                "a message has another type, whose name it does not contain, and {expected} is expected: \
                 receive it as the type that was sent"
            ),
        }
    }
}

mp_core::readable_debug!(Error);

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
