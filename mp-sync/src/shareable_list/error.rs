//! What can go wrong with a list.

use std::fmt;

use mp_core::Error;
use mp_core::LockError;
use serde::{Deserialize, Serialize};

/// Why a [`ShareableList`](crate::ShareableList) could not do something.
#[derive(Serialize, Deserialize)]
#[non_exhaustive]
pub enum ListError {
    /// There is no such slot.
    NoSlot {
        /// The one asked for.
        slot: usize,
        /// How many there are.
        len: usize,
    },
    /// The text or the bytes are longer than the slot has room for. Nothing has changed.
    NoRoom {
        /// Which slot.
        slot: usize,
        /// Bytes to be written.
        asked: usize,
        /// Bytes that there is room for.
        room: usize,
    },
    /// A process died while it changed this slot. Setting it makes it whole.
    Torn {
        /// Which slot.
        slot: usize,
    },
    /// A slot that should hold a text holds other bytes.
    NotText {
        /// Which slot.
        slot: usize,
    },
    /// The memory does not hold a list, or a slot of it nothing that this library knows.
    Malformed(String),
    /// Another process has been in the middle of an operation for 10 s.
    Held,
    /// The list's lock could not be had.
    Lock(LockError),
    /// Shared memory can't be used.
    Failed(Error),
}

impl fmt::Display for ListError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSlot { slot, len } => write!(f, "slot {slot} of a list of {len}"),
            Self::NoRoom { slot, asked, room } => write!(
                f,
                "{asked} bytes into slot {slot}, which has room for {room}; make the list with more (with_room)"
            ),
            Self::Torn { slot } => {
                write!(f, "a process died while it changed slot {slot}; set it to make it whole")
            }
            Self::NotText { slot } => {
                write!(f, "slot {slot} says that it holds a text, and its bytes are none")
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
