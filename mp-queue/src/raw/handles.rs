//! How many handles of this process can still put into a queue, or get from it: what [`Deserted`] rests on, beside the
//! seats that say which other processes and messages have the queue.
//!
//! All handles of a process to one queue share one [`Handles`], however it got them: made, cloned or
//! received. A handle *can put* or *can get* (a `Queue` can do both, a stream only gets, a sink only puts); a
//! clone that is only there to wait with (`PutReady`, `AckReady`, a watched future, a lease) can do neither, and is
//! not counted.
//!
//! A handle is *blocked* while some call on it waits without a time-out. Such a call can't do anything else before a message,
//! or room, is there; one with a time-out, and a future, which can be dropped, may do something else at any time.
//!
//! | a wait for | is deserted when no other process and no message has the queue, and |
//! |---|---|
//! | a message | every other handle that can put is blocked in a wait for a message |
//! | room | every other handle that can get is blocked in a wait for room |
//!
//! Threads that use one handle by reference are one handle here: they can't be told apart. See
//! [`DesertedWhen`].
//!
//! **No wake-up is lost.** A waiter announces itself, then looks at these counts, then sleeps. The thread
//! that drops a handle counts it out, then wakes the waiters that are announced. All counts are under one
//! lock of this process; nothing is shared with other processes.
//!
//! **One queue, one `Handles`.** They are found by the number of the queue's block. A
//! [`Raw`](crate::raw::Raw) drops them before it gives up the block: so none are left when the block becomes
//! another queue.
//!
//! In a forked copy of the process no handle counts: nothing there can wait.
//!
//! [`Deserted`]: crate::GetError::Deserted

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use mp_core::Hold;
use mp_core::fork::{GENERATIONS, PerProcess};
use mp_core::mutex::Mutex;
use mp_core::words::BlockId;

use crate::raw::Local;
use crate::raw::memory::RingMemory;

/// When waiting on a queue ends with `Deserted`, because what is waited for can't come any more.
///
/// In each case some process that had the queue has ended, or dropped its last handle, and no other process, and no message
/// on its way, has the queue any more. A process that was sent the queue and never received it counts as one that ended: its start
/// failed, its invitation lapsed, or the message with the handle was discarded. The cases differ in what is assumed of the calling
/// process itself.
///
/// If this process started the process that is gone, and that process failed, the text of the error names the failure. A call that
/// blocks gives such a process up to 250 ms to report it.
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
    /// The process has no other handle that could put (for a wait for a message) or get (for a wait for
    /// room): each is blocked in the same kind of wait, without a time-out. This is the default.
    ///
    /// A clone in another thread, or in this one, keeps waits going until it is dropped. Handles are what counts:
    /// threads that use *one* handle by reference (`Arc<Queue>`, a static, threads in a scope) can't be told from one
    /// thread. Either each thread has a clone, or the queue is made with [`Never`](Self::Never).
    #[default]
    NoHandleIsLeft,
    /// No other process has the queue, whatever handles this process has: for processes that only ever get, or only put, and
    /// keep a handle that they don't use. Another thread of this process that still could put does not keep a wait going.
    NoOtherProcess,
    /// Never: waiting goes on until something comes, the queue is closed, or the time is over. For queues whose handles are
    /// shared by reference.
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

/// What a wait is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum For {
    Message,
    Room,
}

/// What a handle can do for the waits of other handles.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Able {
    put: bool,
    get: bool,
}

impl Able {
    pub(crate) const BOTH: Self = Self { put: true, get: true };
    #[cfg(feature = "futures")]
    pub(crate) const GET: Self = Self { put: false, get: true };
    #[cfg(feature = "futures")]
    pub(crate) const PUT: Self = Self { put: true, get: false };

    /// Whether it can bring what a wait is for.
    const fn brings(self, what: For) -> bool {
        match what {
            For::Message => self.put,
            For::Room => self.get,
        }
    }
}

#[derive(Clone, Copy, Default, Debug)]
struct Counts {
    /// Handles that can bring it: by [`For`].
    able: [u32; 2],
    /// Those of them that are blocked in a wait for it.
    blocked: [u32; 2],
}

/// The handles of this process to one queue.
#[derive(Debug)]
pub(crate) struct Handles {
    block: BlockId,
    counts: Mutex<Counts>,
    /// Each is shared by some of the [`Raw`](crate::raw::Raw)s.
    locals: Mutex<Vec<Weak<Local>>>,
}

static ALL: PerProcess<Mutex<BTreeMap<BlockId, Weak<Handles>>>> =
    PerProcess::new([const { Mutex::new(BTreeMap::new()) }; GENERATIONS]);

impl Handles {
    /// The handles to the queue in a block, which the caller holds.
    pub(crate) fn of(block: BlockId) -> Arc<Self> {
        let mut all = ALL.lock();
        all.get(&block).and_then(Weak::upgrade).unwrap_or_else(|| {
            let made = Arc::new(Self { block, counts: Mutex::default(), locals: Mutex::default() });
            all.insert(block, Arc::downgrade(&made));
            made
        })
    }

    /// Registers the `Local` that some of the `Raw`s share. Each of them holds the queue before it has a
    /// share of the `Local`, and as long: so there are never more of them than the process counts holds of
    /// the queue.
    pub(crate) fn knows(&self, local: &Arc<Local>) {
        let mut locals = self.locals.lock();
        locals.retain(|local| local.strong_count() > 0);
        locals.push(Arc::downgrade(local));
    }

    /// Whether all that holds the queue in this process is registered here. If not, some thread is just
    /// taking a handle out of a message, or cloning one.
    pub(crate) fn knows_all(&self, hold: &Hold) -> bool {
        // Counted before and after: a handle that is dropped meanwhile must not stand for one that comes.
        let before = hold.count() as usize;
        let raws: usize = self.locals.lock().iter().map(Weak::strong_count).sum();
        raws == before && raws == hold.count() as usize
    }

    /// Whether some handle, other than the calling one, can bring what is waited for. The calling one is
    /// `own`; without it (a `PutReady`, a future) one handle that is not blocked is taken for it.
    pub(crate) fn others_bring(&self, own: Option<&Handle>, what: For) -> bool {
        let counts = self.counts.lock();
        let free = counts.able[what as usize].saturating_sub(counts.blocked[what as usize]);
        let mine = own.is_none_or(|own| own.able.brings(what) && own.calls.lock()[what as usize] == 0);
        free > u32::from(mine)
    }
}

impl Drop for Handles {
    fn drop(&mut self) {
        let mut all = ALL.lock();
        // There may be others already, of a handle that was received while this was going on.
        if all.get(&self.block).is_some_and(|handles| handles.strong_count() == 0) {
            all.remove(&self.block);
        }
    }
}

/// One handle that counts.
#[derive(Debug)]
pub(crate) struct Handle {
    of: Arc<Handles>,
    able: Able,
    /// Its calls that wait without a time-out, by [`For`]; changed while the counts are locked.
    calls: Mutex<[u32; 2]>,
    memory: RingMemory,
}

impl Handle {
    /// One more handle. It is dropped before the process gives up the queue's block.
    pub(crate) fn new(of: Arc<Handles>, able: Able, memory: RingMemory) -> Box<Self> {
        // As for the drop: not in a copy of the process, where nothing waits and the lock may be held for ever.
        if memory.is_here() {
            let each = [For::Message, For::Room];
            each.iter()
                .for_each(|&what| of.counts.lock().able[what as usize] += u32::from(able.brings(what)));
        }
        Box::new(Self { of, able, calls: Mutex::default(), memory })
    }

    /// Says that a call on it waits without a time-out, as long as what this returns lives.
    pub(crate) fn blocked(&self, what: For) -> Blocked<'_> {
        self.count(what, true);
        Blocked { handle: self, what }
    }

    fn count(&self, what: For, begins: bool) {
        let mut counts = self.of.counts.lock();
        let calls = &mut self.calls.lock()[what as usize];
        *calls = if begins { *calls + 1 } else { calls.saturating_sub(1) };
        // It counts once, however many threads wait by it.
        if self.able.brings(what) && *calls == u32::from(begins) {
            let blocked = &mut counts.blocked[what as usize];
            *blocked = if begins { *blocked + 1 } else { blocked.saturating_sub(1) };
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // A lock that is copied along may be held in the copy, for ever.
        if !self.memory.is_here() {
            return;
        }
        for what in [For::Message, For::Room] {
            let able = &mut self.of.counts.lock().able[what as usize];
            *able = able.saturating_sub(u32::from(self.able.brings(what)));
        }
        // Waiters may have waited because of this handle. No system call is made if there are none.
        self.memory.not_empty().notify_all();
        self.memory.not_full().notify_all();
    }
}

/// A call that waits without a time-out.
#[derive(Debug)]
pub(crate) struct Blocked<'a> {
    handle: &'a Handle,
    what: For,
}

impl Drop for Blocked<'_> {
    fn drop(&mut self) {
        self.handle.count(self.what, false);
    }
}
