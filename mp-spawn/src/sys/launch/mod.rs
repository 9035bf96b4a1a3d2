//! Making a process: what it inherits, which program it executes, and on which processors it runs.

pub(crate) mod environment;
pub(in crate::sys) mod exec;
pub(crate) mod file_privileges;
mod fork;
mod inherited;
pub(crate) mod processors;

pub(crate) use exec::*;
pub(crate) use fork::*;
pub(crate) use inherited::*;
