//! Connection attempts: one state machine, advanced by blocking calls and by futures.
//!
//! | attempt dropped or process killed | left |
//! |---|---|
//! | while the listener's queue is full | nothing |
//! | while a TCP connection is established | a closed socket: either no listener has accepted it, or the listener treats it as in the next row |
//! | with a key, while the client waits for the listener's proof | a closed socket: the listener treats it as a client that disconnected without sending data |

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mp_core::{Descriptor, WaitPoint, Waitable};
use rustix::event::{PollFlags, epoll};
use rustix::io::Errno;

use super::events::{Timer, until};
use super::handshake::Handshake;
use super::stream::found;
use super::{Address, ConnectError, SocketOptions, error, tcp, wait_for};
use crate::connection::Connection;

/// Time between two attempts to connect while the queue of a Unix socket's listener is full.
const PAUSE: Duration = Duration::from_millis(2);

/// Connection attempt in progress.
pub(super) struct ConnectAttempt<'a> {
    options: &'a SocketOptions,
    address: &'a Address,
    /// Deadline for reaching a listener, or `None` if it is beyond the range of the clock.
    until: Option<Instant>,
    /// Most informative error of the hosts that failed so far.
    failed: Option<ConnectError>,
    stage: Stage,
}

enum Stage {
    /// The attempt continues with the host of this number. A Unix address has only number 0.
    NextHost(usize),
    /// A TCP connection to a host is being established. The attempt with this host ends at `until`.
    Connecting {
        number: usize,
        host: SocketAddr,
        socket: OwnedFd,
        until: Option<Instant>,
    },
    Handshaking(Box<Handshake>),
}

/// Result of one step of an attempt.
enum StepOutcome {
    Continue(Stage),
    Wait(Stage),
    Done(Box<Handshake>),
}

/// Waitable that is ready when a TCP connection was established or has failed.
struct ConnectingSocket<'a>(BorrowedFd<'a>);

impl Waitable for ConnectingSocket<'_> {
    fn wait_point(&self) -> WaitPoint<'_> {
        WaitPoint::Writable(self.0)
    }

    fn is_ready(&self) -> bool {
        found(self.0, PollFlags::OUT) != PollFlags::empty()
    }
}

impl<'a> ConnectAttempt<'a> {
    pub(super) fn new(options: &'a SocketOptions, address: &'a Address) -> Result<Self, ConnectError> {
        options.check(address)?;
        let until = Instant::now().checked_add(options.timeout);
        Ok(Self { options, address, until, failed: None, stage: Stage::NextHost(0) })
    }

    /// Advances the attempt as far as possible without waiting. Returns the connection, or `None` if the
    /// attempt must wait. After an error, the attempt has ended.
    pub(super) fn advance(&mut self) -> Result<Option<Connection>, ConnectError> {
        loop {
            let stage = std::mem::replace(&mut self.stage, Stage::NextHost(0));
            match self.step(stage)? {
                StepOutcome::Continue(stage) => self.stage = stage,
                StepOutcome::Wait(stage) => {
                    self.stage = stage;
                    return Ok(None);
                }
                StepOutcome::Done(handshake) => return Ok(Some(self.options.connection(*handshake))),
            }
        }
    }

    fn step(&mut self, stage: Stage) -> Result<StepOutcome, ConnectError> {
        let address = self.address;
        match stage {
            Stage::NextHost(number) => match address.hosts() {
                None => self.begin_unix(),
                Some(hosts) => self.begin_tcp(hosts, number),
            },
            Stage::Connecting { number, host, socket, until } => {
                if ConnectingSocket(socket.as_fd()).is_ready() {
                    match tcp::opened(socket.as_fd()) {
                        Ok(()) => self.greet(socket, Some(host)),
                        Err(errno) => self.after(number, self.error(errno)),
                    }
                } else if until.is_some_and(|until| Instant::now() >= until) {
                    self.after(number, ConnectError::TimedOut(self.options.timeout))
                } else {
                    Ok(StepOutcome::Wait(Stage::Connecting { number, host, socket, until }))
                }
            }
            Stage::Handshaking(mut handshake) => {
                // Without a key, the client does not wait: the listener may accept it later.
                let is_over = self.options.key.is_none() || handshake.advance()?;
                if !is_over {
                    return Ok(StepOutcome::Wait(Stage::Handshaking(handshake)));
                }
                Ok(StepOutcome::Done(handshake))
            }
        }
    }

    fn begin_unix(&self) -> Result<StepOutcome, ConnectError> {
        match self.address.connect() {
            Ok(socket) => self.greet(socket, None),
            Err(Errno::AGAIN) if self.until.is_some_and(|until| Instant::now() >= until) => {
                Err(ConnectError::TimedOut(self.options.timeout))
            }
            Err(Errno::AGAIN) => Ok(StepOutcome::Wait(Stage::NextHost(0))),
            Err(Errno::INTR) => Ok(StepOutcome::Continue(Stage::NextHost(0))),
            Err(errno) => Err(self.error(errno)),
        }
    }

    fn begin_tcp(&mut self, hosts: &[SocketAddr], number: usize) -> Result<StepOutcome, ConnectError> {
        let Some(&host) = hosts.get(number) else { return Err(self.error(Errno::ADDRNOTAVAIL)) };
        match tcp::open(host) {
            Ok(socket) => {
                let (now, hosts_left) = (Instant::now(), (hosts.len() - number) as u32);
                let share = |until: Instant| now + until.saturating_duration_since(now) / hosts_left;
                let until = self.until.map(share);
                Ok(StepOutcome::Continue(Stage::Connecting { number, host, socket, until }))
            }
            Err(errno) => self.after(number, self.error(errno)),
        }
    }

    fn greet(&self, socket: OwnedFd, host: Option<SocketAddr>) -> Result<StepOutcome, ConnectError> {
        let (key, timeout) = (self.options.key.clone(), self.options.timeout);
        let time = (timeout, self.until);
        let handshake = Handshake::begin(socket, false, key, time, self.address, host)?;
        Ok(StepOutcome::Continue(Stage::Handshaking(Box::new(handshake))))
    }

    /// Continues with the host after `number`, whose attempt failed with `error`. If there is no further
    /// host, returns the most informative error.
    fn after(&mut self, number: usize, error: ConnectError) -> Result<StepOutcome, ConnectError> {
        let error = match self.failed.take() {
            Some(failed) if error_rank(&failed) > error_rank(&error) => failed,
            _ => error,
        };
        if number + 1 < self.address.hosts().map_or(0, <[SocketAddr]>::len) {
            self.failed = Some(error);
            return Ok(StepOutcome::Continue(Stage::NextHost(number + 1)));
        }
        Err(error)
    }

    fn error(&self, errno: Errno) -> ConnectError {
        ConnectError::io(error::CONNECTING, self.address, errno)
    }

    /// Returns the socket on which the attempt waits, and its deadline. Without a socket, the attempt pauses
    /// until the deadline and then tries again.
    fn pending(&self) -> (Option<WaitPoint<'_>>, Option<Instant>) {
        match &self.stage {
            Stage::NextHost(_) => (None, Some(Instant::now() + PAUSE)),
            Stage::Connecting { socket, until, .. } => (Some(WaitPoint::Writable(socket.as_fd())), *until),
            Stage::Handshaking(handshake) => {
                (Some(WaitPoint::Readable(handshake.as_fd())), handshake.deadline())
            }
        }
    }

    /// Blocks until the attempt can continue or its time has expired.
    #[track_caller]
    pub(super) fn wait(&self) -> Result<(), ConnectError> {
        let (pending, until) = self.pending();
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        match pending {
            Some(WaitPoint::Writable(socket)) => wait_for(&ConnectingSocket(socket), left, self.address),
            Some(WaitPoint::Readable(socket)) => wait_for(&Descriptor(socket), left, self.address),
            // sleep: the kernel does not report room in the queue of a listener.
            _ => {
                std::thread::sleep(PAUSE);
                Ok(())
            }
        }
    }

    /// Makes the epoll instance `events` readable when the attempt can continue or its time has expired.
    fn watch(&self, events: &OwnedFd, timer: &Timer) -> Result<(), Errno> {
        let (pending, at) = self.pending();
        timer.set(at)?;
        let (socket, flags) = match pending {
            Some(WaitPoint::Writable(socket)) => (socket, epoll::EventFlags::OUT),
            Some(WaitPoint::Readable(socket)) => (socket, epoll::EventFlags::IN),
            _ => return Ok(()),
        };
        let data = epoll::EventData::new_u64(0);
        match epoll::add(events, socket, data, flags) {
            Err(Errno::EXIST) => epoll::modify(events, socket, data, flags),
            added => added,
        }
    }
}

/// Returns the rank of an error. If all hosts fail, the error with the highest rank is returned. A refused
/// connection means that the server has ended, and a time-out may mean that the host is busy. Any other
/// error, such as a missing route, has a local cause.
fn error_rank(error: &ConnectError) -> u8 {
    match error {
        ConnectError::Io { source, .. } if source.kind() == io::ErrorKind::ConnectionRefused => 2,
        ConnectError::TimedOut(_) => 1,
        _ => 0,
    }
}

/// Connects to the listener at an address.
pub(super) async fn connect(options: &SocketOptions, address: &Address) -> Result<Connection, ConnectError> {
    let mut attempt = ConnectAttempt::new(options, address)?;
    let failed = |errno| ConnectError::io(error::CONNECTING, address, errno);
    let events = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?);
    let timer = Timer::new().map_err(failed)?;
    epoll::add(&events, &timer, epoll::EventData::new_u64(0), epoll::EventFlags::IN).map_err(failed)?;
    until(&events, address, || {
        let made = attempt.advance()?;
        if made.is_none() {
            attempt.watch(&events, &timer).map_err(failed)?;
        }
        Ok(made)
    })
    .await
}

#[cfg(all(test, feature = "authkey"))]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;

    #[test]
    fn handshake_has_the_deadline_of_its_connect_attempt() {
        let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = silent.local_addr().unwrap().into();
        let options = SocketOptions::new().authkey("secret").handshake_timeout(Duration::from_secs(60));
        let mut attempt = ConnectAttempt::new(&options, &address).unwrap();
        let deadline = attempt.until;
        while !matches!(attempt.stage, Stage::Handshaking(_)) {
            assert!(attempt.advance().unwrap().is_none());
            assert!(deadline.is_some_and(|deadline| Instant::now() < deadline));
        }
        let Stage::Handshaking(handshake) = attempt.stage else { unreachable!() };
        assert_eq!(handshake.deadline(), deadline);
    }
}
