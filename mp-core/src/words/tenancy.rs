//! Tenant of a slot of the member table, its state, and the dead members that a member recovers; and
//! the current update of several words.

use super::{Member, bits};

/// State of the tenant of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Presence {
    /// The slot has no tenant. All resources of the last tenant are released.
    Free,
    /// The tenant is not known to be dead.
    Live,
    /// The tenant is dead. Contains the number of recoveries that have begun, modulo 2^29: see
    /// [`BeginRecovery`](crate::steps::BeginRecovery).
    Dead(u32),
    /// The tenant is dead. Everything that live processes wait for was recovered, and the tenant's seats in
    /// queues are being released. Recoveries continue to be counted.
    Vacating(u32),
    /// The tenant is dead and has no seats in queues. This member releases its other objects.
    Reclaiming(Member),
}

impl Presence {
    /// Returns the state after another process has begun a recovery, or `None` if the tenant needs no
    /// recovery.
    pub const fn with_recovery(self) -> Option<Self> {
        match self {
            Self::Dead(n) => Some(Self::Dead(bits(n as u64 + 1, 0, 29) as u32)),
            Self::Vacating(n) => Some(Self::Vacating(bits(n as u64 + 1, 0, 29) as u32)),
            Self::Free | Self::Live | Self::Reclaiming(_) => None,
        }
    }
}

/// Word of a slot in the member table. Numbers of bits: state 2, then recoveries 29 and "seats in queues are
/// released" 1, or reclaiming member 24, then epoch 32.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Tenancy {
    /// State of the tenant.
    pub presence: Presence,
    /// Number of the slot's tenant.
    pub epoch: u32,
}

impl Tenancy {
    /// Returns the tag of the tenant, given its slot.
    pub const fn member(self, slot: u32) -> Member {
        Member::new(slot, self.epoch)
    }

    /// Encodes the slot's tenant as a word.
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

/// Range of slots that contains all dead members which a member is recovering. A word of 0 means that the
/// member is recovering none.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RecoveringSlots {
    /// First slot.
    pub first: u32,
    /// Last slot.
    pub last: u32,
}

impl RecoveringSlots {
    /// Encodes the range of slots as a word.
    pub const fn pack(self) -> u64 {
        1 | (self.first as u64) << 1 | (self.last as u64) << 32
    }

    /// Returns `true` if a member with this word may be recovering the tenant of a slot.
    pub const fn covers(w: u64, slot: u32) -> bool {
        w != 0 && bits(w, 1, 31) <= slot as u64 && slot as u64 <= bits(w, 32, 32)
    }
}

/// Word that serializes all updates of several words: the number of the current or next update, and the owner
/// of the current update. See [`Update`](crate::steps::Update).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CurrentUpdate {
    /// Published update, which any process completes: its owner, and the number of words that it changes.
    pub making: Option<(Member, u32)>,
    /// Number of the current or next update (modulo 2^36).
    pub number: u64,
}

impl CurrentUpdate {
    /// Encodes the value as a word: 1 bit for an update, 3 bits number of words, 24 bits member, 36 bits
    /// number of the update.
    pub const fn pack(self) -> u64 {
        let low = match self.making {
            None => 0,
            Some((by, words)) => 1 | bits(words as u64, 0, 3) << 1 | by.raw() << 4,
        };
        low | self.number << 28
    }

    /// Creates the value from a word.
    pub const fn unpack(w: u64) -> Self {
        let making = if w & 1 == 0 { None } else { Some((Member::from_raw(w >> 4), bits(w, 1, 3) as u32)) };
        Self { making, number: w >> 28 }
    }

    /// Returns the value after the current update is completed.
    pub const fn after(self) -> Self {
        Self { making: None, number: (self.number + 1) & (u64::MAX >> 28) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn member_tenancies_round_trip_through_words() {
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

    #[test]
    fn current_update_round_trips_through_its_word() {
        let last = u64::MAX >> 28;
        for making in [None, Some((Member::new(4095, 4095), 7)), Some((Member::new(0, 0), 1))] {
            for number in [0, 1, last] {
                let current = CurrentUpdate { making, number };
                assert_eq!(CurrentUpdate::unpack(current.pack()), current);
            }
        }
        let last = CurrentUpdate { making: Some((Member::new(7, 1), 2)), number: last };
        assert_eq!(last.after(), CurrentUpdate { making: None, number: 0 });
    }
}
