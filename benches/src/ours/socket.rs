//! Messages over a connection, compared with a bare socket.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;

use mp::connection::{Connection, SocketOptions};

use crate::work::{Outcome, Plan, now};
use crate::{Failure, Result};

const MIB: usize = 1 << 20;
/// Number of bytes of all messages of a round.
const ALL: usize = 2 << 30;

fn messages(plan: &Plan, bytes: usize) -> usize {
    (plan.repetitions(ALL as u64) as usize / bytes).max(2)
}

/// Returns the nanoseconds for each message of `bytes` bytes. `send` sends a message, in another thread, and
/// `receive` returns the first and the last byte of a message. The first message is not counted.
fn time(
    plan: &Plan,
    bytes: usize,
    mut send: impl FnMut(&[u8]) -> Result<()> + Send,
    mut receive: impl FnMut() -> Result<[u8; 2]>,
) -> Outcome {
    let count = messages(plan, bytes);
    let message = vec![7; bytes];
    thread::scope(|threads| {
        let sender = threads.spawn(|| (0..=count).try_for_each(|_| send(&message)));
        let mut start = now();
        for number in 0..=count {
            if receive()? != [7, 7] {
                return Err("wrong result: other bytes were received".into());
            }
            if number == 0 {
                start = now();
            }
        }
        let took = now() - start;
        sender.join().map_err(|_| "the sender panicked")??;
        Ok(Some(took as f64 / count as f64))
    })
}

/// Measures a bare socket: `read_exact` into a new buffer for each message, like `recv_bytes`.
fn bare(plan: &Plan, bytes: usize) -> Outcome {
    let (mut here, mut there) = UnixStream::pair()?;
    let receive = || {
        let mut buffer = vec![0; bytes];
        here.read_exact(&mut buffer)?;
        Ok([buffer[0], buffer[bytes - 1]])
    };
    time(plan, bytes, |message| Ok(there.write_all(message)?), receive)
}

/// Measures a bare socket: `read_exact` into one buffer.
fn bare_again(plan: &Plan, bytes: usize) -> Outcome {
    let (mut here, mut there) = UnixStream::pair()?;
    let mut buffer = vec![0; bytes];
    let receive = || {
        here.read_exact(&mut buffer)?;
        Ok([buffer[0], buffer[bytes - 1]])
    };
    time(plan, bytes, |message| Ok(there.write_all(message)?), receive)
}

/// Returns both ends of a connection.
fn connection() -> Result<(Connection, Connection)> {
    let address = format!("@mp-bench-{}", std::process::id());
    let options = SocketOptions::new().max_message(2 << 30);
    let listener = options.listen(address.as_str())?;
    let there = options.connect(address.as_str())?;
    Ok((listener.accept()?, there))
}

fn sends(there: &Connection, message: &[u8]) -> Result<()> {
    there.send_bytes(message).map_err(|error| Failure::from(error.to_string()))
}

fn connected(plan: &Plan, bytes: usize) -> Outcome {
    let (here, there) = connection()?;
    let receive = || {
        let message = here.recv_bytes()?;
        Ok([message[0], message[bytes - 1]])
    };
    time(plan, bytes, |message| sends(&there, message), receive)
}

fn connected_again(plan: &Plan, bytes: usize) -> Outcome {
    let (here, there) = connection()?;
    let mut message = Vec::new();
    let receive = || {
        here.recv_to(&mut message)?;
        Ok([message[0], message[bytes - 1]])
    };
    time(plan, bytes, |message| sends(&there, message), receive)
}

macro_rules! sizes {
    ($($size:literal: $bare:ident $connection:ident, $bare_again:ident $connection_again:ident;)*) => {$(
        pub(crate) fn $bare(plan: &Plan) -> Outcome {
            bare(plan, $size * MIB)
        }
        pub(crate) fn $connection(plan: &Plan) -> Outcome {
            connected(plan, $size * MIB)
        }
        pub(crate) fn $bare_again(plan: &Plan) -> Outcome {
            bare_again(plan, $size * MIB)
        }
        pub(crate) fn $connection_again(plan: &Plan) -> Outcome {
            connected_again(plan, $size * MIB)
        }
    )*};
}

sizes! {
    1: bare_1m connection_1m, bare_again_1m connection_again_1m;
    64: bare_64m connection_64m, bare_again_64m connection_again_64m;
    1024: bare_1g connection_1g, bare_again_1g connection_again_1g;
}
