//! Forked processes: by the start method `fork`, and by a raw `fork` that bypasses the library.

mod killed;
mod memory;
mod pool;
mod raw;
