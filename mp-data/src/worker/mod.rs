//! The worker: it has the dataset, and makes the batch of each task.
//!
//! | moment | the worker is killed | its batch |
//! |---|---|---|
//! | before it takes the task | the task goes to another worker, unread | is made there |
//! | while it writes rows | their memory is freed | is made again by another worker, with the same items and random numbers |
//! | when the reply is not put | as before | as before |
//! | after that | nothing | is the trainer's |

pub(crate) mod batch_maker;
#[cfg(feature = "log")]
pub(crate) mod dataset_size;
pub(crate) mod in_process;
pub(crate) mod init;
pub(crate) mod keep_freed;
pub(crate) mod reply;
