//! Execution of tasks: a typed function, and the consecutive items of a chunk on which it runs.

pub(crate) mod ends;
pub(crate) mod row;
pub(crate) mod runner;
pub(crate) mod values;
