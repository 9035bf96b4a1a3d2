//! State of the workers: their tasks, and the transfer of tasks between them.

pub(crate) mod choice;
pub(crate) mod help;
pub(crate) mod later;
pub(crate) mod resize;
pub(crate) mod short;
pub(crate) mod starts;
pub(crate) mod state;
