//! Serde implementations for fields of the error types of all crates, for `#[serde(with = "…")]`.

use std::collections::BTreeSet;
use std::error::Error;
use std::ffi::OsString;
use std::fmt;
use std::io::ErrorKind;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::process::mutex::Mutex;
use crate::process::{PerProcess, per_process};

/// Static text, as `&'static str`.
pub mod text {
    use super::*;

    /// Serializes the text.
    pub fn serialize<S: Serializer>(text: &str, s: S) -> Result<S::Ok, S::Error> {
        text.serialize(s)
    }

    /// Returns an equal text with static lifetime.
    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<&'static str, D::Error> {
        String::deserialize(d).map(interned)
    }
}

/// List of static texts.
pub mod texts {
    use super::*;

    /// Serializes the texts.
    pub fn serialize<S: Serializer>(texts: &[&'static str], s: S) -> Result<S::Ok, S::Error> {
        texts.serialize(s)
    }

    /// Returns equal texts with static lifetime.
    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<&'static str>, D::Error> {
        Ok(Vec::<String>::deserialize(d)?.into_iter().map(interned).collect())
    }
}

/// Path, possibly not UTF-8.
pub mod path {
    use super::*;

    /// Serializes the path as bytes.
    pub fn serialize<S: Serializer>(path: &Path, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_bytes(path.as_os_str().as_bytes())
    }

    /// Deserializes the path from bytes.
    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<PathBuf, D::Error> {
        ByteString::deserialize(d).map(|bytes| OsString::from_vec(bytes.0).into())
    }

    /// Optional path.
    pub mod option {
        use super::*;

        /// Serializes the path as bytes.
        pub fn serialize<S: Serializer>(path: &Option<PathBuf>, s: S) -> Result<S::Ok, S::Error> {
            path.as_ref().map(|path| ByteString(path.as_os_str().as_bytes().to_vec())).serialize(s)
        }

        /// Deserializes the path from bytes.
        pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<PathBuf>, D::Error> {
            let bytes = Option::<ByteString>::deserialize(d)?;
            Ok(bytes.map(|bytes| OsString::from_vec(bytes.0).into()))
        }
    }
}

/// `io::Error`: the system's number, or kind, text and sources.
pub mod io {
    use super::*;

    /// Serializes the error as an [`IoError`].
    pub fn serialize<S: Serializer>(error: &std::io::Error, s: S) -> Result<S::Ok, S::Error> {
        IoError::from_error(error).serialize(s)
    }

    /// Deserializes the error from an [`IoError`].
    pub fn deserialize<'de, D: Deserializer<'de>, E: From<std::io::Error>>(d: D) -> Result<E, D::Error> {
        IoError::deserialize(d).map(|sent| std::io::Error::from(sent).into())
    }
}

/// Value in an `Arc`.
pub mod shared {
    use super::*;

    /// Serializes the value.
    pub fn serialize<T: Serialize, S: Serializer>(shared: &Arc<T>, s: S) -> Result<S::Ok, S::Error> {
        (**shared).serialize(s)
    }

    /// Deserializes the value into a new `Arc`.
    pub fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(d: D) -> Result<Arc<T>, D::Error> {
        T::deserialize(d).map(Arc::new)
    }

    /// Optional value in an `Arc`.
    pub mod option {
        use super::*;

        /// Serializes the value.
        pub fn serialize<T: Serialize, S: Serializer>(
            shared: &Option<Arc<T>>,
            s: S,
        ) -> Result<S::Ok, S::Error> {
            shared.as_deref().serialize(s)
        }

        /// Deserializes the value into a new `Arc`.
        pub fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
            d: D,
        ) -> Result<Option<Arc<T>>, D::Error> {
            Ok(Option::<T>::deserialize(d)?.map(Arc::new))
        }
    }

    /// Optional text in an `Arc`.
    pub mod text {
        use super::*;

        /// Serializes the text.
        pub fn serialize<S: Serializer>(shared: &Option<Arc<str>>, s: S) -> Result<S::Ok, S::Error> {
            shared.as_deref().serialize(s)
        }

        /// Deserializes the text into a new `Arc`.
        pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Arc<str>>, D::Error> {
            Ok(Option::<String>::deserialize(d)?.map(Arc::from))
        }
    }
}

/// Bytes, serialized as a byte string if the format has byte strings, else as a sequence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ByteString(pub Vec<u8>);

impl Serialize for ByteString {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for ByteString {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct ByteStringVisitor;
        impl<'de> Visitor<'de> for ByteStringVisitor {
            type Value = ByteString;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes")
            }
            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<ByteString, E> {
                Ok(ByteString(bytes.to_vec()))
            }
            // For formats without byte strings.
            fn visit_seq<A: SeqAccess<'de>>(self, mut bytes: A) -> Result<ByteString, A::Error> {
                let mut all = Vec::new();
                while let Some(byte) = bytes.next_element()? {
                    all.push(byte);
                }
                Ok(ByteString(all))
            }
        }
        d.deserialize_bytes(ByteStringVisitor)
    }
}

/// Error of any type after its transfer to another process: its message, and the messages of its sources.
///
/// ```
/// use mp_core::ErrorChain;
///
/// let error = std::io::Error::other("ä".parse::<u8>().unwrap_err());
/// let chain = ErrorChain::new(&error); // a serde type
/// assert_eq!(chain.to_string(), "invalid digit found in string");
/// ```
///
/// `Debug` prints the message of the first error, followed by the messages of the sources.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<(String, String)>", into = "Vec<(String, String)>")]
pub struct ErrorChain {
    message: String,
    /// Output of the error's `Debug`.
    debug: String,
    source: Option<Box<ErrorChain>>,
}

/// Maximum number of errors in a chain: a chain that refers to itself has no end.
const MAX_SOURCES: usize = 100;

impl ErrorChain {
    /// Converts an error and its sources, at most a hundred.
    #[must_use]
    pub fn new(error: &(dyn Error + 'static)) -> Self {
        // An error received from another process is kept as it is.
        if let Some(chain) = error.downcast_ref::<ErrorChain>() {
            return chain.clone();
        }
        let all = std::iter::successors(Some(error), |error| (**error).source()).take(MAX_SOURCES);
        all.map(|error| (error.to_string(), format!("{error:?}"))).collect::<Vec<_>>().into()
    }

    /// Returns the output of the error's `Debug` in its original process, which usually includes the fields.
    #[must_use]
    pub fn debug(&self) -> &str {
        &self.debug
    }
}

/// Converts from a list of messages with their `Debug` outputs, with the outermost error first. Chains are
/// sent in the form of lists, because nested values could exceed the nesting limit of messages.
impl From<Vec<(String, String)>> for ErrorChain {
    fn from(mut all: Vec<(String, String)>) -> Self {
        all.truncate(MAX_SOURCES);
        let mut source = None;
        while all.len() > 1 {
            source = all.pop().map(|(message, debug)| Box::new(ErrorChain { message, debug, source }));
        }
        let (message, debug) = all.pop().unwrap_or_default();
        ErrorChain { message, debug, source }
    }
}

impl From<ErrorChain> for Vec<(String, String)> {
    fn from(chain: ErrorChain) -> Self {
        let mut all = Vec::new();
        let mut next = Some(Box::new(chain));
        while let Some(chain) = next {
            all.push((chain.message, chain.debug));
            next = chain.source;
        }
        all
    }
}

impl fmt::Display for ErrorChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

crate::readable_debug!(ErrorChain);

impl Error for ErrorChain {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

/// Maximum number of received texts that are stored. This library has some hundreds of texts, so only another
/// program can exceed this limit.
const MAX_TEXTS: usize = 4096;
/// Maximum length in bytes of a received text.
const LONGEST: usize = 4096;
/// Replacement for texts beyond the limits.
const OTHER: &str = "something that another process says, in too many words";

static TEXTS: PerProcess<Mutex<BTreeSet<&'static str>>> = per_process!(Mutex::new(BTreeSet::new()));

fn interned(text: String) -> &'static str {
    let mut known = TEXTS.lock();
    if let Some(there) = known.get(text.as_str()) {
        return there;
    }
    if known.len() >= MAX_TEXTS || text.len() > LONGEST {
        return OTHER;
    }
    let kept: &'static str = text.leak();
    known.insert(kept);
    kept
}

/// Representation of an [`std::io::Error`] in a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum IoError {
    /// Error of the system, with its number.
    Os(i32),
    /// Name of an [`std::io::ErrorKind`], for an error without a text.
    Kind(String),
    /// Name of an [`std::io::ErrorKind`], and the error's text with its sources.
    Text(String, ErrorChain),
}

macro_rules! kinds {
    ($($kind:ident)*) => { &[$((stringify!($kind), ErrorKind::$kind)),*] };
}

/// Kinds of I/O errors, by name. Messages contain names, because the numbers of kinds are private to the
/// compiler.
const KINDS: &[(&str, ErrorKind)] = kinds! {
    AddrInUse AddrNotAvailable AlreadyExists ArgumentListTooLong BrokenPipe ConnectionAborted
    ConnectionRefused ConnectionReset CrossesDevices Deadlock DirectoryNotEmpty ExecutableFileBusy
    FileTooLarge HostUnreachable Interrupted InvalidData InvalidInput IsADirectory NetworkDown
    NetworkUnreachable NotADirectory NotConnected NotFound NotSeekable Other OutOfMemory
    PermissionDenied QuotaExceeded ReadOnlyFilesystem ResourceBusy StaleNetworkFileHandle
    StorageFull TimedOut TooManyLinks UnexpectedEof Unsupported WouldBlock WriteZero
};

/// Returns the kind with this name, or `Other` for a name that [`KINDS`] lacks.
fn kind(name: &str) -> ErrorKind {
    KINDS.iter().find(|(known, _)| *known == name).map_or(ErrorKind::Other, |(_, kind)| *kind)
}

fn name(kind: ErrorKind) -> String {
    KINDS.iter().find(|(_, known)| *known == kind).map_or("Other", |(name, _)| name).to_string()
}

impl IoError {
    /// Converts an I/O error, to put it into a message.
    #[must_use]
    pub fn from_error(error: &std::io::Error) -> Self {
        match (error.raw_os_error(), error.get_ref()) {
            (Some(number), _) => IoError::Os(number),
            (None, Some(inner)) => IoError::Text(name(error.kind()), ErrorChain::new(inner)),
            (None, None) if error.to_string() == error.kind().to_string() => {
                IoError::Kind(name(error.kind()))
            }
            // The text belongs to the standard library.
            (None, None) => IoError::Text(name(error.kind()), ErrorChain::new(error)),
        }
    }
}

/// Converts back. A system error keeps its number. Any other error has the same kind, and its text and
/// sources as an [`ErrorChain`].
impl From<IoError> for std::io::Error {
    fn from(sent: IoError) -> Self {
        match sent {
            IoError::Os(number) => std::io::Error::from_raw_os_error(number),
            IoError::Kind(name) => kind(&name).into(),
            IoError::Text(name, chain) => std::io::Error::new(kind(&name), chain),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interned_error_texts_are_stored_once_up_to_a_limit() {
        let first = interned("doing this".to_string());
        assert!(std::ptr::eq(first, interned("doing this".to_string())));
        assert_eq!(interned("x".repeat(LONGEST + 1)), OTHER);
        for i in 0..MAX_TEXTS {
            interned(format!("text {i}"));
        }
        assert_eq!(interned("one more".to_string()), OTHER);
        assert!(std::ptr::eq(first, interned("doing this".to_string())));
    }

    #[test]
    fn error_kinds_map_to_their_names() {
        for (name, kind) in KINDS {
            assert_eq!((*name, super::kind(name)), (format!("{kind:?}").as_str(), *kind));
        }
    }
}
