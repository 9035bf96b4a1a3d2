//! CUDA driver, which is loaded when it is first needed. This module makes all driver calls of this crate.
//! Tests of the CUDA simulator use the table of functions. The module is not part of the public interface.

pub mod api;
pub(crate) mod calls;
pub(crate) mod context;
pub(crate) mod ipc_events;
pub(crate) mod load;
pub(crate) mod long_calls;

pub(crate) use load::Driver;
