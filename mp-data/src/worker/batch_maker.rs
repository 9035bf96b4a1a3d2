//! Interface of the makers of batches.

use mp_reduce::Message;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::batch::Fill;
use crate::dataset::context::{Context, FIRST_FILL};
use crate::worker::init::WorkerInit;
use crate::worker::reply::WorkerReply;
use crate::{AnyResult, Batch};

/// Maker of batches, in a worker or in the training process.
pub(crate) trait BatchMaker: Sized + 'static {
    type Dataset: Serialize + DeserializeOwned + Send + Sync + 'static;
    /// Part of the plan that workers need.
    type Plan: Clone + Serialize + DeserializeOwned + Send + Sync + 'static;
    type Batch: Batch;
    type Task: Message + Send;
    /// Position after a batch, which is sent with the batch.
    type Progress: Serialize + DeserializeOwned + Send + 'static;

    fn begin(init: InitOf<Self>) -> AnyResult<Self>;
    fn context(&self, task: &Self::Task) -> Context<Self::Batch>;
    fn make(
        &mut self,
        task: &Self::Task,
        cx: &mut Context<Self::Batch>,
    ) -> AnyResult<WorkerReply<Self::Batch, Self::Progress>>;
}

/// Message with which a worker of a loader starts.
pub(crate) type InitOf<W> = WorkerInit<<W as BatchMaker>::Dataset, <W as BatchMaker>::Plan>;

/// Function of the tasks.
pub(crate) fn make<W: BatchMaker>(
    worker: &mut W,
    task: W::Task,
) -> AnyResult<WorkerReply<W::Batch, W::Progress>> {
    let mut cx = worker.context(&task);
    worker.make(&task, &mut cx)
}

/// Returns `true` if the worker searches for unwritten rows. Returns `false` in `verify`, which compares.
pub(crate) fn checks_unwritten(poison: Option<u8>) -> bool {
    cfg!(debug_assertions) && poison.is_none()
}

/// Returns the contents of rows before they are written.
pub(crate) fn fill(poison: Option<u8>) -> Fill {
    match poison {
        Some(byte) => Fill::Byte(byte),
        None if cfg!(debug_assertions) => Fill::Byte(FIRST_FILL),
        None => Fill::Unchanged,
    }
}
