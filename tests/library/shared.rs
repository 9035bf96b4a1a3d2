//! All of mp as a shared library for programs in Rust: see `tests/programs/embedding.rs`.
pub use mp::*;
