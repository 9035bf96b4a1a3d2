//! Options for creating a queue.

use mp_core::Spin;
use mp_reduce::Error;

/// Options for creating a [`Queue`](crate::Queue).
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
    pub(crate) capacity: Option<usize>,
    pub(crate) growing: bool,
    pub(crate) deliveries: u32,
    pub(crate) bytes: u64,
    pub(crate) deserted: DesertedWhen,
    pub(crate) spin: Spin,
}

/// Default limit on the deliveries of one message.
pub(crate) const DELIVERIES: u32 = 5;

impl Default for QueueOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl QueueOptions {
    /// Creates the options of a queue without a bound that delivers a message at most five times.
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

    /// Returns an error if a bound of bytes lacks a capacity.
    pub(crate) fn check(self) -> Result<(), Error> {
        if self.bytes != 0 && self.growing {
            let why = "a queue that is bounded by bytes is bounded by messages, too: set its capacity";
            return Err(mp_core::Error::InvalidArgument(why.into()).into());
        }
        Ok(())
    }

    /// Bounds the queue to `capacity` messages, whose slots are allocated at once: see
    /// [`Queue::bounded`](crate::Queue::bounded).
    pub const fn capacity(self, capacity: usize) -> Self {
        Self { capacity: Some(capacity), growing: false, ..self }
    }

    /// Lets the queue grow up to `limit` messages: see [`Queue::growing`](crate::Queue::growing).
    pub const fn growing(self, limit: usize) -> Self {
        Self { capacity: Some(limit), growing: true, ..self }
    }

    /// Bounds the bytes in the queue, in addition to its [capacity](Self::capacity). A put waits, or returns
    /// [`Full`], while its message would exceed the bound.
    ///
    /// ```
    /// use mp_tensor::Tensor;
    /// use mp_queue::{PutError, QueueOptions};
    ///
    /// // At most 64 MiB of batches wait in the queue, whatever their sizes are.
    /// let batches = QueueOptions::new().capacity(100).bytes(64 << 20).create::<Tensor<u8>>()?;
    /// batches.put(Tensor::zeros(&[40 << 20])?)?;
    /// let error = batches.try_put(Tensor::zeros(&[40 << 20])?).unwrap_err();
    /// assert!(error.is_full());
    /// batches.get()?;
    /// batches.put(error.into_value())?;
    /// // A message that can never fit is refused at once.
    /// let error = batches.put(Tensor::zeros(&[65 << 20])?).unwrap_err();
    /// assert!(matches!(error, PutError::TooLarge { bytes, limit, .. } if bytes > limit));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// The size of a message is the number of its encoded bytes, plus the memory of each tensor, queue or
    /// other object in it, as allocated (sizes are rounded up). An object that is in several messages counts
    /// in each of them. A message counts from the moment it is put until it is taken. Messages that a
    /// consumer works on, with or without acknowledgement, and messages that have been given back don't
    /// count. The bound is exact, also with concurrent puts. The bound needs no repair after a process dies,
    /// since no separate counter could become wrong.
    ///
    /// Smaller messages of other producers may overtake a large message that waits. 0 means no bound.
    ///
    /// [`Full`]: crate::PutError::Full
    pub const fn bytes(self, bytes: u64) -> Self {
        Self { bytes, ..self }
    }

    /// Limits how often [`Queue::get_lease`](crate::Queue::get_lease) delivers a message before the message
    /// is set aside (see [`Queue::dead_letter`](crate::Queue::dead_letter)). 0 means no limit. Values above
    /// 127 count as 127.
    pub const fn deliveries(self, times: u32) -> Self {
        Self { deliveries: if times > 127 { 127 } else { times }, ..self }
    }

    /// Sets the condition under which a wait ends with `Deserted`. By default, a wait ends with `Deserted`
    /// when no other process has the queue and this process has no other handle that could end the wait.
    /// [`DesertedWhen`] describes the conditions and the programs for which they can't be detected.
    pub const fn deserted_when(self, deserted: DesertedWhen) -> Self {
        Self { deserted, ..self }
    }

    /// Sets how long waiting calls spin before they sleep, in all processes. The default is
    /// [`Spin::Adaptive`]. [`Queue::spinning`](crate::Queue::spinning) overrides it for one handle.
    ///
    /// ```
    /// use mp_queue::{QueueOptions, Spin};
    ///
    /// // Idle consumers use no processor time.
    /// let events = QueueOptions::new().spin(Spin::Never).create::<u64>()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub const fn spin(self, spin: Spin) -> Self {
        Self { spin, ..self }
    }
}

/// Condition under which a wait on a queue ends with `Deserted`, because no message or room can be expected.
///
/// In each case, some process that had the queue has ended or dropped its last handle, and no other process
/// and no message in transit has the queue. A process that was sent the queue and never received it counts as
/// ended: its start failed, its invitation expired, or the message with the handle was discarded. The cases
/// differ in the condition on the calling process itself.
///
/// If this process is the parent of the process that has ended, and that process failed, the error text
/// includes the failure. A blocking call waits up to 250 ms for such a report.
///
/// ```
/// use std::time::Duration;
/// use mp_queue::{DesertedWhen, QueueOptions};
///
/// // Two threads share one handle by reference, which is not counted: no wait may end with `Deserted`.
/// let jobs = QueueOptions::new().deserted_when(DesertedWhen::Never).create::<u32>()?;
/// std::thread::scope(|threads| {
///     threads.spawn(|| jobs.put(7));
///     assert_eq!(jobs.get_timeout(Duration::from_secs(10)).unwrap(), Some(7));
/// });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum DesertedWhen {
    /// This process has no other handle that could end the wait. A put ends a wait for a message, and a get
    /// ends a wait for room. A handle that is blocked in the same kind of wait without a time-out does not
    /// count. This is the default.
    ///
    /// A clone in this or another thread keeps waits going until it is dropped. Only handles are counted:
    /// threads that share *one* handle by reference (`Arc<Queue>`, a static, scoped threads) count as one
    /// thread. Give each thread a clone, or create the queue with [`Never`](Self::Never).
    #[default]
    NoHandleIsLeft = 0,
    /// No other process has the queue, whatever handles this process has. Use this for processes that only
    /// get or only put, and keep a handle that they don't use. Another thread of this process that could put
    /// does not keep a wait going.
    NoOtherProcess = 1,
    /// The wait never ends with `Deserted`. It ends when there is a message or room, the queue is closed, or
    /// the time has expired. Use this for queues whose handles are shared by reference.
    Never = 2,
}

impl DesertedWhen {
    pub(crate) const fn pack(self) -> u64 {
        self as u64
    }

    pub(crate) const fn unpack(w: u64) -> Self {
        match w {
            1 => Self::NoOtherProcess,
            2 => Self::Never,
            _ => Self::NoHandleIsLeft,
        }
    }
}
