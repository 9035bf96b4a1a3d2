//! File descriptors that a worker inherits on purpose. All other descriptors, except the standard streams,
//! are closed in the worker: a file that stays open by accident keeps sockets, pipes and locks alive that
//! their owner has closed.
//!
//! | start method | other files are closed by | inherited files are set up by |
//! |---|---|---|
//! | spawn | `close_range(2)` in the child, which marks all files close-on-exec; without that call, one by one | `dup2(2)` in the child |
//! | fork server | the same, when the server is started | the message that starts the worker, and `dup2(2)` in the worker |
//! | fork | nothing: a copy has all files of its original, which its function may use | `dup2(2)` in the copy, which closes the original's file with that number |
//!
//! A file is duplicated when it is named. So this process may close the file before it starts the worker, and
//! reuse the file's number. Files that are moved in a child are first moved away from the numbers of
//! inherited files.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

use rustix::io::Errno;

use crate::error::{Result, launch_error};
use crate::protocol::lifeline;
use crate::sys::{self, MOST_INHERITED, moved_off};

const WHAT: &str = "the inheritance of file descriptors";

/// File to be inherited, and its number when the program named it.
#[derive(Clone, Debug)]
pub(crate) struct InheritedFile {
    pub(crate) number: RawFd,
    /// Duplicate, or the error of its creation.
    file: std::result::Result<Arc<OwnedFd>, Errno>,
}

impl InheritedFile {
    pub(crate) fn new(fd: BorrowedFd<'_>) -> InheritedFile {
        let file = rustix::io::fcntl_dupfd_cloexec(fd, 3).map(Arc::new);
        InheritedFile { number: fd.as_raw_fd(), file }
    }
}

/// Returns the files that one process inherits, each with its number in that process. In this process, no
/// returned descriptor has one of these numbers. If a number was named twice, the later file is used.
///
/// # Errors
/// Returns an error if a file can't be duplicated, or if there are too many.
pub(crate) fn ready(all: &[InheritedFile]) -> Result<Vec<(RawFd, Arc<OwnedFd>)>> {
    let refused = |error: io::Error| launch_error(WHAT, None, error);
    let mut files: Vec<(RawFd, Arc<OwnedFd>)> = Vec::with_capacity(all.len());
    // Standard streams are left out, because the options determine them.
    for InheritedFile { number, file } in all.iter().filter(|one| one.number >= 3) {
        let file = file.clone().map_err(|error| refused(error.into()))?;
        files.retain(|(other, _)| other != number);
        files.push((*number, file));
    }
    if files.len() > MOST_INHERITED {
        let why = format!("{} were named, and at most {MOST_INHERITED} can be inherited", files.len());
        return Err(refused(io::Error::new(io::ErrorKind::InvalidInput, why)));
    }
    let numbers: Vec<_> = files.iter().map(|(number, _)| *number).collect();
    for (_, file) in &mut files {
        if let Some(moved) = moved_off(file.as_fd(), &numbers).map_err(refused)? {
            *file = Arc::new(moved);
        }
    }
    Ok(files)
}

/// Gives inherited `files` their numbers, in a worker that a fork server has made. Moves the worker's `own`
/// files to other numbers first.
pub(crate) fn place(
    files: Vec<(RawFd, OwnedFd)>,
    own: &mut [&mut OwnedFd],
) -> std::result::Result<(), String> {
    let numbers: Vec<_> = files.iter().map(|(number, _)| *number).collect();
    let refused = |number: RawFd, why: &dyn std::fmt::Display| {
        format!("it can't inherit the file descriptor {number}: {why}")
    };
    let left = lifeline::free_numbers(&numbers)
        .map_err(|error| format!("it can't make way for what it inherits: {error}"))?;
    let mut files = files;
    let all = own.iter_mut().map(|own| &mut **own).chain(files.iter_mut().map(|(_, file)| file));
    for file in all {
        if let Some(moved) = moved_off(file.as_fd(), &numbers).map_err(|e| refused(file.as_raw_fd(), &e))? {
            *file = moved;
        }
    }
    for (number, file) in &files {
        if left != Some(*number) && sys::is_open(*number) {
            let why = "the fork server has another file under this number, which what it preloads has opened";
            return Err(refused(*number, &why));
        }
        sys::place(file.as_fd(), *number).map_err(|error| refused(*number, &error))?;
    }
    Ok(())
}

/// Gives inherited `files` their numbers, in a copy of this process. The original's files with these numbers
/// are closed in the copy, and the `socket` of the copy moves to another number.
pub(crate) fn replace(
    files: &[(RawFd, Arc<OwnedFd>)],
    socket: &mut OwnedFd,
) -> std::result::Result<(), String> {
    let numbers: Vec<_> = files.iter().map(|(number, _)| *number).collect();
    let moved = moved_off(socket.as_fd(), &numbers)
        .map_err(|error| format!("it can't make way for what it inherits: {error}"))?;
    if let Some(moved) = moved {
        *socket = moved;
    }
    for (number, file) in files {
        sys::place(file.as_fd(), *number)
            .map_err(|error| format!("it can't inherit the file descriptor {number}: {error}"))?;
    }
    Ok(())
}
