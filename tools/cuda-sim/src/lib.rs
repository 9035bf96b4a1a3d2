//! CUDA driver without a GPU, for tests. The library `libmp_cuda_sim.so` replaces `libcuda.so.1` in each
//! process. The engine, one process for each session, simulates the GPU and its kernel module.
//!
//! | part | contents |
//! |---|---|
//! | [`session`] | starts an engine, and sets the environment of its clients |
//! | `abi` | the driver's functions, as other programs call them |
//! | `client` | state of one process: connections, injected failures, registrations |
//! | `wire` | messages between client and engine |
//! | `engine` | devices, memory, streams, the schedule of work, detection of races, findings |
//!
//! docs/reference/cuda-simulator.md lists the rules that the simulator enforces, and its limits.

mod abi;
mod client;
pub mod codes;
pub mod engine;
pub mod session;
mod sync;
mod wire;

/// Kernels that the simulator implements, by name, as PTX for a GPU.
pub const KERNELS: &str = concat!(include_str!("kernels.ptx"), "\0");
