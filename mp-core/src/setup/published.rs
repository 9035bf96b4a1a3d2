//! Settings of each member, stored in its slot for the children that it starts.
//!
//! Three words and a path. Only the member writes them, and a child reads its parent's once, after it has
//! joined. The count is odd while they are written. A child that reads them during a change (or after its
//! parent was killed in one) keeps the default settings.

use std::path::PathBuf;

use crate::arena::Arena;
use crate::mem::Mem;
use crate::members::Members;
use crate::setup::Backing;
use crate::strategy::SharingStrategy;
use crate::sys::memory;

/// Maximum length in bytes of a path that fits into the arena.
pub(crate) const MOST_PATH: usize = 248;

/// Settings of this process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Settings {
    pub(crate) strategy: SharingStrategy,
    /// Directory that contains the user's directory.
    pub(crate) directory: PathBuf,
}

impl Default for Settings {
    fn default() -> Self {
        let strategy = SharingStrategy::all().first().copied().unwrap_or(SharingStrategy::FileDescriptor);
        Self { strategy, directory: "/dev/shm".into() }
    }
}

/// Words in a member's slot: count, strategy, length of the directory's path, the path.
const COUNT: u64 = 64;
const STRATEGY: u64 = 65;
const PATH_LEN: u64 = 66;
const PATH: u64 = 67;

/// Publishes the settings of this process, if it is a member.
pub(crate) fn publish(new: &Settings) {
    if let Some(arena) = Arena::get() {
        store(arena, new);
    }
}

fn store(arena: Arena, new: &Settings) {
    let Ok(me) = arena.me() else { return };
    let word = |w| arena.layout().member(me.slot(), w);
    // A previous member may have been killed during a change.
    let count = arena.map().load(word(COUNT)) & !1;
    arena.map().store(word(COUNT), count + 1);
    arena.map().fence_after_rmw();
    arena.map().store(word(STRATEGY), new.strategy as u64);
    let len = Backing(arena).store_path(word(PATH), &new.directory);
    arena.map().store(word(PATH_LEN), len as u64);
    arena.map().store(word(COUNT), count + 2);
}

/// Returns the settings of this process's parent, if it is a member and has published them.
pub(crate) fn of_parent(arena: Arena) -> Option<Settings> {
    load(arena, slot_of(arena, memory::parent_pid())?)
}

fn load(arena: Arena, slot: u32) -> Option<Settings> {
    let word = |w| arena.layout().member(slot, w);
    let count = arena.map().load(word(COUNT));
    let strategy = match arena.map().load(word(STRATEGY)) {
        0 => SharingStrategy::FileDescriptor,
        _ => SharingStrategy::FileSystem,
    };
    let len = arena.map().load(word(PATH_LEN)) as usize;
    if count == 0 || count & 1 == 1 || len == 0 || len > MOST_PATH {
        return None;
    }
    let directory: PathBuf = Backing(arena).load_path(word(PATH), len);
    (arena.map().load(word(COUNT)) == count).then_some(Settings { strategy, directory })
}

fn slot_of(arena: Arena, pid: u32) -> Option<u32> {
    Members(arena).members().into_iter().find(|m| m.live && m.pid == pid).map(|m| m.member.slot())
}
