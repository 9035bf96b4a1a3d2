//! Which update of several words is being made, and whose.

use super::{Member, bits};

/// The word that all updates of several words go through: how many there were, and the one that is being made.
/// See [`Update`](crate::steps::Update).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Current {
    /// The one that is written down, and that any process completes: whose it is, and how many words it
    /// changes.
    pub making: Option<(Member, u32)>,
    /// Its number, or that of the next one (modulo 2^36).
    pub number: u64,
}

impl Current {
    /// As a word: 1 bit whether, 3 bits how many words, 24 bits member, 36 bits number.
    pub const fn pack(self) -> u64 {
        let low = match self.making {
            None => 0,
            Some((by, words)) => 1 | bits(words as u64, 0, 3) << 1 | by.raw() << 4,
        };
        low | self.number << 28
    }

    /// From a word.
    pub const fn unpack(w: u64) -> Self {
        let making = if w & 1 == 0 { None } else { Some((Member::from_raw(w >> 4), bits(w, 1, 3) as u32)) };
        Self { making, number: w >> 28 }
    }

    /// Nothing is being made any more.
    pub const fn after(self) -> Self {
        Self { making: None, number: (self.number + 1) & (u64::MAX >> 28) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_keep_their_fields() {
        let last = u64::MAX >> 28;
        for making in [None, Some((Member::new(4095, 4095), 7)), Some((Member::new(0, 0), 1))] {
            for number in [0, 1, last] {
                let current = Current { making, number };
                assert_eq!(Current::unpack(current.pack()), current);
            }
        }
        let last = Current { making: Some((Member::new(7, 1), 2)), number: last };
        assert_eq!(last.after(), Current { making: None, number: 0 });
    }
}
