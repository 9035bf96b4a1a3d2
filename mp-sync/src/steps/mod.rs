//! Algorithms on shared words, as steps of one shared access each.
//!
//! | module | algorithm |
//! |---|---|
//! | [`slot`] | words that name the holder of one object: claim, change and search |
//! | [`condition`] | notifications as tokens in the slots of waiters |
//! | [`rwlock`] | admission of readers to a lock of writers |
//! | [`barrier`] | arrivals, and phases that end with the last arrival |
//! | [`event`] | a flag, and the number of times that it was set |
//! | [`rlock`] | recursion depth of a lock |
//! | [`once`] | completion flag, written under a lock |
//!
//! `Lock` is [`mp_core::steps::lock`]. `RLock`, `RwLock` and `Once` are built on it.

pub mod barrier;
pub mod condition;
pub mod event;
pub mod once;
pub mod rlock;
pub mod rwlock;
pub mod slot;
