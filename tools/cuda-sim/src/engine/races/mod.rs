//! What tells a correct program from one that is not: what happened before what, what was done to each byte, and what was found.

pub(in crate::engine) mod clock;
pub(in crate::engine) mod findings;
pub(in crate::engine) mod shadow;
