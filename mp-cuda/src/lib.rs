//! CUDA events and tensors between processes.
//!
//! **Not implemented yet.** This crate holds the name and the place in the layers; it has no items, needs no CUDA to
//! build, and does nothing.

#![cfg_attr(docsrs, feature(doc_cfg))]
