//! Fuzz targets for received frames and hellos.

use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};

use mp_reduce::Error;

use super::*;
use crate::connection::socket::handshake::{HELLO, check_hello, hello};
use crate::connection::socket::messages::frame::{frame_of, note_of, value_of};

/// Largest number of bytes of a message.
const LIMIT: usize = 300;

/// Returns a socket with these bytes to read. The other end is closed.
fn arrived(bytes: &[u8]) -> OwnedFd {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (there, here) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
    let mut rest = bytes;
    while !rest.is_empty() {
        match send(&there, rest, SendFlags::NOSIGNAL) {
            Ok(n) => rest = &rest[n..],
            Err(_) => break,
        }
    }
    here
}

/// Reads frames. The first byte decides whether the hello of a listener is still expected.
pub(crate) fn frames(bytes: &[u8]) {
    let Some((greeted, bytes)) = bytes.split_first() else { return };
    let greeting = (greeted % 2 == 1).then(Greeting::empty);
    let (fd, mut reader) = (arrived(bytes), MessageReader::new(greeting));
    match reader.is_greeted(fd.as_fd()) {
        Ok(true) => {}
        Ok(false) => return,
        // The bytes were not the hello of a listener of this version.
        Err(GetError::Failed(_) | GetError::Disconnected) => return,
        Err(other) => panic!("an error of something else than a hello: {other:?}"),
    }
    loop {
        match reader.read_next(fd.as_fd(), LIMIT) {
            Ok(FrameEvent::Message(frame)) => {
                assert!(frame.bytes.len() <= LIMIT && frame.name.len() <= MAX_NAME);
                if let Err(error) = value_of::<(u8, String)>(frame) {
                    let is_type = matches!(error, Error::TypeMismatch { .. });
                    let is_bytes = matches!(error, Error::Memory(mp_core::Error::Undecodable(_)));
                    assert!(is_type || is_bytes, "{error:?}");
                }
            }
            Ok(FrameEvent::Note) => {
                if let Some(refusal) = &reader.refusal {
                    assert!(refusal.sent.len() + refusal.expected.len() <= 3 * MAX_NOTE);
                }
            }
            // All bytes and the end have arrived.
            Ok(FrameEvent::Pending) => panic!("the reader waits for more bytes than the frame has"),
            Err(error) => {
                is_of_bytes(&error);
                // Buffers are freed when the connection ends.
                let left = reader.body.capacity() + reader.name.capacity();
                assert!(reader.closed && left <= 2 * FIRST, "{left} bytes are left");
                return;
            }
        }
    }
}

#[track_caller]
fn is_of_bytes(error: &GetError) {
    let is_gone = matches!(error, GetError::Disconnected | GetError::TypeRefused(_));
    let GetError::Failed(error) = error else { return assert!(is_gone, "{error:?}") };
    use mp_core::Error::{LimitExceeded, Malformed};
    let of_bytes = matches!(error, Error::Memory(LimitExceeded(_) | Malformed(_)));
    assert!(of_bytes, "{error:?}");
}

/// Checks hellos. The first byte decides whether this side has a key.
pub(crate) fn hellos(bytes: &[u8]) {
    let Some((key, bytes)) = bytes.split_first() else { return };
    if let Some(&input) = bytes.first_chunk::<HELLO>() {
        let key = key % 2 == 1;
        if let Ok(nonce) = check_hello(&input, key) {
            assert_eq!(hello(key, &nonce), input);
        }
    }
    let there = arrived(bytes);
    let mut greeting = Greeting::empty();
    match greeting.advance(there.as_fd()) {
        Ok(is_whole) => assert!(is_whole && bytes.len() >= HELLO),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

pub(crate) fn samples() -> Vec<(&'static str, Vec<u8>)> {
    let frame = |text: &str| frame_of(&mut (7_u8, text.to_owned()), LIMIT).unwrap();
    vec![
        ("hello without a key", hello(false, &[7; 32]).to_vec()),
        ("hello with a key", hello(true, &[7; 32]).to_vec()),
        ("message", frame("text")),
        ("long message", frame(&"t".repeat(280))),
        ("note", note_of("expected", "sent", 9)),
    ]
}

pub(crate) fn frame_seeds() -> Vec<Vec<u8>> {
    let samples = samples().into_iter().map(|(_, bytes)| bytes);
    let all: Vec<u8> = samples.clone().skip(2).flatten().collect();
    let one_by_one = samples.skip(2).map(|bytes| [&[0], &bytes[..]].concat());
    one_by_one
        .chain([[&[0], &all[..]].concat(), [&[1], &hello(false, &[7; 32])[..], &all].concat()])
        .collect()
}

pub(crate) fn hello_seeds() -> Vec<Vec<u8>> {
    [false, true].map(|key| [&[key.into()], &hello(key, &[5; 32])[..]].concat()).to_vec()
}
