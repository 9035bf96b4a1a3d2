//! Weak references to storages, and what can be found through them.
//!
//! A process counts its handles to a block in one place, so a storage that arrives twice is one storage without a table
//! of weak references, as Python needs it. These are for code that keeps something beside each storage, an imported
//! buffer or a registration say, and must neither keep the storage nor mistake its successor for it.
//!
//! A weak reference names a block and its *generation*, which changes whenever the block is claimed. Memory that was
//! freed and handed out again is therefore another storage, in every process.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::Storage;
use crate::arena::Arena;
use crate::words::BlockId;

/// Which storage it is, among all that there ever were in an arena: the same in each process that holds it.
///
/// ```
/// use mp_core::{Arena, Storage};
///
/// let arena = Arena::current()?;
/// let (one, other) = (Storage::new(arena, 4, 4)?, Storage::new(arena, 4, 4)?); // or `tensor.storage()`
/// let id = one.id();
/// assert_ne!(id, other.id());
/// drop(one);
/// let reused = Storage::new(arena, 4, 4)?; // the same memory, perhaps; never the same storage
/// assert_ne!(id, reused.id());
/// # Ok::<(), mp_core::Error>(())
/// ```
///
/// Generations are counted modulo 2^40. It may be sent and stored: by itself it gives access to nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[doc(alias("_cdata", "fd_id"))]
pub struct StorageId {
    arena: u64,
    block: BlockId,
    generation: u64,
}

/// A reference to a storage that doesn't keep it.
///
/// ```
/// use mp_core::{Arena, Storage};
///
/// let storage = Storage::new(Arena::current()?, 4, 4)?; // or `tensor.storage()`
/// let weak = storage.downgrade();
/// assert_eq!(weak.upgrade().as_ref(), Some(&storage));
///
/// drop(storage);
/// assert!(weak.expired());
/// assert!(weak.upgrade().is_none());
/// # Ok::<(), mp_core::Error>(())
/// ```
///
/// # What expired means
/// It is a matter of **this process**: the reference has expired when the process has no handle to the storage any
/// more, though other processes may still have, and messages on their way. (torch's `StorageWeakRef` says the
/// same.) Only a holder of memory may pass it on, or a process could take hold of what another one is just
/// freeing. If the same storage is received again while another holder has kept it alive, references to it
/// work again: it is the same memory.
///
/// # What it does to tensors
/// Nothing. The storage that [`upgrade`](Self::upgrade) returns keeps memory and gives no access to elements: an exclusive tensor
/// can be sent and received meanwhile, and the storage keeps the memory of a tensor that has left.
///
/// In a forked copy of the process, which holds nothing, everything has expired.
#[derive(Clone, PartialEq, Eq, Hash)]
#[doc(alias = "StorageWeakRef")]
pub struct WeakStorage {
    id: StorageId,
    bytes: usize,
}

impl std::fmt::Debug for WeakStorage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = if self.expired() { "expired" } else { "held" };
        write!(f, "WeakStorage(block {}, {state})", self.id.block)
    }
}

impl WeakStorage {
    /// The storage, if this process still has a handle to it; the result is one more.
    ///
    /// Another thread may drop the last other handle at the same time: then either this one is the last, or there is
    /// none. It doesn't block.
    #[must_use]
    pub fn upgrade(&self) -> Option<Storage> {
        let hold = self.id.arena()?.hold_again(self.id.block, self.id.generation)?;
        Some(Storage::of(hold, self.bytes))
    }

    /// Whether this process has no handle to the storage any more. It may have one again a moment later, if it is
    /// received again; [`upgrade`](Self::upgrade) asks and takes in one.
    #[must_use]
    pub fn expired(&self) -> bool {
        self.id.arena().is_none_or(|arena| !arena.is_held(self.id.block, self.id.generation))
    }

    /// Which storage it refers to.
    #[must_use]
    pub fn id(&self) -> StorageId {
        self.id
    }
}

impl StorageId {
    /// The arena, if it is this process's.
    fn arena(&self) -> Option<Arena> {
        Arena::get().filter(|arena| arena.id() == self.arena)
    }
}

impl Storage {
    /// A reference to it that doesn't keep it.
    #[must_use]
    pub fn downgrade(&self) -> WeakStorage {
        WeakStorage { id: self.id(), bytes: self.len() }
    }

    /// Which storage it is, among all that there ever were.
    #[must_use]
    pub fn id(&self) -> StorageId {
        let (arena, block) = (self.hold().arena(), self.hold().block());
        StorageId { arena: arena.id(), block, generation: arena.generation(block) }
    }
}

/// The storage of that id, if this process has a handle to it; the result is one more.
///
/// ```
/// use mp_core::{Arena, Storage, storage_from_cache};
///
/// let storage = Storage::new(Arena::current()?, 4, 4)?;
/// let id = storage.id();
/// assert_eq!(storage_from_cache(id).as_ref(), Some(&storage));
/// drop(storage);
/// assert_eq!(storage_from_cache(id), None);
/// # Ok::<(), mp_core::Error>(())
/// ```
///
/// It takes a few nanoseconds: the "cache" is the table in which the process counts its handles. Nothing in it is ever
/// dead, so that it needs no `free_dead_references`; [`SharedCache`] does. It knows blocks, not what was asked for: the
/// storage that it finds has the length of its block.
#[must_use]
pub fn storage_from_cache(id: StorageId) -> Option<Storage> {
    WeakStorage { id, bytes: usize::MAX }.upgrade()
}

/// Something kept beside each storage for as long as this process has it: a map that forgets what has expired.
///
/// ```
/// use mp_core::{Arena, SharedCache, Storage};
///
/// let mut names = SharedCache::new();
/// let weights = Storage::new(Arena::current()?, 4, 4)?;
/// names.insert(&weights, "weights");
/// assert_eq!(names.get(weights.id()), Some(&"weights"));
///
/// let id = weights.id();
/// drop(weights);
/// assert_eq!(names.get(id), None);
/// names.free_dead_references();
/// assert!(names.is_empty());
/// # Ok::<(), mp_core::Error>(())
/// ```
///
/// Expired entries are dropped when the map reaches its limit, which is twice the number of living ones then, and at
/// least 128; so an insertion costs a constant on average.
#[derive(Debug)]
pub struct SharedCache<V> {
    entries: HashMap<StorageId, (WeakStorage, V)>,
    limit: usize,
}

impl<V> Default for SharedCache<V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<V> SharedCache<V> {
    const LEAST: usize = 128;

    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        Self { entries: HashMap::new(), limit: Self::LEAST }
    }

    /// Keeps `value` as long as this process has a handle to `storage`; what was kept for it before.
    pub fn insert(&mut self, storage: &Storage, value: V) -> Option<V> {
        if self.entries.len() >= self.limit {
            self.free_dead_references();
        }
        let weak = storage.downgrade();
        self.entries.insert(weak.id(), (weak, value)).map(|(_, old)| old)
    }

    /// What is kept beside a storage that has not expired.
    #[must_use]
    pub fn get(&self, id: StorageId) -> Option<&V> {
        self.entries.get(&id).filter(|(weak, _)| !weak.expired()).map(|(_, value)| value)
    }

    /// Drops what is kept beside expired storages; how many there were.
    pub fn free_dead_references(&mut self) -> usize {
        let before = self.entries.len();
        self.entries.retain(|_, (weak, _)| !weak.expired());
        self.limit = Self::LEAST.max(2 * self.entries.len());
        before - self.entries.len()
    }

    /// How many entries there are, those included that have expired since the last
    /// [`free_dead_references`](Self::free_dead_references).
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}
