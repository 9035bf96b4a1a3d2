//! Records about a round that outlive its workers: last operations, messages, and used resources.

pub(crate) mod board;
pub(crate) mod leaks;
pub(crate) mod ledger;
pub(crate) mod parcel;
