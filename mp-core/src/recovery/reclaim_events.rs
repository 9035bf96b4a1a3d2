//! Events of reclaimed members for the `tracing` crate. Without the feature `tracing`, nothing is counted.
//!
//! During a reclaim, the released resources are only counted. The events are emitted later, by a thread that
//! holds no lock of this library, because subscribers are code of users.

use std::time::Instant;

use crate::arena::Arena;
use crate::words::Member;
#[cfg(feature = "tracing")]
use crate::{
    members::Members,
    process::mutex::Mutex,
    process::user_code::{catch_panic, emit},
    process::{PerProcess, per_process},
};

/// Reclaimed members whose events this process has not emitted yet.
#[cfg(feature = "tracing")]
static PENDING: PerProcess<Mutex<Vec<ReclaimedMember>>> = per_process!(Mutex::new(Vec::new()));

/// A reclaimed member, and the resources that were released.
#[cfg(feature = "tracing")]
struct ReclaimedMember {
    member: Member,
    pid: u32,
    name: String,
    blocks: u64,
    envelopes: u64,
    duration_us: u64,
}

/// Counts of the resources that a reclaim releases, for each member.
pub(super) struct Tally {
    #[cfg(feature = "tracing")]
    members: Vec<ReclaimedMember>,
}

impl Tally {
    pub(super) fn new(_arena: Arena, _dead: impl Iterator<Item = (Member, u32)>) -> Self {
        #[cfg(feature = "tracing")]
        let reclaimed = |(member, pid)| {
            let name = Members(_arena).name_of(member);
            ReclaimedMember { member, pid, name, blocks: 0, envelopes: 0, duration_us: 0 }
        };
        Self {
            #[cfg(feature = "tracing")]
            members: _dead.map(reclaimed).collect(),
        }
    }

    pub(super) fn add_block(&mut self, _of: Member) {
        #[cfg(feature = "tracing")]
        self.members.iter_mut().filter(|dead| dead.member == _of).for_each(|dead| dead.blocks += 1);
    }

    pub(super) fn add_envelope(&mut self, _of: Member) {
        #[cfg(feature = "tracing")]
        self.members.iter_mut().filter(|dead| dead.member == _of).for_each(|dead| dead.envelopes += 1);
    }

    /// Ends the counts of a reclaim, and prepares the events. `_since` is the beginning of the recovery that
    /// preceded the reclaim.
    pub(super) fn end(self, _since: Instant) {
        #[cfg(feature = "tracing")]
        PENDING.lock().extend(self.members.into_iter().map(|mut dead| {
            dead.duration_us = _since.elapsed().as_micros() as u64;
            dead
        }));
    }
}

/// Emits the events of the members that this process has reclaimed.
#[cfg(feature = "tracing")]
pub(super) fn emit_pending() {
    _ = emit(|| {
        let pending = std::mem::take(&mut *PENDING.lock());
        for ReclaimedMember { member, pid, name, blocks, envelopes, duration_us } in pending {
            let name = Some(name.as_str()).filter(|name| !name.is_empty());
            _ = catch_panic(|| {
                tracing::debug!(
                    target: "mp::recovery",
                    %member,
                    pid,
                    name,
                    blocks,
                    envelopes,
                    duration_us,
                    "the resources of an ended process were released"
                );
            });
        }
    });
}
