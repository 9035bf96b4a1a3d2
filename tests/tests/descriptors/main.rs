//! Descriptors in messages: they arrive, whatever they lead to and by whatever way; they are closed when no receiver is left; they need
//! few descriptors of the processes; and wherever a process is killed, none is left open and none is lost that has arrived.

mod deaths;
mod limits;
mod unread;
mod ways;

use std::io::{PipeReader, Read};
use std::os::fd::OwnedFd;

use mp_tests::eventually;
use rustix::io::{FdFlags, fcntl_getfd};

/// The reading end of a pipe, which the test keeps, and the other end, which it sends.
fn pipe() -> (PipeReader, OwnedFd) {
    let (reader, writer) = std::io::pipe().unwrap();
    rustix::fs::fcntl_setfl(&reader, rustix::fs::OFlags::NONBLOCK).unwrap();
    (reader, writer.into())
}

/// What was written into the pipe, once no process has the other end open any more.
#[track_caller]
fn said(mut reader: PipeReader) -> String {
    let mut text = Vec::new();
    eventually("no process has the pipe's other end", || {
        let mut part = [0; 64];
        loop {
            match reader.read(&mut part) {
                Ok(0) => return true,
                Ok(n) => text.extend_from_slice(&part[..n]),
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => return false,
                Err(e) => panic!("{e}"),
            }
        }
    });
    String::from_utf8(text).unwrap()
}

/// Whether a program that this process executes would not get it.
fn is_close_on_exec(fd: impl std::os::fd::AsFd) -> bool {
    fcntl_getfd(fd).unwrap().contains(FdFlags::CLOEXEC)
}
