//! Atomics: words of shared memory, which other processes read.

pub(crate) use std::sync::atomic::{AtomicU64, Ordering};
