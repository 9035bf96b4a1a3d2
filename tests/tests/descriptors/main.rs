//! Descriptors in messages. They arrive for every kind of file and every path of a message, and are closed
//! when no receiver is left. Each process needs few descriptors for them. If a process is killed at any
//! access, no descriptor leaks, and no delivered descriptor is lost.

mod deaths;
mod limits;
mod unread;
mod ways;

use std::io::{PipeReader, Read};
use std::os::fd::OwnedFd;

use mp_tests::eventually;
use rustix::io::{FdFlags, fcntl_getfd};

/// Returns the reading end of a pipe, which the test keeps, and the writing end, which it sends.
fn pipe() -> (PipeReader, OwnedFd) {
    let (reader, writer) = std::io::pipe().unwrap();
    rustix::fs::fcntl_setfl(&reader, rustix::fs::OFlags::NONBLOCK).unwrap();
    (reader, writer.into())
}

/// Returns the text written into the pipe, once all processes have closed the writing end.
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

/// Returns `true` if a program that this process executes would not inherit the descriptor.
fn is_close_on_exec(fd: impl std::os::fd::AsFd) -> bool {
    fcntl_getfd(fd).unwrap().contains(FdFlags::CLOEXEC)
}
