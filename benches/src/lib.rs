//! What the programs of this package share: the machine that figures come from, and what is made of them.

pub mod machine;
pub mod stats;
