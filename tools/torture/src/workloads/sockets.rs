//! Workload with a listener and its clients, which are connected by sockets.
//!
//! | killed process | guarantee |
//! |---|---|
//! | a client | the listener gets an error; connections of other clients continue; messages in flight are lost |
//! | the listener | the clients get an error; the address is free for the next listener; messages in flight are lost |
//! | none | every message that is sent is answered, in order |

use std::io::ErrorKind;
use std::path::PathBuf;

use mp::connection::{Address, ConnectError, SocketOptions};
use mp::{Connection, Event, GetError, Listener, PutError, Waitable};
use serde::{Deserialize, Serialize};

use crate::bookkeeping::board::Op;
use crate::random::{Random, mix};
use crate::workloads::futures::drive;
use crate::workloads::work::{IN_PIPE, LONG, Worker};

/// Number of clients.
pub(crate) const CLIENTS: usize = 2;

/// Address of the listener.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Service {
    path: PathBuf,
    /// `true` if the address is an abstract name, so that no file exists.
    no_file: bool,
    key: Option<u64>,
    /// Event that is set when no more clients will connect.
    over: Event,
}

/// Message without tensors, because a socket can't transfer tensors.
#[derive(Serialize, Deserialize)]
struct Packet {
    number: u64,
    from: u64,
    bytes: Vec<u8>,
}

impl Packet {
    fn new(number: u64, from: u64, random: &mut Random) -> Self {
        let len = match random.below(100) {
            // More bytes than a socket buffers.
            0..3 => 600_000,
            3..20 => random.below(20_000),
            _ => random.below(100),
        };
        Self { number, from, bytes: vec![mix(number) as u8; len as usize] }
    }

    fn check(&self) -> mp::AnyResult<()> {
        match self.bytes.iter().any(|&b| b != mix(self.number) as u8) {
            true => Err(format!("torn: bytes of message {} of a socket", self.number).into()),
            false => Ok(()),
        }
    }
}

impl Service {
    pub(crate) fn new(random: &mut Random) -> mp::AnyResult<Self> {
        let name = format!("mp-torture-{}-{:x}", std::process::id(), random.next());
        let key = random.percent(50).then(|| random.next());
        Ok(Self {
            path: std::env::temp_dir().join(name),
            no_file: random.percent(50),
            key,
            over: Event::new()?,
        })
    }

    /// Reports to the listener that no more clients will connect.
    pub(crate) fn close(&self) -> mp::AnyResult<()> {
        self.over.set()?;
        Ok(())
    }

    /// Checks that no file of the listener is left after all workers have ended.
    pub(crate) fn settle(&self) -> mp::AnyResult<()> {
        match self.path.exists() {
            true => Err(format!("leaked: {}, where no process listens", self.path.display()).into()),
            false => Ok(()),
        }
    }

    fn address(&self) -> Address {
        match self.no_file {
            true => Address::name(self.path.to_string_lossy().as_bytes()),
            false => Address::path(&self.path),
        }
    }

    fn options(&self) -> SocketOptions {
        match self.key {
            Some(key) => SocketOptions::new().authkey(key.to_le_bytes()),
            None => SocketOptions::new(),
        }
    }
}

/// Result of polling a connection for a message.
enum PollOutcome {
    Something,
    /// No complete message has arrived.
    Nothing,
    /// The other end is closed.
    End,
}

impl Worker {
    /// Runs a client until the round has ended: repeatedly connects, exchanges some messages, and
    /// disconnects.
    pub(crate) fn call(&mut self, service: &Service) -> mp::AnyResult<()> {
        while !self.row.over() {
            self.row.note(Op::Connect, 0);
            let connected = match self.limit(50) {
                // A dropped future has not connected.
                Some(limit) => match drive(service.options().connect_async(service.address()), Some(limit)) {
                    Some(connected) => connected,
                    None => continue,
                },
                None => service.options().connect(service.address()),
            };
            match connected {
                Ok(connection) => self.talk(&connection)?,
                Err(ConnectError::TimedOut(after)) => {
                    return Err(format!("hang: no listener has answered within {after:?}").into());
                }
                // The listener was killed before or during the connection.
                Err(ConnectError::Gone) => {}
                Err(ConnectError::Io { source, .. })
                    if matches!(source.kind(), ErrorKind::ConnectionRefused | ErrorKind::NotFound) =>
                {
                    // sleep: the next listener is about to be started
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Sends messages to the listener, and waits for the answer to each. Ends when the listener has ended, or
    /// at random.
    fn talk(&mut self, connection: &Connection) -> mp::AnyResult<()> {
        for _ in 0..self.random.below(100) {
            let mut sent = Vec::new();
            for _ in 0..=self.random.below(IN_PIPE) {
                let Some(number) = self.ledger.begin().filter(|_| !self.row.over()) else { break };
                self.row.note(Op::Send, number);
                let packet = Packet::new(number, self.mark, &mut self.random);
                let end = match self.random.percent(30) {
                    true => drive(connection.send_async(packet), None).ok_or("a future without an end")?,
                    false => connection.send(packet),
                };
                match end {
                    // The message may have been in flight already.
                    Err(PutError::Disconnected(_)) => return Ok(()),
                    end => self.was_put(number, end)?,
                }
                sent.push(number);
            }
            if sent.is_empty() {
                return Ok(());
            }
            for number in sent {
                self.row.note(Op::Receive, number);
                let answer = match self.random.percent(30) {
                    true => drive(connection.recv_async::<u64>(), None).ok_or("a future without an end")?,
                    false => connection.recv_timeout(LONG),
                };
                match answer {
                    Ok(answer) if answer == number => {}
                    Err(error) if is_gone(&error) => return Ok(()),
                    other => return Err(format!("torn: {other:?} for message {number}").into()),
                }
            }
        }
        Ok(())
    }

    /// Runs the listener: answers all clients, until no more clients will connect.
    pub(crate) fn serve(&mut self, service: &Service) -> mp::AnyResult<()> {
        let listener = service.options().listen(service.address())?;
        let mut connections: Vec<Connection> = Vec::new();
        loop {
            let mut things: Vec<&dyn Waitable> = vec![&listener];
            things.extend(connections.iter().map(|c| c as &dyn Waitable));
            let all = things.len();
            if connections.is_empty() {
                things.push(&service.over);
            }
            self.row.note(Op::Wait, things.len() as u64);
            let mut found = mp::wait(&things, Some(LONG))?;
            if found.is_empty() {
                return Err("hang: no client connects, and it is not over".into());
            }
            // The end is not reached while a killed client that has sent data waits to be accepted.
            if found.pop_if(|i| *i == all).is_some() && found.is_empty() {
                return Ok(());
            }
            // In reverse order, so that the remaining indices stay valid.
            for i in found.into_iter().rev() {
                match i {
                    0 => self.accept(&listener, &mut connections)?,
                    _ if matches!(self.answer(&connections[i - 1])?, PollOutcome::End) => {
                        drop(connections.remove(i - 1));
                    }
                    _ => {}
                }
            }
        }
    }

    fn accept(&mut self, listener: &Listener, connections: &mut Vec<Connection>) -> mp::AnyResult<()> {
        self.row.note(Op::Accept, connections.len() as u64);
        let accepted = match self.limit(50) {
            // A dropped future has accepted no client.
            Some(limit) => drive(listener.accept_async(), Some(limit)).transpose(),
            None => listener.accept_timeout(std::time::Duration::ZERO),
        };
        match accepted {
            Ok(connection) => connections.extend(connection),
            // The client was killed while it connected.
            Err(ConnectError::Gone) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Answers the next message of a client, if one has arrived.
    fn answer(&mut self, connection: &Connection) -> mp::AnyResult<PollOutcome> {
        let packet: Packet = match connection.try_recv() {
            Ok(packet) => packet,
            Err(GetError::Empty) => return Ok(PollOutcome::Nothing),
            Err(error) if is_gone(&error) => return Ok(PollOutcome::End),
            Err(error) => return Err(error.into()),
        };
        packet.check()?;
        self.numbered(0, packet.from, packet.number)?;
        self.row.note(Op::Answer, packet.number);
        match connection.send(packet.number) {
            Ok(()) => Ok(PollOutcome::Something),
            Err(PutError::Disconnected(_)) => Ok(PollOutcome::End),
            Err(error) => Err(error.to_string().into()),
        }
    }
}

/// Returns `true` if the error means that the other end is closed, possibly in the middle of a message.
fn is_gone(error: &GetError) -> bool {
    matches!(error, GetError::Disconnected)
        || matches!(error, GetError::Failed(e) if e.to_string().contains("in the middle of a message"))
}
