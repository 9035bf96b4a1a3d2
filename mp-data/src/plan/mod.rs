//! Assignment of samples to batches: a function of seed, epoch and position.
//!
//! ```
//! use mp_data::plan::Plan;
//! let plan = Plan::builder(10).batch_size(4).shuffle(true).seed(17).build()?;
//! let order = plan.epoch(0);
//! assert_eq!(order.batches(), Some(3));
//! let last = order.batch(2)?.unwrap();
//! assert_eq!(last.items.len(), 2);
//! // Another process, after a restart, goes on with batch 1.
//! let (epoch, next) = plan.next_batch(&plan.state(0, 1))?;
//! assert_eq!(plan.epoch(epoch).batch(next)?, order.batch(1)?);
//! # Ok::<(), mp_data::plan::PlanError>(())
//! ```

mod assignment;
mod bucketing;
mod builder;
mod conflicts;
mod epoch;
mod error;
mod item;
mod order;
mod permutation;
mod philox;
mod sampler;
mod state;
mod state_match;
mod window_start;

pub use assignment::Plan;
pub use builder::PlanBuilder;
pub use epoch::EpochOrder;
pub use error::PlanError;
pub(crate) use error::no_such_rank;
pub use item::Item;
pub use order::PlannedBatch;
pub use philox::SampleRng;
pub use sampler::{BatchSampler, Batching, IndexSampler, Sampler, Shuffle, Uneven};
pub use state::PlanState;
pub(crate) use state::{checksum, same};
pub(crate) use window_start::WindowStart;

pub(crate) use permutation::shuffle;
pub(crate) use philox::{RngPurpose, epoch_key, mix};
