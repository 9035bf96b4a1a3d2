//! Queues between processes. They survive `SIGKILL` of any process at any instruction.
//!
//! ```
//! use mp_queue::Queue;
//!
//! let jobs = Queue::<(u32, String)>::bounded(8)?;
//! jobs.put((1, "first".into()))?;
//! jobs.close(); // no further messages follow
//! assert_eq!(jobs.get()?, Some((1, "first".into())));
//! assert_eq!(jobs.get()?, None); // closed and drained
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Start with [`Queue`], a queue with any number of producer and consumer processes. A failed put returns its
//! value in a [`PutError`]. A [`Lease`] is a message that is redelivered if its consumer dies before it
//! acknowledges the message.
//!
//! - [`channel`]: a queue whose senders and receivers are counted, so each side detects when the other side
//!   has disconnected
//! - [`JoinableQueue`]: a queue that can wait until all tasks are done
//! - [`pipe`]: a connection with two ends
//! - [`Listener`]: connections to other programs
//! - [`watch`]: a cell whose newest value many readers can read
//! - [`broadcast`]: a channel whose receivers each get every message
//!
//! A queue is stored in shared memory. Its handles can be sent in messages and in arguments of processes. A
//! queue has no background thread, no lock and no owner process. A process that is killed at any instruction
//! loses at most the message that it was putting or getting. In `put_many` and `get_many`, it loses at most
//! the rest of the batch.
//!
//! # Programs that `mp-spawn` did not start
//! To give a queue to a program that `std::process::Command` starts, use [`invite`]. For a program that has
//! connected to a [`Listener`], use [`Connection::invite`].
//!
//! ```no_run
//! use std::process::Command;
//! use mp_queue::{Queue, invite};
//!
//! let jobs = Queue::<String>::bounded(8)?;
//! let mut command = Command::new("worker");
//! invite(&mut command, jobs.clone())?;
//! let child = command.spawn()?; // in `worker`: let jobs: Queue<String> = mp_queue::accept_invitation()?;
//! jobs.put("resize".to_string())?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The module [`ring`] describes the algorithm and the state after a kill at each point.

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod broadcast;
mod checkpoint;
mod connection;
mod error;
#[cfg(all(any(test, feature = "fuzz"), not(mp_loom)))]
#[doc(hidden)]
pub mod fuzz;
mod queue;
mod raw;
pub mod ring;
pub mod watch;

pub use checkpoint::CheckpointError;
pub use connection::Connection;
pub use connection::invite::invite;
pub use connection::pipe::{one_way_pipe, pipe};
#[cfg(feature = "authkey")]
#[doc(hidden)]
pub use connection::socket::OptionParts;
pub use connection::socket::{
    Address, ConnectError, IncomingConnections, Listener, SocketOptions, connect, connect_async,
};
pub use error::{GetError, Leaseholder, PutError, RecvIntoError, TypeRefusal};
pub use mp_core::{Descriptor, Invitation, InvitationState, Spin, Waitable, select, wait, wait_async};
pub use mp_reduce::accept_invitation;
pub use queue::batch::PutManyError;
pub use queue::channel::{Receiver, Sender, bounded_channel, channel};
pub use queue::encoded::EncodedMessage;
pub use queue::joinable::{JoinableQueue, JoinableQueueError};
#[doc(hidden)]
pub use queue::lease::EncodedLease;
pub use queue::lease::Lease;
#[cfg(feature = "futures")]
pub use queue::stream::{QueueSink, QueueStream};
#[doc(hidden)]
pub use queue::waitable::EncodedLeaseReady;
pub use queue::waitable::{LeaseReady, PutReady};
pub use queue::{Queue, SimpleQueue};
pub use raw::options::{DesertedWhen, QueueOptions};

/// Compiles the example of the README as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
