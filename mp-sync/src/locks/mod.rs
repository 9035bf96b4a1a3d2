//! Locks, the data that they protect, and condition variables.

mod access;
pub(crate) mod array;
pub(crate) mod cell;
pub(crate) mod condition;
pub(crate) mod data;
pub(crate) mod guard;
pub(crate) mod lock;
pub(crate) mod relock;
pub(crate) mod rlock;
pub(crate) mod rwlock;
