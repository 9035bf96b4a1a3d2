//! Workload with files, pipes and sockets in messages. Each descriptor is identified by the contents of its
//! file, and is closed after it was received.
//!
//! | killed process | guarantee |
//! |---|---|
//! | a producer | the message that it was putting is put, or the message's files are closed; earlier messages arrive |
//! | a consumer | the message that it was getting is lost, and its files are closed |
//! | any | at the end, no descriptor is in the locker, and no compartment has a message |

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use mp::{Fd, Queue};
use serde::{Deserialize, Serialize};

use crate::bookkeeping::board::Op;
use crate::random::{Random, mix};
use crate::workloads::work::{LONG, Worker};

/// Message with descriptors of files, pipes or sockets.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Cargo {
    number: u64,
    from: u64,
    files: Vec<Fd>,
}

/// Returns the contents of file `i` of a message.
fn contents(number: u64, i: usize) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes[8..].copy_from_slice(&mix(number ^ (i as u64) << 56).to_le_bytes());
    bytes
}

/// Creates a file, a pipe or a socket whose complete contents are `contents`.
fn made(contents: &[u8], random: &mut Random) -> mp::AnyResult<OwnedFd> {
    Ok(match random.below(3) {
        0 => {
            let flags = rustix::fs::MemfdFlags::CLOEXEC;
            let mut file = File::from(rustix::fs::memfd_create("mp-torture", flags)?);
            file.write_all(contents)?;
            file.rewind()?;
            file.into()
        }
        1 => {
            let (reader, mut writer) = std::io::pipe()?;
            writer.write_all(contents)?;
            reader.into()
        }
        _ => {
            let (here, mut there) = UnixStream::pair()?;
            there.write_all(contents)?;
            here.into()
        }
    })
}

impl Cargo {
    fn new(number: u64, from: u64, random: &mut Random) -> mp::AnyResult<Self> {
        // Some messages have no files, and some have many.
        let count = if random.percent(5) { random.below(40) } else { random.below(4) };
        let files = (0..count as usize).map(|i| Ok(Fd(made(&contents(number, i), random)?)));
        Ok(Self { number, from, files: files.collect::<mp::AnyResult<_>>()? })
    }

    /// Checks the contents of each file. Reading to the end also shows that no process holds the other end of
    /// a pipe or socket.
    fn check(self) -> mp::AnyResult<()> {
        for (i, file) in self.files.into_iter().enumerate() {
            let mut bytes = Vec::new();
            File::from(file.0).read_to_end(&mut bytes)?;
            if bytes != contents(self.number, i) {
                return Err(format!("torn: file {i} of message {} has {bytes:?}", self.number).into());
            }
        }
        Ok(())
    }
}

impl Worker {
    pub(crate) fn put_files(&mut self, queue: &Queue<Cargo>) -> mp::AnyResult<()> {
        while !self.row.over()
            && let Some(number) = self.ledger.begin()
        {
            self.row.note(Op::Put, number);
            let cargo = Cargo::new(number, self.mark, &mut self.random)?;
            self.was_put(number, queue.put_timeout(cargo, LONG))?;
        }
        Ok(())
    }

    pub(crate) fn get_files(&mut self, queue: &Queue<Cargo>) -> mp::AnyResult<()> {
        loop {
            self.row.note(Op::Get, queue.len() as u64);
            let Some(cargo) = queue.get_timeout(LONG)? else { return Ok(()) };
            self.numbered(0, cargo.from, cargo.number)?;
            // Some messages are dropped without reading their files.
            if self.random.percent(90) {
                cargo.check()?;
            }
        }
    }
}
