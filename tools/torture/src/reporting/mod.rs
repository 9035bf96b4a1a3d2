//! Output of the program: progress, figures, and findings.

pub(crate) mod finding;
pub(crate) mod report;
