//! Loader in the trainer's process, for both kinds of datasets: plans, sends and delivers batches.
//!
//! | file | contents |
//! |---|---|
//! | `shared.rs` | state that a loader and its iterators share: plan, dataset, workers |
//! | `source.rs` | interface of the two kinds of datasets, and the states of a batch in flight |
//! | `prefetch.rs` | batches in flight: waits for them, and delivers them |
//! | `dispatch.rs` | planning and sending of batches |
//! | `outcomes.rs` | results of batches that were sent: batches, errors, lack of memory |
//! | `slow_batch_report.rs`, `report_schedule.rs` | reports of batches that do not arrive |
//! | `methods.rs` | public methods of both kinds of loaders and of their iterators |
//! | `metrics.rs` | statistics |
//! | `progress.rs` | progress bar |

mod dispatch;
pub(crate) mod methods;
pub(crate) mod metrics;
mod outcomes;
pub(crate) mod prefetch;
#[cfg(feature = "indicatif")]
pub(crate) mod progress;
mod report_schedule;
pub(crate) mod shared;
mod slow_batch_report;
pub(crate) mod source;
