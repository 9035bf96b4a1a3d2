//! 128-bit digests (hashes) of states, by which the explorer recognizes known states.
//!
//! The standard library's hash resists chosen inputs, and took two thirds of the explorer's time. States are
//! not chosen by an attacker, so a faster hash suffices. Each word is mixed in by one multiplication of 64 by
//! 64 bits, whose two halves are combined by XOR, as in wyhash. Two lanes with separate keys each do this
//! once per word.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};

/// Map by the digest of a state.
pub(crate) type ByDigest<T> = HashMap<u128, T, BuildHasherDefault<Low>>;

/// Keys of the lanes: digits of pi, made odd.
const KEYS: [u64; 4] =
    [0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7345, 0xa409_3822_299f_31d1, 0x082e_fa98_ec4e_6c89];

/// Returns the digest of a state.
pub fn digest(state: &impl Hash) -> u128 {
    let mut digest = Digest { a: KEYS[0], b: KEYS[1] };
    state.hash(&mut digest);
    u128::from(digest.a) << 64 | u128::from(digest.b)
}

struct Digest {
    a: u64,
    b: u64,
}

#[inline]
fn fold(x: u64, key: u64) -> u64 {
    let product = u128::from(x) * u128::from(key);
    product as u64 ^ (product >> 64) as u64
}

impl Digest {
    #[inline]
    fn word(&mut self, v: u64) {
        // Earlier words are rotated: otherwise a word could cancel the previous word.
        self.a = fold(self.a.rotate_left(23) ^ v, KEYS[2]).wrapping_add(KEYS[0]);
        self.b = fold(self.b.rotate_left(41).wrapping_add(v), KEYS[3]) ^ KEYS[1];
    }
}

// Inlined, because other crates call the function for every word of every state. The calls would take a third
// of the explorer's time.
impl Hasher for Digest {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.word(u64::from_le_bytes(word));
        }
    }
    #[inline]
    fn write_u8(&mut self, v: u8) {
        self.word(v.into());
    }
    #[inline]
    fn write_u16(&mut self, v: u16) {
        self.word(v.into());
    }
    #[inline]
    fn write_u32(&mut self, v: u32) {
        self.word(v.into());
    }
    #[inline]
    fn write_u64(&mut self, v: u64) {
        self.word(v);
    }
    #[inline]
    fn write_usize(&mut self, v: usize) {
        self.word(v as u64);
    }
    #[inline]
    fn finish(&self) -> u64 {
        self.a
    }
}

/// Hasher of the map, which returns the lower half of a digest.
#[derive(Default)]
pub(crate) struct Low(u64);

impl Hasher for Low {
    fn write(&mut self, bytes: &[u8]) {
        unreachable!("a digest is a number, and not {bytes:?}")
    }
    #[inline]
    fn write_u128(&mut self, v: u128) {
        self.0 = v as u64;
    }
    fn finish(&self) -> u64 {
        self.0
    }
}
