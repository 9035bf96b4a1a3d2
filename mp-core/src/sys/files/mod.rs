//! Files: the directory of named files, files of other programs, locks on files, sockets.

pub(crate) mod directory;
pub(crate) mod foreign;
pub(crate) mod locks;
pub(crate) mod memory;
pub(crate) mod packets;
pub(crate) mod placeholder;
pub(crate) mod region;
pub mod socket;
