//! Detection of mistakes in programs: happened-before order, accesses to each byte, and findings.

pub(in crate::engine) mod clock;
pub(in crate::engine) mod findings;
pub(in crate::engine) mod shadow;
