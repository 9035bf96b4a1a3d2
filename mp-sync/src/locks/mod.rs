//! Locks, the data that they protect, and condition variables.

pub(crate) mod array;
pub(crate) mod condition;
pub(crate) mod data;
pub(crate) mod guard;
pub(crate) mod lock;
pub(crate) mod locked;
pub(crate) mod rlock;
pub(crate) mod rwlock;
pub(crate) mod unlocked;
