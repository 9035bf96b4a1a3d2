//! How a queue is made, where `bounded` and `unbounded` don't say enough.

use mp_core::Message;
use mp_reduce::Error;

use crate::queue::Queue;

/// How a queue is made.
///
/// ```
/// use mp_queue::{Queue, QueueOptions};
///
/// // Up to a hundred jobs; a job that has killed three workers is set aside.
/// let jobs: Queue<String> = QueueOptions::new().capacity(100).deliveries(3).create()?;
/// assert_eq!(jobs.capacity(), 100);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[must_use = "options do nothing until `create` is called"]
pub struct QueueOptions {
    capacity: Option<usize>,
    growing: bool,
    deliveries: u32,
}

/// How often a message is delivered, unless told otherwise.
pub(crate) const DELIVERIES: u32 = 5;

impl Default for QueueOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl QueueOptions {
    /// A queue without a bound, that delivers a message at most five times.
    pub const fn new() -> Self {
        Self { capacity: None, growing: true, deliveries: DELIVERIES }
    }

    /// Room for `capacity` messages, there from the start: as [`Queue::bounded`].
    pub const fn capacity(self, capacity: usize) -> Self {
        Self { capacity: Some(capacity), growing: false, ..self }
    }

    /// It grows, up to `limit` messages: as [`Queue::growing`].
    pub const fn growing(self, limit: usize) -> Self {
        Self { capacity: Some(limit), growing: true, ..self }
    }

    /// How often a message is delivered by [`Queue::get_ack`], before it is set aside ([`Queue::dead_letter`]). 0 is for
    /// ever; above 127 is 127.
    pub const fn deliveries(self, times: u32) -> Self {
        Self { deliveries: if times > 127 { 127 } else { times }, ..self }
    }

    /// Makes the queue.
    ///
    /// # Errors
    /// As [`Queue::bounded`].
    pub fn create<T: Message>(self) -> Result<Queue<T>, Error> {
        Queue::create(self.capacity, self.growing, self.deliveries)
    }
}
