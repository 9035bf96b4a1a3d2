//! Waiting for several objects at once: queues, processes, semaphores, events, descriptors.
//!
//! ```
//! use std::time::Duration;
//!
//! use mp::{Event, Queue, select, wait};
//!
//! let (jobs, stop) = (Queue::<u32>::bounded(4)?, Event::new()?);
//! assert!(wait(&[&jobs, &stop], Some(Duration::from_millis(1)))?.is_empty()); // time-out: nothing is ready
//! stop.set()?;
//! assert_eq!(wait(&[&jobs, &stop], None)?, [1]); // all that are ready
//! jobs.put(7)?;
//! assert!(select(&[&jobs, &stop], None)?.is_some()); // one of them, chosen uniformly at random
//! # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
//! ```
//!
//! Start with three items: [`wait()`] and [`select`] wait for any [`Waitable`]. The future [`wait_async`]
//! waits for one of them. A [`Descriptor`] wraps sockets and anything else with a file descriptor.

#[doc(no_inline)]
pub use crate::{Waitable, select, wait};
#[doc(hidden)]
pub use mp_core::waits::on_report;
pub use mp_core::waits::{dump as dump_waits, report_hangs_after, report_waits_after};
pub use mp_core::{Descriptor, wait_async};
