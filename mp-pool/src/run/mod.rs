//! What runs tasks: a function with its types, and the items of a chunk on which it is run in a row.

pub(crate) mod ends;
pub(crate) mod row;
pub(crate) mod runner;
pub(crate) mod values;
