//! State of a worker's chunk in shared memory, and its transitions, for the worker, the pool and the models.

pub mod chunk;
pub mod journal;
