//! Atomic types that this crate uses.
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
