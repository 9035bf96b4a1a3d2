//! Directory of the named files. Operations find, validate and clean the directory, and create, open, hold
//! and remove its files.
//!
//! All files are in the directory `mp-<uid>` below the directory that the user chose. `mp-<uid>` belongs to
//! that user only (0700), so that no other user can put a file or a link into it. Files have mode 0600, and
//! their names are `mp-` and 128 random bits.
//!
//! # Ownership of a file
//! Each process that has a file open holds it by a shared `flock(2)`. If a process gets the exclusive lock,
//! no other process holds the file, and the process removes it ([`Directory::leftovers`], with an additional
//! check for files of arenas: see [`Owners`]). No process waits for a lock:
//!
//! | new file | concurrent cleaner |
//! |---|---|
//! | created, not locked yet | gets the exclusive lock and removes the file; the creator detects it (no lock, or no link), and creates another file |
//! | locked | does not get the lock |
//!
//! | killed process | remaining state | removed by |
//! |---|---|---|
//! | a creator before the lock, or any process that holds the file | the file, without that lock | the next cleaner, once no process holds it |
//! | a cleaner between lock and removal | the file, without a lock | the next cleaner |
//!
//! References: `open(2)`, `flock(2)`, `unlink(2)`, `statfs(2)`,
//! `Documentation/admin-guide/mm/hugetlbpage.rst`.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, Timespec, Timestamps, UTIME_NOW};
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::sys::{foreign, limits, memory};

/// Prefix of the file names.
const PREFIX: &str = "mp-";
/// Magic numbers of file systems: `statfs(2)`.
const HUGETLBFS: u64 = 0x9584_58f6;
const TMPFS: u64 = 0x0102_1994;
/// Maximum number of attempts to create a file, if cleaners remove it before this process holds it.
const ATTEMPTS: u32 = 16;

/// Directory of this user's named files.
#[derive(Debug)]
pub(crate) struct Directory {
    fd: OwnedFd,
    path: PathBuf,
}

/// State of the processes that may use a file, according to the file's first bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Owners {
    /// At least one of the processes lives, or may live.
    Live,
    /// None of the processes lives.
    Gone,
    /// The processes are in another pid namespace, so this process can't check them. The file is unused if
    /// its lock and the lock of the program's first file, `first`, are free. `first` is `None` if this file
    /// is the first.
    Elsewhere { first: Option<u128> },
}

/// Function that returns the state of the processes that may use a file, from the file's first bytes.
pub(crate) type Reader = fn(&[u8]) -> Owners;
/// Number of bytes passed to a [`Reader`].
pub(crate) const HEAD: usize = 20 << 10;
/// Time after a program's last start of a process in which free locks don't show that the program has ended.
/// A process that is starting may not have its locks yet.
pub(crate) const GRACE: Duration = Duration::from_secs(10);

impl Directory {
    /// Opens the directory of this user below `parent`, and creates it if it is missing.
    pub(crate) fn create_in(parent: &Path) -> Result<Self> {
        let path = Self::path_in(parent);
        let fail = |what, e: Errno| Error::Directory { path: path.clone(), what, source: e.into() };
        match rustix::fs::mkdir(&path, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(e) => return Err(fail("it can't be made", e)),
        }
        Self::open(parent)?.ok_or_else(|| fail("it has just been removed", Errno::NOENT))
    }

    /// Opens the directory of this user below `parent`, if it exists.
    pub(crate) fn open(parent: &Path) -> Result<Option<Self>> {
        let path = Self::path_in(parent);
        let fail = |what, source| Error::Directory { path: path.clone(), what, source };
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
        let fd = match rustix::fs::open(&path, flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Ok(None),
            Err(e) => return Err(fail("it can't be opened (a link is not followed)", e.into())),
        };
        let stat = rustix::fs::fstat(&fd).map_err(|e| fail("fstat", e.into()))?;
        let (uid, mode) = (memory::user(), stat.st_mode & 0o777);
        if stat.st_uid != uid || mode != 0o700 {
            let found = format!("its owner is {} and its mode {mode:o}; {uid} and 700 needed", stat.st_uid);
            return Err(fail("it is not this user's alone", io::Error::other(found)));
        }
        Ok(Some(Self { fd, path }))
    }

    fn path_in(parent: &Path) -> PathBuf {
        parent.join(format!("mp-{}", memory::user()))
    }

    fn fail(&self, what: &'static str) -> impl Fn(Errno) -> Error + use<'_> {
        move |e| Error::Directory { path: self.path.clone(), what, source: e.into() }
    }

    /// Returns the granularity of file sizes in bytes: the size of a huge page on hugetlbfs, otherwise 4096.
    pub(crate) fn grain(&self) -> u64 {
        huge_page_of(self.fd.as_fd()).unwrap_or(4096)
    }

    /// Creates a sparse file of `len` bytes, held by this process. Returns its length.
    ///
    /// If the file system does not support files of that length, the file is shorter, but at least `least`
    /// bytes.
    pub(crate) fn create(&self, name: u128, len: u64, least: u64) -> Result<(OwnedFd, u64)> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let fd = rustix::fs::openat(&self.fd, file_name(name), flags, mode)
            .map_err(self.fail("no file can be made in it"))?;
        let len = self.size_new(&fd, len, least).inspect_err(|_| self.remove(name))?;
        Ok((fd, len))
    }

    /// Locks a new file and sets its length. Returns the length, which may be less than `len`, as for
    /// [`create`](Self::create).
    fn size_new(&self, fd: &OwnedFd, mut len: u64, least: u64) -> Result<u64> {
        if !lock_shared(fd.as_fd()).map_err(self.fail("a new file in it can't be locked"))? {
            return Err(self.fail("a new file in it was removed at once, by another process")(Errno::AGAIN));
        }
        loop {
            // The caller has checked RLIMIT_FSIZE: beyond it this raises SIGXFSZ.
            match rustix::fs::ftruncate(fd, len) {
                Ok(()) => return Ok(len),
                Err(Errno::FBIG | Errno::INVAL | Errno::NOSPC) if len / 2 >= least => {
                    len = (len / 2).next_multiple_of(self.grain());
                }
                Err(e) => return Err(self.fail("ftruncate of a new file in it")(e)),
            }
        }
    }

    /// Opens and holds a file of at least `len` bytes.
    pub(crate) fn open_file(&self, name: u128, len: u64) -> Result<OwnedFd> {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let gone = "shared memory in it is gone (was it removed from outside?)";
        let fd = rustix::fs::openat(&self.fd, file_name(name), flags, Mode::empty())
            .map_err(self.fail("a file in it can't be opened"))?;
        if !lock_shared(fd.as_fd()).map_err(self.fail("a file in it can't be locked"))? {
            return Err(self.fail(gone)(Errno::NOENT));
        }
        let stat = rustix::fs::fstat(&fd).map_err(self.fail("fstat of a file in it"))?;
        // An access to a mapped file that is shorter than the arena raises SIGBUS.
        if stat.st_uid != memory::user() || (stat.st_size as u64) < len {
            return Err(self.fail("a file in it was cut off, or is another user's")(Errno::STALE));
        }
        Ok(fd)
    }

    /// Removes a file, if it exists.
    pub(crate) fn remove(&self, name: u128) {
        _ = rustix::fs::unlinkat(&self.fd, file_name(name), AtFlags::empty());
    }

    /// Removes the directory, if it is empty.
    pub(crate) fn remove_if_empty(&self) {
        _ = rustix::fs::rmdir(&self.path);
    }

    /// Removes a file, unless a process uses it. Returns `true` if it was removed.
    pub(crate) fn remove_unused(&self, name: u128, owners: Reader) -> bool {
        self.remove_unheld(&file_name(name), owners)
    }

    /// Finds the files that dead programs have left, and removes them if `remove` is `true`. Returns their
    /// paths and their sizes in memory. Files whose names this library does not create are ignored.
    pub(crate) fn leftovers(&self, owners: Reader, remove: bool) -> Vec<(PathBuf, u64)> {
        // Lists the directory by its descriptor, since the path may lead elsewhere by now.
        let Ok(entries) = rustix::fs::Dir::read_from(&self.fd) else { return Vec::new() };
        let names = entries.filter_map(|e| e.ok()?.file_name().to_str().ok().map(str::to_owned));
        let ours = |name: &String| name_of(Path::new(name)).is_some();
        let left = |name: String| {
            let file = self.unheld(&name, owners)?;
            let left = (self.path.join(&name), memory::committed(file.as_fd()));
            (!remove || self.unlink(&name)).then_some(left)
        };
        names.filter(ours).filter_map(left).collect()
    }

    fn remove_unheld(&self, name: &str, owners: Reader) -> bool {
        // The file stays locked until it is removed.
        self.unheld(name, owners).is_some_and(|_file| self.unlink(name))
    }

    fn unlink(&self, name: &str) -> bool {
        rustix::fs::unlinkat(&self.fd, name, AtFlags::empty()).is_ok()
    }

    /// Opens a file that no process uses, and locks it. Returns `None` if a process uses the file.
    fn unheld(&self, name: &str, owners: Reader) -> Option<fs::File> {
        let file = self.open_stale(name).ok()??;
        // Checked first, so that a file in use is never locked.
        let may = || self.may_be_removed(&file, owners);
        (may() && lock_alone(&file) && may()).then_some(file)
    }

    /// Opens a regular file of the directory for reading. Returns `None` if the name does not exist.
    fn open_stale(&self, name: &str) -> Result<Option<fs::File>, Errno> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = match rustix::fs::openat(&self.fd, name, flags, Mode::empty()) {
            Ok(fd) => fs::File::from(fd),
            Err(Errno::NOENT) => return Ok(None),
            Err(e) => return Err(e),
        };
        if file.metadata().is_ok_and(|m| m.is_file()) { Ok(Some(file)) } else { Err(Errno::INVAL) }
    }

    /// Returns `true` if no living process uses the file, provided that the file's lock is free.
    fn may_be_removed(&self, file: &fs::File, owners: Reader) -> bool {
        match owners(&head_of(file.as_fd())) {
            Owners::Live => false,
            Owners::Gone => true,
            Owners::Elsewhere { first: None } => is_old(file),
            Owners::Elsewhere { first: Some(first) } => is_old(file) && self.is_over(first, owners),
        }
    }

    /// Returns `true` if the program whose first file is `first` has ended.
    fn is_over(&self, first: u128, owners: Reader) -> bool {
        match self.open_stale(&file_name(first)) {
            // The first file is removed only after the end of its program.
            Ok(None) => true,
            Ok(Some(file)) => match owners(&head_of(file.as_fd())) {
                Owners::Elsewhere { first: None } => is_old(&file) && lock_alone(&file),
                Owners::Gone => lock_alone(&file),
                Owners::Live | Owners::Elsewhere { .. } => false,
            },
            Err(_) => false,
        }
    }
}

/// Acquires the exclusive lock of a file. Returns `false` if another process holds a lock. The lock is
/// released when the file is closed.
fn lock_alone(file: &fs::File) -> bool {
    rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive).is_ok()
}

/// Returns `true` if the file was modified at least [`GRACE`] ago. Returns `false` for a time in the future,
/// since the clock may have been set back.
fn is_old(file: &fs::File) -> bool {
    let changed = file.metadata().and_then(|m| m.modified());
    changed.is_ok_and(|t| SystemTime::now().duration_since(t).is_ok_and(|age| age >= GRACE))
}

/// Updates the file's modification time, because a process is being started that will hold the file. See
/// [`GRACE`].
pub(crate) fn note_start(fd: BorrowedFd<'_>) {
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    // On a file system without times, only the lock decides.
    _ = rustix::fs::futimens(fd, &Timestamps { last_access: now, last_modification: now });
}

/// Returns the size of the pages of a file or directory on hugetlbfs, or `None` on another file system.
pub(crate) fn huge_page_of(fd: BorrowedFd<'_>) -> Option<u64> {
    let status = rustix::fs::fstatfs(fd).ok()?;
    (status.f_type as u64 == HUGETLBFS).then_some(status.f_bsize as u64)
}

/// Writes a word into a file at offset `at`. Has no effect on file systems without write support, such as
/// hugetlbfs.
pub(crate) fn write_word(fd: BorrowedFd<'_>, at: u64, word: u64) {
    _ = rustix::io::pwrite(fd, &word.to_ne_bytes(), at);
}

/// Returns the first bytes of a file, at most [`HEAD`].
pub(crate) fn head_of(fd: BorrowedFd<'_>) -> Vec<u8> {
    // A short read is possible: hugetlbfs returns whole pages, and a new file is empty.
    let mut head = vec![0; HEAD];
    let mut have = 0;
    while let Ok(n @ 1..) = rustix::io::pread(fd, &mut head[have..], have as u64) {
        have += n;
    }
    head.truncate(have);
    head
}

/// Returns the number of bytes of memory or disk by which a file can grow, and the limiting resource.
pub(crate) fn room(fd: BorrowedFd<'_>, path: &Path) -> (u64, String) {
    let Ok(s) = rustix::fs::fstatfs(fd) else { return (u64::MAX, "no limit".into()) };
    let (kind, free) = (s.f_type as u64, s.f_bavail.saturating_mul(s.f_bsize as u64));
    let (space, limit) = match kind {
        // A tmpfs without a size limit.
        TMPFS if s.f_blocks == 0 => (u64::MAX, String::new()),
        HUGETLBFS => {
            // A mount without a size limit reports 0.
            let all = limits::huge_pages_left(s.f_bsize as u64);
            let free = if s.f_blocks == 0 { all } else { free.min(all) };
            (free, format!("the huge pages of {} (vm.nr_hugepages)", path.display()))
        }
        _ => (free, format!("the free space of {} (set_sharing_directory)", path.display())),
    };
    // Files on a tmpfs use memory; elsewhere pages can be written back.
    let (memory, what) = if kind == TMPFS { limits::memory_left() } else { (u64::MAX, String::new()) };
    if memory < space { (memory, what) } else { (space, limit) }
}

fn file_name(name: u128) -> String {
    format!("{PREFIX}{name:032x}")
}

/// Returns the number in a file name that [`file_name`] has created, or `None` for other file names.
pub(crate) fn name_of(file: &Path) -> Option<u128> {
    let digits = file.file_name()?.to_str()?.strip_prefix(PREFIX)?;
    u128::from_str_radix(digits, 16).ok().filter(|_| digits.len() == 32)
}

/// Acquires a shared lock of a file, and checks that the file still has its name. Returns `false` if another
/// process is removing it.
pub(crate) fn lock_shared(fd: BorrowedFd<'_>) -> Result<bool, Errno> {
    loop {
        match rustix::fs::flock(fd, FlockOperation::NonBlockingLockShared) {
            Ok(()) => return Ok(rustix::fs::fstat(fd)?.st_nlink > 0),
            Err(Errno::WOULDBLOCK) => return Ok(false),
            Err(Errno::INTR) => {}
            Err(e) => return Err(e),
        }
    }
}

/// Creates a file with a unique name, held by this process. Tries again if a cleaner removes the file before
/// this process holds it.
///
/// `named` is called with each name before the file is created.
pub(crate) fn create_named(
    parent: &Path,
    len: u64,
    least: u64,
    mut named: impl FnMut(u128),
) -> Result<(OwnedFd, u64)> {
    let mut attempt = 0;
    loop {
        let name = u128::from_ne_bytes(foreign::random()?);
        named(name);
        let made = Directory::create_in(parent).and_then(|d| d.create(name, len, least));
        attempt += 1;
        match made {
            // A cleaner removed the file, or the directory with it.
            Err(Error::Directory { source, .. })
                if attempt < ATTEMPTS
                    && matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::WouldBlock)
                    && parent.is_dir() => {}
            other => return other,
        }
    }
}

/// Returns the pid namespace of this process; 0 if unknown.
pub(crate) fn process_namespace() -> u64 {
    fs::metadata("/proc/self/ns/pid").map_or(0, |m| m.ino())
}

/// Releases this process's lock of a file.
pub(crate) fn unlock(fd: BorrowedFd<'_>) {
    _ = rustix::fs::flock(fd, FlockOperation::Unlock);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An access to a mapping of the truncated file would raise SIGBUS.
    #[test]
    #[cfg_attr(miri, ignore = "makes files")]
    fn truncated_extent_file_is_refused() {
        let parent = std::env::temp_dir().join(format!("mp-cut-off-{}", std::process::id()));
        fs::create_dir(&parent).unwrap();
        let directory = Directory::create_in(&parent).unwrap();
        let (file, len) = directory.create(7, 1 << 20, 1 << 20).unwrap();
        assert!(directory.open_file(7, len).is_ok());
        rustix::fs::ftruncate(&file, len - 1).unwrap();
        let refused = directory.open_file(7, len).unwrap_err().to_string();
        assert!(refused.contains("cut off"), "{refused}");
        fs::remove_dir_all(parent).unwrap();
    }
}
