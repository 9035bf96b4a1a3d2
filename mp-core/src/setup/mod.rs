//! Setup of a process's arena: attachment at first need, its files, and the settings that children inherit.

use std::os::fd::BorrowedFd;
use std::path::Path;

use crate::arena::{Arena, exhausted, view};
use crate::error::Error;
use crate::sys::{Errno, directory};

pub(crate) mod attach;
pub(crate) mod configure;
pub(crate) mod extent;
pub(crate) mod fd_store;
pub(crate) mod files;
pub(crate) mod settings;

view! {
    /// Files that back the addresses of an arena: its own file, and named files.
    pub(crate) struct Backing;
}

/// Returns the error for a failed `fallocate(2)` in a named file.
pub(crate) fn no_room(fd: BorrowedFd<'_>, parent: &Path, asked: u64, e: Errno) -> Error {
    match e {
        Errno::NOSPC | Errno::NOMEM | Errno::FBIG | Errno::DQUOT => {
            exhausted(asked, e, parent, directory::room(fd, parent))
        }
        e => {
            let what = "fallocate of a file in it (its file system has to know that)";
            Error::Directory { path: parent.into(), what, source: e.into() }
        }
    }
}

/// Returns the error for a failed first allocation in a new arena.
pub(crate) fn no_room_for_new(fd: BorrowedFd<'_>, asked: u64, e: Errno) -> Error {
    match no_room(fd, "a new arena".as_ref(), asked, e) {
        // The file is a memfd.
        Error::Directory { source, .. } => Error::Os { what: "fallocate of a new arena", source },
        other => other,
    }
}
