//! Weak references to storages, and caches of values for storages.
//!
//! A process counts its handles to a block in one place, so a storage that is received twice is recognized
//! without a table of weak references like Python's. The types of this module are for code that caches a
//! value for each storage, for example an imported buffer or a registration. They do not keep the storage
//! alive, and they distinguish it from a later storage in the same memory.
//!
//! A weak reference names a block and its *generation*, which changes whenever the block is claimed. Memory
//! that was freed and handed out again is therefore a different storage, in every process.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::Storage;
use crate::alloc::Allocator;
use crate::arena::Arena;
use crate::blocks::Blocks;
use crate::words::BlockId;

/// Identity of a storage among all that ever existed in an arena. All processes that hold the storage see the
/// same value.
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
/// Generations are counted modulo 2^40. The value can be sent and stored. It gives no access to memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[doc(alias("_cdata", "fd_id"))]
pub struct StorageId {
    arena: u64,
    block: BlockId,
    generation: u64,
}

/// Weak reference to a storage.
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
/// # Expiry
/// A reference expires, in **this process**, when the process drops its last handle to the storage, even if
/// other processes or messages in flight still hold it (like torch's `StorageWeakRef`). A process can't get a
/// new handle from a weak reference alone, because another process may be about to free the memory. If the
/// storage is received again while another holder has kept it alive, references to it work again.
///
/// # Effect on tensors
/// None. The storage returned by [`upgrade`](Self::upgrade) keeps memory and gives no access to elements. An
/// exclusive tensor can be sent and received while such a storage exists, and the storage keeps the memory of
/// a tensor that was sent.
///
/// In a forked copy of the process, which holds nothing, all references have expired.
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
    /// Returns a new handle to the storage, if this process still has a handle. Does not block.
    ///
    /// If another thread drops this process's last handle at the same time, the result is either a handle or
    /// `None`.
    #[must_use]
    pub fn upgrade(&self) -> Option<Storage> {
        let hold = Allocator(self.id.arena()?).hold_again(self.id.block, self.id.generation)?;
        Some(Storage::from_hold(hold, self.bytes))
    }

    /// Returns `true` if this process has no handle to the storage. The result may change when the storage is
    /// received again. [`upgrade`](Self::upgrade) checks for a handle and returns one in one operation.
    #[must_use]
    pub fn expired(&self) -> bool {
        self.id.arena().is_none_or(|arena| !Allocator(arena).is_held(self.id.block, self.id.generation))
    }

    /// Returns the identity of the storage.
    #[must_use]
    pub fn id(&self) -> StorageId {
        self.id
    }
}

impl StorageId {
    /// Returns the arena of the storage, if this process has mapped it.
    fn arena(&self) -> Option<Arena> {
        Arena::get().filter(|arena| arena.id() == self.arena)
    }
}

impl Storage {
    /// Creates a weak reference to the storage.
    #[must_use]
    pub fn downgrade(&self) -> WeakStorage {
        WeakStorage { id: self.id(), bytes: self.len() }
    }

    /// Returns the identity of the storage.
    #[must_use]
    pub fn id(&self) -> StorageId {
        let (arena, block) = (self.hold().arena(), self.hold().block());
        StorageId { arena: arena.id(), block, generation: Blocks(arena).generation(block) }
    }
}

/// Returns a new handle to the storage with this identity, if this process still has one.
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
/// Takes a few nanoseconds: the "cache" is the table in which the process counts its handles. It never
/// contains dead entries, so it needs no `free_dead_references`, in contrast to [`SharedCache`]. It does not
/// record the requested length: the returned storage has the length of its block.
#[must_use]
pub fn storage_from_cache(id: StorageId) -> Option<Storage> {
    WeakStorage { id, bytes: usize::MAX }.upgrade()
}

/// Map from storages to values, whose entries expire with the process's handles to the storage.
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
/// Expired entries are dropped when the map reaches its limit. The limit is then set to twice the number of
/// remaining entries, and at least 128. So the amortized cost of an insertion is constant.
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

    /// Creates an empty map.
    #[must_use]
    pub fn new() -> Self {
        Self { entries: HashMap::new(), limit: Self::LEAST }
    }

    /// Stores `value` until this process has no handle to `storage`. Returns the previous value.
    pub fn insert(&mut self, storage: &Storage, value: V) -> Option<V> {
        if self.entries.len() >= self.limit {
            self.free_dead_references();
        }
        let weak = storage.downgrade();
        self.entries.insert(weak.id(), (weak, value)).map(|(_, old)| old)
    }

    /// Returns the value of a storage, unless the storage has expired.
    #[must_use]
    pub fn get(&self, id: StorageId) -> Option<&V> {
        self.entries.get(&id).filter(|(weak, _)| !weak.expired()).map(|(_, value)| value)
    }

    /// Drops the values of expired storages. Returns their number.
    pub fn free_dead_references(&mut self) -> usize {
        let before = self.entries.len();
        self.entries.retain(|_, (weak, _)| !weak.expired());
        self.limit = Self::LEAST.max(2 * self.entries.len());
        before - self.entries.len()
    }

    /// Returns the number of entries, including those that have expired since the last
    /// [`free_dead_references`](Self::free_dead_references).
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns `true` if there are no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}
