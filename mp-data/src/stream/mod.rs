//! Datasets without indices: shards that are read from front to back.

mod builder;
mod chain;
mod dataset;
mod kind;
mod loader;
mod order;
mod run;
mod state;
mod verify;
mod worker;

pub use builder::StreamLoaderBuilder;
pub use chain::Chain;
pub use dataset::{IterableDataset, Position, SampleOf, ShardReader};
pub use loader::{NoDataset, StreamBatches, StreamLoader};
pub use state::StreamState;
