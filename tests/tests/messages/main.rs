//! Messages: contents, delivery, and values returned on failure. (Leaks after failures: `leaks.rs`, a
//! separate program.)

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
