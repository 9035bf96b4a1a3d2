//! Files of an arena that this process has open: the arena's own file, and named files (see `extent`).
//!
//! A named file is opened, locked and mapped when this process first uses a block in it, by allocating there
//! or receiving a tensor. The file stays open and mapped, like the arena. So a process has one descriptor and
//! one mapping for each file, regardless of the number of tensors in it.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::arena::state::{OpenedFile, Opening};
use crate::arena::{Arena, room};
use crate::error::{Error, Result};
use crate::layout::size_class;
use crate::mem::Word;
use crate::members::Members;
use crate::process::mutex::{Mutex, MutexGuard};
use crate::process::{PerProcess, per_process};
use crate::setup::extent::{Extent, note_held, others_live, owners_live};
use crate::setup::no_room;
use crate::setup::{Backing, settings};
use crate::strategy::SharingStrategy;
use crate::sync::Ordering;
use crate::sys::directory::{self, Directory, Owners, Reader};
use crate::sys::{Errno, Mapping, at_exit, foreign, memory, os};
use crate::words::Member;

/// Directory and name of the arena's own file, if this process has created it as a named file. Stored because
/// the path can't be read from the descriptor without `/proc`.
static MADE: PerProcess<Mutex<Option<(PathBuf, u128)>>> = per_process!(Mutex::new(None));

/// Open files of this process. While this value lives, no other file is opened.
#[derive(Debug)]
pub(crate) struct HeldFiles {
    pub(crate) files: Vec<RawFd>,
    _opening: MutexGuard<'static, Opening>,
}

impl Backing {
    /// Returns all files that this process has open for the arena. No others are opened while the result
    /// lives.
    pub(crate) fn hold_files(self) -> HeldFiles {
        let all = self.0.files();
        let opening = all.opening.lock();
        let named = all.named.iter().filter_map(OnceLock::get).map(|file| &file.fd);
        let early = opening.early.iter().map(|(_, fd)| fd);
        let handed = all.unlocked.get().into_iter().chain(all.parcel.get()).chain(all.locker.get());
        let files = all.own.iter().chain(handed).chain(named).chain(early);
        HeldFiles { files: files.map(AsRawFd::as_raw_fd).collect(), _opening: opening }
    }

    /// Returns the descriptors that this process keeps open for the arena as long as it lives.
    #[cfg(feature = "inject")]
    pub(crate) fn descriptors(self) -> Vec<RawFd> {
        self.hold_files().files
    }

    /// Returns the file to send to children: the arena's own file in a parcel.
    ///
    /// # Errors
    /// [`Error::Local`] if the arena has no file, [`Error::Os`] if the file can't be opened again.
    pub(crate) fn file_to_hand_down(self) -> Result<BorrowedFd<'static>> {
        let files = self.0.files();
        self.0.file()?;
        self.make_first_file();
        let opening = files.opening.lock();
        let named = files.named.iter().filter_map(OnceLock::get).map(|file| &file.fd);
        named.chain(opening.early.iter().map(|(_, fd)| fd)).for_each(|fd| directory::note_start(fd.as_fd()));
        files.make_parcel().map(AsFd::as_fd)
    }

    /// Reserves memory for a range of bytes, all in one file.
    pub(crate) fn commit_at(self, at: u64, len: u64) -> Result<()> {
        let Some(i) = self.extent_of(at) else { return self.0.commit(at, len) };
        let file = self.opened(i)?;
        memory::commit(file.fd.as_fd(), at - self.extent_base(i), len)
            .map_err(|e| no_room(file.fd.as_fd(), &file.parent, len, e))
    }

    /// Returns the file that contains the byte at `at` of the arena, and the byte's position in that file.
    ///
    /// # Errors
    /// [`Error::Local`] if the arena has no file.
    pub(crate) fn file_at(self, at: u64) -> Result<(BorrowedFd<'static>, u64)> {
        let own = self.0.file()?;
        let Some(i) = self.extent_of(at) else { return Ok((own, at)) };
        Ok((self.opened(i)?.fd.as_fd(), at - self.extent_base(i)))
    }

    /// Calls `f` with the file and the position that [`file_at`](Self::file_at) returns, but with an open
    /// file description without locks. Mappings need that: in a forked process, an inherited mapping keeps
    /// its description open, and so also the description's locks.
    ///
    /// # Errors
    /// [`Error::Local`] if there is no file, [`Error::Os`] if it can't be opened again.
    pub(crate) fn with_unlocked_file_at<R>(
        self,
        at: u64,
        f: impl FnOnce(BorrowedFd<'_>, u64) -> R,
    ) -> Result<R> {
        let (file, first) = self.file_at(at)?;
        if self.extent_of(at).is_some() {
            return Ok(f(memory::reopen(file)?.as_fd(), first));
        }
        // Opened once for all calls: closing it would drop the POSIX locks of this process.
        let opening = self.0.files().opening.lock();
        let file = self.0.files().unlocked()?;
        drop(opening);
        Ok(f(file.as_fd(), first))
    }

    /// Returns the memory of a free block to the kernel. Returns `true` if the kernel has taken it.
    pub(crate) fn punch_at(self, at: u64, len: u64) -> bool {
        let Ok(own) = self.0.file() else {
            if !cfg!(miri) {
                self.map().forget(at, len);
            }
            self.0.files().local.fetch_sub(len, Ordering::Relaxed);
            return true;
        };
        match self.extent_of(at) {
            None => memory::punch(own, at, len).is_ok(),
            Some(i) => self
                .opened(i)
                .is_ok_and(|file| memory::punch(file.fd.as_fd(), at - self.extent_base(i), len).is_ok()),
        }
    }

    /// Returns the number of bytes of all files that have memory or disk space.
    pub(crate) fn committed(self) -> u64 {
        let Ok(own) = self.0.file() else { return self.0.files().local.load(Ordering::Relaxed) };
        // An observer opens no other files.
        let open = self.extents().filter(|&(_, s)| s == Extent::Open && self.0.is_here());
        let named = open.filter_map(|(i, _)| Some(memory::committed(self.opened(i).ok()?.fd.as_fd())));
        memory::committed(own) + named.sum::<u64>()
    }

    /// Returns the number of bytes by which a block's file can grow, and the limit that determines it.
    pub(crate) fn room_at(self, at: u64) -> (u64, String) {
        match self.extent_of(at).map(|i| self.opened(i)) {
            Some(Ok(file)) => directory::room(file.fd.as_fd(), &file.parent),
            _ => room(self.0),
        }
    }

    /// Ensures that this process has mapped the memory of a block.
    #[inline]
    pub(crate) fn reach(self, at: u64) -> Result<()> {
        match self.extent_of(at) {
            Some(i) if self.0.files().mapped.load(Ordering::Acquire) >> i & 1 == 0 => self.map_extent(i),
            _ => Ok(()),
        }
    }

    #[cold]
    fn map_extent(self, i: u32) -> Result<()> {
        self.opened(i)?;
        let len = self.extent_len(i);
        let mut opening = self.0.files().opening.lock();
        self.map_opened(i, len, &mut opening)
    }

    fn map_opened(self, i: u32, len: u64, opening: &mut Opening) -> Result<()> {
        let Some(file) = self.0.files().named.get(i as usize).and_then(OnceLock::get) else {
            return Err(Error::Malformed(format!("block in file {i} of the arena, which has none")));
        };
        let bit = 1 << i;
        if self.0.files().mapped.load(Ordering::Acquire) & bit != 0 {
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
        self.0.files().mapped.fetch_or(bit, Ordering::AcqRel);
        Ok(())
    }

    /// Returns the file of a ready extent, and opens it if necessary.
    fn opened(self, i: u32) -> Result<&'static OpenedFile> {
        let unknown = || Error::Malformed(format!("block in file {i} of the arena, which has none"));
        let slot = self.0.files().named.get(i as usize).ok_or_else(unknown)?;
        if let Some(opened) = slot.get() {
            return Ok(opened);
        }
        let mut opening = self.0.files().opening.lock();
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

    /// Stores the file of an extent that this process has created, and maps the file.
    pub(crate) fn use_extent(self, i: u32, fd: OwnedFd, parent: PathBuf, len: u64) -> Result<()> {
        let mut opening = self.0.files().opening.lock();
        self.0.files().named[i as usize].get_or_init(|| OpenedFile { fd, parent });
        self.map_opened(i, len, &mut opening)
    }

    /// Takes the locks of all named files that this process does not hold yet. Called after the process has
    /// joined, and when it checks for dead members.
    pub(crate) fn hold_extents(self) {
        for (i, state) in self.extents() {
            let named = matches!(state, Extent::Named(_) | Extent::Open);
            let Some(slot) =
                self.0.files().named.get(i as usize).filter(|slot| named && slot.get().is_none())
            else {
                continue;
            };
            let mut opening = self.0.files().opening.lock();
            // A missing file is no error here, only for a caller that needs the file.
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

    /// Creates the first file if this process uses files and there is none. Called before a child is started,
    /// so that the child locks the file as soon as it joins.
    fn make_first_file(self) {
        if settings::stamp().0
            && self.has_extents()
            && self.extents().next().is_none()
            && let (Ok(me), Some(class)) = (self.me(), size_class::class_of(1))
        {
            // An unusable directory is reported when the first tensor is created.
            _ = self.frontier_in_files(self.class_by_strategy(class), me);
        }
    }

    /// Returns the class in which this process allocates tensors of a size at present.
    pub(crate) fn class_by_strategy(self, class: u32) -> u32 {
        let files = settings::stamp().0 && self.has_extents();
        if files { size_class::twin_in_files(class) } else { class }
    }

    /// Returns `true` if this process may allocate blocks in a slab: the slab is in the arena's own file, or
    /// in the selected directory.
    #[inline]
    pub(crate) fn slab_is_chosen(self, base: u64) -> bool {
        self.extent_of(base).is_none_or(|i| self.chosen_extents() >> i & 1 == 1)
    }

    fn chosen_extents(self) -> u32 {
        let stamp = settings::stamp().1;
        let chosen = self.0.files().chosen.load(Ordering::Acquire);
        if chosen >> 32 == stamp & 0xffff_ffff { chosen as u32 } else { self.choose_extents() }
    }

    /// Finds the extents in the selected directory.
    #[cold]
    pub(crate) fn choose_extents(self) -> u32 {
        let (settings, stamp) = settings::settings();
        let open = self.extents().filter(|&(_, s)| s == Extent::Open);
        let ours = open.filter(|&(i, _)| self.extent_file(i).is_some_and(|(p, _)| p == settings.directory));
        let mask = ours.fold(0_u32, |mask, (i, _)| mask | 1 << i);
        self.0.files().chosen.store(u64::from(mask) | stamp << 32, Ordering::Release);
        mask
    }

    /// Returns the place of a new slab of a file class: the word of its frontier, and the end of its file.
    pub(crate) fn frontier_in_files(self, class: u32, me: Member) -> Result<(Word, u64)> {
        static CLEANED: PerProcess<Mutex<Vec<PathBuf>>> = per_process!(Mutex::new(Vec::new()));
        let directory = settings::settings().0.directory;
        // On the first use by this process, remove files that dead processes left.
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

    /// Removes files of dead processes from the directory that this process uses, if any. Called after a
    /// death.
    pub(crate) fn clean_up(self) {
        if self.extents().next().is_some() {
            clean(&settings::settings().0.directory);
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

/// Removes files that dead processes left in the user's directory below `parent`.
fn clean(parent: &Path) {
    _ = leftovers(parent, true);
}

/// Finds the files that crashed programs of this user left below a sharing directory, and removes them if
/// `remove` is `true`. Returns the path and the size in memory of each file, in bytes.
///
/// ```
/// let left = mp_core::leftovers(&mp_core::get_sharing_directory(), false)?;
/// println!("{} files of crashed programs", left.len());
/// # Ok::<(), mp_core::Error>(())
/// ```
///
/// A program leaves files only if it uses the strategy `file_system` and all its processes are killed. The
/// user's next program that uses the directory removes these files, too. Files of live programs are never
/// removed.
///
/// # Errors
/// [`Error::Directory`] if this user's directory below `parent` can't be opened, or does not have this user
/// as its owner and the mode 0700.
pub fn leftovers(parent: &Path, remove: bool) -> Result<Vec<(PathBuf, u64)>> {
    let Some(directory) = Directory::open(parent)? else { return Ok(Vec::new()) };
    let left = directory.leftovers(owners_live, remove);
    if remove && !left.is_empty() {
        directory.remove_if_empty();
    }
    Ok(left)
}

/// Removes files that dead processes left in the default directory. Called before a new arena is created.
pub(crate) fn clean_default() {
    if SharingStrategy::FileSystem.supported() {
        clean(&settings::Settings::default().directory);
    }
}

/// Creates a named file for a whole arena, and locks it. For systems without anonymous files.
pub(crate) fn create_arena_file(parent: &Path, len: u64) -> Result<OwnedFd> {
    let mut last = 0;
    let (fd, _) = directory::create_named(parent, len, len, |name| last = name)?;
    *MADE.lock() = Some((parent.into(), last));
    Ok(fd)
}

/// Removes the file that this process has created last. Called if the creation of an arena in it failed.
pub(crate) fn remove_arena_file() {
    if let Some((parent, name)) = MADE.lock().take()
        && let Ok(Some(directory)) = Directory::open(&parent)
    {
        directory.remove(name);
        directory.remove_if_empty();
    }
}

/// Checks a file that a parent has sent, and locks it if it is named. Returns its length.
pub(crate) fn verify(fd: BorrowedFd<'_>) -> Result<u64> {
    if SharingStrategy::FileDescriptor.supported() {
        return memory::verify_sealed(fd);
    }
    memory::verify_private(fd)
}

/// Makes this process remove unused named files when it ends, including files that only other processes have
/// used.
pub(crate) fn watch_the_end() {
    if SharingStrategy::FileSystem.supported() {
        at_exit::on_exit(leave_files);
    }
}

/// Removes the files that no other process uses, at the end of the process.
fn leave_files() {
    let Some(arena) = Arena::get() else { return };
    let mut known: Vec<(PathBuf, u128)> =
        Backing(arena).extents().filter_map(|(i, _)| Backing(arena).extent_file(i)).collect();
    if !SharingStrategy::FileDescriptor.supported()
        && let Some(own) = own_file(arena)
    {
        known.push(own);
    }
    // The arena shows if this process is the last member. The owners that files list can't be checked in all
    // systems.
    let owners: Reader = if Members(arena).is_last() { |_| Owners::Gone } else { others_live };
    // This process releases its locks, since they would keep the files. Other live processes have their own
    // locks.
    Backing(arena).let_go();
    for (parent, name) in known {
        if let Ok(Some(directory)) = Directory::open(&parent) {
            directory.remove_unused(name, owners);
            directory.remove_if_empty();
        }
    }
}

/// Returns the directory chosen by the user and the name of the arena's own file, if it is named.
fn own_file(arena: Arena) -> Option<(PathBuf, u128)> {
    let made = MADE.lock().take();
    made.or_else(|| arena.file().ok().and_then(memory::path_of).and_then(split))
}

/// Splits the path of one of the library's files into the directory chosen by the user and the name.
fn split(path: PathBuf) -> Option<(PathBuf, u128)> {
    let name = directory::name_of(&path)?;
    Some((path.parent()?.parent()?.into(), name))
}

impl Backing {
    fn let_go(self) {
        let files = self.0.files();
        for file in files.named.iter().filter_map(OnceLock::get) {
            directory::unlock(file.fd.as_fd());
        }
        for (_, fd) in &files.opening.lock().early {
            directory::unlock(fd.as_fd());
        }
        if !SharingStrategy::FileDescriptor.supported()
            && let Some(own) = &files.own
        {
            directory::unlock(own.as_fd());
        }
    }
}

/// Maps an arena's own file, or private memory.
pub(crate) fn map_own(own: Option<BorrowedFd<'_>>, len: u64, space: u64) -> Result<Mapping> {
    // A memfd is mapped over all addresses, so there is one mapping: accesses beyond the file's end fail
    // (SIGBUS) like accesses to unmapped addresses (SIGSEGV). Other files are mapped up to their end, since
    // files on hugetlbfs may grow by a longer mapping. So is a memfd under valgrind: when a process ends,
    // memcheck reads each word of the mapping, with a SIGBUS for each word beyond the file's end.
    let whole = SharingStrategy::FileDescriptor.supported() && !crate::sys::under_valgrind();
    let mapped = if whole { space } else { len };
    own.map_or_else(|| Mapping::local(len), |fd| Mapping::new(fd, mapped, space))
}

impl Backing {
    /// Maps the files that this process has inherited by a fork, at the addresses of its parent, for private
    /// writes. Called in the forked process, where no other thread exists. Takes no lock.
    ///
    /// # Errors
    /// [`Error::Local`] if the arena has no file, [`Error::Os`] if the addresses are in use or a file can't
    /// be opened again.
    pub(crate) fn map_privately(self) -> Result<()> {
        // A mapping of the inherited descriptions would keep the parent's locks after this process has closed
        // its descriptors.
        let place = |fd: BorrowedFd<'_>, offset, len| {
            let reopened = memory::reopen_in_copy(fd).map_err(os("re-opening a file in a forked process"))?;
            self.map().place_in_copy(reopened.as_fd(), offset, len)
        };
        let (own, files) = (self.0.file()?, self.0.files());
        self.map().reserve_in_copy()?;
        place(own, 0, self.layout().size)?;
        let mapped = files.mapped.load(Ordering::Acquire);
        let named = (0_u32..).zip(&files.named).filter(|(i, _)| mapped >> i & 1 == 1);
        for (i, file) in named.filter_map(|(i, file)| Some((i, file.get()?))) {
            let len = foreign::length(file.fd.as_fd())?.min(self.layout().slot());
            place(file.fd.as_fd(), self.extent_base(i), len)?;
        }
        Ok(())
    }
}
