//! Pools, data loaders and a manager whose processes are killed or stopped at every access to shared memory. (What has no pool:
//! `killed`.)

mod loader;
mod manager;
mod pool;
mod streams;
