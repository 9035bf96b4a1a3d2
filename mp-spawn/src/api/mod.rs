//! What users call to start processes: functions for many ranks, one process, closures, contexts of a start method.

pub(crate) mod builder;
pub(crate) mod closure;
pub(crate) mod context;
pub(crate) mod lent;
pub(crate) mod process;
pub(crate) mod spawn;
