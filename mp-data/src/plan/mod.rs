//! Assignment of samples to batches: a function of seed, epoch and position.
//!
//! ```
//! use mp_data::plan::Plan;
//! let plan = Plan::builder(10).batch_size(4).shuffle(true).seed(17).build()?;
//! let order = plan.epoch(0);
//! assert_eq!(order.batches(), Some(3));
//! let last = order.batch(2)?.unwrap();
//! assert_eq!(last.items.len(), 2);
//! // After a restart, another process continues with batch 1.
//! let (epoch, next) = plan.next_batch(&plan.state(0, 1))?;
//! assert_eq!(plan.epoch(epoch).batch(next)?, order.batch(1)?);
//! # Ok::<(), mp_data::plan::PlanError>(())
//! ```

mod assignment;
mod bucketing;
mod builder;
mod epoch;
mod error;
mod order;
mod permutation;
mod philox;
mod resume;
mod sampler;
mod saved_state;

pub use assignment::Plan;
pub use builder::PlanBuilder;
pub(crate) use builder::plan_settings;
pub use epoch::EpochOrder;
pub use error::PlanError;
pub(crate) use error::no_such_rank;
pub use order::{Item, PlannedBatch};
pub(crate) use permutation::shuffle;
pub use philox::SampleRng;
pub(crate) use philox::{RngPurpose, epoch_key, mix};
pub use sampler::{BatchSampler, Batching, IndexSampler, Sampler, Shuffle, Uneven};
pub use saved_state::PlanState;
pub(crate) use saved_state::WindowStart;
pub(crate) use saved_state::{checksum, same};
