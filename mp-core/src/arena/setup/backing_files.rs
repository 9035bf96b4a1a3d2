//! The files behind an arena, as this process has them open: its own, and those with names (see `extent`).
//!
//! A file with a name is opened, held and mapped when this process first meets a block in it: when it allocates there, or
//! receives a tensor. It stays open and mapped, as the arena does, so that a process has one descriptor and one mapping
//! for each, however many tensors are in it.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::process::mutex::{Mutex, MutexGuard};

use crate::arena::Arena;
use crate::arena::alloc::size_class;
use crate::arena::layout::EXTENTS;
use crate::arena::setup::extent::{Extent, note_held, others_live, owners_live};
use crate::arena::setup::strategy::{self, SharingStrategy};
use crate::error::{Error, Result};
use crate::mem::Word;
use crate::process::{GENERATIONS, PerProcess};
use crate::sync::Ordering;
use crate::sync::shared::AtomicU64;
use crate::sys::directory::{self, Directory, Owners, Reader};
use crate::sys::{Errno, Mapping, at_exit, limits, memory};
use crate::words::Member;

/// The directory and the name of the arena's file, if this process has made one with a name: its path can't be asked for where there
/// is no `/proc`.
static MADE: PerProcess<Mutex<Option<(PathBuf, u128)>>> =
    PerProcess::new([const { Mutex::new(None) }; GENERATIONS]);

/// A file with a name that this process holds.
#[derive(Debug)]
struct OpenedFile {
    fd: OwnedFd,
    /// The directory that the user chose.
    parent: PathBuf,
}

/// What this process has open, while none is opened.
#[derive(Debug)]
pub(in crate::arena) struct Held {
    pub(in crate::arena) files: Vec<RawFd>,
    _opening: MutexGuard<'static, Opening>,
}

/// What this process has open.
#[derive(Debug)]
pub(in crate::arena) struct Files {
    /// The arena's own file; none if its memory is plain.
    pub(in crate::arena) own: Option<OwnedFd>,
    /// The same file for children, under a description of its own: locks of this process's description, which they would
    /// keep, say that this process lives. Never closed, for that would drop the other locks.
    pub(in crate::arena) handed: OnceLock<OwnedFd>,
    /// What is handed down: that file, and the locker.
    pub(in crate::arena) parcel: OnceLock<OwnedFd>,
    /// The table of the locker; or why there is none.
    pub(in crate::arena) locker: OnceLock<OwnedFd>,
    pub(in crate::arena) no_locker: OnceLock<String>,
    named: [OnceLock<OpenedFile>; EXTENTS as usize],
    /// One bit for each that is mapped.
    mapped: AtomicU64,
    /// Which extents are in the directory that is set (low half), as of which setting (high half).
    chosen: AtomicU64,
    /// Bytes that have memory, if there is no file to ask.
    local: AtomicU64,
    pub(in crate::arena) opening: Mutex<Opening>,
}

#[derive(Debug, Default)]
pub(in crate::arena) struct Opening {
    /// Files held before this process could read that they are ready, by name.
    early: Vec<(u128, OwnedFd)>,
    /// Files that could not be mapped: the contents of their addresses are unknown, so there is no second
    /// try.
    failed: u64,
}

impl Files {
    pub(in crate::arena) fn new(own: Option<OwnedFd>) -> Self {
        Self {
            own,
            handed: OnceLock::new(),
            parcel: OnceLock::new(),
            locker: OnceLock::new(),
            no_locker: OnceLock::new(),
            named: [const { OnceLock::new() }; EXTENTS as usize],
            mapped: AtomicU64::new(0),
            chosen: AtomicU64::new(u64::MAX << 32),
            local: AtomicU64::new(0),
            opening: Mutex::default(),
        }
    }
}

impl Arena {
    pub(in crate::arena) fn files(&self) -> &'static Files {
        &self.0.files
    }

    /// All files that this process has open for the arena; it opens no others while this lives.
    pub(in crate::arena) fn hold_files(&self) -> Held {
        let all = self.files();
        let opening = all.opening.lock();
        let named = all.named.iter().filter_map(OnceLock::get).map(|file| &file.fd);
        let early = opening.early.iter().map(|(_, fd)| fd);
        let handed = all.handed.get().into_iter().chain(all.parcel.get()).chain(all.locker.get());
        let files = all.own.iter().chain(handed).chain(named).chain(early);
        Held { files: files.map(AsRawFd::as_raw_fd).collect(), _opening: opening }
    }

    /// What this process has open for it, as long as it lives.
    #[cfg(feature = "inject")]
    pub(crate) fn descriptors(&self) -> Vec<RawFd> {
        self.hold_files().files
    }

    /// Whether its memory is this process's alone.
    pub fn is_local(&self) -> bool {
        self.files().own.is_none()
    }

    /// The arena's own file.
    ///
    /// # Errors
    /// [`Error::Local`] if it has none.
    pub(crate) fn file(&self) -> Result<BorrowedFd<'static>> {
        self.files().own.as_ref().map(AsFd::as_fd).ok_or(Error::Local)
    }

    /// What is sent to children: the arena's own file in a parcel.
    ///
    /// # Errors
    /// [`Error::Local`] if it has none, [`Error::Os`] if it can't be opened again.
    pub(in crate::arena) fn file_to_hand_down(&self) -> Result<BorrowedFd<'static>> {
        let files = self.files();
        self.file()?;
        self.make_first_file();
        let opening = files.opening.lock();
        let named = files.named.iter().filter_map(OnceLock::get).map(|file| &file.fd);
        named.chain(opening.early.iter().map(|(_, fd)| fd)).for_each(|fd| directory::note_start(fd.as_fd()));
        files.make_parcel().map(AsFd::as_fd)
    }

    /// Makes sure that there is memory behind bytes that all lie in one file.
    pub(in crate::arena) fn commit_at(&self, at: u64, len: u64) -> Result<()> {
        let Ok(own) = self.file() else {
            self.files().local.fetch_add(len, Ordering::Relaxed);
            return Ok(());
        };
        match self.extent_of(at) {
            None => memory::commit(own, at, len).map_err(|e| self.no_memory(len, e)),
            Some(i) => {
                let file = self.opened(i)?;
                let offset = at - self.extent_base(i);
                memory::commit(file.fd.as_fd(), offset, len)
                    .map_err(|e| no_room(file.fd.as_fd(), &file.parent, len, e))
            }
        }
    }

    /// Gives the memory behind bytes of a free block back; whether the kernel has taken it.
    pub(in crate::arena) fn punch_at(&self, at: u64, len: u64) -> bool {
        let Ok(own) = self.file() else {
            if !cfg!(miri) {
                self.map().forget(at, len);
            }
            self.files().local.fetch_sub(len, Ordering::Relaxed);
            return true;
        };
        match self.extent_of(at) {
            None => memory::punch(own, at, len).is_ok(),
            Some(i) => self
                .opened(i)
                .is_ok_and(|file| memory::punch(file.fd.as_fd(), at - self.extent_base(i), len).is_ok()),
        }
    }

    /// How many bytes of all its files have memory or disk behind them.
    pub(in crate::arena) fn committed(&self) -> u64 {
        let Ok(own) = self.file() else { return self.files().local.load(Ordering::Relaxed) };
        let open = self.extents().filter(|&(_, s)| s == Extent::Open);
        let named = open.filter_map(|(i, _)| Some(memory::committed(self.opened(i).ok()?.fd.as_fd())));
        memory::committed(own) + named.sum::<u64>()
    }

    /// Bytes that the file of a block can grow by, and the limit that says so.
    pub(in crate::arena) fn room_at(&self, at: u64) -> (u64, String) {
        match self.extent_of(at).map(|i| self.opened(i)) {
            Some(Ok(file)) => directory::room(file.fd.as_fd(), &file.parent),
            // An anonymous file is limited by memory only; the arena may be a file with a name as well.
            _ => match self.file() {
                Ok(own) => directory::room(own, &memory::path_of(own).unwrap_or_default()),
                Err(_) => limits::memory_left(),
            },
        }
    }

    /// Makes sure that this process has the memory of a block mapped.
    #[inline]
    pub(in crate::arena) fn reach(&self, at: u64) -> Result<()> {
        match self.extent_of(at) {
            Some(i) if self.files().mapped.load(Ordering::Acquire) >> i & 1 == 0 => self.map_extent(i),
            _ => Ok(()),
        }
    }

    #[cold]
    fn map_extent(&self, i: u32) -> Result<()> {
        self.opened(i)?;
        let len = self.extent_len(i);
        let mut opening = self.files().opening.lock();
        self.map_opened(i, len, &mut opening)
    }

    fn map_opened(&self, i: u32, len: u64, opening: &mut Opening) -> Result<()> {
        let Some(file) = self.files().named.get(i as usize).and_then(OnceLock::get) else {
            return Err(Error::Malformed(format!("block in file {i} of the arena, which has none")));
        };
        let bit = 1 << i;
        if self.files().mapped.load(Ordering::Acquire) & bit != 0 {
            return Ok(());
        }
        let fail = |what, source| Error::Directory { path: file.parent.clone(), what, source };
        if opening.failed & bit != 0 {
            return Err(fail(
                "a file in it could not be mapped before",
                std::io::ErrorKind::OutOfMemory.into(),
            ));
        }
        opening.failed |= bit;
        self.map().place(file.fd.as_fd(), self.extent_base(i), len)?;
        opening.failed &= !bit;
        self.files().mapped.fetch_or(bit, Ordering::AcqRel);
        Ok(())
    }

    /// The file of an extent that is ready, opened now if it wasn't.
    fn opened(&self, i: u32) -> Result<&'static OpenedFile> {
        let unknown = || Error::Malformed(format!("block in file {i} of the arena, which has none"));
        let slot = self.files().named.get(i as usize).ok_or_else(unknown)?;
        if let Some(opened) = slot.get() {
            return Ok(opened);
        }
        let mut opening = self.files().opening.lock();
        if !self.extents().any(|e| e == (i, Extent::Open)) {
            return Err(unknown());
        }
        let (parent, name) = self.extent_file(i).ok_or_else(unknown)?;
        let held = opening.early.iter().position(|(n, _)| *n == name);
        let fd = match held {
            Some(at) => opening.early.swap_remove(at).1,
            None => {
                let fd = open_file(&parent, name, self.extent_len(i))?;
                note_held(fd.as_fd());
                fd
            }
        };
        Ok(slot.get_or_init(|| OpenedFile { fd, parent }))
    }

    /// Keeps a file that this process has made, and maps it.
    pub(in crate::arena) fn use_extent(&self, i: u32, fd: OwnedFd, parent: PathBuf, len: u64) -> Result<()> {
        let mut opening = self.files().opening.lock();
        self.files().named[i as usize].get_or_init(|| OpenedFile { fd, parent });
        self.map_opened(i, len, &mut opening)
    }

    /// Takes the locks of all files with names that this process does not have yet: when it has joined, and
    /// when it looks for dead members.
    pub(in crate::arena) fn hold_extents(&self) {
        for (i, state) in self.extents() {
            let named = matches!(state, Extent::Named(_) | Extent::Open);
            let Some(slot) = self.files().named.get(i as usize).filter(|slot| named && slot.get().is_none())
            else {
                continue;
            };
            let mut opening = self.files().opening.lock();
            // On failure the file is gone; that is an error for a caller that needs it.
            if slot.get().is_none()
                && let Some((parent, name)) = self.extent_file(i)
                && !opening.early.iter().any(|(held, _)| *held == name)
                && let Ok(fd) = open_file(&parent, name, 0)
            {
                note_held(fd.as_fd());
                opening.early.push((name, fd));
            }
        }
    }

    /// Before a process that uses files starts another: makes the first file, so that the new process has its
    /// lock from the moment when it joins.
    fn make_first_file(&self) {
        if strategy::stamp().0
            && self.has_extents()
            && self.extents().next().is_none()
            && let (Ok(me), Some(class)) = (self.me(), size_class::class_of(1))
        {
            // A bad directory is an error of the first tensor.
            _ = self.frontier_in_files(self.class_by_strategy(class), me);
        }
    }

    /// The class in which this process now allocates tensors of a size.
    pub(in crate::arena) fn class_by_strategy(&self, class: u32) -> u32 {
        let files = strategy::stamp().0 && self.has_extents();
        if files { size_class::twin_in_files(class) } else { class }
    }

    /// Whether this process may put new blocks into a slab: one of the arena, or in the directory that is set.
    #[inline]
    pub(in crate::arena) fn slab_is_chosen(&self, base: u64) -> bool {
        self.extent_of(base).is_none_or(|i| self.chosen_extents() >> i & 1 == 1)
    }

    fn chosen_extents(&self) -> u32 {
        let stamp = strategy::stamp().1;
        let chosen = self.files().chosen.load(Ordering::Acquire);
        if chosen >> 32 == stamp & 0xffff_ffff { chosen as u32 } else { self.choose_extents() }
    }

    /// Finds the extents in the directory that is set.
    #[cold]
    pub(in crate::arena) fn choose_extents(&self) -> u32 {
        let (settings, stamp) = strategy::settings();
        let open = self.extents().filter(|&(_, s)| s == Extent::Open);
        let ours = open.filter(|&(i, _)| self.extent_file(i).is_some_and(|(p, _)| p == settings.directory));
        let mask = ours.fold(0_u32, |mask, (i, _)| mask | 1 << i);
        self.files().chosen.store(u64::from(mask) | stamp << 32, Ordering::Release);
        mask
    }

    /// Where a new slab of a class of files goes: the word of its frontier, and the end of its file.
    pub(in crate::arena) fn frontier_in_files(&self, class: u32, me: Member) -> Result<(Word, u64)> {
        static CLEANED: PerProcess<Mutex<Vec<PathBuf>>> =
            PerProcess::new([const { Mutex::new(Vec::new()) }; GENERATIONS]);
        let directory = strategy::settings().0.directory;
        // The first use by this process: removes what dead processes left.
        let first = {
            let mut cleaned = CLEANED.lock();
            let first = !cleaned.contains(&directory);
            if first {
                cleaned.push(directory.clone());
            }
            first
        };
        if first {
            clean(&directory);
        }
        let found = self.extent_for(class, &directory, me)?;
        self.choose_extents();
        Ok(found)
    }

    /// After a death: removes files of dead processes from the directory that this process uses, if any.
    pub(in crate::arena) fn clean_up(&self) {
        if self.extents().next().is_some() {
            clean(&strategy::settings().0.directory);
        }
    }
}

fn open_file(parent: &Path, name: u128, len: u64) -> Result<OwnedFd> {
    let gone = || Error::Directory {
        path: parent.into(),
        what: "shared memory below it is gone (was it removed from outside?)",
        source: Errno::NOENT.into(),
    };
    Directory::open(parent)?.ok_or_else(gone)?.open_file(name, len)
}

/// Removes what dead processes left in the user's directory below this one.
fn clean(parent: &Path) {
    if let Ok(Some(directory)) = Directory::open(parent)
        && directory.clean(owners_live) > 0
    {
        directory.remove_if_empty();
    }
}

/// Before a new arena: removes what dead processes left in the default directory.
pub(in crate::arena) fn clean_default() {
    if SharingStrategy::FileSystem.supported() {
        clean(&strategy::Settings::default().directory);
    }
}

/// A file with a name for a whole arena, held: where there are no anonymous ones.
pub(in crate::arena) fn create_arena_file(parent: &Path, len: u64) -> Result<OwnedFd> {
    let mut last = 0;
    let (fd, _) = directory::create_named(parent, len, len, |name| last = name)?;
    *MADE.lock() = Some((parent.into(), last));
    Ok(fd)
}

/// No arena can be made of the file that this process has made last.
pub(in crate::arena) fn remove_arena_file() {
    if let Some((parent, name)) = MADE.lock().take()
        && let Ok(Some(directory)) = Directory::open(&parent)
    {
        directory.remove(name);
        directory.remove_if_empty();
    }
}

/// Checks a file that a parent has sent, and holds it if it has a name; returns its length.
pub(in crate::arena) fn verify(fd: BorrowedFd<'_>) -> Result<u64> {
    if SharingStrategy::FileDescriptor.supported() {
        return memory::verify_sealed(fd);
    }
    memory::verify_private(fd)
}

/// Makes sure that this process removes unused files with names when it ends: also those that only others
/// have used.
pub(in crate::arena) fn watch_the_end() {
    if SharingStrategy::FileSystem.supported() {
        at_exit::on_exit(leave_files);
    }
}

/// At the end of the process: removes the files that no other process uses.
fn leave_files() {
    let Some(arena) = Arena::get() else { return };
    let mut known: Vec<(PathBuf, u128)> = arena.extents().filter_map(|(i, _)| arena.extent_file(i)).collect();
    if !SharingStrategy::FileDescriptor.supported()
        && let Some(own) = own_file(arena)
    {
        known.push(own);
    }
    // The last member knows it from the arena; the owners that files name can't be checked everywhere.
    let owners: Reader = if arena.is_last() { |_| Owners::Gone } else { others_live };
    // This process's own locks would be in the way. Nothing is lost without them: a process that is still
    // there has its own.
    arena.let_go();
    for (parent, name) in known {
        if let Ok(Some(directory)) = Directory::open(&parent) {
            directory.remove_unused(name, owners);
            directory.remove_if_empty();
        }
    }
}

/// The directory that the user chose, and the name, of the arena's own file, if it has one.
fn own_file(arena: Arena) -> Option<(PathBuf, u128)> {
    let made = MADE.lock().take();
    made.or_else(|| arena.file().ok().and_then(memory::path_of).and_then(split))
}

/// The directory that the user chose, and the name, of one of the library's files.
fn split(path: PathBuf) -> Option<(PathBuf, u128)> {
    let name = directory::name_of(&path)?;
    Some((path.parent()?.parent()?.into(), name))
}

impl Arena {
    fn let_go(&self) {
        let files = self.files();
        for file in files.named.iter().filter_map(OnceLock::get) {
            directory::let_go(file.fd.as_fd());
        }
        for (_, fd) in &files.opening.lock().early {
            directory::let_go(fd.as_fd());
        }
        if !SharingStrategy::FileDescriptor.supported()
            && let Some(own) = &files.own
        {
            directory::let_go(own.as_fd());
        }
    }
}

/// The error of `fallocate(2)` in a file with a name.
pub(in crate::arena) fn no_room(fd: BorrowedFd<'_>, parent: &Path, asked: u64, e: Errno) -> Error {
    match e {
        Errno::NOSPC | Errno::NOMEM | Errno::FBIG | Errno::DQUOT => {
            exhausted(asked, e, parent, directory::room(fd, parent))
        }
        e => {
            let what = "fallocate of a file in it (its file system has to know that)";
            Error::Directory { path: parent.into(), what, source: e.into() }
        }
    }
}

/// Error of the first memory of a new arena, which could not be had.
pub(in crate::arena) fn no_room_for_new(fd: BorrowedFd<'_>, asked: u64, e: Errno) -> Error {
    match no_room(fd, "a new arena".as_ref(), asked, e) {
        // It is a memfd.
        Error::Directory { source, .. } => Error::Os { what: "fallocate of a new arena", source },
        other => other,
    }
}

/// That memory or disk has run out, with the limit that was met. There is no way to ask how much of a quota
/// is left; it is less than what was asked for.
pub(in crate::arena) fn exhausted(asked: u64, e: Errno, path: &Path, (left, limit): (u64, String)) -> Error {
    if e != Errno::DQUOT {
        return Error::OutOfMemory { asked, left, limit };
    }
    let limit =
        format!("a quota of this user, group or project on {} (quota(1)); and {limit}", path.display());
    Error::OutOfMemory { asked, left: left.min(asked.saturating_sub(1)), limit }
}

/// The mapping of an arena's own file, or of plain memory.
pub(in crate::arena) fn map_own(own: Option<BorrowedFd<'_>>, len: u64, space: u64) -> Result<Mapping> {
    // A memfd goes over all of them, so that it is one mapping: what is behind its end is as much out of reach (SIGBUS)
    // as addresses without a mapping are (SIGSEGV). Other files may grow by that (hugetlbfs), and when a process ends memcheck
    // tries each word of it, with a SIGBUS each.
    let whole = SharingStrategy::FileDescriptor.supported() && !crate::sys::under_valgrind();
    let mapped = if whole { space } else { len };
    own.map_or_else(|| Mapping::local(len), |fd| Mapping::new(fd, mapped, space))
}
