//! Mapping between actors of a world and members of an arena, and snapshots of the known deaths.

use mp_core::steps::{DeathOracle, LiveMembers};
use mp_core::words::Member;

use crate::explore::Fate;

/// Returns the member that represents an actor.
pub fn member(actor: usize) -> Member {
    Member::new(actor as u32, 1)
}

/// Returns the actor that a member represents.
pub fn actor_of(m: Member) -> usize {
    m.slot() as usize
}

/// Returns the indices of the killed actors.
pub fn killed(fates: &[Fate]) -> impl Iterator<Item = usize> + '_ {
    (0..fates.len()).filter(|&a| fates[a] == Fate::Killed)
}

/// Returns `true` if a member's actor was killed.
pub fn is_killed(fates: &[Fate], m: Member) -> bool {
    fates[actor_of(m)] == Fate::Killed
}

/// Actors that were dead when an actor took this snapshot.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct DeathSnapshot {
    dead: Vec<usize>,
    others: Vec<usize>,
}

impl DeathSnapshot {
    /// Takes a snapshot for the actor `me`.
    pub fn new(me: usize, fates: &[Fate]) -> Self {
        let dead: Vec<_> = killed(fates).collect();
        let others = (0..fates.len()).filter(|a| *a != me && !dead.contains(a)).collect();
        Self { dead, others }
    }
}

impl DeathOracle for DeathSnapshot {
    fn is_dead(&self, m: Member) -> bool {
        self.dead.contains(&actor_of(m))
    }
}

impl LiveMembers for DeathSnapshot {
    fn others(&self) -> Vec<Member> {
        self.others.iter().map(|&a| member(a)).collect()
    }
}
