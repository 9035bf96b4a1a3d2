//! Datasets without indices: shards that are read from front to back.

mod builder;
mod chain;
mod dataset;
mod kind;
mod lane;
mod lanes;
mod loader;
mod open_lane;
mod order;
mod state;
mod verify;
mod worker;

pub use builder::StreamLoaderBuilder;
pub use chain::{Chain, ChainReader};
pub use dataset::{IterableDataset, SampleOf, ShardPosition, ShardReader};
pub use loader::{StreamBatches, StreamLoader};
pub use state::StreamState;
