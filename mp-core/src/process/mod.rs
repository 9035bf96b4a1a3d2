//! State private to one process: variables that are reset in forked copies, locks, and panics of user code.

pub mod children;
pub(crate) mod interrupt;
pub mod mutex;
pub mod pauses;
pub(crate) mod per_process;
pub mod user_code;

pub(crate) use crate::per_process;
pub use per_process::{GENERATIONS, PerProcess, SetOnce};
pub(crate) use per_process::{begin_generation, generation};
