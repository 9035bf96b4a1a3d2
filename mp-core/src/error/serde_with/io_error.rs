//! Encoding of `std::io::Error`: number, kind and text.

use std::io::{Error, ErrorKind};

use serde::{Deserialize, Serialize};

use super::chain::ErrorChain;

/// Representation of an [`io::Error`](Error) in a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum IoError {
    /// An error of the system, given by its number.
    Os(i32),
    /// A kind without a text.
    Kind(String),
    /// A kind with a text, and possibly with sources.
    Text(String, ErrorChain),
}

/// Names of the kinds: their numbers are private to the compiler.
const KINDS: &[(&str, ErrorKind)] = &[
    ("AddrInUse", ErrorKind::AddrInUse),
    ("AddrNotAvailable", ErrorKind::AddrNotAvailable),
    ("AlreadyExists", ErrorKind::AlreadyExists),
    ("ArgumentListTooLong", ErrorKind::ArgumentListTooLong),
    ("BrokenPipe", ErrorKind::BrokenPipe),
    ("ConnectionAborted", ErrorKind::ConnectionAborted),
    ("ConnectionRefused", ErrorKind::ConnectionRefused),
    ("ConnectionReset", ErrorKind::ConnectionReset),
    ("CrossesDevices", ErrorKind::CrossesDevices),
    ("Deadlock", ErrorKind::Deadlock),
    ("DirectoryNotEmpty", ErrorKind::DirectoryNotEmpty),
    ("ExecutableFileBusy", ErrorKind::ExecutableFileBusy),
    ("FileTooLarge", ErrorKind::FileTooLarge),
    ("HostUnreachable", ErrorKind::HostUnreachable),
    ("Interrupted", ErrorKind::Interrupted),
    ("InvalidData", ErrorKind::InvalidData),
    ("InvalidInput", ErrorKind::InvalidInput),
    ("IsADirectory", ErrorKind::IsADirectory),
    ("NetworkDown", ErrorKind::NetworkDown),
    ("NetworkUnreachable", ErrorKind::NetworkUnreachable),
    ("NotADirectory", ErrorKind::NotADirectory),
    ("NotConnected", ErrorKind::NotConnected),
    ("NotFound", ErrorKind::NotFound),
    ("NotSeekable", ErrorKind::NotSeekable),
    ("Other", ErrorKind::Other),
    ("OutOfMemory", ErrorKind::OutOfMemory),
    ("PermissionDenied", ErrorKind::PermissionDenied),
    ("QuotaExceeded", ErrorKind::QuotaExceeded),
    ("ReadOnlyFilesystem", ErrorKind::ReadOnlyFilesystem),
    ("ResourceBusy", ErrorKind::ResourceBusy),
    ("StaleNetworkFileHandle", ErrorKind::StaleNetworkFileHandle),
    ("StorageFull", ErrorKind::StorageFull),
    ("TimedOut", ErrorKind::TimedOut),
    ("TooManyLinks", ErrorKind::TooManyLinks),
    ("UnexpectedEof", ErrorKind::UnexpectedEof),
    ("Unsupported", ErrorKind::Unsupported),
    ("WouldBlock", ErrorKind::WouldBlock),
    ("WriteZero", ErrorKind::WriteZero),
];

/// Returns the kind of this name; `Other` for a kind that is missing in this list.
fn kind(name: &str) -> ErrorKind {
    KINDS.iter().find(|(known, _)| *known == name).map_or(ErrorKind::Other, |(_, kind)| *kind)
}

fn name(kind: ErrorKind) -> String {
    KINDS.iter().find(|(_, known)| *known == kind).map_or("Other", |(name, _)| name).to_string()
}

impl IoError {
    /// Converts an error.
    #[must_use]
    pub fn from_error(error: &Error) -> Self {
        match (error.raw_os_error(), error.get_ref()) {
            (Some(number), _) => IoError::Os(number),
            (None, Some(inner)) => IoError::Text(name(error.kind()), ErrorChain::new(inner)),
            (None, None) if error.to_string() == error.kind().to_string() => {
                IoError::Kind(name(error.kind()))
            }
            // A text of the standard library.
            (None, None) => IoError::Text(name(error.kind()), ErrorChain::new(error)),
        }
    }
}

/// A system error keeps its number. Any other error has the same kind, and its text and sources as an
/// [`ErrorChain`].
impl From<IoError> for Error {
    fn from(sent: IoError) -> Self {
        match sent {
            IoError::Os(number) => Error::from_raw_os_error(number),
            IoError::Kind(name) => kind(&name).into(),
            IoError::Text(name, chain) => Error::new(kind(&name), chain),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_kinds_map_to_their_names() {
        for (name, kind) in KINDS {
            assert_eq!((*name, super::kind(name)), (format!("{kind:?}").as_str(), *kind));
        }
    }
}
