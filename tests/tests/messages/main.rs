//! What travels in messages, how it arrives, and what comes back if it does not. (What a failure leaves in shared memory:
//! `leaks.rs`, a program of its own.)

mod as_bytes;
mod buffers;
mod closures;
mod derived_names;
mod errors;
mod kinds;
mod outside;
mod registered;
mod round_trips;
mod serde;
mod shared;
mod standard;
mod unsent;
