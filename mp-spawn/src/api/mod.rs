//! Public functions that start processes: for many ranks, for one process, with closures, and with contexts
//! of a start method.

pub(crate) mod borrowed_state;
pub(crate) mod builder;
pub(crate) mod closure;
pub(crate) mod context;
pub(crate) mod process;
pub(crate) mod spawn;
