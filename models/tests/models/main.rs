//! The models: a file each, with its world, its checks and its planted bugs. What they share is the library of this package.

mod barrier;
mod bytes;
mod chain;
mod channel;
mod condition;
mod deadlock;
mod digest;
mod event;
mod groups;
mod join;
mod kept;
mod lease;
mod lock;
mod once;
mod pages;
mod random_queue;
mod reuse;
mod ring;
mod rlock;
mod rwlock;
mod seats;
mod semaphore;
mod sweepers;
mod update;
mod vacating;
mod wait;
