//! CUDA driver, which is loaded when it is first needed. This crate makes its calls here, and the simulated
//! driver's tests use the table. The module is not part of the public interface.

pub mod api;
pub(crate) mod calls;
pub(crate) mod context;
pub(crate) mod ipc_events;
pub(crate) mod load;
pub(crate) mod long_calls;

pub(crate) use load::Driver;
