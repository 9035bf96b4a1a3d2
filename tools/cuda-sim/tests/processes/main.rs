//! Tests of `mp-cuda` on the simulated driver: tensors and events of several processes.

mod allocations;
mod capture;
mod chosen;
mod closing;
#[path = "../common/mod.rs"]
mod common;
mod cudarc;
mod dlpack;
mod driver_calls;
mod drops;
mod ends;
mod events;
mod failures;
mod foreign;
mod foreign_kills;
mod foreign_peers;
mod forged;
mod kills;
mod late;
mod many;
mod modes;
mod opened_events;
mod order;
mod pieces;
mod planted;
mod reuse;
mod reuse_deaths;
mod streams;
mod support;
mod torch;
