//! Queues, channels and pipes between processes. (Errors and limits need their own arenas, and are separate
//! programs: `errors.rs` and `limits.rs`.)

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
