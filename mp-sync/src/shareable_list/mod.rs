//! List of numbers and short texts that several processes share.

mod error;
#[cfg(all(any(test, feature = "fuzz"), not(mp_loom)))]
pub(crate) mod fuzz;
mod item;
mod memory;
mod slots;

use std::fmt;
use std::sync::Arc;

pub use error::ListError;
pub use item::ListItem;
use memory::{LIST, ListMemory, NAME};
use mp_core::SharedMemory;
use mp_core::mem::Word;
use slots::{ListSlots, MOST_ROOM, find, lay_out, room, room_in, size};

use crate::shared::Shared;

/// A list with a fixed number of slots. Each slot holds a number, a boolean, a text, bytes or nothing.
///
/// ```
/// use mp_sync::{ListItem, ShareableList};
///
/// let list = ShareableList::new(["alpha".into(), 42.into(), 0.5.into(), ListItem::None])?;
/// list.set(1, 43)?;
/// list.set(0, "omega")?; // up to 8 bytes: a slot keeps the room that its first text needed
/// assert_eq!(list.get(1)?, ListItem::Int(43));
/// assert_eq!(list.index("omega")?, Some(0));
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
///
/// A list in the arena ([`new`](Self::new)) needs no name and is sent as a handle. A named list
/// ([`create`](Self::create), [`open`](Self::open)) can be opened by any process of the user. Python opens it
/// by `multiprocessing.shared_memory.ShareableList(name=…)`: the layout is the same as in CPython 3.11.
///
/// # Blocking
/// Each operation holds a lock for some hundred nanoseconds, so that it is atomic for all users of this type.
/// If another process is stopped during an operation, callers wait for 10 s and then get [`ListError::Lock`]
/// or [`ListError::Held`]. Python does not use the lock, so readers can get a half-done write of a Python
/// process. Texts are always checked to be UTF-8.
///
/// # When a process dies
/// A slot whose writer dies during [`set`](Self::set) returns [`ListError::Torn`] until a process sets it
/// again. All other slots are unchanged, and no process waits for the dead process.
#[derive(Clone)]
pub struct ShareableList {
    place: ListMemory,
    /// Start of each slot, and the end of the last one, in bytes.
    ends: Arc<[u64]>,
}

impl ShareableList {
    /// Creates a list of these items in the arena. The slot of a text or byte string has room for its present
    /// bytes and at least one more, rounded up to a multiple of 8.
    ///
    /// # Errors
    /// [`ListError::NoRoom`] for a text of more than 9 MB, [`ListError::Failed`] if memory is exhausted.
    pub fn new(items: impl IntoIterator<Item = ListItem>) -> Result<Self, ListError> {
        Self::with_room(items, 0)
    }

    /// Creates a list with room for at least `room` bytes in each slot that holds a text or bytes now.
    /// Otherwise like [`new`](Self::new).
    ///
    /// # Errors
    /// See [`new`](Self::new).
    pub fn with_room(items: impl IntoIterator<Item = ListItem>, room: usize) -> Result<Self, ListError> {
        let (items, rooms) = rooms(items, room)?;
        let shared = Shared::new(NAME, LIST + size(&rooms).div_ceil(8))?;
        let ends = lay_out(shared.words(), shared.at(LIST), &rooms).into();
        Self { place: ListMemory::in_arena(shared), ends }.filled(&items)
    }

    /// Creates a list of these items under a new name, see [`SharedMemory::create`]. The name exists until it
    /// is [unlinked](SharedMemory::unlink).
    ///
    /// # Errors
    /// See [`new`](Self::new) and [`SharedMemory::create`].
    pub fn create(name: &str, items: impl IntoIterator<Item = ListItem>) -> Result<Self, ListError> {
        Self::create_with_room(name, items, 0)
    }

    /// Creates a named list with room for at least `room` bytes in each slot that holds a text or bytes now.
    /// Otherwise like [`create`](Self::create).
    ///
    /// # Errors
    /// See [`create`](Self::create).
    pub fn create_with_room(
        name: &str,
        items: impl IntoIterator<Item = ListItem>,
        room: usize,
    ) -> Result<Self, ListError> {
        let (items, rooms) = rooms(items, room)?;
        let memory = SharedMemory::create(name, size(&rooms) as usize)?;
        let ends = lay_out(memory.region(), Word::at(0), &rooms).into();
        Self { place: ListMemory::named(memory), ends }.filled(&items)
    }

    /// Opens a named list that [`create`](Self::create) or Python has created. The creator must have finished
    /// creating the list, so pass on the name only afterwards.
    ///
    /// # Errors
    /// See [`SharedMemory::open`], and [`ListError::Malformed`] if the memory does not hold a list.
    pub fn open(name: &str) -> Result<Self, ListError> {
        let memory = SharedMemory::open(name)?;
        let ends = find(memory.region(), Word::at(0), memory.len() as u64)?.into();
        Ok(Self { place: ListMemory::named(memory), ends })
    }

    fn filled(self, items: &[ListItem]) -> Result<Self, ListError> {
        self.locked(|slots| items.iter().enumerate().try_for_each(|(i, item)| slots.set(i, item)))?;
        Ok(self)
    }

    /// Returns the memory of a named list.
    pub fn memory(&self) -> Option<&SharedMemory> {
        match &self.place {
            ListMemory::Arena { .. } => None,
            ListMemory::Named { memory, .. } => Some(memory),
        }
    }

    /// Returns the number of slots.
    pub fn len(&self) -> usize {
        self.ends.len() - 1
    }

    /// Returns `true` if the list has no slots.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the maximum number of bytes of a text in that slot.
    ///
    /// # Errors
    /// [`ListError::NoSlot`].
    pub fn room(&self, slot: usize) -> Result<usize, ListError> {
        room_in(&self.ends, slot).map(|room| room as usize)
    }

    /// Returns the item in a slot.
    ///
    /// # Errors
    /// [`ListError::NoSlot`], [`ListError::Torn`], [`ListError::NotText`], or an error of the lock, see
    /// [above](Self#blocking).
    pub fn get(&self, slot: usize) -> Result<ListItem, ListError> {
        self.locked(|slots| slots.get(slot))
    }

    /// Replaces the item in a slot. The new item may be of another type.
    ///
    /// # Errors
    /// [`ListError::NoSlot`], [`ListError::NoRoom`], or an error of the lock, see [above](Self#blocking). The
    /// list is unchanged then.
    pub fn set(&self, slot: usize, item: impl Into<ListItem>) -> Result<(), ListError> {
        let item = item.into();
        self.locked(|slots| slots.set(slot, &item))
    }

    /// Returns a consistent copy of all items, made under the lock.
    ///
    /// # Errors
    /// See [`get`](Self::get).
    pub fn to_vec(&self) -> Result<Vec<ListItem>, ListError> {
        self.locked(|slots| (0..slots.len()).map(|i| slots.get(i)).collect())
    }

    /// Iterates over the items. Each item is read when the iterator reaches it.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Result<ListItem, ListError>> + '_ {
        (0..self.len()).map(|i| self.get(i))
    }

    /// Returns the number of slots that hold `item`.
    ///
    /// # Errors
    /// See [`get`](Self::get).
    pub fn count(&self, item: impl Into<ListItem>) -> Result<usize, ListError> {
        let item = item.into();
        Ok(self.to_vec()?.iter().filter(|&i| *i == item).count())
    }

    /// Returns the index of the first slot that holds `item`.
    ///
    /// # Errors
    /// See [`get`](Self::get).
    pub fn index(&self, item: impl Into<ListItem>) -> Result<Option<usize>, ListError> {
        let item = item.into();
        Ok(self.to_vec()?.iter().position(|i| *i == item))
    }

    /// Returns the concatenated formats of all slots in the notation of Python's `struct`.
    ///
    /// # Errors
    /// See [`get`](Self::get).
    pub fn format(&self) -> Result<String, ListError> {
        self.locked(|slots| (0..slots.len()).map(|i| slots.format(i)).collect())
    }

    fn locked<R>(&self, f: impl FnOnce(ListSlots<'_>) -> Result<R, ListError>) -> Result<R, ListError> {
        self.place.locked(|mem, base| f(ListSlots { mem, base, ends: &self.ends }))
    }
}

/// Returns the items of a new list, and the size of each slot in bytes.
fn rooms(
    items: impl IntoIterator<Item = ListItem>,
    at_least: usize,
) -> Result<(Vec<ListItem>, Vec<u64>), ListError> {
    let items: Vec<ListItem> = items.into_iter().collect();
    let rooms: Vec<u64> = items.iter().map(|item| room(item, at_least)).collect();
    match rooms.iter().position(|&r| r > MOST_ROOM) {
        Some(slot) => Err(ListError::NoRoom { slot, asked: rooms[slot] as usize, room: MOST_ROOM as usize }),
        None => Ok((items, rooms)),
    }
}

impl fmt::Debug for ShareableList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            ListMemory::Arena { shared, .. } => {
                write!(f, "ShareableList({} in {:?})", self.len(), shared.structure().hold())
            }
            ListMemory::Named { memory, .. } => write!(f, "ShareableList({} in {memory:?})", self.len()),
        }
    }
}
