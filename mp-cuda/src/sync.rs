//! Atomics of this crate. Atomics of the arena are in `mp-core`.
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
