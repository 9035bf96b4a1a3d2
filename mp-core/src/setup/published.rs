//! Settings of each member, stored in its slot for the children that it starts.
//!
//! Three words and a path. Only the member writes them, and a child reads its parent's once, after it has
//! joined. The count is odd while they are written. A child that reads them during a change (or after its
//! parent was killed in one) keeps the default settings.

use std::path::PathBuf;

use crate::arena::Arena;
use crate::mem::Mem;
use crate::setup::strategy;
use crate::setup::strategy::{MOST_PATH, Settings, SharingStrategy};
use crate::sys::memory;

/// Words in a member's slot: count, strategy, length of the directory's path, the path.
const COUNT: u64 = 64;
const STRATEGY: u64 = 65;
const PATH_LEN: u64 = 66;
const PATH: u64 = 67;

/// Publishes the settings of this process, if it is a member.
pub(crate) fn publish_settings(new: &Settings) {
    if let Some(arena) = Arena::get() {
        arena.store_settings(new);
    }
}

impl Arena {
    fn store_settings(&self, new: &Settings) {
        let Ok(me) = self.me() else { return };
        let word = |w| self.layout().member(me.slot(), w);
        // A previous member may have been killed during a change.
        let count = self.map().load(word(COUNT)) & !1;
        self.map().store(word(COUNT), count + 1);
        self.map().fence_after_rmw();
        self.map().store(word(STRATEGY), new.strategy as u64);
        let len = self.store_path(word(PATH), &new.directory);
        self.map().store(word(PATH_LEN), len as u64);
        self.map().store(word(COUNT), count + 2);
    }

    /// Publishes settings that this process had before it was a member.
    pub(crate) fn publish_own_settings(&self) {
        strategy::republish();
    }

    /// Takes over the settings of this process's parent.
    pub(crate) fn inherit_settings(&self) {
        let parent = memory::parent_pid();
        let slot = self.slot_of(parent);
        if let Some(settings) = slot.and_then(|slot| self.load_settings(slot)) {
            strategy::inherit(settings);
        }
        self.publish_own_settings();
    }

    fn load_settings(&self, slot: u32) -> Option<Settings> {
        let word = |w| self.layout().member(slot, w);
        let count = self.map().load(word(COUNT));
        let strategy = match self.map().load(word(STRATEGY)) {
            0 => SharingStrategy::FileDescriptor,
            _ => SharingStrategy::FileSystem,
        };
        let len = self.map().load(word(PATH_LEN)) as usize;
        if count == 0 || count & 1 == 1 || len == 0 || len > MOST_PATH {
            return None;
        }
        let directory: PathBuf = self.load_path(word(PATH), len);
        (self.map().load(word(COUNT)) == count).then_some(Settings { strategy, directory })
    }

    fn slot_of(&self, pid: u32) -> Option<u32> {
        self.members().into_iter().find(|m| m.live && m.pid == pid).map(|m| m.member.slot())
    }
}
