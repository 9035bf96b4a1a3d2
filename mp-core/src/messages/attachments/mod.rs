//! Attachments of messages: descriptors, which travel in a message or stay with an object.

pub(crate) mod descriptors;
pub(crate) mod object_descriptors;
