//! Creation of a process: inherited files, the executed program, and processors.

pub(crate) mod environment;
pub(in crate::sys) mod exec;
pub(crate) mod file_privileges;
mod fork;
mod inherited;
pub(crate) mod processors;

pub(crate) use exec::*;
pub(crate) use fork::*;
pub(crate) use inherited::*;
