//! Output of the program: progress, totals, and findings.

pub(crate) mod finding;
pub(crate) mod report;
