//! Frames on the socket between a parent and one child.
//!
//! A frame is a payload length (`u32`, little endian), a kind (one byte) and the payload. Both ends use the
//! same incremental decoder, which trusts no input. An unknown kind, or a length beyond the limit of the
//! kind, is an error before a byte is allocated for it. Memory grows only with bytes that have arrived.

use std::fmt;

use crate::protocol::fields::{Field, FieldReader, field_enum};
use crate::sys::MOST_INHERITED;

/// Number of bytes before the payload.
pub(crate) const HEADER: usize = 5;

/// Size in bytes of the payload of a [`FrameKind::Crash`] frame: time, address, signal, flags.
pub(crate) const CRASH_PAYLOAD: usize = 24;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum FrameKind {
    /// List of the file descriptors that arrive with this frame. First frame to a child.
    Fds = 1,
    /// Identity and function of a child, sent to the child.
    Start = 2,
    /// Arguments, or a ticket for their envelope. Last frame to a child.
    Args = 3,
    /// Report that the child is a worker. First frame to the parent.
    Hello = 4,
    /// Report of a panic, which may have been caught, to the parent.
    Panic = 5,
    /// Last report of a crashing process, sent to the parent by a signal handler.
    Crash = 6,
    /// Result of the function, sent to the parent.
    Report = 7,
    /// Confirmation to the child that the parent has taken its result.
    Taken = 8,
    /// Request to a new process to run as a fork server, with the function to preload and the file descriptor
    /// of the pid cell.
    Serve = 9,
    /// Request to a fork server for a process, with the socket and the end of the lifeline for that process.
    Fork = 10,
    /// Result of a request, sent by a fork server if the parent asks.
    Answer = 11,
    /// Report to the parent that the child has joined the shared memory.
    Joined = 12,
    /// Report to the parent that the function returned without a value.
    Done = 13,
    /// Changes to the environment of a child, sent to the child.
    Environment = 14,
    /// Request to a fork server for the result of the last request for a process.
    Ask = 15,
}

field_enum!(FrameKind {
    Fds,
    Start,
    Args,
    Hello,
    Panic,
    Crash,
    Report,
    Taken,
    Serve,
    Fork,
    Answer,
    Joined,
    Done,
    Environment,
    Ask,
});

impl FrameKind {
    /// Returns the maximum payload of a frame of this kind, in bytes.
    #[inline]
    pub(crate) fn limit(self) -> usize {
        match self {
            FrameKind::Taken | FrameKind::Done | FrameKind::Ask => 0,
            FrameKind::Fds => 1 + size_of::<i32>() * MOST_INHERITED,
            FrameKind::Fork => 8,
            FrameKind::Start | FrameKind::Serve => 64 * KIB,
            FrameKind::Answer => 256 * KIB,
            FrameKind::Environment => MIB,
            FrameKind::Args => 4 * KIB,
            FrameKind::Hello | FrameKind::Joined => 256,
            FrameKind::Panic | FrameKind::Report => 4 * MIB,
            FrameKind::Crash => CRASH_PAYLOAD,
        }
    }
}

/// Complete frame.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) kind: FrameKind,
    pub(crate) payload: Vec<u8>,
}

/// Reason why bytes are not a frame.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum WireError {
    UnknownKind(u8),
    TooLong { kind: FrameKind, length: usize },
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WireError::UnknownKind(byte) => write!(f, "there is no frame of kind {byte}"),
            WireError::TooLong { kind, length } => {
                write!(f, "{length} bytes in a frame of kind {kind:?}, which holds at most {}", kind.limit())
            }
        }
    }
}

impl std::error::Error for WireError {}

/// Returns the header of a payload of this length.
pub(crate) const fn header(kind: FrameKind, length: u32) -> [u8; HEADER] {
    let [a, b, c, d] = length.to_le_bytes();
    [a, b, c, d, kind as u8]
}

/// Appends a frame to `out`.
#[inline]
pub(crate) fn append(out: &mut Vec<u8>, kind: FrameKind, payload: &[u8]) -> Result<(), WireError> {
    let too_long = WireError::TooLong { kind, length: payload.len() };
    if payload.len() > kind.limit() {
        return Err(too_long);
    }
    let Ok(length) = u32::try_from(payload.len()) else { return Err(too_long) };
    out.reserve(HEADER + payload.len());
    out.extend_from_slice(&header(kind, length));
    out.extend_from_slice(payload);
    Ok(())
}

/// Bytes that have arrived and have not been taken.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    bytes: Vec<u8>,
    taken: usize,
}

impl Inbox {
    /// Adds bytes in the order of their arrival.
    #[inline]
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        if self.taken == self.bytes.len() {
            self.bytes.clear();
            self.taken = 0;
        }
        if self.bytes.capacity() == 0 {
            // Avoids the code that grows a vector, which a child would have to load.
            self.bytes = bytes.to_vec();
        } else {
            self.bytes.extend_from_slice(bytes);
        }
    }

    /// Takes the next complete frame. Returns `None` until more bytes arrive.
    #[inline]
    pub(crate) fn next(&mut self) -> Result<Option<Frame>, WireError> {
        let Some((head, rest)) = self.bytes.get(self.taken..).and_then(<[u8]>::split_first_chunk::<HEADER>)
        else {
            return Ok(None);
        };
        let [a, b, c, d, kind] = *head;
        let kind = FrameKind::read(&mut FieldReader(&[kind])).ok_or(WireError::UnknownKind(kind))?;
        let length = usize::try_from(u32::from_le_bytes([a, b, c, d])).unwrap_or(usize::MAX);
        if length > kind.limit() {
            return Err(WireError::TooLong { kind, length });
        }
        let Some(payload) = rest.get(..length) else { return Ok(None) };
        let frame = Frame { kind, payload: payload.to_vec() };
        self.taken += HEADER + length;
        if self.taken > self.bytes.len() / 2 {
            self.bytes.drain(..self.taken);
            self.taken = 0;
        }
        Ok(Some(frame))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_received_in_pieces_are_read_whole() {
        let mut bytes = Vec::new();
        append(&mut bytes, FrameKind::Start, b"abc").unwrap();
        append(&mut bytes, FrameKind::Hello, b"").unwrap();
        append(&mut bytes, FrameKind::Args, &[7; 1000]).unwrap();
        for cut in 1..40 {
            let mut inbox = Inbox::default();
            let mut kinds = Vec::new();
            for piece in bytes.chunks(cut) {
                inbox.push(piece);
                while let Some(frame) = inbox.next().unwrap() {
                    kinds.push((frame.kind, frame.payload.len()));
                }
            }
            assert_eq!(kinds, [(FrameKind::Start, 3), (FrameKind::Hello, 0), (FrameKind::Args, 1000)]);
        }
    }

    #[test]
    fn hostile_frame_headers_are_errors() {
        let mut inbox = Inbox::default();
        inbox.push(&[1, 0, 0, 0, 99]);
        assert_eq!(inbox.next(), Err(WireError::UnknownKind(99)));

        let mut inbox = Inbox::default();
        inbox.push(&[0xff, 0xff, 0xff, 0xff, FrameKind::Report as u8]);
        assert!(matches!(inbox.next(), Err(WireError::TooLong { kind: FrameKind::Report, .. })));
        assert!(inbox.bytes.capacity() < 1024);

        let too_long = vec![0; FrameKind::Hello.limit() + 1];
        assert!(append(&mut Vec::new(), FrameKind::Hello, &too_long).is_err());
    }
}
