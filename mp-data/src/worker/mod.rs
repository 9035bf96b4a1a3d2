//! Worker of a loader, which has the dataset and makes the batch of each task.
//!
//! | moment of death | effect | batch |
//! |---|---|---|
//! | before the worker takes the task | another worker takes the task | is made by that worker |
//! | while the worker writes rows | the memory of the rows is freed | is made again by another worker, with the same items and random numbers |
//! | before the reply is put | the memory of the rows is freed | is made again by another worker, with the same items and random numbers |
//! | after the reply is put | none | is received by the training process |

pub(crate) mod batch_maker;
#[cfg(feature = "log")]
pub(crate) mod dataset_size;
pub(crate) mod in_process;
pub(crate) mod keep_freed;
