//! Pieces of device memory in several processes, on the simulated driver: who holds them, what a death leaves, and what a driver that
//! fails does to them. The test itself has no driver, and passes pieces on.

mod accesses;
mod agent;
#[path = "../common/mod.rs"]
mod common;
mod deaths;
mod failures;
mod pieces;
mod threads;
