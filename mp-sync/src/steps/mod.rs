//! The algorithms on shared words, as steps of one shared access each.
//!
//! | file | what |
//! |---|---|
//! | [`slot`] | a word that names the holder of one thing, and what makes, changes and finds such words |
//! | [`condition`] | notifications as tokens in the slots of waiters |
//! | [`rwlock`] | a reader's way in beside a writer's lock |
//! | [`barrier`] | arrivals, and the phase that ends with the last of them |
//! | [`event`] | a flag, and how often it was set |
//! | [`rlock`] | how often the holder of a lock has it |
//! | [`once`] | whether something was done, under a lock |
//!
//! `Lock` is [`mp_core::steps::lock`]; `RLock`, `RwLock` and `Once` are made of it.

pub mod barrier;
pub mod condition;
#[cfg(test)]
mod crafted;
pub mod event;
pub mod once;
pub mod rlock;
pub mod rwlock;
pub mod slot;
