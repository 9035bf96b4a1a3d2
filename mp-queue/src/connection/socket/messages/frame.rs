//! Frames of messages over a socket.
//!
//! | bytes | contents |
//! |---|---|
//! | 4 | length of the message, little-endian |
//! | 8 | fingerprint of the message's type |
//! | 2 | length of the type's name, or [`NOTE`] |
//! | that length | name of the type |
//! | length of the message | the message |
//!
//! A side that receives a message of an unexpected type sends a *note* to the other side, if there is room in
//! the socket. The fingerprint in a note is that of the refused message, and the bytes of the note are the
//! names of both types (`note_of`). The receiver of a note stores it, and returns it as the cause when the
//! connection ends.
//!
//! Any byte of a frame may be wrong. A length beyond the limit ends the connection. A receiver allocates at
//! most 64 KiB, or twice the number of bytes that it has received. For a message of more than 4 MiB, this
//! limit applies to pages but not to reserved addresses, and the kernel may round it up to a huge page. The
//! type name appears in an error only if the fingerprint is the hash of the name.

use std::os::fd::BorrowedFd;

use mp_core::{Message, fnv1a};
use mp_reduce::{Error, TypeFingerprint, from_bytes, to_bytes_after};
use rustix::io::Errno;
use rustix::net::RecvFlags;

use crate::connection::named::{LENGTH, MAX_NAME, is_name_of, sent_name, type_mismatch, with_name};
use crate::error::TypeRefusal;

/// Number of bytes of a frame before the name of the type.
pub(super) const HEAD: usize = 12 + LENGTH;
/// Value that marks a note, in the field for the length of the type's name.
const NOTE: u16 = u16::MAX;
/// Largest number of bytes of a note.
pub(super) const MAX_NOTE: usize = LENGTH + 2 * MAX_NAME;

const INVITATION_NAME: &[u8] = b"an invitation, for Connection::accept_invitation to take";
/// Number of bytes of the frame that carries an invitation.
pub(super) const INVITATION: usize = HEAD + INVITATION_NAME.len();

/// Returns the frame that carries an invitation: an empty message, to which the descriptor is attached.
pub(super) fn invitation() -> Vec<u8> {
    let fingerprint = fnv1a(INVITATION_NAME).to_le_bytes();
    let name_length = (INVITATION_NAME.len() as u16).to_le_bytes();
    [&[0; 4], &fingerprint[..], &name_length, INVITATION_NAME].concat()
}

/// Complete message that was received.
pub(super) struct ReceivedFrame {
    pub(super) bytes: Vec<u8>,
    /// Fingerprint of the message's type.
    pub(super) fingerprint: u64,
    /// Name of the message's type, or empty if the name was too long to be sent.
    pub(super) name: Vec<u8>,
}

/// Returns `true` if `bytes` are the beginning of a note.
pub(super) fn is_note_start(bytes: &[u8]) -> bool {
    bytes.get(HEAD - LENGTH..HEAD) == Some(&NOTE.to_le_bytes())
}

/// Encodes a value as a frame.
pub(super) fn frame_of<T: Message>(value: &mut T, limit: usize) -> Result<Vec<u8>, Error> {
    let head = head_of::<T>(0);
    let before = head.len();
    let mut frame = to_bytes_after(head, value)?;
    let len = length(frame.len() - before, limit)?;
    frame[..size_of_val(&len)].copy_from_slice(&len.to_le_bytes());
    Ok(frame)
}

/// Returns the part of a frame before the value, for a value of `len` bytes.
pub(super) fn head_of<T: Message>(len: u32) -> Vec<u8> {
    let (name_length, name) = sent_name::<T>();
    let fingerprint = TypeFingerprint::<T>::new().get().to_le_bytes();
    [&len.to_le_bytes(), &fingerprint[..], &name_length, name].concat()
}

/// Encodes a note: length, fingerprint, [`NOTE`], the length of the expected type's name, that name, and the
/// name of the type that was sent.
pub(super) fn note_of(expected: &str, sent: &str, fingerprint: u64) -> Vec<u8> {
    let cut = |name: &str| name.as_bytes()[..name.len().min(MAX_NAME)].to_vec();
    let (expected, sent) = (cut(expected), cut(sent));
    let len = (LENGTH + expected.len() + sent.len()) as u32;
    let head = [&len.to_le_bytes()[..], &fingerprint.to_le_bytes(), &NOTE.to_le_bytes()].concat();
    [&head[..], &(expected.len() as u16).to_le_bytes(), &expected, &sent].concat()
}

/// Decodes the names of both types in a note. Returns `None` if the note is invalid.
pub(super) fn refusal_of(bytes: &[u8]) -> Option<TypeRefusal> {
    let (length, names) = bytes.split_first_chunk::<LENGTH>()?;
    let (expected, sent) = names.split_at_checked(u16::from_le_bytes(*length).into())?;
    let name = |bytes| String::from_utf8_lossy(bytes).into_owned();
    Some(TypeRefusal { sent: name(sent), expected: name(expected) })
}

/// Decodes the value of a received message.
pub(super) fn value_of<T: Message>(
    ReceivedFrame { bytes, fingerprint, name }: ReceivedFrame,
) -> Result<T, Error> {
    // Two names may have the same fingerprint.
    if fingerprint == TypeFingerprint::<T>::new().get() && !is_name_of::<T>(&name) {
        return Err(type_mismatch::<T>(&name, &bytes));
    }
    from_bytes(bytes, fingerprint).map_err(|error| with_name(error, fingerprint, &name))
}

/// Converts the length of a message for its frame. Returns an error if the length exceeds the limit.
pub(super) fn length(len: usize, limit: usize) -> Result<u32, Error> {
    // The length field has 4 bytes, for any value of the options.
    let limit = limit.min(u32::MAX as usize);
    u32::try_from(len).ok().filter(|_| len <= limit).ok_or_else(|| {
        let why = format!("a message of {len} bytes, and {limit} is the limit (SocketOptions::max_message)");
        mp_core::Error::LimitExceeded(why).into()
    })
}

/// Reads the next bytes without consuming them.
pub(super) fn peek(socket: BorrowedFd<'_>, into: &mut [u8]) -> Result<usize, Errno> {
    rustix::net::recv(socket, into, RecvFlags::PEEK | RecvFlags::DONTWAIT).map(|(_, has)| has)
}

/// Returns `true` if the next bytes of the socket are the frame of an invitation.
pub(super) fn is_invitation(socket: BorrowedFd<'_>) -> bool {
    let mut found = [0; INVITATION];
    peek(socket, &mut found) == Ok(INVITATION) && found[..] == invitation()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The message has the fingerprint of the expected type and the name of another type.
    #[test]
    fn frame_of_equal_fingerprint_is_checked_by_type_name() {
        let received = |name: &str| {
            let fingerprint = TypeFingerprint::<u8>::new().get();
            value_of::<u8>(ReceivedFrame { bytes: vec![1, 5], fingerprint, name: name.into() })
        };
        assert_eq!(received("u8").unwrap(), 5);
        let error = received("u9").unwrap_err();
        let Error::TypeMismatch { expected, found, bytes } = error else { panic!("{error:?}") };
        assert_eq!((expected, found.as_deref(), &bytes[..]), ("u8", Some("u9"), &[1, 5][..]));
    }

    #[test]
    fn too_long_socket_message_is_refused_with_the_limit() {
        for (len, limit) in [(0, 0), (10, 10), (u32::MAX as usize, usize::MAX)] {
            assert_eq!(length(len, limit).unwrap() as usize, len);
        }
        for (len, limit, reported) in
            [(1, 0, 0), (11, 10, 10), (1 << 32, usize::MAX, u32::MAX), (usize::MAX, 1 << 40, u32::MAX)]
        {
            let error = length(len, limit).unwrap_err().to_string();
            assert!(error.contains(&format!("{len} bytes, and {reported} is the limit")), "{error}");
        }
    }
}
