//! A list of numbers and short texts that several processes share.

mod item;
mod slots;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::de::Error as _;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use item::ListItem;
use slots::{MOST_ROOM, Slots, find, lay_out, room, size};

use crate::arena::{Hold, Patience};
use crate::error::Error;
use crate::lock::{LockError, LockWait, RawLock};
use crate::mem::Word;
use crate::message::scope;
use crate::shared_memory::SharedMemory;
use crate::sys::locks;
use crate::value::{Form, Header};

/// How long an operation waits for another process that is in the middle of one.
const LONGEST: Duration = Duration::from_secs(10);

/// A list with a fixed number of slots, each of which holds a number, a truth value, a text, bytes or nothing.
///
/// ```
/// use mp_core::{ListItem, ShareableList};
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
/// Each operation holds a lock for some hundred nanoseconds, so that it is whole for all who use this type. If another
/// process is stopped in the middle of one, the others wait for 10 s and then get [`ListError::Lock`] or
/// [`ListError::Busy`]. Python knows nothing of the lock: what it writes can be seen half written; a text is always
/// checked to be one.
///
/// # When a process dies
/// In the middle of a [`set`](Self::set): that slot is [`ListError::Torn`] until somebody sets it again. All others are as
/// they were, and nobody waits for the dead.
#[derive(Clone)]
pub struct ShareableList {
    place: Place,
    /// Where each slot begins, and where the last one ends.
    ends: Arc<[u64]>,
}

#[derive(Clone)]
enum Place {
    Arena {
        hold: Hold,
        lock: RawLock,
        patience: Arc<Patience>,
    },
    /// The mutex is for the threads of this process, which have one file lock.
    Named {
        memory: Arc<SharedMemory>,
        turn: Arc<Mutex<()>>,
    },
}

/// Why a [`ShareableList`] could not do something.
#[derive(Debug)]
#[non_exhaustive]
pub enum ListError {
    /// There is no such slot.
    NoSlot {
        /// The one asked for.
        slot: usize,
        /// How many there are.
        len: usize,
    },
    /// The text or the bytes are longer than the slot has room for. Nothing has changed.
    NoRoom {
        /// Which slot.
        slot: usize,
        /// Bytes to be written.
        asked: usize,
        /// Bytes that there is room for.
        room: usize,
    },
    /// A process died while it changed this slot. Setting it makes it whole.
    Torn {
        /// Which slot.
        slot: usize,
    },
    /// A slot that should hold a text holds other bytes.
    NotText {
        /// Which slot.
        slot: usize,
    },
    /// The memory does not hold a list, or a slot of it nothing that this library knows.
    Malformed(String),
    /// Another process has been in the middle of an operation for 10 s.
    Busy,
    /// The list's lock could not be had.
    Lock(LockError),
    /// Shared memory can't be used.
    Failed(Error),
}

impl fmt::Display for ListError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSlot { slot, len } => write!(f, "slot {slot} of a list of {len}"),
            Self::NoRoom { slot, asked, room } => write!(
                f,
                "{asked} bytes into slot {slot}, which has room for {room}; make the list with more (with_room)"
            ),
            Self::Torn { slot } => {
                write!(f, "a process died while it changed slot {slot}; set it to make it whole")
            }
            Self::NotText { slot } => {
                write!(f, "slot {slot} says that it holds a text, and its bytes are none")
            }
            Self::Malformed(why) => f.write_str(why),
            Self::Busy => f.write_str("another process has been changing the list for 10 s; is it stopped?"),
            Self::Lock(e) => fmt::Display::fmt(e, f),
            Self::Failed(e) => fmt::Display::fmt(e, f),
        }
    }
}

impl std::error::Error for ListError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Lock(e) => e.source(),
            Self::Failed(e) => e.source(),
            _ => None,
        }
    }
}

impl From<Error> for ListError {
    fn from(e: Error) -> Self {
        Self::Failed(e)
    }
}

impl From<LockError> for ListError {
    fn from(e: LockError) -> Self {
        Self::Lock(e)
    }
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

    /// As [`new`](Self::new), with room for at least so many bytes in each slot that holds a text or bytes now.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_room(items: impl IntoIterator<Item = ListItem>, room: usize) -> Result<Self, ListError> {
        let (items, rooms) = rooms(items, room)?;
        let hold = Header::of::<u8>(Form::List, size(&rooms) as usize).allocate()?;
        let base = Word::at(Header::data(&hold));
        let ends = lay_out(hold.arena().map(), base, &rooms).into();
        Self { place: Place::in_arena(hold), ends }.filled(&items)
    }

    /// A list of these items under a name that does not exist yet, see [`SharedMemory::create`]. The name stays until
    /// somebody [unlinks](SharedMemory::unlink) it.
    ///
    /// # Errors
    /// As [`new`](Self::new) and as [`SharedMemory::create`].
    pub fn create(name: &str, items: impl IntoIterator<Item = ListItem>) -> Result<Self, ListError> {
        Self::create_with_room(name, items, 0)
    }

    /// As [`create`](Self::create), with room for at least so many bytes in each slot that holds a text or bytes now.
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

    /// Opens a list under a name, made by [`create`](Self::create) or by Python, whose maker is done with making it: who is
    /// told the name after that can't come too early.
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
            Some(ends) => Ok((ends[1] - ends[0]) as usize),
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

    fn locked<R>(&self, f: impl FnOnce(Slots<'_>) -> Result<R, ListError>) -> Result<R, ListError> {
        let ends = &self.ends[..];
        match &self.place {
            Place::Arena { hold, lock, patience } => {
                let mut guard = lock.acquire(LockWait::at_most(LONGEST), patience)?;
                // Whoever died in it: slots say themselves whether they are whole.
                guard.mend();
                f(Slots { mem: hold.arena().map(), base: Word::at(Header::data(hold)), ends })
            }
            Place::Named { memory, turn } => {
                let _turn = turn.try_lock_for(LONGEST).ok_or(ListError::Busy)?;
                let _lock = FileLock::acquire(memory)?;
                f(Slots { mem: memory.region(), base: Word::at(0), ends })
            }
        }
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

impl Place {
    fn in_arena(hold: Hold) -> Self {
        let lock = RawLock::new(hold.arena(), Header::lock(&hold));
        Self::Arena { hold, lock, patience: Arc::default() }
    }

    fn named(memory: SharedMemory) -> Self {
        Self::Named { memory: Arc::new(memory), turn: Arc::default() }
    }
}

/// The lock of a named list: the kernel's, on its file, which it drops when the process dies.
struct FileLock<'a>(&'a SharedMemory);

impl<'a> FileLock<'a> {
    fn acquire(memory: &'a SharedMemory) -> Result<Self, ListError> {
        use std::os::fd::AsFd;
        let locking = |source| Error::Os { what: "locking a named list", source };
        let mut since = None;
        let mut pause = Duration::from_micros(20);
        while !locks::try_lock_file(memory.as_fd()).map_err(locking)? {
            if since.get_or_insert_with(Instant::now).elapsed() >= LONGEST {
                return Err(ListError::Busy);
            }
            // The kernel's waiting form has no time-out.
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(5));
        }
        Ok(Self(memory))
    }
}

impl Drop for FileLock<'_> {
    fn drop(&mut self) {
        use std::os::fd::AsFd;
        locks::unlock_file(self.0.as_fd());
    }
}

impl fmt::Debug for ShareableList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Place::Arena { hold, .. } => write!(f, "ShareableList({} in {hold:?})", self.len()),
            Place::Named { memory, .. } => write!(f, "ShareableList({} in {memory:?})", self.len()),
        }
    }
}

/// A list as it travels.
#[derive(Serialize, Deserialize)]
enum Wire {
    Arena(u32),
    Named(SharedMemory),
}

const WHAT: &str = "a ShareableList";

impl Serialize for ShareableList {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match &self.place {
            Place::Arena { hold, .. } => {
                let attachment =
                    scope::outgoing(WHAT, |out| out.attach_object(hold)).map_err(S::Error::custom)?;
                s.serialize_newtype_variant("Wire", 0, "Arena", &attachment)
            }
            Place::Named { memory, .. } => s.serialize_newtype_variant("Wire", 1, "Named", &**memory),
        }
    }
}

impl<'de> Deserialize<'de> for ShareableList {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let (place, ends) = match Wire::deserialize(d)? {
            Wire::Arena(attachment) => {
                let hold =
                    scope::incoming(WHAT, |inc| inc.take_object(attachment)).map_err(D::Error::custom)?;
                let bytes = Header::check::<u8>(&hold, Form::List, None).map_err(D::Error::custom)?;
                let ends = find(hold.arena().map(), Word::at(Header::data(&hold)), bytes as u64);
                (Place::in_arena(hold), ends)
            }
            Wire::Named(memory) => {
                let ends = find(memory.region(), Word::at(0), memory.len() as u64);
                (Place::named(memory), ends)
            }
        };
        Ok(Self { place, ends: ends.map_err(D::Error::custom)?.into() })
    }
}
