//! Tensors and events between processes, by `mp-cuda` on the simulated driver.

mod capture;
mod chosen;
#[path = "../common/mod.rs"]
mod common;
mod cudarc;
mod driver_calls;
mod ends;
mod events;
mod failures;
mod kills;
mod late;
mod modes;
mod order;
mod streams;
mod support;
mod torch;
