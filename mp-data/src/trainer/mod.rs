//! The trainer's process, for both kinds of loaders: which batches it has planned, who makes them,
//! and which it gives.
//!
//! | file | has |
//! |---|---|
//! | `inner.rs` | what a loader and its iterators share: plan, dataset, workers |
//! | `kind.rs` | what the two kinds of datasets say of their batches, and the states of a batch on its way |
//! | `prefetch.rs` | the batches on their way: waiting for them, and giving them |
//! | `dispatch.rs` | which are planned and sent, and when |
//! | `outcomes.rs` | what comes of them: batches, errors, no memory |
//! | `slow_batch_report.rs` | what is said of one that does not come |
//! | `shared_methods.rs` | what loaders of both kinds offer, and their iterators |
//! | `metrics.rs` | how it is doing |
//! | `progress.rs` | a progress bar |

mod dispatch;
pub(crate) mod inner;
pub(crate) mod kind;
pub(crate) mod metrics;
mod outcomes;
pub(crate) mod prefetch;
#[cfg(feature = "indicatif")]
pub(crate) mod progress;
pub(crate) mod shared_methods;
mod slow_batch_report;
