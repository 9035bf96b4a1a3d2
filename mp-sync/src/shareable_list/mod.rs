//! A list of numbers and short texts that several processes share.

mod error;
#[cfg(all(any(test, feature = "fuzz"), not(mp_loom)))]
pub(crate) mod fuzz;
mod item;
mod place;
mod slots;

use std::fmt;
use std::sync::Arc;

pub use error::ListError;
pub use item::ListItem;
use mp_core::SharedMemory;
use mp_core::mem::Word;
use place::{LIST, NAME, Place};
use slots::{ListSlots, MOST_ROOM, find, lay_out, room, size};

use crate::shared::Shared;

/// A list with a fixed number of slots, each of which holds a number, a truth value, a text, bytes or nothing.
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
/// In the arena it needs no name and is sent as a handle ([`new`](Self::new)). Under a name
/// ([`create`](Self::create), [`open`](Self::open)) it can be opened by any process of the user, also by Python's
/// `multiprocessing.shared_memory.ShareableList(name=…)`: the bytes are those of CPython 3.11.
///
/// # Blocking
/// Each operation holds a lock for some hundred nanoseconds, so that it is whole for all users of this type.
/// If another process is stopped in the middle of one, other processes wait for 10 s and then get
/// [`ListError::Lock`] or [`ListError::Held`]. Python knows nothing of the lock: what it writes can be seen
/// half written; a text is always checked to be one.
///
/// # When a process dies
/// In the middle of a [`set`](Self::set): that slot is [`ListError::Torn`] until a process sets it again. All
/// others are as they were, and no process waits for the one that died.
#[derive(Clone)]
pub struct ShareableList {
    place: Place,
    /// Where each slot begins, and where the last one ends.
    ends: Arc<[u64]>,
}

impl ShareableList {
    /// A list of these items in the arena. Each text or bytes keeps the room it needs now, rounded up to a multiple of 8,
    /// and one byte more at least.
    ///
    /// # Errors
    /// [`ListError::NoRoom`] for a text of more than 9 MB, [`ListError::Failed`] when there is no memory.
    pub fn new(items: impl IntoIterator<Item = ListItem>) -> Result<Self, ListError> {
        Self::with_room(items, 0)
    }

    /// As [`new`](Self::new), with room for at least `room` bytes in each slot that holds a text or bytes
    /// now.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_room(items: impl IntoIterator<Item = ListItem>, room: usize) -> Result<Self, ListError> {
        let (items, rooms) = rooms(items, room)?;
        let shared = Shared::new(NAME, LIST + size(&rooms).div_ceil(8))?;
        let ends = lay_out(shared.words(), shared.at(LIST), &rooms).into();
        Self { place: Place::in_arena(shared), ends }.filled(&items)
    }

    /// A list of these items under a name that does not exist yet, see [`SharedMemory::create`]. The name
    /// stays until it is [unlinked](SharedMemory::unlink).
    ///
    /// # Errors
    /// As [`new`](Self::new) and as [`SharedMemory::create`].
    pub fn create(name: &str, items: impl IntoIterator<Item = ListItem>) -> Result<Self, ListError> {
        Self::create_with_room(name, items, 0)
    }

    /// As [`create`](Self::create), with room for at least `room` bytes in each slot that holds a text or
    /// bytes now.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub fn create_with_room(
        name: &str,
        items: impl IntoIterator<Item = ListItem>,
        room: usize,
    ) -> Result<Self, ListError> {
        let (items, rooms) = rooms(items, room)?;
        let memory = SharedMemory::create(name, size(&rooms) as usize)?;
        let ends = lay_out(memory.region(), Word::at(0), &rooms).into();
        Self { place: Place::named(memory), ends }.filled(&items)
    }

    /// Opens a list under a name, made by [`create`](Self::create) or by Python, whose maker is done with
    /// making it: a process that gets the name after that can't come too early.
    ///
    /// # Errors
    /// As [`SharedMemory::open`], and [`ListError::Malformed`] when the memory holds no list.
    pub fn open(name: &str) -> Result<Self, ListError> {
        let memory = SharedMemory::open(name)?;
        let ends = find(memory.region(), Word::at(0), memory.len() as u64)?.into();
        Ok(Self { place: Place::named(memory), ends })
    }

    fn filled(self, items: &[ListItem]) -> Result<Self, ListError> {
        self.locked(|slots| items.iter().enumerate().try_for_each(|(i, item)| slots.set(i, item)))?;
        Ok(self)
    }

    /// Its memory, if it has a name.
    pub fn memory(&self) -> Option<&SharedMemory> {
        match &self.place {
            Place::Arena { .. } => None,
            Place::Named { memory, .. } => Some(memory),
        }
    }

    /// How many slots it has.
    pub fn len(&self) -> usize {
        self.ends.len() - 1
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many bytes a text in that slot can have.
    ///
    /// # Errors
    /// [`ListError::NoSlot`].
    pub fn room(&self, slot: usize) -> Result<usize, ListError> {
        match self.ends.get(slot..slot.saturating_add(2)) {
            Some(ends) => Ok((ends[1] - ends[0]).min(MOST_ROOM) as usize),
            None => Err(ListError::NoSlot { slot, len: self.len() }),
        }
    }

    /// What is in a slot.
    ///
    /// # Errors
    /// [`ListError::NoSlot`], [`ListError::Torn`], [`ListError::NotText`], or no lock, see [above](Self#blocking).
    pub fn get(&self, slot: usize) -> Result<ListItem, ListError> {
        self.locked(|slots| slots.get(slot))
    }

    /// Replaces what is in a slot, by a value of any type.
    ///
    /// # Errors
    /// [`ListError::NoSlot`], [`ListError::NoRoom`], or no lock, see [above](Self#blocking). Nothing has changed then.
    pub fn set(&self, slot: usize, item: impl Into<ListItem>) -> Result<(), ListError> {
        let item = item.into();
        self.locked(|slots| slots.set(slot, &item))
    }

    /// All items, as they are at one moment.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn to_vec(&self) -> Result<Vec<ListItem>, ListError> {
        self.locked(|slots| (0..slots.len()).map(|i| slots.get(i)).collect())
    }

    /// The items one by one, each as it is when it is reached.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Result<ListItem, ListError>> + '_ {
        (0..self.len()).map(|i| self.get(i))
    }

    /// How many slots hold this.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn count(&self, item: impl Into<ListItem>) -> Result<usize, ListError> {
        let item = item.into();
        Ok(self.to_vec()?.iter().filter(|&i| *i == item).count())
    }

    /// The first slot that holds this.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn index(&self, item: impl Into<ListItem>) -> Result<Option<usize>, ListError> {
        let item = item.into();
        Ok(self.to_vec()?.iter().position(|i| *i == item))
    }

    /// The formats of all slots one after the other, as Python's `struct` has them.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn format(&self) -> Result<String, ListError> {
        self.locked(|slots| (0..slots.len()).map(|i| slots.format(i)).collect())
    }

    fn locked<R>(&self, f: impl FnOnce(ListSlots<'_>) -> Result<R, ListError>) -> Result<R, ListError> {
        self.place.locked(|mem, base| f(ListSlots { mem, base, ends: &self.ends }))
    }
}

/// The rooms of the slots of a new list.
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
            Place::Arena { shared, .. } => {
                write!(f, "ShareableList({} in {:?})", self.len(), shared.structure().hold())
            }
            Place::Named { memory, .. } => write!(f, "ShareableList({} in {memory:?})", self.len()),
        }
    }
}
