//! Copies of a process: by the start method `fork`, and by a `fork` that the library knows nothing of.

mod killed;
mod memory;
mod pool;
mod raw;
