//! Queues, channels and pipes between real processes. (Errors and limits, each in an arena of its own:
//! `errors.rs` and `limits.rs`, separate programs.)

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
