//! Loaders and batches without the type of the dataset, since a Python class has no type parameters.

use std::sync::Arc;
use std::time::Duration;

use mp::data::{
    Batch, BatchInfo, Batches, ColumnData, DataLoader, Dataset, LoadError, LoaderMetrics, LoaderState,
    NextBatch, NotReadyError,
};
use mp_core::mutex::Mutex;

/// A loader of any dataset.
pub(super) trait AnyLoader: Send + Sync {
    fn len(&self) -> Option<u64>;
    fn begin(&self, epoch: u64) -> Box<dyn AnyBatches>;
    fn resume(&self, state: &LoaderState) -> Result<Box<dyn AnyBatches>, String>;
    fn metrics(&self) -> LoaderMetrics;
    fn pids(&self) -> Vec<u32>;
    fn close(&self);
}

/// The batches of an epoch, of any dataset.
pub(super) trait AnyBatches: Send {
    fn next(&mut self, time: Duration) -> Result<Next, NotReadyError>;
    fn state(&self) -> LoaderState;
}

pub(super) type Next = Option<Result<(BatchInfo, mp::data::AnyResult<ColumnData>), LoadError>>;

impl<D: Dataset> AnyLoader for DataLoader<D> {
    fn len(&self) -> Option<u64> {
        self.batches_in_epoch(0)
    }

    fn begin(&self, epoch: u64) -> Box<dyn AnyBatches> {
        Box::new(self.epoch(epoch))
    }

    fn resume(&self, state: &LoaderState) -> Result<Box<dyn AnyBatches>, String> {
        let batches = DataLoader::resume(self, state).map_err(|error| error.to_string())?;
        Ok(Box::new(batches))
    }

    fn metrics(&self) -> LoaderMetrics {
        DataLoader::metrics(self)
    }

    fn pids(&self) -> Vec<u32> {
        DataLoader::pids(self)
    }

    fn close(&self) {
        DataLoader::close(self);
    }
}

impl<D: Dataset> AnyBatches for Batches<D> {
    fn next(&mut self, time: Duration) -> Result<Next, NotReadyError> {
        let next: NextBatch<D::Batch> = self.next_timeout(time)?;
        Ok(next.map(|batch| {
            batch.map(|batch| {
                let (batch, info) = batch.into_parts();
                (info, batch.into_column())
            })
        }))
    }

    fn state(&self) -> LoaderState {
        Batches::state(self)
    }
}

/// Batches of an iteration in progress. `None` after the end of the iteration.
pub(super) type Iteration = Arc<Mutex<Option<Box<dyn AnyBatches>>>>;
