//! Atomics of this crate. Those of the arena are `mp-core`'s.
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
