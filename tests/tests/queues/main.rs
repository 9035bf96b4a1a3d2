//! Queues, channels and pipes between real processes. (Errors, and how much fits, each in an arena of its own: `errors.rs` and
//! `limits.rs`, programs of their own.)

mod backlog;
mod broadcast;
mod bytes;
mod deaths;
mod deserted;
mod futures;
mod kinds;
mod lost_handles;
mod order;
mod restarts;
mod unread_arguments;
mod unreceived;
mod waits;
mod watch;
