//! Pieces of device memory in several processes, on the simulated driver: holders, deaths, and a failing
//! driver. The test process itself uses no driver, and forwards pieces.

mod accesses;
mod agent;
#[path = "../common/mod.rs"]
mod common;
mod deaths;
mod failures;
mod pieces;
mod threads;
