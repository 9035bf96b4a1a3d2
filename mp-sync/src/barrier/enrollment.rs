//! Enrollment of a process as a party of a barrier.

use std::fmt;
use std::ops::Deref;

use mp_core::words::Member;

use super::Barrier;
use crate::error::BarrierError;
use crate::steps::slot::{ClaimSlot, EMPTY, HELD, ObservedSlot, set};

/// Enrollment of this process as a party of a [`Barrier`]. The barrier breaks if the process dies, even while
/// the process does not wait.
///
/// Dereferences to the barrier. Dropping this value, also at a regular exit of the process, ends the
/// enrollment and does not break the barrier.
#[must_use = "dropping it leaves the barrier"]
pub struct BarrierMember {
    barrier: Barrier,
    me: Member,
    seen: ObservedSlot,
}

impl Barrier {
    /// Enrolls this process as a party until the returned handle is dropped: if the process dies, the barrier
    /// breaks, even while the process does not wait at it. Each process enrolls itself once.
    ///
    /// ```
    /// use mp_sync::Barrier;
    ///
    /// let party = Barrier::new(1)?.enroll()?;
    /// party.wait()?;
    /// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    ///
    /// # Errors
    /// [`BarrierError::TooMany`] if as many processes are enrolled as there are parties (dead ones count
    /// until a reset), [`BarrierError::Failed`] in a forked copy.
    pub fn enroll(&self) -> Result<BarrierMember, BarrierError> {
        let me = self.shared.me()?;
        let seen = self.shared.run(ClaimSlot::new(self.enrolled(), EMPTY, (HELD, me, 0), 0).or_grow());
        let Some(seen) = seen else { return Err(BarrierError::TooMany { parties: self.parties }) };
        self.record_party(3, seen.index, me);
        Ok(BarrierMember { barrier: self.clone(), me, seen })
    }

    pub(super) fn party_slots(&self) -> impl Iterator<Item = ObservedSlot> + '_ {
        self.shared.find(self.enrolled(), set(&[HELD]))
    }

    pub(super) fn leave(&self, seen: ObservedSlot) {
        self.shared.replace(self.enrolled(), seen, seen.slot.vacated(EMPTY));
    }
}

impl Deref for BarrierMember {
    type Target = Barrier;

    fn deref(&self) -> &Barrier {
        &self.barrier
    }
}

impl Drop for BarrierMember {
    fn drop(&mut self) {
        // The slot belongs to the parent, not to a forked copy.
        if self.barrier.shared.me().ok() == Some(self.me) {
            self.barrier.leave(self.seen);
        }
    }
}

impl fmt::Debug for BarrierMember {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BarrierMember({} of {:?})", self.seen.index, self.barrier)
    }
}
