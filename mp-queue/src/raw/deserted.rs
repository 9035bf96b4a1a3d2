//! Policy of a queue for waits that nothing can end any more.

/// Condition under which a wait on a queue ends with `Deserted`, because nothing can end it any more.
///
/// In each case, some process that had the queue has ended or dropped its last handle, and no other process
/// and no message in transit has the queue. A process that was sent the queue and never received it counts as
/// ended: its start failed, its invitation expired, or the message with the handle was discarded. The cases
/// differ in the condition on the calling process itself.
///
/// If this process is the parent of the process that is gone, and that process failed, the error text
/// includes the failure. A blocking call waits up to 250 ms for such a report.
///
/// ```
/// use std::time::Duration;
/// use mp_queue::{DesertedWhen, QueueOptions};
///
/// // One handle in a scope, used by two threads: nothing counts references, so waiting has to go on.
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
    /// This process has no other handle that could end the wait: by a put for a wait for a message, or by a
    /// get for a wait for room. A handle that is blocked in the same kind of wait without a time-out does not
    /// count. This is the default.
    ///
    /// A clone in this or another thread keeps waits going until it is dropped. Only handles are counted:
    /// threads that share *one* handle by reference (`Arc<Queue>`, a static, scoped threads) count as one
    /// thread. Give each thread a clone, or create the queue with [`Never`](Self::Never).
    #[default]
    NoHandleIsLeft,
    /// No other process has the queue, whatever handles this process has. For processes that only get or only
    /// put, and keep a handle that they don't use. Another thread of this process that could put does not
    /// keep a wait going.
    NoOtherProcess,
    /// The wait never ends with `Deserted`. It ends when there is a message or room, the queue is closed, or
    /// the time is over. For queues whose handles are shared by reference.
    Never,
}

impl DesertedWhen {
    pub(crate) const fn pack(self) -> u64 {
        match self {
            Self::NoHandleIsLeft => 0,
            Self::NoOtherProcess => 1,
            Self::Never => 2,
        }
    }

    pub(crate) const fn unpack(w: u64) -> Self {
        match w {
            1 => Self::NoOtherProcess,
            2 => Self::Never,
            _ => Self::NoHandleIsLeft,
        }
    }
}
