//! What parent and child hand to each other besides frames: arguments, shared memory, the news of a death.
//!
//! This is the one place where processes meet shared memory. There is none yet: arguments travel as bytes in
//! the start message, no file descriptor goes along, and nobody needs to hear of a death.

use std::io;
use std::os::fd::OwnedFd;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Result, SpawnError};
use crate::wire::Kind;

/// What goes to a child with its start message.
#[derive(Debug)]
pub(crate) struct ToChild {
    /// The arguments, encoded.
    pub(crate) bytes: Vec<u8>,
    /// File descriptors that the child gets first.
    pub(crate) fds: Vec<OwnedFd>,
}

impl ToChild {
    /// Encodes arguments for one child.
    pub(crate) fn pack<A: Serialize>(args: &A) -> Result<ToChild> {
        let unencodable = |message| SpawnError::Arguments { rank: None, message };
        let bytes = rmp_serde::to_vec_named(args).map_err(|error| unencodable(error.to_string()))?;
        let limit = Kind::Args.limit();
        if bytes.len() > limit {
            return Err(unencodable(format!("{} bytes, and at most {limit} can be sent", bytes.len())));
        }
        Ok(ToChild { bytes, fds: Vec::new() })
    }
}

/// What a child got with its start message.
#[derive(Debug)]
pub(crate) struct FromParent {
    /// The arguments, encoded.
    pub(crate) bytes: Vec<u8>,
}

impl FromParent {
    /// Decodes the arguments.
    pub(crate) fn unpack<A: DeserializeOwned>(self) -> Result<A, String> {
        rmp_serde::from_slice(&self.bytes)
            .map_err(|error| format!("{error} (as `{}`)", std::any::type_name::<A>()))
    }
}

/// Joins the shared memory that came with these file descriptors, before anything else in the child; returns
/// who this process is there.
pub(crate) fn child_attach(fds: Vec<OwnedFd>) -> io::Result<Option<u32>> {
    if fds.is_empty() { Ok(None) } else { Err(io::Error::other("file descriptors that nobody expects")) }
}

/// Tells the shared memory that a child has died. Called once for each child, right after it was reaped.
pub(crate) fn child_died(_member: Option<u32>) {}
