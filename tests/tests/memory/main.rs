//! Shared memory: statistics, holders, names, memory of other programs. (Tensors: `tensors`. A small arena,
//! and an arena in plain memory, are separate programs: `small_arena.rs`, `local_arena.rs`.)

mod cgroup;
mod foreign;
mod many_holders;
mod named;
mod shared_arguments;
mod statistics;
