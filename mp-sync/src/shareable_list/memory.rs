//! Memory of a list, and the lock that protects it.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mp_core::foreign;
use mp_core::mem::{Mem, Word};
use mp_core::message::scope;
use mp_core::mutex::Mutex;
use mp_core::words::LockKind;
use mp_core::{AdaptiveSpin, Error, RawLock, SharedMemory, Structure, Wait};
use serde::de::Error as _;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::slots::find;
use super::{ListError, ShareableList};
use crate::shared::Shared;

/// Name of the structure of a list in the arena.
pub(super) const NAME: &str = "mp_sync::ShareableList";
/// Word at which the list begins, after the lock.
pub(super) const LIST: u64 = 8;

/// Maximum wait for an operation of another process.
const LONGEST: Duration = Duration::from_secs(10);

#[derive(Clone)]
pub(super) enum ListMemory {
    Arena {
        shared: Shared,
        lock: RawLock,
        spin: Arc<AdaptiveSpin>,
    },
    /// Memory of a named list. The mutex separates the threads of this process, which share one file lock.
    Named {
        memory: Arc<SharedMemory>,
        turn: Arc<Mutex<()>>,
    },
}

impl ListMemory {
    /// Creates the memory of a list in `shared`: the lock is in the first words, and the list begins at word
    /// [`LIST`].
    pub(super) fn in_arena(shared: Shared) -> Self {
        Self::Arena { lock: shared.lock(0), shared, spin: Arc::default() }
    }

    pub(super) fn named(memory: SharedMemory) -> Self {
        Self::Named { memory: Arc::new(memory), turn: Arc::default() }
    }

    /// Calls `f` with the list's memory while no other operation runs, in any process.
    pub(super) fn locked<R>(
        &self,
        f: impl FnOnce(&dyn Mem, Word) -> Result<R, ListError>,
    ) -> Result<R, ListError> {
        match self {
            Self::Arena { shared, lock, spin } => {
                let mut guard = lock.acquire(LockKind::Lock, Wait::at_most(LONGEST), spin)?;
                // A slot left by a dead holder is marked as torn, so the list needs no recovery.
                guard.mark_recovered();
                f(shared.words(), shared.at(LIST))
            }
            Self::Named { memory, turn } => {
                let _turn = turn.try_lock_for(LONGEST).ok_or(ListError::Held)?;
                let _lock = FileLock::acquire(memory)?;
                f(memory.region(), Word::at(0))
            }
        }
    }
}

/// The kernel's lock on the file of a named list. The kernel releases it when the process dies.
struct FileLock<'a>(&'a SharedMemory);

impl<'a> FileLock<'a> {
    fn acquire(memory: &'a SharedMemory) -> Result<Self, ListError> {
        let locking = |source| Error::Os { what: "locking a named list", source };
        let mut since = None;
        let mut pause = Duration::from_micros(20);
        while !foreign::try_lock_file(memory.as_fd()).map_err(locking)? {
            if since.get_or_insert_with(Instant::now).elapsed() >= LONGEST {
                return Err(ListError::Held);
            }
            // The kernel's blocking form has no time-out.
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(5));
        }
        Ok(Self(memory))
    }
}

impl Drop for FileLock<'_> {
    fn drop(&mut self) {
        foreign::unlock_file(self.0.as_fd());
    }
}

/// Serialized form of a list.
#[derive(Serialize, Deserialize)]
enum EncodedPlace {
    Arena(u32),
    Named(SharedMemory),
}

const WHAT: &str = "a ShareableList";

impl Serialize for ShareableList {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match &self.place {
            ListMemory::Arena { shared, .. } => {
                let hold = shared.structure().hold();
                let attachment = scope::attach_object(WHAT, hold).map_err(S::Error::custom)?;
                s.serialize_newtype_variant("EncodedPlace", 0, "Arena", &attachment)
            }
            ListMemory::Named { memory, .. } => {
                s.serialize_newtype_variant("EncodedPlace", 1, "Named", &**memory)
            }
        }
    }
}

impl<'de> Deserialize<'de> for ShareableList {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let (place, ends) = match EncodedPlace::deserialize(d)? {
            EncodedPlace::Arena(attachment) => {
                let hold = scope::take_object(WHAT, attachment).map_err(D::Error::custom)?;
                let structure = Structure::open(hold, NAME).map_err(D::Error::custom)?;
                let shared = Shared::of(structure, LIST + 1, WHAT).map_err(D::Error::custom)?;
                let ends = find(shared.words(), shared.at(LIST), (shared.len() - LIST) * 8);
                (ListMemory::in_arena(shared), ends)
            }
            EncodedPlace::Named(memory) => {
                let ends = find(memory.region(), Word::at(0), memory.len() as u64);
                (ListMemory::named(memory), ends)
            }
        };
        Ok(Self { place, ends: ends.map_err(D::Error::custom)?.into() })
    }
}
