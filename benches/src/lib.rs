//! Shared parts of this package's programs: description of the machine, and statistics of figures.

pub mod machine;
pub mod stats;
