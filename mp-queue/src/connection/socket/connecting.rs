//! Connecting as a future.
//!
//! | dropped, or killed | left |
//! |---|---|
//! | while the listener's queue is full | nothing |
//! | while it waits for the proof, if there is a key | a closed socket: the listener treats it as one that disconnected without a word |

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use rustix::event::epoll;
use rustix::io::Errno;

use super::events::{Timer, until};
use super::handshake::{Handshake, io_error};
use super::{Address, ConnectError, PAUSE, SocketOptions};
use crate::connection::Connection;

/// A connection that is being made.
struct Connecting<'a> {
    options: &'a SocketOptions,
    address: &'a Address,
    until: Option<Instant>,
    /// Ready when the other side has sent something, or it is time to look.
    events: Arc<OwnedFd>,
    timer: Timer,
    handshake: Option<Handshake>,
}

/// Connects to the listener at an address.
pub(super) async fn connect(options: &SocketOptions, address: &Address) -> Result<Connection, ConnectError> {
    let failed = |e| failed(address, e);
    let events = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?);
    let timer = Timer::new().map_err(failed)?;
    watch(&events, &timer).map_err(failed)?;
    let until_then = Instant::now().checked_add(options.patience);
    let mut connecting =
        Connecting { options, address, until: until_then, events: events.clone(), timer, handshake: None };
    until(&events, address, || connecting.look()).await
}

fn failed(address: &Address, e: Errno) -> ConnectError {
    ConnectError::Io { what: "connecting to", address: address.clone(), source: io_error(e) }
}

fn watch(events: &OwnedFd, fd: impl AsFd) -> Result<(), Errno> {
    epoll::add(events, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
}

impl Connecting<'_> {
    /// Goes as far as it can without waiting.
    fn look(&mut self) -> Result<Option<Connection>, ConnectError> {
        let mut handshake = match self.handshake.take() {
            Some(handshake) => handshake,
            None => match self.options.begin(self.address, self.until)? {
                // The listener may accept it later.
                Some(handshake) if self.options.key.is_none() => {
                    return Ok(Some(self.options.connection(handshake)));
                }
                Some(handshake) => {
                    watch(&self.events, &handshake).map_err(|e| failed(self.address, e))?;
                    handshake
                }
                None => {
                    self.look_again(Some(Instant::now() + PAUSE))?;
                    return Ok(None);
                }
            },
        };
        if handshake.advance()? {
            return Ok(Some(self.options.connection(handshake)));
        }
        self.look_again(handshake.deadline())?;
        self.handshake = Some(handshake);
        Ok(None)
    }

    fn look_again(&self, at: Option<Instant>) -> Result<(), ConnectError> {
        self.timer.set(at).map_err(|e| failed(self.address, e))
    }
}
