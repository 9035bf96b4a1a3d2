//! Queues between processes that survive any kill: the queue layer of `mp`.
//!
//! ```
//! use mp_queue::Queue;
//!
//! let jobs = Queue::<(u32, String)>::bounded(8)?;
//! jobs.put((1, "first".into()))?;
//! jobs.close(); // no more will come
//! assert_eq!(jobs.get()?, Some((1, "first".into())));
//! assert_eq!(jobs.get()?, None); // closed and drained
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The three types to know: [`Queue`], which any number of processes put into and get from; [`PutError`], which gives the value
//! back; and [`Lease`], a message that another process gets if this one dies before it is done. [`channel`] has sides that can be
//! counted, [`JoinableQueue`] tasks that can be waited for, [`pipe`] two ends, [`Listener`] other programs. [`watch`] has a cell
//! of the newest value for many readers, [`broadcast`] a channel of which each receiver gets each message.
//!
//! A queue lies in shared memory; its handles are messages themselves, so they travel in arguments of
//! processes and through other queues. There is no thread behind it, no lock, and no process that it depends
//! on: SIGKILL at any instruction of any process costs at most the messages that it was just putting or
//! getting: one, or of `put_many` and `get_many` the rest of the batch.
//!
//! # Programs that `mp-spawn` did not start
//! A queue reaches a program that `std::process::Command` starts by [`invite`], and one that has connected to a [`Listener`] by
//! [`Connection::invite`]:
//!
//! ```no_run
//! use std::process::Command;
//! use mp_queue::{Queue, invite};
//!
//! let jobs = Queue::<String>::bounded(8)?;
//! let mut command = Command::new("worker");
//! invite(&mut command, jobs.clone())?;
//! let child = command.spawn()?; // there: let jobs: Queue<String> = mp_queue::accept_invitation()?;
//! jobs.put("resize".to_string())?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`ring`] has the algorithm and what a kill at each point leaves.

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod broadcast;
mod connection;
mod error;
#[cfg(all(any(test, feature = "fuzz"), not(mp_loom)))]
#[doc(hidden)]
pub mod fuzz;
mod queue;
mod raw;
pub mod ring;
pub mod watch;

pub use connection::Connection;
pub use connection::invite::invite;
pub use connection::pipe::{one_way_pipe, pipe};
#[cfg(feature = "authkey")]
#[doc(hidden)]
pub use connection::socket::OptionParts;
pub use connection::socket::{
    Address, ConnectError, Incoming, Listener, SocketOptions, connect, connect_async,
};
pub use error::{GetError, Leaseholder, PutError, RecvIntoError, TypeRefusal};
pub use mp_core::{Descriptor, Invitation, InvitationState, Spin, Waitable, select, wait, wait_async};
pub use mp_reduce::accept_invitation;
pub use queue::batch::PutManyError;
pub use queue::channel::{Receiver, Sender, bounded_channel, channel};
pub use queue::encoded::EncodedMessage;
pub use queue::joinable::{JoinableQueue, JoinableQueueError};
pub use queue::lease::Lease;
pub use queue::options::QueueOptions;
#[cfg(feature = "futures")]
pub use queue::stream::{QueueSink, QueueStream};
pub use queue::waitable::{AckReady, PutReady};
pub use queue::{Queue, SimpleQueue};
pub use raw::handles::DesertedWhen;

/// The program of the README, as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
