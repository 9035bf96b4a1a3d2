//! Connections between programs.

mod backlog;
mod family_key;
mod futures;
mod large;
mod listener;
mod refusals;
mod tcp;
mod tcp_peers;
mod waits;
