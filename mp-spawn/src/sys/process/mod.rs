//! An existing process: this one, or a child. Threads, signals and end.

mod exit;
pub(crate) mod oom;
pub(crate) mod proc_stat;
pub(crate) mod process_handle;
pub(in crate::sys) mod signals;
mod thread;
mod user;

pub(crate) use exit::*;
pub(crate) use signals::*;
pub(crate) use thread::*;
pub(crate) use user::*;
