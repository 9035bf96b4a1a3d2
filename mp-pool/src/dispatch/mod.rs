//! Gives tasks to workers and outcomes to calls, and replaces workers that ended.

pub(crate) mod chunk;
pub(crate) mod feed;
pub(crate) mod help;
pub(crate) mod job;
pub(crate) mod maker;
pub(crate) mod manager;
pub(crate) mod meter;
pub(crate) mod metrics;
pub(crate) mod outcomes;
pub(crate) mod reports;
pub(crate) mod room;
pub(crate) mod settings;
pub(crate) mod shared;
pub(crate) mod source;
pub(crate) mod start;
pub(crate) mod state;
