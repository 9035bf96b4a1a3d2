//! Extents: named files that contain slabs, and their table.
//!
//! An extent is a file of the strategy `file_system`. The file has a range of the arena's addresses, after
//! the arena's own file. The states, seats and holders of its blocks are in the arena's tables, as for all
//! blocks. So handles of all blocks are alike, and an extent contains only data of tensors. A process that
//! drops a tensor, or reclaims a dead member, need not have the file open.
//!
//! # States of an extent's word
//! | state | changed by | file after a kill in this state |
//! |---|---|---|
//! | `FREE` | a process that needs an extent → `MAKING(me)` | none |
//! | `MAKING(m)` | `m`: records directory and name (the length of the directory last), creates the file and locks it → `NAMED(m)`; on failure, removes the file → `FREE` | none, or a file with the recorded name |
//! | `NAMED(m)` | `m`: writes the present members into the file → `OPEN`; on failure, removes the file → `FREE` | a file without a slab |
//! | `OPEN` | no process: the extent stays as long as the arena | a file in use, or left (see below) |
//!
//! The reclaim takes over `MAKING(dead)` and `NAMED(dead)` by compare-and-swap to `MAKING(me)`. Then the
//! reclaim removes the file, if a name was recorded. After that it clears the length of the directory, and
//! frees the extent last. Each step may be done twice. The words next to the state have one writer, which is
//! named in the state.
//!
//! # Lifetime of the file
//! The file's name must exist as long as any member may have to open the file: a tensor may be in flight to a
//! member that hasn't opened the file, and the tensor's sender may be dead. So a file is in use while any
//! process has the file's lock, **or** any process listed in the file lives. The list contains the members at
//! the time of the file's creation. A process that joins later takes the locks of all extents:
//!
//! | order | the process that makes the extent | a process that joins |
//! |---|---|---|
//! | 1 | state of the extent → `NAMED` | state of its member slot → `LIVE` |
//! | 2 | reads the member table, writes the live members into the file | reads the states of all extents, takes the locks of extents that are `NAMED` or `OPEN` |
//! | 3 | state of the extent → `OPEN` | |
//!
//! Both processes write before they read, and all these accesses have one total order. So at least one of the
//! two detects the other.
//!
//! # Foreign process namespaces
//! A program that removes files of dead programs may be in another process namespace (a container that shares
//! `/dev/shm`), or have no `/proc`. Such a program can't check if a process listed in a file lives. It
//! decides by the locks alone, and only if every process listed in the file has marked itself as a holder of
//! the file's lock:
//!
//! | word of the file | written by | killed before the last write |
//! |---|---|---|
//! | entry of a listed process: pid, bit [`HOLDS`] | the maker writes the pid; the listed process sets `HOLDS` when it has the lock of the file | the file stays, because this process may live |
//! | *first*: name of the program's first file in the same directory, or 0 in the first file itself | the maker | the file is incomplete: its lock decides |
//!
//! - **The first file of a program decides for all its files.** A process that joins after the creation of
//!   the first file holds the lock of that file from then on, whether or not it has opened later files. A
//!   program that uses files creates the first file before it starts a process that joins. So the only
//!   member that was there before the first file is the maker, which holds the lock.
//! - **A process that was a member before the first file** sets `HOLDS` when it opens the file, or at its
//!   next check for dead members (`reclaim_if_due`). If all listed processes have set `HOLDS`, and the lock
//!   is free, all of them are dead.
//! - **A starting process** may not have the lock yet when its parent ends. So the parent updates the file's
//!   time at each start, and a file whose time is less than [`GRACE`](directory::GRACE) ago stays.
//!
//! On hugetlbfs, which has no `write(2)`, only the maker sets `HOLDS`.
//!
//! A file stays forever if its program was killed before all listed processes had set `HOLDS`. This affects
//! only programs that began to use files after they had started processes. The started processes detect the
//! first file after about 100 ms, or later if they are stopped or compute.
//!
//! # Adding slabs
//! The frontier of an extent changes in one update, together with the same words as for a slab in the arena's
//! own file.

use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::layout::size_class::{alignment_of, span_of};
use crate::layout::{EXTENT, EXTENT_PATH, EXTENTS, control};
use crate::mem::{Mem, Word};
use crate::members::Members;
use crate::setup::Backing;
use crate::setup::no_room;
use crate::setup::settings::MOST_PATH;
use crate::sys::directory::{self, Directory, Owners};
use crate::sys::{limits, memory};
use crate::words::Member;

const STATE: u64 = 0;
const FRONTIER: u64 = 1;
const END: u64 = 2;
const NAME: u64 = 3;
const PATH_LEN: u64 = 5;

/// First word of a file that is an arena's extent and lists the processes that may use it.
const MAGIC: u64 = u64::from_le_bytes(*b"mp-files");
const FIRST_AT: usize = 32;
const LIST_AT: usize = 48;
/// Bit in the word of a process that a file lists: the process has the lock of the file, and keeps the lock
/// as long as the process lives.
const HOLDS: u64 = 1 << 63;
/// Size of the header in bytes. The header lists at most 1024 members.
const HEADER: u64 = directory::HEAD as u64;

/// Maximum time to wait for an extent that another process is creating in the same directory.
const TIME_LIMIT: Duration = Duration::from_millis(100);

/// State of an extent, packed in a word: state (2 bits), member (24 bits).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Extent {
    Free,
    Making(Member),
    Named(Member),
    Open,
}

impl Extent {
    const fn pack(self) -> u64 {
        match self {
            Self::Free => 0,
            Self::Making(m) => 1 | m.raw() << 2,
            Self::Named(m) => 2 | m.raw() << 2,
            Self::Open => 3,
        }
    }

    const fn unpack(w: u64) -> Self {
        match w & 3 {
            0 => Self::Free,
            1 => Self::Making(Member::from_raw(w >> 2)),
            2 => Self::Named(Member::from_raw(w >> 2)),
            _ => Self::Open,
        }
    }
}

impl Backing {
    fn extent_word(self, i: u32, word: u64) -> Word {
        Word::at(control::EXTENTS + u64::from(i) * EXTENT).plus(word)
    }

    fn change_extent(self, i: u32, from: Extent, to: Extent) -> bool {
        self.map().cas(self.extent_word(i, STATE), from.pack(), to.pack()).is_ok()
    }

    /// Returns all existing extents with their states.
    pub(crate) fn extents(self) -> impl Iterator<Item = (u32, Extent)> + use<> {
        let state = move |i| Extent::unpack(self.map().load(self.extent_word(i, STATE)));
        let count = if self.has_extents() { EXTENTS } else { 0 };
        (0..count).map(move |i| (i, state(i))).filter(|&(_, s)| s != Extent::Free)
    }

    /// Returns `true` if the arena can have extents.
    pub(crate) fn has_extents(self) -> bool {
        self.layout().slot() > 0 && !self.0.is_local()
    }

    /// Returns the first address of an extent.
    pub(crate) fn extent_base(self, i: u32) -> u64 {
        self.layout().size + u64::from(i) * self.layout().slot()
    }

    /// Returns the extent that contains a byte, or `None` if the byte is in the arena's own file.
    #[inline]
    pub(crate) fn extent_of(self, at: u64) -> Option<u32> {
        let size = self.layout().size;
        at.checked_sub(size)?.checked_div(self.layout().slot()).map(|i| i as u32)
    }

    /// Returns directory and name of an extent's file, once they are recorded.
    pub(crate) fn extent_file(self, i: u32) -> Option<(PathBuf, u128)> {
        let len = self.map().load(self.extent_word(i, PATH_LEN)) as usize;
        if len == 0 || len > MOST_PATH {
            return None;
        }
        let name = [0, 1].map(|w| u128::from(self.map().load(self.extent_word(i, NAME + w))));
        Some((self.load_path(self.path_at(i), len), name[0] << 64 | name[1]))
    }

    fn path_at(self, i: u32) -> Word {
        Word::at(control::PATHS + u64::from(i) * EXTENT_PATH)
    }

    /// Writes a path into shared words.
    pub(crate) fn store_path(self, at: Word, path: &Path) -> usize {
        let bytes = path.as_os_str().as_bytes();
        for (i, chunk) in bytes.chunks(8).enumerate() {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.map().store(at.plus(i as u64), u64::from_ne_bytes(word));
        }
        bytes.len()
    }

    /// Reads a path from shared words.
    pub(crate) fn load_path(self, at: Word, len: usize) -> PathBuf {
        let words = (0..len.div_ceil(8)).map(|i| self.map().load(at.plus(i as u64)).to_ne_bytes());
        let bytes: Vec<u8> = words.flatten().take(len).collect();
        OsString::from_vec(bytes).into()
    }

    /// Returns the length of an extent's file.
    pub(crate) fn extent_len(self, i: u32) -> u64 {
        self.map().load(self.extent_word(i, END)).saturating_sub(self.extent_base(i))
    }

    /// Returns the frontier and the end of an extent in this directory that has room for a slab of the class.
    /// Creates the extent if necessary.
    pub(crate) fn extent_for(self, class: u32, directory: &Path, me: Member) -> Result<(Word, u64)> {
        let begin = Instant::now();
        loop {
            let mut being_made = false;
            for (i, state) in self.extents() {
                let mine = || self.extent_file(i).is_some_and(|(path, _)| path == directory);
                match state {
                    Extent::Open if mine() => {
                        let (frontier, end) =
                            (self.extent_word(i, FRONTIER), self.map().load(self.extent_word(i, END)));
                        if crate::layout::size_class::fits(class, self.map().load(frontier), end) {
                            return Ok((frontier, end));
                        }
                    }
                    Extent::Making(m) | Extent::Named(m) if m != me && mine() => {
                        being_made |= !Members(self.0).is_dead(m);
                    }
                    _ => {}
                }
            }
            if being_made && begin.elapsed() < TIME_LIMIT {
                std::thread::sleep(Duration::from_micros(200));
                continue;
            }
            self.make_extent(class, directory, me)?;
        }
    }

    /// Creates an extent for slabs of the class.
    fn make_extent(self, class: u32, directory: &Path, me: Member) -> Result<()> {
        let full = Error::ArenaFull { what: "files with names", asked: 1, limit: u64::from(EXTENTS) };
        let grain = Directory::create_in(directory)?.grain();
        let first = HEADER.next_multiple_of(grain);
        let (limit, limited_by) = limits::file_size();
        let most = self.layout().slot().min(limit) / grain * grain;
        let needed = first.next_multiple_of(alignment_of(class)) + span_of(class);
        if needed > most {
            let own = "the addresses of a file with a name";
            let limit = if limit < self.layout().slot() { limited_by } else { own }.into();
            return Err(Error::OutOfMemory {
                asked: span_of(class),
                left: most.saturating_sub(first),
                limit,
            });
        }
        let free = |i: &u32| self.change_extent(*i, Extent::Free, Extent::Making(me));
        let i = (0..EXTENTS).find(free).ok_or(full)?;
        self.fill_extent(i, (most, needed, first), directory, me).inspect_err(|_| self.drop_extent(i, me))
    }

    fn fill_extent(
        self,
        i: u32,
        (most, least, first): (u64, u64, u64),
        directory: &Path,
        me: Member,
    ) -> Result<()> {
        self.0.commit(self.path_at(i).offset() & !4095, 4096)?;
        let path_len = self.store_path(self.path_at(i), directory);
        let (fd, len) = directory::create_named(directory, most, least, |name| {
            // Cleared, so that no process reads the name while it changes.
            self.map().store(self.extent_word(i, PATH_LEN), 0);
            for (w, half) in [(0, (name >> 64) as u64), (1, name as u64)] {
                self.map().store(self.extent_word(i, NAME + w), half);
            }
            self.map().store(self.extent_word(i, PATH_LEN), path_len as u64);
        })?;
        let (path, base) = (directory.to_owned(), self.extent_base(i));
        // Before the file is mapped: a mapping is never removed.
        memory::commit(fd.as_fd(), 0, HEADER).map_err(|e| no_room(fd.as_fd(), &path, HEADER, e))?;
        let gone = || Error::Stale("this process was taken for dead while it made a file".into());
        if !self.change_extent(i, Extent::Making(me), Extent::Named(me)) {
            return Err(gone());
        }
        self.use_extent(i, fd, path, len)?;
        self.write_owners(base, self.first_in(directory, i), me);
        self.map().store(self.extent_word(i, FRONTIER), base + first);
        self.map().store(self.extent_word(i, END), base + len);
        if self.change_extent(i, Extent::Named(me), Extent::Open) { Ok(()) } else { Err(gone()) }
    }

    /// Returns the name of the first file of this program in a directory, other than `i`, or 0 if there is
    /// none.
    fn first_in(self, directory: &Path, i: u32) -> u128 {
        let mut others = self.extents().filter(|&(other, state)| other != i && state == Extent::Open);
        let ours =
            others.find_map(|(other, _)| self.extent_file(other).filter(|(path, _)| path == directory));
        ours.map_or(0, |(_, name)| name)
    }

    /// Writes the present members and the name of the first file into a new file, whose lock this process
    /// holds.
    fn write_owners(self, base: u64, first_file: u128, me: Member) {
        let first = Word::at(base);
        let live: Vec<_> = Members(self.0).live_processes().collect();
        for (i, (member, pid, start)) in live.iter().enumerate() {
            let at = first.plus(LIST_AT as u64 / 8 + 2 * i as u64);
            let holds = if *member == me { HOLDS } else { 0 };
            self.map().store(at, u64::from(*pid) | holds);
            self.map().store(at.plus(1), *start);
        }
        for (w, half) in [(0, (first_file >> 64) as u64), (1, first_file as u64)] {
            self.map().store(first.plus(FIRST_AT as u64 / 8 + w), half);
        }
        self.map().store(first.plus(1), self.0.id());
        self.map().store(first.plus(2), directory::process_namespace());
        self.map().store(first.plus(3), live.len() as u64);
        self.map().store(first, MAGIC);
    }

    /// Undoes the creation of an extent by this process.
    fn drop_extent(self, i: u32, me: Member) {
        if let Some((path, name)) = self.extent_file(i)
            && let Ok(Some(directory)) = Directory::open(&path)
        {
            directory.remove(name);
            directory.remove_if_empty();
        }
        self.map().store(self.extent_word(i, PATH_LEN), 0);
        for state in [Extent::Making(me), Extent::Named(me)] {
            self.change_extent(i, state, Extent::Free);
        }
    }

    /// Undoes the creation of extents by dead members.
    pub(crate) fn reclaim_extents(self, dead: impl Fn(Member) -> bool, me: Member) {
        let states: Vec<_> = self.extents().collect();
        for (i, state) in states {
            if let Extent::Making(m) | Extent::Named(m) = state
                && dead(m)
                && self.change_extent(i, state, Extent::Making(me))
            {
                self.drop_extent(i, me);
            }
        }
    }
}

/// Records in a file that this process holds the file's lock. Has no effect if the file does not list this
/// process.
pub(crate) fn note_held(fd: BorrowedFd<'_>) {
    let head = directory::head_of(fd);
    if word(&head, 0) != Some(MAGIC) {
        return;
    }
    let me = u64::from(std::process::id());
    for at in listed(&head).filter(|&at| word(&head, at) == Some(me)) {
        directory::write_word(fd, at as u64, me | HOLDS);
    }
}

/// Returns the state of the processes listed in a file, by the file's first bytes.
pub(crate) fn owners_live(head: &[u8]) -> Owners {
    owners(head, |_| true)
}

/// Same as [`owners_live`], ignoring this process, which is about to end.
pub(crate) fn others_live(head: &[u8]) -> Owners {
    owners(head, |pid| pid != u64::from(std::process::id()))
}

fn word(head: &[u8], at: usize) -> Option<u64> {
    let bytes = head.get(at..at.checked_add(8)?)?;
    Some(u64::from_ne_bytes(bytes.try_into().ok()?))
}

/// Returns the offsets in a file's header of the words that list processes.
fn listed(head: &[u8]) -> impl Iterator<Item = usize> + use<> {
    let listed = word(head, 24).unwrap_or(0).min(1024) as usize;
    (0..listed).map(|i| LIST_AT + 16 * i)
}

fn owners(head: &[u8], counts: impl Fn(u64) -> bool) -> Owners {
    if word(head, 0) != Some(MAGIC) {
        // Incomplete, or an arena's own file: its lock decides.
        return Owners::Gone;
    }
    let (own, theirs) = (directory::process_namespace(), word(head, 16));
    if own != 0 && theirs == Some(own) {
        let live = listed(head).any(|at| {
            let (Some(pid), Some(start)) = (word(head, at), word(head, at + 8)) else { return true };
            let pid = pid & !HOLDS;
            counts(pid) && memory::start_time_of(pid as u32) == Some(start)
        });
        return if live { Owners::Live } else { Owners::Gone };
    }
    // Process IDs of another namespace can't be checked here.
    let first = [0, 8].map(|w| u128::from(word(head, FIRST_AT + w).unwrap_or(0)));
    match first[0] << 64 | first[1] {
        0 if listed(head).any(|at| word(head, at).is_none_or(|w| w & HOLDS == 0 && counts(w))) => {
            Owners::Live
        }
        0 => Owners::Elsewhere { first: None },
        first => Owners::Elsewhere { first: Some(first) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extent_states_round_trip_through_words() {
        let m = Member::new(4095, 4095);
        for state in [Extent::Free, Extent::Making(m), Extent::Named(m), Extent::Open] {
            assert_eq!(Extent::unpack(state.pack()), state);
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "asks for the parent process")]
    fn arena_file_header_shows_whether_owners_live() {
        let mut head = vec![0_u8; 4096];
        let parent = memory::parent_pid();
        let start = memory::start_time_of(parent).expect("the parent lives");
        let mut write = |at: usize, v: u64| {
            head[at..at + 8].copy_from_slice(&v.to_ne_bytes());
            owners_live(&head)
        };
        let me = directory::process_namespace();
        assert_eq!(write(16, me), Owners::Gone);
        assert_eq!(write(LIST_AT, u64::from(parent)), Owners::Gone);
        assert_eq!(write(LIST_AT + 8, start), Owners::Gone);
        assert_eq!(write(24, 1), Owners::Gone);
        assert_eq!(write(0, MAGIC), Owners::Live, "the parent lives");
        assert_eq!(write(LIST_AT, u64::from(parent) | HOLDS), Owners::Live, "with or without HOLDS");
        assert_eq!(write(LIST_AT + 8, start + 1), Owners::Gone, "another process with the same pid");
        assert_eq!(write(16, 1), Owners::Elsewhere { first: None }, "HOLDS is set: the lock decides");
        assert_eq!(write(LIST_AT, u64::from(parent)), Owners::Live, "HOLDS is not set: the owner may live");
        assert_eq!(write(FIRST_AT + 8, 5), Owners::Elsewhere { first: Some(5) }, "the first file decides");
    }
}
