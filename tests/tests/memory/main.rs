//! Shared memory: what it says about itself, its holders, names for it, that of other programs. (In tensors: `tensors`. A small
//! arena, and one in plain memory, are programs of their own: `small_arena.rs`, `local_arena.rs`.)

mod cgroup;
mod foreign;
mod many_holders;
mod named;
mod shared_arguments;
mod statistics;
