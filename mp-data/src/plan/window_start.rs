//! Start of a window of draws.

use serde::{Deserialize, Serialize};

/// Start of a window, which depends on the windows before it. Saved in states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WindowStart {
    pub(super) number: u64,
    /// Number of batches in the windows before it, over all ranks. Batches of them that could not be divided
    /// among all ranks belong to this window.
    pub(super) before: u64,
}

impl WindowStart {
    pub(super) const START: WindowStart = WindowStart { number: 0, before: 0 };
}
