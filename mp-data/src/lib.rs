//! A data loader: worker processes make batches of a dataset in shared memory, in an order that is a function of a seed and an epoch.
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod plan;

pub use plan::Item;
