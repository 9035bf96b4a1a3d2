//! Operations on an existing process, this one or a child: threads, signals, and the end of the process.

pub(crate) mod oom;
pub(crate) mod proc_stat;
pub(crate) mod process_handle;
pub(in crate::sys) mod signals;
mod this_process;

pub(crate) use process_handle::ProcessHandle;
pub(crate) use signals::*;
pub(crate) use this_process::*;
