//! Memory that a tree of processes shares: the base layer of `mp`.
//!
//! TODO docs
mod arena;
mod error;
#[cfg(feature = "inject")]
pub mod inject;
pub mod mem;
pub mod steps;
pub mod sync;
mod sys;
pub mod words;

pub use arena::*;
pub use error::{Error, Result};

/// FNV-1a, 64 bits: for fingerprints of type names, which need no strength.
pub const fn fnv1a(bytes: &[u8]) -> u64 {
    let mut h = 0xcbf2_9ce4_8422_2325_u64;
    let mut i = 0;
    while i < bytes.len() {
        h = (h ^ bytes[i] as u64).wrapping_mul(0x100_0000_01b3);
        i += 1;
    }
    h
}
