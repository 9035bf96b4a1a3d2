//! Detection of faults in programs: the happened-before order, accesses to each byte, and findings.

pub(in crate::engine) mod clock;
pub(in crate::engine) mod findings;
pub(in crate::engine) mod shadow;
