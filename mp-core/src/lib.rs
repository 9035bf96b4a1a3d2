//! Memory that a tree of processes shares: the base layer of `mp`.
//!
//! TODO docs
mod arena;
mod error;
#[cfg(feature = "inject")]
pub mod inject;
pub mod mem;
pub mod message;
pub mod steps;
mod storage;
mod strategy;
pub mod sync;
mod sys;
mod tensor;
pub mod words;

pub use arena::*;
pub use error::{Error, Result};
pub use message::Message;
pub use storage::Storage;
pub use strategy::{SharingStrategy, get_all_sharing_strategies, get_sharing_strategy, set_sharing_strategy};
pub use tensor::{DType, Element, FrozenTensor, MAX_RANK, Number, SharedTensor, Tensor};

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
