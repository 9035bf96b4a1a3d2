//! The locker, which stores descriptors of messages, and this process's handles to the locker.
//! `transport::attachments` describes the contents of the locker and the order of changes. The design is
//! explained in docs/reference/descriptors.md.
//!
//! The locker is a socket, the *table*, whose packets contain pairs of sockets. Every member has the table. A
//! process gets the table together with the arena's file, in the only packet of a third socket, the *parcel*.
//! The process peeks at the packet and leaves it in the parcel, so it can pass the same parcel to its own
//! children.

use std::os::fd::{AsFd, OwnedFd};

use crate::arena::state::Files;
use crate::error::{Error, Result};
use crate::sys::{Errno, memory, os, packets};

/// Number in the packet of a parcel, which identifies parcels.
pub(crate) const PARCEL: u64 = u64::from_ne_bytes(*b"mpparcel");

/// Sockets that were received with the arena's file.
#[derive(Debug)]
pub(crate) struct Parcel {
    socket: OwnedFd,
    table: OwnedFd,
}

impl Parcel {
    /// Returns the arena's file, and the parcel with the locker's table if `fd` is a parcel and not a file.
    ///
    /// # Errors
    /// [`Error::Os`] if this process has no free descriptors, [`Error::NotAnArena`] if `fd` is neither a file
    /// nor a parcel.
    pub(crate) fn open(fd: OwnedFd) -> Result<(OwnedFd, Option<Self>)> {
        if !packets::is_socket(fd.as_fd()) {
            return Ok((fd, None));
        }
        const WHAT: &str = "taking the arena's file out of its parcel";
        let packet = packets::peek(&fd, None).map_err(os(WHAT))?;
        let mut files = packet.files.into_iter();
        match (files.next(), files.next()) {
            (Some(file), Some(table)) if packet.number == PARCEL => {
                Ok((file, Some(Self { socket: fd, table })))
            }
            _ if packet.cut => Err(os(WHAT)(Errno::MFILE)),
            _ => Err(Error::NotAnArena("it is a socket, and no parcel with an arena's file".into())),
        }
    }
}

/// Creates a table, and returns the end from which packets are read. The first packet contains the other end,
/// for processes that add packets.
fn make_table() -> Result<OwnedFd, Errno> {
    let (into, table) = packets::pair()?;
    packets::enlarge(&into);
    packets::send(&into, 0, &[into.as_fd()])?;
    // Detects a kernel or an emulation that does not return descriptors by peeking.
    let packet = packets::peek(&table, Some(0))?;
    if packet.cut {
        return Err(Errno::MFILE);
    }
    if packet.number == 0 && packet.files.len() == 1 { Ok(table) } else { Err(Errno::OPNOTSUPP) }
}

impl Files {
    /// Returns the table of the locker.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if there is none, [`Error::OutOfDescriptors`] if it could not be opened.
    pub(crate) fn locker(&self) -> Result<&OwnedFd> {
        if let Some(table) = self.locker.get() {
            return Ok(table);
        }
        let _opening = self.opening.lock();
        self.open_locker()
    }

    /// Stores the sockets that were received with the arena's file.
    pub(crate) fn unpack(&self, parcel: Option<Parcel>) {
        if let Some(Parcel { socket, table }) = parcel {
            _ = self.locker.set(table);
            _ = self.parcel.set(socket);
            return;
        }
        let why = "the process that handed the arena down to this one could not hand the locker down, in \
                   which descriptors wait that are in messages";
        _ = self.no_locker.set(why.into());
    }

    /// Creates the locker, if there is none. Called under the lock `opening`.
    fn open_locker(&self) -> Result<&OwnedFd> {
        if let Some(why) = self.no_locker.get() {
            return Err(Error::Unsupported(why.clone()));
        }
        if self.locker.get().is_none() {
            match make_table() {
                Ok(table) => _ = self.locker.set(table),
                Err(errno) => return Err(self.refused(errno)),
            }
        }
        self.locker.get().ok_or(Error::Local)
    }

    fn refused(&self, errno: Errno) -> Error {
        match packets::refused("make the locker, where they wait", errno) {
            Error::Os { source, .. } => {
                let why = format!(
                    "descriptors can't be in messages here: no socket of this system keeps them for \
                    processes that look at it \
                     (SCM_RIGHTS with MSG_PEEK and SO_PEEK_OFF): {source}"
                );
                _ = self.no_locker.set(why.clone());
                Error::Unsupported(why)
            }
            later => later,
        }
    }

    /// Returns the arena's own file under an open file description without locks. Called under the lock
    /// `opening`.
    pub(crate) fn unlocked(&self) -> Result<&OwnedFd> {
        let own = self.own.as_ref().ok_or(Error::Local)?;
        if self.unlocked.get().is_none() {
            _ = self.unlocked.set(memory::reopen(own.as_fd())?);
        }
        self.unlocked.get().ok_or(Error::Local)
    }

    /// Returns the socket or file to pass to children: a parcel, or the arena's file alone if the locker is
    /// unsupported. Called under the lock `opening`.
    pub(crate) fn make_parcel(&self) -> Result<&OwnedFd> {
        if let Some(parcel) = self.parcel.get() {
            return Ok(parcel);
        }
        let file = self.unlocked()?;
        let table = match self.open_locker() {
            Ok(table) => table,
            Err(Error::Unsupported(_) | Error::TooManyDescriptors(_)) => return Ok(file),
            Err(error) => return Err(error),
        };
        let (into, parcel) = packets::pair().map_err(os("socketpair for the arena's file"))?;
        match packets::send(&into, PARCEL, &[file.as_fd(), table.as_fd()]) {
            Ok(()) => _ = self.parcel.set(parcel),
            // Without the locker, a child can do everything except receive descriptors.
            Err(_) => return Ok(file),
        }
        self.parcel.get().ok_or(Error::Local)
    }
}
