//! Current update of several words, and its owner.

use super::{Member, bits};

/// Word that serializes all updates of several words: their number, and the current one. See
/// [`Update`](crate::steps::Update).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CurrentUpdate {
    /// Published update, which any process completes: its owner, and the number of words that it changes.
    pub making: Option<(Member, u32)>,
    /// Number of the current or next update (modulo 2^36).
    pub number: u64,
}

impl CurrentUpdate {
    /// Returns the word: 1 bit for an update, 3 bits number of words, 24 bits member, 36 bits number of the
    /// update.
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

    /// Returns the value after the current update.
    pub const fn after(self) -> Self {
        Self { making: None, number: (self.number + 1) & (u64::MAX >> 28) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn current_update_words_round_trip() {
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
