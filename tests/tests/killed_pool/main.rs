//! Pools, data loaders and a manager whose processes are killed or stopped at every access to shared memory.
//! (Tests without a pool: `killed`.)

mod loader;
mod manager;
mod pool;
mod streams;
