//! Waiting for many things at once: queues, processes, semaphores, events, descriptors.
//!
//! ```
//! use std::time::Duration;
//!
//! use mp::{Event, Queue, select, wait};
//!
//! let (jobs, stop) = (Queue::<u32>::bounded(4)?, Event::new()?);
//! assert!(wait(&[&jobs, &stop], Some(Duration::from_millis(1)))?.is_empty()); // none, in that time
//! stop.set()?;
//! assert_eq!(wait(&[&jobs, &stop], None)?, [1]); // all that are ready
//! jobs.put(7)?;
//! assert!(select(&[&jobs, &stop], None)?.is_some()); // one of them, each with the same chance
//! # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
//! ```
//!
//! The three to know: [`wait()`] and [`select`], and [`Waitable`], what they can wait for. As a future, for one thing, there is
//! [`wait_async`]; sockets and whatever else has a descriptor are waited for as a [`Descriptor`].

#[doc(no_inline)]
pub use crate::{Waitable, select, wait};
#[doc(hidden)]
pub use mp_core::waits::on_report;
pub use mp_core::waits::{dump as dump_waits, report_hangs_after, report_waits_after};
pub use mp_core::{Descriptor, wait_async};
