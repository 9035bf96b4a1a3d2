//! Assignment of tasks to workers, and of outcomes to calls.

pub(crate) mod feed;
pub(crate) mod interrupted;
pub(crate) mod room;
pub(crate) mod settings;
pub(crate) mod settled;
pub(crate) mod shared;
