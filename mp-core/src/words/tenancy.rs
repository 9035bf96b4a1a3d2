//! Tenant of a slot of the member table, its state, and the dead members that a member recovers.

use super::{Member, bits};

/// State of the tenant of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Presence {
    /// No tenant, and nothing left of the last one.
    Free,
    /// Not known to be dead.
    Live,
    /// Dead, with this number of recoveries begun (modulo 2^29): see
    /// [`BeginRecovery`](crate::steps::BeginRecovery).
    Dead(u32),
    /// Dead; everything that live processes wait for was recovered, and its seats in queues are released.
    /// Recoveries continue to be counted.
    Vacating(u32),
    /// Dead, without seats in queues; this member releases the rest.
    Reclaiming(Member),
}

impl Presence {
    /// Returns the state with one more recovery begun, or `None` for a tenant that isn't recovered.
    pub const fn with_recovery(self) -> Option<Self> {
        match self {
            Self::Dead(n) => Some(Self::Dead(bits(n as u64 + 1, 0, 29) as u32)),
            Self::Vacating(n) => Some(Self::Vacating(bits(n as u64 + 1, 0, 29) as u32)),
            Self::Free | Self::Live | Self::Reclaiming(_) => None,
        }
    }
}

/// Word of a member: state 2 bits, recoveries 29 and "seats in queues are released" 1, or reclaiming member
/// 24, epoch 32.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Tenancy {
    /// State of the tenant.
    pub presence: Presence,
    /// Number of the slot's tenant.
    pub epoch: u32,
}

impl Tenancy {
    /// Returns the word.
    pub const fn pack(self) -> u64 {
        let low = match self.presence {
            Presence::Free => 0,
            Presence::Live => 1,
            Presence::Dead(recoveries) => 2 | bits(recoveries as u64, 0, 29) << 2,
            Presence::Vacating(recoveries) => 2 | bits(recoveries as u64, 0, 29) << 2 | 1 << 31,
            Presence::Reclaiming(by) => 3 | by.raw() << 2,
        };
        low | (self.epoch as u64) << 32
    }

    /// Creates the value from a word.
    pub const fn unpack(w: u64) -> Self {
        let presence = match w & 3 {
            0 => Presence::Free,
            1 => Presence::Live,
            2 if bits(w, 31, 1) == 0 => Presence::Dead(bits(w, 2, 29) as u32),
            2 => Presence::Vacating(bits(w, 2, 29) as u32),
            _ => Presence::Reclaiming(Member::from_raw(w >> 2)),
        };
        Self { presence, epoch: (w >> 32) as u32 }
    }
}

/// Dead members that a member recovers: none (0), or some with slots from `first` to `last`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RecoveringSlots {
    /// First slot.
    pub first: u32,
    /// Last slot.
    pub last: u32,
}

impl RecoveringSlots {
    /// Returns the word.
    pub const fn pack(self) -> u64 {
        1 | (self.first as u64) << 1 | (self.last as u64) << 32
    }

    /// Returns `true` if a member with this word may be recovering the tenant of a slot.
    pub const fn covers(w: u64, slot: u32) -> bool {
        w != 0 && bits(w, 1, 31) <= slot as u64 && slot as u64 <= bits(w, 32, 32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenancies_round_trip() {
        let by = Member::new(4095, 17);
        let most = (1 << 29) - 1;
        let dead = [Presence::Dead(0), Presence::Dead(most), Presence::Vacating(0), Presence::Vacating(most)];
        for presence in [Presence::Free, Presence::Live, Presence::Reclaiming(by)].into_iter().chain(dead) {
            let t = Tenancy { presence, epoch: u32::MAX };
            assert_eq!(Tenancy::unpack(t.pack()), t);
        }
        let recovered = [Presence::Dead(1), Presence::Dead(0), Presence::Vacating(1), Presence::Vacating(0)];
        assert_eq!(dead.map(Presence::with_recovery), recovered.map(Some));
        assert_eq!(Presence::Reclaiming(by).with_recovery(), None);
        let word = RecoveringSlots { first: 0, last: 3 }.pack();
        assert!(RecoveringSlots::covers(word, 0) && RecoveringSlots::covers(word, 3));
        assert!(!RecoveringSlots::covers(word, 4) && !RecoveringSlots::covers(0, 0));
    }
}
