//! Atomics: words of shared memory, which other processes look at.

pub(crate) use std::sync::atomic::{AtomicU64, Ordering};
