//! What the pool knows of its workers: who has which task, and who takes over from whom.

pub(crate) mod choice;
pub(crate) mod help;
pub(crate) mod later;
pub(crate) mod resize;
pub(crate) mod short;
pub(crate) mod starts;
pub(crate) mod state;
