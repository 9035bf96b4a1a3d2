//! Checksum of a checkpoint. Detects accidental changes of the file, and gives no protection from an
//! attacker.

const LANES: usize = 4;
const START: [u64; LANES] =
    [0x9e37_79b9_7f4a_7c15, 0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb, 0xd6e8_feb8_6659_fd93];
const FACTOR: u64 = 0xff51_afd7_ed55_8ccd;

/// Checksum of a sequence of byte strings.
///
/// The bytes are distributed over several words, each updated by a bijection. So a change of any eight
/// aligned bytes always changes the result.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Checksum(u64);

impl Checksum {
    /// Updates the checksum with the next byte string.
    pub(super) fn add(&mut self, bytes: &[u8]) {
        let mut lanes = START;
        let (words, rest) = bytes.as_chunks::<8>();
        let (stripes, words) = words.as_chunks::<LANES>();
        for stripe in stripes {
            step(&mut lanes, stripe);
        }
        let mut last = [[0; 8]; LANES];
        last[..words.len()].copy_from_slice(words);
        last[words.len()][..rest.len()].copy_from_slice(rest);
        step(&mut lanes, &last);
        for word in lanes.into_iter().chain([bytes.len() as u64]) {
            self.0 = (self.0 ^ word).wrapping_mul(FACTOR).rotate_left(31);
            self.0 ^= self.0 >> 29;
        }
    }

    /// Returns the checksum.
    pub(super) fn get(self) -> u64 {
        self.0
    }
}

fn step(lanes: &mut [u64; LANES], stripe: &[[u8; 8]; LANES]) {
    for (lane, word) in lanes.iter_mut().zip(stripe) {
        *lane = (*lane ^ u64::from_le_bytes(*word)).wrapping_mul(FACTOR).rotate_left(27);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(bytes: &[u8]) -> u64 {
        let mut sum = Checksum::default();
        sum.add(bytes);
        sum.get()
    }

    #[test]
    fn checkpoint_checksum_depends_on_each_bit_and_length() {
        for len in 0..100 {
            let bytes: Vec<u8> = (0..len).collect();
            let sum = of(&bytes);
            assert_ne!(sum, of(&[&bytes[..], &[0]].concat()));
            for bit in 0..8 * bytes.len() {
                let mut changed = bytes.clone();
                changed[bit / 8] ^= 1 << (bit % 8);
                assert_ne!(sum, of(&changed), "{len} bytes, bit {bit}");
            }
        }
    }
}
