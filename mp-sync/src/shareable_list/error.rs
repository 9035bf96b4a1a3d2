//! Errors of shareable lists.

use mp_core::{Error, LockError};
use serde::{Deserialize, Serialize};

/// Error of an operation on a [`ShareableList`](crate::ShareableList).
#[derive(thiserror::Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ListError {
    /// The list has no such slot.
    #[error("the list has no slot {slot}: it has {len} slots")]
    NoSlot {
        /// Requested index.
        slot: usize,
        /// Number of slots.
        len: usize,
    },
    /// The text or bytes don't fit into the slot. The list is unchanged.
    #[error("{asked} bytes don't fit into slot {slot} with room for {room}; create the list with_room()")]
    NoRoom {
        /// Index of the slot.
        slot: usize,
        /// Number of bytes to be written.
        asked: usize,
        /// Number of bytes that fit.
        room: usize,
    },
    /// A process died while it changed this slot. [`set`](crate::ShareableList::set) repairs it.
    #[error("a process died while it changed slot {slot}; set it to make it whole")]
    Torn {
        /// Index of the slot.
        slot: usize,
    },
    /// A slot is tagged as text but is not valid UTF-8.
    #[error("slot {slot} is tagged as text but is not valid UTF-8")]
    NotText {
        /// Index of the slot.
        slot: usize,
    },
    /// The memory does not hold a list, or a slot has an unknown format.
    #[error("{0}")]
    Malformed(String),
    /// Another process has been in an operation on the list for 10 s.
    #[error("another process has been changing the list for 10 s; is it stopped?")]
    Held,
    /// The list's lock could not be taken.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// Shared memory is not usable.
    #[error(transparent)]
    Failed(#[from] Error),
}

mp_core::readable_debug!(ListError);
