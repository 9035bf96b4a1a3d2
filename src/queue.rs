//! Queues between processes, which outlive the kill of any process that has them.
//!
//! ```
//! use mp::{GetError, Queue};
//!
//! let jobs = Queue::<(u32, String)>::bounded(8)?;
//! jobs.put((1, "first".into()))?;
//! let job = jobs.get_ack()?.expect("it is open"); // delivered again if this process dies with it
//! assert_eq!(job.ack(), (1, "first".into()));
//! assert!(matches!(jobs.try_get(), Err(GetError::Empty)));
//! jobs.close();
//! assert_eq!(jobs.get()?, None); // closed and drained
//! # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
//! ```
//!
//! The three types to know: [`Queue`], for any number of processes that put and get; [`Lease`], a message that is taken with
//! acknowledgement; [`JoinableQueue`], which knows when all its tasks are done. [`channel()`] makes the two ends of a queue that
//! notice when the other side is gone.
//!
//! | | |
//! |---|---|
//! | what else a queue is made with | [`QueueOptions`]: bytes, deliveries, when it is [deserted](DesertedWhen), how calls [spin](Spin) |
//! | what goes wrong | [`PutError`], which gives the value back; [`GetError`], [`PutManyError`], [`JoinableQueueError`] |
//! | to wait for it beside other things | itself; [`PutReady`], [`AckReady`] |
//! | the newest value for many readers | [`watch`]: each `send` replaces it |
//! | each receiver gets each message | [`broadcast`] |
//! | encoded before it is known where it goes | [`EncodedMessage`] |

#[doc(no_inline)]
pub use crate::{
    GetError, JoinableQueue, Lease, PutError, Queue, QueueOptions, Receiver, Sender, bounded_channel, channel,
};
pub use mp_queue::{
    AckReady, DesertedWhen, EncodedMessage, JoinableQueueError, Leaseholder, PutManyError, PutReady,
    SimpleQueue, Spin, TypeRefusal, broadcast, watch,
};
#[cfg(feature = "futures")]
pub use mp_queue::{QueueSink, QueueStream};
