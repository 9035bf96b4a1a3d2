//! `Queue`, `SimpleQueue`, `JoinableQueue`, and the leases of their objects.

mod base;
pub(crate) mod handles;
mod joinable;
mod lease;
mod many;
mod shared;
mod simple;

pub use base::Queue;
pub use joinable::{JoinableQueue, Tasks};
pub use lease::Lease;
pub use simple::SimpleQueue;
