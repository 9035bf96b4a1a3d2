//! What a worker says in shared memory about the chunk that it is at: the steps of it, for the worker, the pool and the models.

pub mod chunk;
pub mod journal;
