//! The simulated driver, by small programs that call it as any program does: each client is a process of its own, which does what
//! the test says, call by call. And `mp-cuda`'s floor upon it.

mod client;
#[path = "../common/mod.rs"]
mod common;
mod conformance;
mod deaths;
mod findings;
mod injected;
mod library;
mod memory;
mod order;
mod support;
