//! Files shared with other programs: by a name under `/dev/shm`, by a path, or by a descriptor.
//!
//! References: `shm_open(3)`, `shm_overview(7)`, `open(2)`, `fcntl(2)` (file sealing, open file description
//! locks).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, SealFlags};
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::sys::{limits, memory, os};

/// Directory of POSIX shared memory on Linux.
const FOLDER: &str = "/dev/shm";

fn folder() -> Result<OwnedFd> {
    rustix::fs::open(FOLDER, OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .map_err(os("opening /dev/shm (is it mounted?)"))
}

/// Creates the error of a failed operation on a name under `/dev/shm`, with advice to the user.
fn of_name(what: &'static str, name: &str) -> impl FnOnce(Errno) -> Error {
    move |errno| {
        let advice = match errno {
            Errno::EXIST => "; open() it, choose another name, or unlink() what a killed program has left",
            Errno::NOENT => "; another process has to create() it first, and not to have taken the name away",
            _ => "",
        };
        let reason = std::io::Error::from(errno);
        let source = std::io::Error::new(reason.kind(), format!("{name:?}: {reason}{advice}"));
        Error::Os { what, source }
    }
}

/// Checks that an open file is regular and belongs to this user. Returns its length.
fn mine(fd: BorrowedFd<'_>) -> Result<u64> {
    let stat = regular(fd)?;
    let me = rustix::process::geteuid().as_raw();
    if stat.st_uid != me {
        return Err(Error::NotShareable(format!(
            "it is user {}'s, and this process is user {me}'s",
            stat.st_uid
        )));
    }
    Ok(stat.st_size as u64)
}

fn regular(fd: BorrowedFd<'_>) -> Result<rustix::fs::Stat> {
    let stat = rustix::fs::fstat(fd).map_err(os("fstat of a foreign file"))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(Error::NotShareable("it is not a regular file".into()));
    }
    Ok(stat)
}

/// Returns the length of an open regular file or memfd.
pub fn length(fd: BorrowedFd<'_>) -> Result<u64> {
    Ok(regular(fd)?.st_size as u64)
}

/// Sets the length of a file and commits its pages: otherwise writing to it could raise SIGBUS.
fn reserve(fd: BorrowedFd<'_>, len: u64) -> Result<()> {
    // Beyond this limit `ftruncate` raises SIGXFSZ, which kills the process.
    let (left, limit) = limits::file_size();
    let (memory, memory_limit) = limits::memory_left();
    let (left, limit) = if memory < left { (memory, memory_limit) } else { (left, limit.into()) };
    if len > left {
        return Err(Error::OutOfMemory { asked: len, left, limit });
    }
    rustix::fs::ftruncate(fd, len).map_err(os("ftruncate of new shared memory"))?;
    commit(fd, len)
}

/// Commits the pages of the first `len` bytes.
pub(crate) fn commit(fd: BorrowedFd<'_>, len: u64) -> Result<()> {
    if len == 0 {
        return Ok(());
    }
    match memory::commit(fd, 0, len) {
        // Files of such a file system need no reservation.
        Err(Errno::OPNOTSUPP | Errno::NOSYS) | Ok(()) => Ok(()),
        Err(Errno::NOSPC) => {
            let left = rustix::fs::fstatvfs(fd).map_or(0, |s| s.f_bavail * s.f_frsize);
            let limit = "the file system (for names: df /dev/shm)".into();
            Err(Error::OutOfMemory { asked: len, left, limit })
        }
        Err(e) => Err(os("fallocate of shared memory")(e)),
    }
}

/// Creates a file under `/dev/shm` that only this user can open. `name` has been checked.
pub(crate) fn create(name: &str, len: u64) -> Result<OwnedFd> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = folder()?;
    let fd = rustix::fs::openat(&folder, name, flags, Mode::RUSR | Mode::WUSR)
        .map_err(of_name("creating shared memory under /dev/shm", name))?;
    if let Err(e) = reserve(fd.as_fd(), len) {
        _ = rustix::fs::unlinkat(&folder, name, AtFlags::empty());
        return Err(e);
    }
    Ok(fd)
}

/// Opens a file under `/dev/shm`, if it is regular and belongs to this user. Returns its length.
pub fn open(name: &str) -> Result<(OwnedFd, u64)> {
    // NONBLOCK: opening a pipe with that name would block before it can be rejected.
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(folder()?, name, flags, Mode::empty())
        .map_err(of_name("opening shared memory under /dev/shm", name))?;
    let len = mine(fd.as_fd())?;
    Ok((fd, len))
}

/// Removes a name from `/dev/shm`.
pub(crate) fn unlink(name: &str) -> Result<()> {
    rustix::fs::unlinkat(folder()?, name, AtFlags::empty())
        .map_err(of_name("unlinking shared memory under /dev/shm", name))
}

/// Reads bytes of a file into `to`, from byte `offset` on. Returns the number of bytes read, which is less
/// than the length of `to` only at the end of the file.
pub fn read_at(fd: BorrowedFd<'_>, mut offset: u64, mut to: &mut [u8]) -> Result<usize> {
    let asked = to.len();
    while !to.is_empty() {
        match rustix::io::pread(fd, &mut *to, offset) {
            Ok(0) => break,
            Ok(n) => {
                offset += n as u64;
                to = &mut to[n..];
            }
            Err(Errno::INTR) => {}
            Err(e) => return Err(os("reading shared memory from its file")(e)),
        }
    }
    Ok(asked - to.len())
}

fn write_all(fd: BorrowedFd<'_>, mut bytes: &[u8]) -> Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(fd, bytes) {
            Ok(n) => bytes = &bytes[n..],
            Err(Errno::INTR) => {}
            Err(e) => return Err(os("writing an exported storage")(e)),
        }
    }
    Ok(())
}

/// Creates a memfd with a copy of `bytes`, sealed against shrinking and growing.
pub fn memfd_of(bytes: &[u8]) -> Result<OwnedFd> {
    let fd = memory::create_memfd("mp-export")?;
    reserve(fd.as_fd(), bytes.len() as u64)?;
    write_all(fd.as_fd(), bytes)?;
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW)
        .map_err(os("fcntl(F_ADD_SEALS) of a memfd"))?;
    Ok(fd)
}

/// Creates a file with a copy of `bytes`, for this user only. Fails if the path exists.
pub fn file_of(path: &std::path::Path, bytes: &[u8]) -> Result<()> {
    // Beyond this limit writing raises SIGXFSZ, which kills the process.
    let (left, limit) = limits::file_size();
    if bytes.len() as u64 > left {
        return Err(Error::OutOfMemory { asked: bytes.len() as u64, left, limit: limit.into() });
    }
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR).map_err(os("creating a file"))?;
    let written = write_all(fd.as_fd(), bytes);
    if written.is_err() {
        _ = rustix::fs::unlink(path);
    }
    written
}

/// Opens a file to read.
pub fn open_to_read(path: &std::path::Path) -> Result<OwnedFd> {
    // NONBLOCK: see `open`.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).map_err(os("opening a file"))
}

/// Seals of a file that concern mappings.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Seals {
    /// `true` if no process can shrink the file.
    pub shrink: bool,
    /// `true` if no process can write the file.
    pub write: bool,
}

/// Returns the seals of a file. A kind of file without seals counts as not sealed.
pub fn seals(fd: BorrowedFd<'_>) -> Seals {
    let seals = rustix::fs::fcntl_get_seals(fd).unwrap_or(SealFlags::empty());
    Seals { shrink: seals.contains(SealFlags::SHRINK), write: seals.contains(SealFlags::WRITE) }
}

/// Tries to seal a file against shrinking. Returns `true` if it is sealed.
pub fn seal_shrink(fd: BorrowedFd<'_>) -> bool {
    seals(fd).shrink || rustix::fs::fcntl_add_seals(fd, SealFlags::SHRINK).is_ok()
}

/// Returns random bytes from the kernel, for names that can't be guessed.
pub(crate) fn random() -> Result<[u8; 16]> {
    let mut bytes = [0; 16];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).map_err(os("getrandom"))?;
    Ok(bytes)
}

/// Returns `true` if this name under `/dev/shm` refers to this open file.
pub(crate) fn is_named(fd: BorrowedFd<'_>, name: &str) -> bool {
    let Ok(folder) = folder() else { return false };
    let named = rustix::fs::statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW);
    match (named, rustix::fs::fstat(fd)) {
        (Ok(a), Ok(b)) => (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino),
        _ => false,
    }
}

/// Returns `true` if a file is open for writing.
pub fn is_writable(fd: BorrowedFd<'_>) -> bool {
    rustix::fs::fcntl_getfl(fd).is_ok_and(|flags| flags.contains(OFlags::RDWR))
}
