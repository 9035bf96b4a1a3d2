//! What of a tensor travels in a message beside its memory: its view, and what an automatic differentiation needs to know.

pub(crate) mod grad;
pub(crate) mod handle;
