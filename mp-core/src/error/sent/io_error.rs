//! `std::io::Error`: number, kind and text.

use std::io::{Error, ErrorKind};

use serde::{Deserialize, Serialize};

use super::chain::ErrorChain;

/// What an [`io::Error`](Error) travels as.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum IoError {
    /// An error of the system: its number, which says all.
    Os(i32),
    /// A kind without a text of its own.
    Kind(String),
    /// A kind with a text, and maybe with sources.
    Text(String, ErrorChain),
}

/// By name: the numbers of the kinds are the compiler's business.
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

/// A kind that is newer than this list is `Other`.
fn kind(name: &str) -> ErrorKind {
    KINDS.iter().find(|(known, _)| *known == name).map_or(ErrorKind::Other, |(_, kind)| *kind)
}

fn name(kind: ErrorKind) -> String {
    KINDS.iter().find(|(_, known)| *known == kind).map_or("Other", |(name, _)| name).to_string()
}

impl IoError {
    /// What is sent of an error.
    #[must_use]
    pub fn of(error: &Error) -> Self {
        match (error.raw_os_error(), error.get_ref()) {
            (Some(number), _) => IoError::Os(number),
            (None, Some(inner)) => IoError::Text(name(error.kind()), ErrorChain::new(inner)),
            (None, None) if error.to_string() == error.kind().to_string() => {
                IoError::Kind(name(error.kind()))
            }
            // A text of the standard library's own.
            (None, None) => IoError::Text(name(error.kind()), ErrorChain::new(error)),
        }
    }
}

/// What arrives: the system's number is the same error; any other one has its kind, and its text and sources as an [`ErrorChain`].
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
    fn kinds_are_named_as_they_are() {
        for (name, kind) in KINDS {
            assert_eq!((*name, super::kind(name)), (format!("{kind:?}").as_str(), *kind));
        }
    }
}
