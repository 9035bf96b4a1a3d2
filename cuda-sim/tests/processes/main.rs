//! Tensors and events between processes, by `mp-cuda` on the simulated driver.

mod events;
mod support;
