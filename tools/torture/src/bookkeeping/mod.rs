//! What is known of a round beside what its workers do: their last operations, each message, what is left.

pub(crate) mod board;
pub(crate) mod leaks;
pub(crate) mod ledger;
pub(crate) mod parcel;
