//! Records of a round outside of its workers: last operations, messages, and leaks.

pub(crate) mod board;
pub(crate) mod leaks;
pub(crate) mod ledger;
pub(crate) mod parcel;
