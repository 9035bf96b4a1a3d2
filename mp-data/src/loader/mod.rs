//! Loader in the trainer's process, for both kinds of datasets: plans, sends and delivers batches.
//!
//! | file | contents |
//! |---|---|
//! | `shared.rs` | state that a loader and its iterators share: plan, dataset, workers |
//! | `source.rs` | interface of the two kinds of datasets, and the states of a batch in flight |
//! | `prefetch.rs` | batches in flight: plans and sends them, waits for them, and delivers them |
//! | `outcomes.rs` | results of batches that were sent: batches, errors, lack of memory |
//! | `slow_batch_report.rs` | reports of batches that do not arrive |
//! | `methods.rs` | public methods of both kinds of loaders and of their iterators |
//! | `metrics.rs` | statistics |
//! | `verify.rs` | check that batches are reproducible |
//! | `progress.rs` | progress bar |

pub(crate) mod methods;
pub(crate) mod metrics;
mod outcomes;
pub(crate) mod prefetch;
#[cfg(feature = "indicatif")]
pub(crate) mod progress;
pub(crate) mod shared;
mod slow_batch_report;
pub(crate) mod source;
pub(crate) mod verify;
