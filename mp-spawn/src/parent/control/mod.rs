//! Operations of handles on the processes of a start: queries, waits, signals. They ask the supervisor where
//! the recorded state may be outdated.

pub(crate) mod signals;
pub(crate) mod status;
pub(crate) mod wait;
