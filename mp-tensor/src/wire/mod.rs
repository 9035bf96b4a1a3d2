//! Serialized parts of a tensor: its view and gradient metadata. Its memory is an attachment.

pub(crate) mod grad;
pub(crate) mod handle;
