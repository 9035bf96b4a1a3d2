//! Creation of a process: inherited files, the executed program, and processors.

mod environment;
pub(in crate::sys) mod exec;
pub(crate) mod file_privileges;
mod inherited;
pub(crate) mod processors;

pub(crate) use environment::Environment;
pub(crate) use exec::*;
pub(crate) use inherited::*;
