//! Counts of this process's handles that can put into a queue or get from it. The error [`Deserted`] depends
//! on these counts, and on the seats that record which other processes and messages have the queue.
//!
//! All handles of a process to one queue share one [`LocalHandles`], whether they were created, cloned or
//! received. A handle *can put* or *can get*: a `Queue` can do both, a stream only gets, and a sink only
//! puts. A clone that is only used for waiting (`PutReady`, `LeaseReady`, a watched future, a lease) can do
//! neither and is not counted.
//!
//! A handle is *blocked* while a call on it waits without a time-out: its thread can do nothing else until
//! there is a message or room. A call with a time-out does not count as blocked, and neither does a future,
//! which can be dropped.
//!
//! | a wait for | is deserted when no other process and no message has the queue, and |
//! |---|---|
//! | a message | every other handle that can put is blocked in a wait for a message |
//! | room | every other handle that can get is blocked in a wait for room |
//!
//! Threads that share one handle by reference count as one handle. See [`DesertedWhen`](crate::DesertedWhen).
//!
//! **No wake-up is lost.** A waiter announces itself, then checks these counts, then sleeps. A thread that
//! drops a handle first decrements the count, then wakes the announced waiters. One lock of this process
//! protects all counts. The counts are not shared with other processes.
//!
//! **One queue has one `LocalHandles`.** It is found by the number of the queue's block. A
//! [`RawQueue`](crate::raw::RawQueue) drops its reference to the `LocalHandles` before it releases the block.
//! So no `LocalHandles` is left when the block is reused for another queue.
//!
//! A forked copy of the process does not count handles, because its threads can't wait at queues.
//!
//! [`Deserted`]: crate::GetError::Deserted

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use mp_core::Hold;
use mp_core::fork::PerProcess;
use mp_core::mutex::Mutex;
use mp_core::words::BlockId;

use crate::raw::LocalState;
use crate::raw::memory::RingMemory;

/// Condition for which a call on a queue waits: a message or room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WaitPurpose {
    Message,
    Room,
}

/// Operations that a handle can do, and by which it can end the waits of other handles.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Capabilities {
    put: bool,
    get: bool,
}

impl Capabilities {
    pub(crate) const BOTH: Self = Self { put: true, get: true };
    #[cfg(feature = "futures")]
    pub(crate) const GET: Self = Self { put: false, get: true };
    #[cfg(feature = "futures")]
    pub(crate) const PUT: Self = Self { put: true, get: false };

    /// Returns `true` if a handle with these capabilities can end a wait for this purpose.
    const fn can_end(self, purpose: WaitPurpose) -> bool {
        match purpose {
            WaitPurpose::Message => self.put,
            WaitPurpose::Room => self.get,
        }
    }
}

#[derive(Clone, Copy, Default, Debug)]
struct HandleCounts {
    /// Number of handles that can end a wait, for each [`WaitPurpose`].
    capable: [u32; 2],
    /// Number of handles that can end a wait but are blocked in a wait for the same purpose, for each
    /// [`WaitPurpose`].
    blocked: [u32; 2],
}

/// All handles of this process to one queue.
#[derive(Debug)]
pub(crate) struct LocalHandles {
    block: BlockId,
    counts: Mutex<HandleCounts>,
    /// Local states of the queue. Several [`RawQueue`](crate::raw::RawQueue)s may refer to one `LocalState`.
    locals: Mutex<Vec<Weak<LocalState>>>,
}

static ALL: PerProcess<Mutex<BTreeMap<BlockId, Weak<LocalHandles>>>> =
    mp_core::per_process!(Mutex::new(BTreeMap::new()));

impl LocalHandles {
    /// Returns the `LocalHandles` of the queue in `block`. The caller must hold the block.
    pub(crate) fn of(block: BlockId) -> Arc<Self> {
        let mut all = ALL.lock();
        all.get(&block).and_then(Weak::upgrade).unwrap_or_else(|| {
            let made = Arc::new(Self { block, counts: Mutex::default(), locals: Mutex::default() });
            all.insert(block, Arc::downgrade(&made));
            made
        })
    }

    /// Registers a `LocalState`, to which several `RawQueue`s may refer. Each `RawQueue` creates its hold on
    /// the queue before its reference to the `LocalState`, and drops the reference first. So the number of
    /// references never exceeds the process's number of holds.
    pub(crate) fn register(&self, local: &Arc<LocalState>) {
        let mut locals = self.locals.lock();
        locals.retain(|local| local.strong_count() > 0);
        locals.push(Arc::downgrade(local));
    }

    /// Returns `true` if every hold of this process on the queue belongs to a registered `LocalState`.
    /// Otherwise, a thread is receiving or cloning a handle at this moment.
    pub(crate) fn has_registered_all(&self, hold: &Hold) -> bool {
        // The count of holds is read before and after: a handle dropped in between must not offset a new one.
        let before = hold.count() as usize;
        let raws: usize = self.locals.lock().iter().map(Weak::strong_count).sum();
        raws == before && raws == hold.count() as usize
    }

    /// Returns `true` if a handle other than the caller's can end a wait for this purpose. `own` is the
    /// caller's handle. If `own` is `None` (a `PutReady`, a future), one unblocked handle is assumed to be
    /// the caller's.
    pub(crate) fn others_can_end(&self, own: Option<&CountedHandle>, purpose: WaitPurpose) -> bool {
        let counts = self.counts.lock();
        let free = counts.capable[purpose as usize].saturating_sub(counts.blocked[purpose as usize]);
        let mine =
            own.is_none_or(|own| own.capable.can_end(purpose) && own.calls.lock()[purpose as usize] == 0);
        free > u32::from(mine)
    }
}

impl Drop for LocalHandles {
    fn drop(&mut self) {
        let mut all = ALL.lock();
        // A handle received in the meantime may have created a new `LocalHandles`.
        if all.get(&self.block).is_some_and(|handles| handles.strong_count() == 0) {
            all.remove(&self.block);
        }
    }
}

/// Handle that is counted in its [`LocalHandles`].
#[derive(Debug)]
pub(crate) struct CountedHandle {
    of: Arc<LocalHandles>,
    capable: Capabilities,
    /// Number of calls on this handle that wait without a time-out, for each [`WaitPurpose`]. Changed only by
    /// a thread that has locked the counts of the [`LocalHandles`].
    calls: Mutex<[u32; 2]>,
    memory: RingMemory,
}

impl CountedHandle {
    /// Creates a counted handle, which must be dropped before the process releases the queue's block.
    pub(crate) fn new(of: Arc<LocalHandles>, capable: Capabilities, memory: RingMemory) -> Box<Self> {
        // As in `drop`: not in a forked copy, where no thread waits and the lock may be held forever.
        if memory.is_accessible() {
            let each = [WaitPurpose::Message, WaitPurpose::Room];
            each.iter().for_each(|&purpose| {
                of.counts.lock().capable[purpose as usize] += u32::from(capable.can_end(purpose))
            });
        }
        Box::new(Self { of, capable, calls: Mutex::default(), memory })
    }

    /// Counts the handle as blocked in a wait without a time-out, until the returned guard is dropped.
    pub(crate) fn blocked(&self, purpose: WaitPurpose) -> BlockedGuard<'_> {
        self.count(purpose, true);
        BlockedGuard { handle: self, purpose }
    }

    fn count(&self, purpose: WaitPurpose, begins: bool) {
        let mut counts = self.of.counts.lock();
        let calls = &mut self.calls.lock()[purpose as usize];
        *calls = if begins { *calls + 1 } else { calls.saturating_sub(1) };
        // The handle counts once, however many threads wait with it.
        if self.capable.can_end(purpose) && *calls == u32::from(begins) {
            let blocked = &mut counts.blocked[purpose as usize];
            *blocked = if begins { *blocked + 1 } else { blocked.saturating_sub(1) };
        }
    }
}

impl Drop for CountedHandle {
    fn drop(&mut self) {
        // In a forked copy, the copied lock may be held forever.
        if !self.memory.is_accessible() {
            return;
        }
        for purpose in [WaitPurpose::Message, WaitPurpose::Room] {
            let capable = &mut self.of.counts.lock().capable[purpose as usize];
            *capable = capable.saturating_sub(u32::from(self.capable.can_end(purpose)));
        }
        // A waiter may have waited because of this handle. Without waiters, this makes no system call.
        self.memory.not_empty().notify_all();
        self.memory.not_full().notify_all();
    }
}

/// Guard that counts its handle as blocked in a wait without a time-out.
#[derive(Debug)]
pub(crate) struct BlockedGuard<'a> {
    handle: &'a CountedHandle,
    purpose: WaitPurpose,
}

impl Drop for BlockedGuard<'_> {
    fn drop(&mut self) {
        self.handle.count(self.purpose, false);
    }
}
