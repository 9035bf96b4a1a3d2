//! Atomics of this crate.
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
