//! Tensors and events between processes, by `mp-cuda` on the simulated driver.

#[path = "../common/mod.rs"]
mod common;
mod cudarc;
mod driver_calls;
mod drops;
mod ends;
mod events;
mod failures;
mod kills;
mod late;
mod many;
mod modes;
mod order;
mod pieces;
mod planted;
mod support;
mod torch;
