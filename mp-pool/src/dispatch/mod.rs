//! Gives tasks to workers and outcomes to calls, and replaces workers that ended.

pub(crate) mod feed;
pub(crate) mod job;
pub(crate) mod manager;
pub(crate) mod settings;
pub(crate) mod shared;
pub(crate) mod start;
pub(crate) mod state;
