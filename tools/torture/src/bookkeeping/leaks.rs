//! Detection of resources that remain although no process needs them.

use std::path::Path;
use std::{fmt, fs};

use mp::Arena;
use mp::memory::FdSlots;

use crate::reporting::finding::Finding;
use crate::rounds::crew::Clock;

/// Current usage of resources that can leak.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct InUse {
    blocks: u64,
    bytes: u64,
    messages: u64,
    members: u64,
    /// Number of compartments of the locker that a message uses. `descriptors` is the number of descriptors
    /// in the locker.
    compartments: u64,
    descriptors: u64,
    files: usize,
    names: usize,
}

/// Leaked resources: increase in the usage of each resource.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Leaked {
    /// Number of leaked bytes of shared memory.
    pub(crate) bytes: u64,
    /// Number of leaked open files of this program, and descriptors in messages.
    pub(crate) fds: u64,
    /// Number of leaked named files.
    pub(crate) names: u64,
    /// Number of leaked slots of members, blocks, messages and compartments.
    pub(crate) slots: u64,
}

impl InUse {
    /// Returns the resources whose usage exceeds the usage `before`.
    fn beyond(&self, before: &Self) -> Leaked {
        let slots = |of: &Self| of.members + of.blocks + of.messages + of.compartments;
        Leaked {
            bytes: self.bytes.saturating_sub(before.bytes),
            fds: self.files.saturating_sub(before.files) as u64
                + self.descriptors.saturating_sub(before.descriptors),
            names: self.names.saturating_sub(before.names) as u64,
            slots: slots(self).saturating_sub(slots(before)),
        }
    }

    /// Measures the current usage of this program.
    pub(crate) fn now() -> mp::AnyResult<Self> {
        // Resources retained for ended processes are released here, or when the next process starts.
        drop(mp::active_children());
        let arena = Arena::current()?;
        let stats = arena.memory_stats();
        Ok(Self {
            compartments: FdSlots(arena).compartments_in_use(),
            descriptors: FdSlots(arena).descriptors_in_locker()?,
            blocks: stats.live_blocks,
            bytes: stats.allocated,
            messages: stats.queued,
            members: stats.members,
            files: fs::read_dir("/proc/self/fd").map_or(0, Iterator::count),
            names: names(&mp::memory::get_sharing_directory()),
        })
    }

    /// Reclaims dead members until the usage equals `self`. Returns a finding if that takes longer than 10 s.
    pub(crate) fn again(&self) -> Result<(), Finding> {
        let mut clock = Clock::new();
        loop {
            Arena::current()?.reclaim()?;
            let now = Self::now()?;
            if now == *self {
                return Ok(());
            }
            if clock.passed().as_secs() >= 10 {
                let stats = Arena::current()?.memory_stats();
                let open = open_files().join("\n");
                let finding = Finding::of(&format!("leaked: {self} before, {now} now\n{stats}\n{open}"));
                return Err(Finding { leaked: now.beyond(self), ..finding });
            }
            clock.tick();
        }
    }
}

/// Returns the number of files in the subfolders of this folder.
fn names(folder: &Path) -> usize {
    let entries = |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten();
    entries(folder).map(|entry| entries(&entry.path()).count()).sum()
}

/// Returns the open files of this process, by number.
fn open_files() -> Vec<String> {
    let entries = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let target = |path: &Path| fs::read_link(path).unwrap_or_default();
    entries.map(|e| format!("fd {} {}", e.file_name().display(), target(&e.path()).display())).collect()
}

impl fmt::Display for InUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { blocks, bytes, messages, members, compartments, descriptors, files, names } = self;
        write!(
            f,
            "{blocks} blocks of {bytes} bytes, {messages} messages, {members} members, {descriptors} \
             descriptors in \
             {compartments} compartments, {files} files, {names} names"
        )
    }
}
