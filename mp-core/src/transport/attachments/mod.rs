//! Attachments of messages. `descriptors` travel in a message, and `object_descriptors` stay with an object.

pub(crate) mod descriptors;
pub(crate) mod object_descriptors;

use crate::alloc::handles::Hold;
use crate::arena::{Arena, view};
use crate::words::Grant;

view! {
    /// Descriptors of an arena, in messages and of objects.
    pub struct Descriptors;
}

/// An attachment of a message. Only handles can create one, so the receiver's access to a block follows from
/// the type of the sender's handle.
#[derive(Debug)]
pub struct AttachRequest {
    /// The handle. For an exclusive tensor, its own handle, which was moved here.
    pub(crate) hold: Hold,
    /// Access of the receiver. [`Access::Exclusive`](crate::words::Access::Exclusive) moves the seat,
    /// everything else adds a holder.
    pub(crate) grant: Grant,
}

impl AttachRequest {
    /// Returns another attachment of the same kind.
    pub(crate) fn again(&self) -> Self {
        Self { hold: self.hold.clone(), grant: self.grant }
    }
}
