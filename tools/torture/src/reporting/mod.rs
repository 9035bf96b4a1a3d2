//! What the program says: the progress, the figures, and what should not be.

pub(crate) mod finding;
pub(crate) mod report;
