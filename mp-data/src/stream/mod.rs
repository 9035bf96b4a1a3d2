//! Datasets without indices: shards that are read sequentially.

mod builder;
mod dataset;
mod lane;
mod lane_tree;
mod loader;
mod open_lane;
mod plan;
mod saved_state;
mod source;
mod verify;
mod worker;

pub use builder::StreamLoaderBuilder;
pub use dataset::{ChainDataset, ChainDatasetReader, IterableDataset, SampleOf, ShardPosition, ShardReader};
pub use loader::{StreamBatches, StreamLoader};
pub use saved_state::StreamState;
