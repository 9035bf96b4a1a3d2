//! Grants of attachments that are not tensors.

use crate::words::{Access, Grant};

/// Grant for a buffer: frozen elements, of any type.
pub(crate) const BUFFER: Grant = Grant::new(Access::Frozen, 0);
/// Grant for a handle that gives no access to memory by itself.
pub(crate) const OBJECT: Grant = Grant::new(Access::Object, 0);
/// Grant for the block of a message's descriptors. With it, a receiver finds the block without checking other
/// blocks.
pub(crate) const DESCRIPTORS: Grant = Grant::new(Access::Object, 1);
