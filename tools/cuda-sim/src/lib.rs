//! A CUDA driver without a GPU, for tests: the library `libmp_cuda_sim.so`, which stands in for `libcuda.so.1` in each process, and
//! the engine, one process a session, which is the GPU and its kernel module.
//!
//! | part | is |
//! |---|---|
//! | [`session`] | starts an engine, and says what its clients have in their environment |
//! | `abi` | the driver's functions, as other programs call them |
//! | `client` | of one process: its connections, its injected failures, what it has registered |
//! | `wire` | what client and engine say to each other |
//! | `engine` | devices, memory, streams, the schedule, races, findings |
//!
//! What it enforces, and what it can't show, is in docs/reference/cuda-simulator.md.

mod abi;
mod client;
pub mod codes;
pub mod engine;
pub mod session;
mod sync;
mod wire;

/// Kernels that the simulator knows by name, as a GPU gets them.
pub const KERNELS: &str = concat!(include_str!("kernels.ptx"), "\0");
