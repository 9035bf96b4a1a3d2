//! Processes of the arena.
//!
//! `membership` records members and detects their deaths. `intents` has the announcements of threads
//! before changes that take more than one access. `dirty_slabs` records the slabs in which a member may
//! hold something.

pub(crate) mod dirty_slabs;
pub(crate) mod intents;
pub(crate) mod membership;

use crate::arena::{Arena, view};
use crate::error::Result;
use crate::mem::Word;
use crate::words::Member;

view! {
    /// Processes of an arena.
    pub struct Members;
}

impl Members {
    /// Calls `f` with the member tag of this process and the intent word of this thread's lane.
    ///
    /// `f` must not run user code, and must not call this function.
    ///
    /// # Errors
    /// [`Error::Forked`](crate::Error::Forked).
    #[inline]
    pub fn with_intent<R>(self, f: impl FnOnce(Member, Word) -> R) -> Result<R> {
        let me = self.me()?;
        Ok(intents::with(|lane| self.note_lane(me, lane), |lane| f(me, self.layout().intent(me, lane))))
    }
}
