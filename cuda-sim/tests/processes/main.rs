//! Tensors and events between processes, by `mp-cuda` on the simulated driver.

mod cudarc;
mod driver_calls;
mod ends;
mod events;
mod kills;
mod modes;
mod order;
mod support;
mod torch;
