//! Messages in the arena: from the buffer in which a value is encoded to the buffer from which it is decoded.
//!
//! A message is written to an [`Outgoing`](outgoing::Outgoing), which `pack` (or `broadcast`, for several
//! receivers) turns into an [`Envelope`](envelope::Envelope). A consumer may `lease` it, and reads it as
//! an [`Incoming`](incoming::Incoming). `attachments` has the descriptors that travel in messages or stay
//! with an object, and `exclusive_objects` move. `promise` passes an envelope to a process without a queue.

pub(crate) mod attachments;
pub(crate) mod bytes;
pub(crate) mod envelope;
pub(crate) mod exclusive_objects;
#[cfg(all(any(test, feature = "fuzz"), not(mp_loom)))]
pub(crate) mod fuzz;
pub(crate) mod in_flight;
pub(crate) mod incoming;
pub(crate) mod lease;
pub(crate) mod outgoing;
pub(crate) mod promise;
#[cfg(test)]
mod tests;

pub use incoming::{Buffer, Claimed, Incoming, ReceivedAttachments};
pub use outgoing::{Attached, LoanedValue, Outgoing, UnsentValues};

use crate::arena::{Arena, view};

view! {
    /// Messages of an arena: packing, and the numbers of messages in flight.
    pub struct Messages;
}

/// Appends the result of `make` after room is made for it (as the standard library does for `OnceWith`, whose
/// length it trusts). A value created before would have to be dropped if making room panics, so it would be
/// in memory and copied from there.
///
/// A copy of a value that was just written in pieces (such as a word of eight bytes and a word of four) reads
/// the pieces at once. Store forwarding can't serve that: the processor waits until the pieces are in its
/// cache.
#[inline(always)]
fn push<T>(list: &mut Vec<T>, make: impl FnOnce() -> T) {
    list.extend(std::iter::once_with(make));
}

/// Maximum size in bytes of a buffer that is retained for the next message.
pub(crate) const KEEP: usize = 1 << 16;
