//! All of mp as a shared library for programs in Rust: see `tests/embedding.rs`.
pub use mp::*;
