//! Connections between programs. (As futures: `socket_futures`.)

mod backlog;
mod listener;
mod waits;
