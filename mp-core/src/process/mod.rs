//! What is one process's own: variables that copies of it begin anew with, locks inside it, panics of user code.

pub mod children;
pub(crate) mod interrupt;
pub mod mutex;
pub mod pauses;
mod per_process;
pub mod user_code;

pub use per_process::{GENERATIONS, PerProcess, SetOnce};
pub(crate) use per_process::{begin_generation, generation};
