//! Handshake of two programs.
//!
//! | step | sender | bytes |
//! |---|---|---|
//! | 1 | the kernel | none: it reports the peer's user and process (Unix socket) or address (TCP). Nothing is read from a process of another user |
//! | 2 | both sides, concurrently | hello: `mp-sock` and version (8), 1 if the side has a key (1), random bytes (32) |
//! | 3 | the client, if both sides have a key | the client's proof (32), see `key` |
//! | 4 | the listener, after a valid proof | the listener's proof (32) |
//! |   | the listener, after a wrong proof | 32 zero bytes, which are not a valid proof. The listener then closes the connection |
//!
//! A peer that receives a proof can try keys offline. Any process can reach the listener, so the listener
//! sends its own proof only to a client that has proved its key.
//!
//! A client without a key does not wait for the listener's hello, because the connection may stay in the
//! listener's queue for a long time. The client reads the hello before the first message ([`Greeting`]). An
//! error in the hello is returned by the first receive, or by the first send that fails because the listener
//! has closed the connection. With a key, the proof precedes all messages, so `connect` waits for the proof.
//!
//! Every part has a fixed length, is read into a buffer of that length, and must arrive before the deadline.
//! The sockets are non-blocking, so a silent or stopped process does not block the listener.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mp_core::peer;
use rustix::io::Errno;
use rustix::net::SendFlags;

use super::key::{self, Key, NONCE, PROOF, ProofInput};
use super::stream::{PeerIdentity, SocketStream, read};
use super::{Address, ConnectError};

const MAGIC: &[u8; 8] = b"mp-sock\x08";
pub(super) const HELLO: usize = MAGIC.len() + 1 + NONCE;
/// Bytes that a listener sends instead of its proof after it has received a wrong proof.
const REFUSAL: [u8; PROOF] = [0; PROOF];

/// Connection whose handshake is not complete.
pub(crate) struct Handshake {
    fd: OwnedFd,
    listener: bool,
    key: Option<Arc<Key>>,
    peer: PeerIdentity,
    mine: [u8; NONCE],
    theirs: Option<[u8; NONCE]>,
    part: Greeting,
    /// `true` if the peer had already closed the connection when it was accepted.
    left: bool,
    began: Instant,
    /// Deadline of the handshake, or `None` if it is beyond the range of the clock.
    deadline: Option<Instant>,
    timeout: Duration,
}

/// Received bytes of a hello or a proof. A client without a key may still expect the hello after its
/// handshake, since the listener may not have accepted yet.
pub(crate) struct Greeting {
    buffer: [u8; HELLO],
    have: usize,
}

impl Greeting {
    /// Creates a greeting without any received bytes.
    pub(super) const fn empty() -> Self {
        Self { buffer: [0; HELLO], have: 0 }
    }

    /// Reads available bytes. Returns `true` if the hello is complete and valid.
    pub(crate) fn advance(&mut self, fd: BorrowedFd<'_>) -> Result<bool, ConnectError> {
        Ok(self.fill(fd, HELLO)? && check_hello(&self.buffer, false).map(|_| true)?)
    }

    /// Reads available bytes. Returns `true` if `wanted` bytes have arrived.
    fn fill(&mut self, fd: BorrowedFd<'_>, wanted: usize) -> Result<bool, ConnectError> {
        while self.have < wanted {
            match read(fd, &mut self.buffer[self.have..wanted]) {
                Ok(0) => return Err(ConnectError::Gone),
                Ok(n) => self.have += n,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(false),
                Err(_) => return Err(ConnectError::Gone),
            }
        }
        Ok(true)
    }
}

impl Handshake {
    /// Begins a handshake over a connected, non-blocking socket. `host` is the address of a TCP peer.
    /// `timeout` is the time limit that errors report, and `deadline` is its end.
    pub(crate) fn begin(
        fd: OwnedFd,
        listener: bool,
        key: Option<Arc<Key>>,
        (timeout, deadline): (Duration, Option<Instant>),
        address: &Address,
        host: Option<SocketAddr>,
    ) -> Result<Self, ConnectError> {
        let failed = |source: std::io::Error| ConnectError::io("greeting at", address, source);
        let peer = match host {
            Some(host) => PeerIdentity::Host(host),
            None => {
                let peer = peer::credentials(fd.as_fd()).map_err(failed)?;
                if peer.uid != rustix::process::geteuid().as_raw() {
                    return Err(ConnectError::OtherUser { uid: peer.uid, pid: peer.pid });
                }
                PeerIdentity::Process(peer)
            }
        };
        let mine = key::nonce().map_err(failed)?;
        let left = match send_short(fd.as_fd(), &hello(key.is_some(), &mine)) {
            // A client that closed before it was accepted: its data can still be read.
            Err(ConnectError::Gone) if listener => true,
            sent => {
                sent?;
                false
            }
        };
        Ok(Self {
            fd,
            listener,
            key,
            peer,
            mine,
            theirs: None,
            part: Greeting::empty(),
            left,
            began: Instant::now(),
            deadline,
            timeout,
        })
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Returns the time at which the handshake of a TCP peer began, if the peer has sent nothing. Returns
    /// `None` if the peer has sent a byte or uses a Unix socket.
    pub(crate) fn silent_since(&self) -> Option<Instant> {
        (self.peer.host().is_some() && self.has_received_nothing()).then_some(self.began)
    }

    /// Returns `true` if a closed connection was only a check for a listener: the peer has sent nothing, or
    /// had closed the connection before it was accepted.
    pub(crate) fn is_probe(&self) -> bool {
        self.left || self.has_received_nothing()
    }

    fn has_received_nothing(&self) -> bool {
        self.theirs.is_none() && self.part.have == 0
    }

    /// Reads available bytes and sends the answer. Returns `true` if the handshake is complete.
    pub(crate) fn advance(&mut self) -> Result<bool, ConnectError> {
        loop {
            let wanted = if self.theirs.is_none() { HELLO } else { PROOF };
            if !self.part.fill(self.fd.as_fd(), wanted)? {
                let late = self.deadline.is_some_and(|deadline| Instant::now() >= deadline);
                return if late { Err(ConnectError::TimedOut(self.timeout)) } else { Ok(false) };
            }
            self.part.have = 0;
            let Some(theirs) = self.theirs else {
                self.theirs = Some(self.check_greeting()?);
                match &self.key {
                    Some(_) => continue,
                    None => return Ok(true),
                }
            };
            return self.check_proof(&theirs).map(|()| true);
        }
    }

    /// Checks a received hello and returns its random bytes. A client with a key then sends its proof.
    fn check_greeting(&self) -> Result<[u8; NONCE], ConnectError> {
        let theirs = check_hello(&self.part.buffer, self.key.is_some())?;
        if !self.listener {
            self.prove(&theirs)?;
        }
        Ok(theirs)
    }

    /// Checks a received proof. A listener then sends its own proof, or a refusal.
    fn check_proof(&self, theirs: &[u8; NONCE]) -> Result<(), ConnectError> {
        let input = ProofInput { listener: !self.listener, provers: theirs, others: &self.mine };
        let is_proof = self.key.as_ref().is_none_or(|key| key.is_proof(&input, &self.part.buffer[..PROOF]));
        if !is_proof {
            if self.listener {
                // A failed send is ignored: the client may have ended.
                _ = send_short(self.fd.as_fd(), &REFUSAL);
            }
            return Err(ConnectError::KeyMismatch { pid: self.peer.pid(), host: self.peer.host() });
        }
        if self.listener { self.prove(theirs) } else { Ok(()) }
    }

    /// Sends the proof of this side, if there is a key.
    fn prove(&self, theirs: &[u8; NONCE]) -> Result<(), ConnectError> {
        let Some(key) = &self.key else { return Ok(()) };
        let input = ProofInput { listener: self.listener, provers: &self.mine, others: theirs };
        send_short(self.fd.as_fd(), &key.prove(&input))
    }

    /// Converts the handshake into a stream. For a client without a key, also returns the received part of
    /// the listener's hello, which precedes the first message.
    pub(super) fn end(self) -> (SocketStream, Option<Greeting>) {
        let greeting = self.theirs.is_none().then_some(self.part);
        (SocketStream { fd: self.fd, peer: self.peer }, greeting)
    }
}

impl AsFd for Handshake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Returns the hello of a side with the random bytes `mine`.
pub(super) fn hello(key: bool, mine: &[u8; NONCE]) -> [u8; HELLO] {
    let mut hello = [0; HELLO];
    hello[..MAGIC.len()].copy_from_slice(MAGIC);
    hello[MAGIC.len()] = u8::from(key);
    hello[MAGIC.len() + 1..].copy_from_slice(mine);
    hello
}

/// Checks a hello: its version must be supported, and both sides or neither must have a key. Returns its
/// random bytes.
pub(super) fn check_hello(hello: &[u8; HELLO], key: bool) -> Result<[u8; NONCE], ConnectError> {
    let (magic, rest) = hello.split_at(MAGIC.len());
    if magic[..7] != MAGIC[..7] {
        return Err(ConnectError::Incompatible("it sent no valid hello"));
    }
    if magic[7] != MAGIC[7] {
        return Err(ConnectError::Incompatible("it uses another version of the protocol"));
    }
    let has_key = match rest[0] {
        0 => false,
        1 => true,
        _ => return Err(ConnectError::Incompatible("its hello has unknown flags")),
    };
    if has_key != key {
        return Err(ConnectError::KeyMissing { here: has_key });
    }
    let mut theirs = [0; NONCE];
    theirs.copy_from_slice(&rest[1..]);
    Ok(theirs)
}

/// Sends `bytes`, which fit into the empty buffer of a new socket.
fn send_short(fd: BorrowedFd<'_>, bytes: &[u8]) -> Result<(), ConnectError> {
    match rustix::net::send(fd, bytes, SendFlags::NOSIGNAL) {
        Ok(n) if n == bytes.len() => Ok(()),
        _ => Err(ConnectError::Gone),
    }
}
