//! Messages in the arena: envelopes, from the buffer in which a value is written to the one in which it is read.
//!
//! A message is written to an [`Outgoing`](outgoing::Outgoing), which `pack` (or `broadcast`, for several) turns into an
//! [`Envelope`](envelope::Envelope); `lease` is one that its consumer has for a while, and [`Incoming`](incoming::Incoming) is
//! what comes out. `descriptors` are in messages, `object_descriptors` stay with an object; `exclusive_objects` move. `idle` keeps envelopes for a thread's next messages, `groups` gives their memory back. `promise` hands one
//! to a process without a queue; `lost` discards a message that no process receives.

pub(in crate::arena) mod broadcast;
pub(in crate::arena) mod bytes;
pub(in crate::arena) mod descriptors;
pub(in crate::arena) mod envelope;
pub(in crate::arena) mod exclusive_objects;
pub(in crate::arena) mod groups;
pub(in crate::arena) mod idle;
pub(in crate::arena) mod in_flight;
pub(in crate::arena) mod incoming;
pub(in crate::arena) mod lease;
mod lost;
pub(in crate::arena) mod object_descriptors;
pub(in crate::arena) mod outgoing;
pub(in crate::arena) mod pack;
pub(in crate::arena) mod promise;
#[cfg(test)]
mod tests;

pub use incoming::{Arrived, Buffer, Claimed, Incoming};
pub use outgoing::{Attached, Lent, Outgoing, Returned};

/// Appends what `make` makes when there is room for it (so the standard library does with `OnceWith`, whose length it trusts). What is made
/// before has to be dropped where a panic of making room unwinds: then it is in memory, and is copied from there.
///
/// A copy of what was just written in pieces (a word of eight bytes and one of four, say) reads them at once, which store forwarding
/// can't serve: the processor waits until they are in its cache.
#[inline(always)]
fn push<T>(list: &mut Vec<T>, make: impl FnOnce() -> T) {
    list.extend(std::iter::once_with(make));
}

/// Larger buffers are not kept for the next message.
pub(in crate::arena) const KEEP: usize = 1 << 16;
