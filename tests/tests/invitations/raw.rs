//! Protocol of connections and invitations without the library, for peers that break it.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};

/// Number of bytes of a hello.
pub(crate) const HELLO: usize = 8 + 1 + 32;
/// Number of bytes of a proof of the key.
pub(crate) const PROOF: usize = 32;
/// Number of bytes of the packet in the socket of an invitation.
pub(crate) const PACKET: usize = 8 + 4 + 12;
/// Maximum number of descriptors that [`send`] attaches.
const MOST: usize = 4;

/// Returns the hello of a side, of this version of the protocol.
pub(crate) fn hello(version: u8, key: bool) -> Vec<u8> {
    [&b"mp-sock"[..], &[version, u8::from(key)], &[7; 32]].concat()
}

/// Returns a valid hello of a side without a key.
pub(crate) fn greeting() -> Vec<u8> {
    hello(8, false)
}

/// Returns the frame that announces an invitation. The sender attaches the invitation's socket to the frame.
pub(crate) fn announcement() -> Vec<u8> {
    let name = b"an invitation, for Connection::accept_invitation to take";
    let fingerprint = mp_core::fnv1a(name).to_le_bytes();
    [&[0; 4], &fingerprint[..], &(name.len() as u16).to_le_bytes(), name].concat()
}

/// Returns a packet of this version, whose ticket names no envelope.
pub(crate) fn packet(version: u32) -> Vec<u8> {
    [&b"mp-guest"[..], &version.to_le_bytes(), &[0xee; 12]].concat()
}

/// Returns the address of an abstract name, without its `@`.
pub(crate) fn abstract_address(name: &str) -> SocketAddr {
    SocketAddr::from_abstract_name(&name[1..]).unwrap()
}

/// Sends bytes with descriptors by one call.
pub(crate) fn send(socket: impl AsFd, bytes: &[u8], files: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(files.is_empty() || control.push(SendAncillaryMessage::ScmRights(files)));
    let sent = rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL);
    assert_eq!(sent.unwrap(), bytes.len());
}

/// Receives exactly `len` bytes, and the last descriptor that came with them. Blocks until they have
/// arrived.
pub(crate) fn receive(socket: impl AsFd, len: usize) -> (Vec<u8>, Option<OwnedFd>) {
    let (mut bytes, mut file) = (Vec::new(), None);
    while bytes.len() < len {
        let mut part = vec![0; len - bytes.len()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let parts = &mut [IoSliceMut::new(&mut part)];
        let got = rustix::net::recvmsg(&socket, parts, &mut control, RecvFlags::CMSG_CLOEXEC).unwrap();
        assert_ne!(got.bytes, 0, "the other side has closed the connection");
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(files) = message {
                file = files.last().or(file);
            }
        }
        bytes.extend_from_slice(&part[..got.bytes]);
    }
    (bytes, file)
}
