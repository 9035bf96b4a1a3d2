//! What travels in messages, and how it arrives.

mod closures;
mod kinds;
mod serde;
