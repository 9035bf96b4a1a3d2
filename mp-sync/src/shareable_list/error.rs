//! Errors of shareable lists.

use std::fmt;

use mp_core::Error;
use mp_core::LockError;
use serde::{Deserialize, Serialize};

/// Error of an operation on a [`ShareableList`](crate::ShareableList).
#[derive(Serialize, Deserialize)]
#[non_exhaustive]
pub enum ListError {
    /// The list has no such slot.
    NoSlot {
        /// Requested index.
        slot: usize,
        /// Number of slots.
        len: usize,
    },
    /// The text or bytes don't fit into the slot. The list is unchanged.
    NoRoom {
        /// Index of the slot.
        slot: usize,
        /// Number of bytes to be written.
        asked: usize,
        /// Number of bytes that fit.
        room: usize,
    },
    /// A process died while it changed this slot. [`set`](crate::ShareableList::set) repairs it.
    Torn {
        /// Index of the slot.
        slot: usize,
    },
    /// A slot is tagged as text but is not valid UTF-8.
    NotText {
        /// Index of the slot.
        slot: usize,
    },
    /// The memory does not hold a list, or a slot has an unknown format.
    Malformed(String),
    /// Another process has been in an operation on the list for 10 s.
    Held,
    /// The list's lock could not be taken.
    Lock(LockError),
    /// Shared memory is not usable.
    Failed(Error),
}

impl fmt::Display for ListError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSlot { slot, len } => write!(f, "the list has no slot {slot}: it has {len} slots"),
            Self::NoRoom { slot, asked, room } => write!(
                f,
                "{asked} bytes don't fit into slot {slot} with room for {room}; create the list with_room()"
            ),
            Self::Torn { slot } => {
                write!(f, "a process died while it changed slot {slot}; set it to make it whole")
            }
            Self::NotText { slot } => {
                write!(f, "slot {slot} is tagged as text but is not valid UTF-8")
            }
            Self::Malformed(why) => f.write_str(why),
            Self::Held => f.write_str("another process has been changing the list for 10 s; is it stopped?"),
            Self::Lock(e) => fmt::Display::fmt(e, f),
            Self::Failed(e) => fmt::Display::fmt(e, f),
        }
    }
}

mp_core::readable_debug!(ListError);

impl std::error::Error for ListError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Lock(e) => e.source(),
            Self::Failed(e) => e.source(),
            _ => None,
        }
    }
}

impl From<Error> for ListError {
    fn from(e: Error) -> Self {
        Self::Failed(e)
    }
}

impl From<LockError> for ListError {
    fn from(e: LockError) -> Self {
        Self::Lock(e)
    }
}
