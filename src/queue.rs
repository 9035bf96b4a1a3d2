//! Queues between processes, which survive the death of any process that uses them.
//!
//! ```
//! use mp::{GetError, Queue};
//!
//! let jobs = Queue::<(u32, String)>::bounded(8)?;
//! jobs.put((1, "first".into()))?;
//! let job = jobs.get_lease()?.expect("it is open"); // delivered again if this process dies before `ack`
//! assert_eq!(job.ack(), (1, "first".into()));
//! assert!(matches!(jobs.try_get(), Err(GetError::Empty)));
//! jobs.close();
//! assert_eq!(jobs.get()?, None); // closed and drained
//! # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
//! ```
//!
//! Start with three types: [`Queue`] has any number of producers and consumers. [`Lease`] is a received
//! message that has to be acknowledged. [`JoinableQueue`] reports when all its tasks are done. [`channel()`]
//! returns two ends of a queue. Each end detects the loss of the other one.
//!
//! | task | items |
//! |---|---|
//! | options of a queue | [`QueueOptions`]: bytes, deliveries, when it is [deserted](DesertedWhen), how calls [spin](Spin) |
//! | errors | [`PutError`], which returns the value; [`GetError`], [`PutManyError`], [`JoinableQueueError`] |
//! | waiting for a queue and other objects | the queue itself; [`PutReady`], [`LeaseReady`] |
//! | the newest value for many readers | [`watch`]: each `send` replaces it |
//! | each message for all receivers | [`broadcast`] |
//! | a message encoded before its queue is known | [`EncodedMessage`] |

#[doc(no_inline)]
pub use crate::{
    GetError, JoinableQueue, Lease, PutError, Queue, QueueOptions, Receiver, Sender, bounded_channel, channel,
};
pub use mp_queue::{
    CheckpointError, DesertedWhen, EncodedMessage, JoinableQueueError, LeaseReady, Leaseholder, PutManyError,
    PutReady, SimpleQueue, Spin, TypeRefusal, broadcast, watch,
};
#[cfg(feature = "futures")]
pub use mp_queue::{QueueSink, QueueStream};
