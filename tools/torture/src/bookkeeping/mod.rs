//! Records of a round outside of its workers: their last operations, each message, and leaks.

pub(crate) mod board;
pub(crate) mod leaks;
pub(crate) mod ledger;
pub(crate) mod parcel;
