//! Dataset and settings that a worker receives at its start.

use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::AnyResult;
use crate::dataset::info::WorkerInfo;

/// Dataset that is sent to workers: encoded once, decoded by each.
pub(crate) struct SharedDataset<D>(pub(crate) Arc<D>);

impl<D> Clone for SharedDataset<D> {
    fn clone(&self) -> Self {
        SharedDataset(Arc::clone(&self.0))
    }
}

impl<D: Serialize> Serialize for SharedDataset<D> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(s)
    }
}

impl<'de, D: Deserialize<'de>> Deserialize<'de> for SharedDataset<D> {
    fn deserialize<De: Deserializer<'de>>(d: De) -> Result<Self, De::Error> {
        Ok(SharedDataset(Arc::new(D::deserialize(d)?)))
    }
}

impl<D: Serialize + DeserializeOwned + 'static> SharedDataset<D> {
    /// Returns the dataset as if it was just received. If it has other holders, returns a copy that is
    /// encoded and decoded again.
    pub(crate) fn received(self) -> AnyResult<D> {
        let envelope = match Arc::try_unwrap(self.0) {
            Ok(dataset) => return Ok(dataset),
            Err(shared) => mp_reduce::pack(SharedDataset(shared)).map_err(|error| error.error)?,
        };
        let copy: SharedDataset<D> = mp_reduce::unpack(envelope)?;
        Arc::try_unwrap(copy.0).map_err(|_| "a dataset that was just received has two holders".into())
    }
}

/// Start message of a worker: the dataset, settings, and the plan.
#[derive(Serialize, Deserialize)]
#[serde(bound = "D: Serialize + DeserializeOwned, P: Serialize + DeserializeOwned")]
pub(crate) struct WorkerInit<D, P> {
    pub(crate) dataset: SharedDataset<D>,
    pub(crate) num_workers: usize,
    pub(crate) threads: usize,
    /// `true` if the worker keeps memory that it has freed.
    pub(crate) keep_freed_memory: bool,
    pub(crate) seed: u64,
    pub(crate) plan: P,
}

impl<D, P: Clone> Clone for WorkerInit<D, P> {
    fn clone(&self) -> Self {
        let WorkerInit { dataset, num_workers, threads, keep_freed_memory, seed, plan } = self;
        WorkerInit {
            dataset: dataset.clone(),
            num_workers: *num_workers,
            threads: *threads,
            keep_freed_memory: *keep_freed_memory,
            seed: *seed,
            plan: plan.clone(),
        }
    }
}

impl<D: Serialize + DeserializeOwned + 'static, P> WorkerInit<D, P> {
    /// Returns the worker's own copy of the dataset. Called in a worker, or in the trainer of a loader
    /// without workers.
    pub(crate) fn open(self) -> AnyResult<(D, WorkerInfo, P)> {
        let WorkerInit { dataset, num_workers, threads, seed, plan, .. } = self;
        // A trainer may itself be a worker of a pool.
        let worker = if num_workers == 0 { None } else { mp_pool::current_worker() };
        Ok((dataset.received()?, WorkerInfo { worker, num_workers, threads, seed }, plan))
    }
}
