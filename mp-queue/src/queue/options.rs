//! How a queue is made, where `bounded` and `unbounded` don't say enough.

use mp_core::{Message, Spin};
use mp_reduce::Error;

use crate::queue::Queue;
use crate::raw::handles::DesertedWhen;

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
    bytes: u64,
    deserted: DesertedWhen,
    spin: Spin,
}

/// How often a message is delivered by default.
pub(crate) const DELIVERIES: u32 = 5;

impl Default for QueueOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl QueueOptions {
    /// A queue without a bound, that delivers a message at most five times.
    pub const fn new() -> Self {
        Self {
            capacity: None,
            growing: true,
            deliveries: DELIVERIES,
            bytes: 0,
            deserted: DesertedWhen::NoHandleIsLeft,
            spin: Spin::Adaptive,
        }
    }

    /// Room for `capacity` messages, there from the start: as [`Queue::bounded`].
    pub const fn capacity(self, capacity: usize) -> Self {
        Self { capacity: Some(capacity), growing: false, ..self }
    }

    /// It grows, up to `limit` messages: as [`Queue::growing`].
    pub const fn growing(self, limit: usize) -> Self {
        Self { capacity: Some(limit), growing: true, ..self }
    }

    /// At most this many bytes in the queue, beside its [capacity](Self::capacity): a put waits, or is
    /// [`Full`], while its message would exceed them.
    ///
    /// ```
    /// use mp_tensor::Tensor;
    /// use mp_queue::{PutError, QueueOptions};
    ///
    /// // However large the batches are: no more than 64 MiB of them wait.
    /// let batches = QueueOptions::new().capacity(100).bytes(64 << 20).create::<Tensor<u8>>()?;
    /// batches.put(Tensor::zeros(&[40 << 20])?)?;
    /// let error = batches.try_put(Tensor::zeros(&[40 << 20])?).unwrap_err();
    /// assert!(error.is_full());
    /// batches.get()?;
    /// batches.put(error.into_value())?;
    /// // What would never fit is no reason to wait.
    /// let error = batches.put(Tensor::zeros(&[65 << 20])?).unwrap_err();
    /// assert!(matches!(error, PutError::TooLarge { bytes, limit, .. } if bytes > limit));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// What counts of a message: its bytes as they are encoded, and of each tensor, queue or other handle in it the memory
    /// behind that, as it was allocated (sizes are rounded up), in each message that has it. What is in the queue counts,
    /// from the moment it is put to the moment it is taken: not what a consumer works on, with or without acknowledgement,
    /// and not what has come back. The bound is exact, however many put at once; it needs no repair when a process dies,
    /// since nothing is counted that could be left wrong.
    ///
    /// A producer that waits with a large message may be overtaken by smaller ones of other producers. 0 is
    /// no bound.
    ///
    /// [`Full`]: crate::PutError::Full
    pub const fn bytes(self, bytes: u64) -> Self {
        Self { bytes, ..self }
    }

    /// How often a message is delivered by [`Queue::get_ack`], before it is set aside ([`Queue::dead_letter`]). 0 is for
    /// ever; above 127 is 127.
    pub const fn deliveries(self, times: u32) -> Self {
        Self { deliveries: if times > 127 { 127 } else { times }, ..self }
    }

    /// When waiting on it ends with `Deserted`. By default, when no other process has the queue any more, and
    /// this one has no other handle that could bring what is waited for. What that means, and for which
    /// programs it can't be known: [`DesertedWhen`].
    pub const fn deserted_when(self, deserted: DesertedWhen) -> Self {
        Self { deserted, ..self }
    }

    /// How calls that wait spend their time before they sleep, in all processes; [`Spin::Adaptive`] by default. A handle can
    /// do otherwise: [`Queue::spinning`].
    ///
    /// ```
    /// use mp_queue::{QueueOptions, Spin};
    ///
    /// // Idle consumers are to use no processor time at all.
    /// let events = QueueOptions::new().spin(Spin::Never).create::<u64>()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub const fn spin(self, spin: Spin) -> Self {
        Self { spin, ..self }
    }

    /// Makes the queue.
    ///
    /// # Errors
    /// As [`Queue::bounded`]; and if there is a bound of bytes, but no [capacity](Self::capacity).
    pub fn create<T: Message>(self) -> Result<Queue<T>, Error> {
        if self.bytes != 0 && self.growing {
            let why = "a queue that is bounded by bytes is bounded by messages, too: set its capacity";
            return Err(mp_core::Error::InvalidArgument(why.into()).into());
        }
        Queue::create(self.capacity, self.growing, self.deliveries, self.bytes, (self.deserted, self.spin))
    }
}
