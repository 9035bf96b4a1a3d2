//! File of an arena: creation, sealing, growth, shrinking, re-opening.
//!
//! References: `memfd_create(2)`, `fcntl(2)` (file sealing), `fallocate(2)`.

use std::ffi::{CStr, OsStr, OsString};
use std::io::Write;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use memfd::{FileSeal, Memfd};
use rustix::fs::{FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;

use crate::error::{Error, Result, printable};
use crate::sys::os;
use crate::sys::packets;

/// Creates a sparse file of `len` bytes, sealed against shrinking and growing.
pub(crate) fn create(name: &str, len: u64) -> Result<OwnedFd> {
    let fd = create_memfd(name)?;
    rustix::fs::ftruncate(&fd, len).map_err(os("ftruncate of a new arena"))?;
    let sealed = Memfd::try_from_fd(fd).map_err(|fd| not_sealable(&fd))?;
    sealed.add_seals(&[FileSeal::SealShrink, FileSeal::SealGrow, FileSeal::SealSeal]).map_err(
        |e| match e {
            memfd::Error::AddSeals(source)
            | memfd::Error::GetSeals(source)
            | memfd::Error::Create(source) => Error::Os { what: "fcntl(F_ADD_SEALS) of a new arena", source },
        },
    )?;
    Ok(sealed.into_file().into())
}

/// Returns the error of a new memfd whose seals can't be read.
fn not_sealable(fd: &OwnedFd) -> Error {
    match rustix::fs::fcntl_get_seals(fd) {
        Ok(_) => Error::NotAnArena("the new file is no memfd".into()),
        Err(e) => os("fcntl(F_GET_SEALS) of a new arena")(e),
    }
}

/// Creates an empty memfd that can be sealed.
pub(in crate::sys) fn create_memfd(name: &str) -> Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // MFD_NOEXEC_SEAL is new in Linux 6.3; older kernels return EINVAL.
    rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL)
        .or_else(|e| if e == Errno::INVAL { rustix::fs::memfd_create(name, flags) } else { Err(e) })
        .map_err(os("memfd_create"))
}

/// Checks that `fd` is a memfd sealed against shrinking, so that no access to it can raise SIGBUS. Returns
/// its length.
pub(crate) fn verify_sealed(fd: BorrowedFd<'_>) -> Result<u64> {
    let seals = rustix::fs::fcntl_get_seals(fd).map_err(|e| match e {
        Errno::INVAL => Error::NotAnArena(format!("the file descriptor is no memfd: {e}")),
        e => os("fcntl(F_GET_SEALS) of an arena")(e),
    })?;
    if !seals.contains(SealFlags::SHRINK) {
        return Err(Error::NotAnArena("the memfd is not sealed against shrinking".into()));
    }
    let stat = rustix::fs::fstat(fd).map_err(os("fstat of an arena"))?;
    Ok(stat.st_size as u64)
}

/// Checks that `fd` is a file of this user, which no other user may open. Returns its length.
pub(crate) fn verify_private(fd: BorrowedFd<'_>) -> Result<u64> {
    let stat = rustix::fs::fstat(fd).map_err(os("fstat of an arena"))?;
    let kind = rustix::fs::FileType::from_raw_mode(stat.st_mode);
    if kind != rustix::fs::FileType::RegularFile || stat.st_uid != user() || stat.st_mode & 0o77 != 0 {
        return Err(Error::NotAnArena("the file descriptor is no file of this user's alone".into()));
    }
    Ok(stat.st_size as u64)
}

/// Reads the first words of a file. `pread(2)`.
pub(crate) fn read_words<const N: usize>(fd: BorrowedFd<'_>) -> Result<[u64; N]> {
    let mut words = [0_u64; N];
    match rustix::io::pread(fd, bytemuck::cast_slice_mut::<u64, u8>(&mut words), 0) {
        Ok(got) if got == size_of_val(&words) => Ok(words),
        Ok(_) => Err(Error::NotAnArena("it has no header".into())),
        Err(e) => Err(Error::Os { what: "reading the header of an arena", source: e.into() }),
    }
}

/// Returns `true` if a file has committed memory for a byte at or after `at`. Reference: `lseek(2)`.
#[cfg(test)]
pub(crate) fn has_data_from(fd: BorrowedFd<'_>, at: u64) -> bool {
    rustix::fs::seek(fd, rustix::fs::SeekFrom::Data(at)) != Err(Errno::NXIO)
}

/// Returns the path of an open file.
pub(crate) fn path_of(fd: BorrowedFd<'_>) -> Option<std::path::PathBuf> {
    std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).ok()
}

/// Returns `true` if this process has the file open by another descriptor as well. Without `/proc`, returns
/// `false`.
pub(crate) fn is_open_twice(fd: BorrowedFd<'_>) -> bool {
    let id = |stat: std::fs::Metadata| (stat.dev(), stat.ino());
    let at = |number: &OsStr| std::fs::metadata(Path::new("/proc/self/fd").join(number)).map(id);
    let this = OsString::from(fd.as_raw_fd().to_string());
    let (Ok(file), Ok(open)) = (at(&this), std::fs::read_dir("/proc/self/fd")) else { return false };
    let numbers = open.filter_map(|entry| Some(entry.ok()?.file_name()));
    numbers.filter(|number| *number != this).any(|number| at(&number).is_ok_and(|other| other == file))
}

/// Opens the file of a descriptor again. The result is a separate open file description, as
/// open-file-description locks need it.
pub(crate) fn reopen(fd: BorrowedFd<'_>) -> Result<OwnedFd> {
    reopen_in_copy(fd).map_err(|errno| match errno {
        Errno::MFILE | Errno::NFILE => packets::refused("re-open the arena's file", errno),
        other => os("re-opening the arena through /proc/self/fd (is /proc mounted?)")(other),
    })
}

/// Opens the file of a descriptor again, like [`reopen`], but without an allocation.
pub(crate) fn reopen_in_copy(fd: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let mut path = [0; 32];
    _ = write!(&mut path[..], "/proc/self/fd/{}", fd.as_raw_fd());
    let path = CStr::from_bytes_until_nul(&path).unwrap_or_default();
    rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
}

/// Commits the pages of `len` bytes at `offset`.
pub(crate) fn commit(fd: BorrowedFd<'_>, offset: u64, len: u64) -> Result<(), Errno> {
    loop {
        match rustix::fs::fallocate(fd, FallocateFlags::KEEP_SIZE, offset, len) {
            Err(Errno::INTR) => {}
            done => return done,
        }
    }
}

/// Returns the pages of `len` bytes at `offset` to the kernel. They read as zero from now on.
pub(crate) fn punch(fd: BorrowedFd<'_>, offset: u64, len: u64) -> Result<(), Errno> {
    rustix::fs::fallocate(fd, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, len)
}

/// Returns the number of committed bytes of the file.
pub(crate) fn committed(fd: BorrowedFd<'_>) -> u64 {
    rustix::fs::fstat(fd).map_or(0, |s| s.st_blocks as u64 * 512)
}

/// Returns a number that differs between processes and between calls. Not suitable for cryptographic keys.
pub(crate) fn random_u64() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    // RandomState is seeded by getrandom(2) once for each process, and differs for each instance.
    let mut h = std::hash::RandomState::new().build_hasher();
    h.write_u32(std::process::id());
    h.finish()
}

/// Returns the first 1 KiB of a file of `/proc`. Makes a single call of `read`, because each worker reads
/// such a file while it starts.
fn read_small(path: &str) -> Option<String> {
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut bytes = [0; 1024];
    let len = rustix::io::retry_on_intr(|| rustix::io::read(&file, &mut bytes)).ok()?;
    // A program name truncated by the kernel may end within a character.
    Some(String::from_utf8_lossy(bytes.get(..len)?).into_owned())
}

/// Returns the boot id, folded to 64 bits. An arena with another boot id is from before a reboot.
pub(crate) fn boot_id() -> u64 {
    let text = read_small("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    crate::fnv1a(text.trim().as_bytes())
}

/// Returns the start time of a process in clock ticks since boot (field 22 of `/proc/<pid>/stat`). Returns
/// `None` if the process has ended, even if it was not reaped yet.
pub(crate) fn start_time_of(pid: u32) -> Option<u64> {
    let stat = read_small(&format!("/proc/{pid}/stat"))?;
    // The command name may contain spaces and parentheses: count from the last one.
    let mut rest = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    match rest.next()? {
        "Z" | "X" => None,
        _ => rest.nth(18)?.parse().ok(),
    }
}

/// Opens, for reading, a memfd with this name that the process `pid` has open.
///
/// `own` is the arena's file of this process. If the other process has the same file open, the result is
/// `None`: closing a second descriptor of the file would drop the locks of this process. Descriptors without
/// write access are skipped, since they belong to observers.
pub(crate) fn open_of_process(pid: u32, name: &str, own: Option<BorrowedFd<'_>>) -> Result<Option<OwnedFd>> {
    use std::os::unix::fs::MetadataExt as _;
    let namespace = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/pid")).ok();
    let (theirs, ours) = (namespace(&pid.to_string()), namespace("self"));
    if theirs.is_some() && theirs != ours {
        return Err(Error::Unsupported(format!(
            "process {pid} has another PID namespace: look from within, as by `nsenter --target {pid} --pid \
             --mount`"
        )));
    }
    let own = own.and_then(|own| rustix::fs::fstat(own).ok());
    let folder = std::fs::read_dir(format!("/proc/{pid}/fd")).map_err(|source| Error::Os {
        what: "listing the descriptors of a process in /proc (is it yours?)",
        source,
    })?;
    let link = format!("/memfd:{name}");
    for entry in folder.flatten() {
        let is_it = |path: std::path::PathBuf| path.to_str().is_some_and(|path| path.starts_with(&link));
        // The permissions of the link show how the descriptor was opened.
        let is_writable = || entry.metadata().is_ok_and(|link| link.mode() & 0o200 != 0);
        let file = std::fs::metadata(entry.path()).ok().map(|file| (file.dev(), file.ino()));
        if own.is_some_and(|own| file == Some((own.st_dev, own.st_ino))) {
            return Ok(None);
        }
        if !std::fs::read_link(entry.path()).is_ok_and(is_it) || !is_writable() {
            continue;
        }
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        return rustix::fs::open(entry.path(), flags, Mode::empty())
            .map(Some)
            .map_err(os("opening the arena of a process through /proc (is it yours?)"));
    }
    Err(Error::NotAnArena(format!("process {pid} has none: it uses no shared memory of this library")))
}

/// Returns `true` if a process is stopped by a signal or a tracer, `false` if its state is not accessible.
pub(crate) fn is_stopped(pid: u32) -> bool {
    stopped_and_parent(pid).0
}

/// Reads the state of a process. Returns the result of [`is_stopped`], and the process id of the parent (0 if
/// unknown).
pub(crate) fn stopped_and_parent(pid: u32) -> (bool, u32) {
    let stat = read_small(&format!("/proc/{pid}/stat")).unwrap_or_default();
    let mut fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_ascii_whitespace();
    let is_stopped = matches!(fields.next(), Some("T" | "t"));
    (is_stopped, fields.next().and_then(|parent| parent.parse().ok()).unwrap_or(0))
}

/// Returns the name of a thread (`comm`, see `proc_pid_comm(5)`), or `None` if it is not accessible.
pub(crate) fn thread_name(pid: u32, thread: u32) -> Option<String> {
    Some(printable(read_small(&format!("/proc/{pid}/task/{thread}/comm"))?.trim_end()))
}

/// Returns the process id of the parent of this process, or 0 if the parent is in another pid namespace.
pub(crate) fn parent_pid() -> u32 {
    rustix::process::getppid().map_or(0, |p| p.as_raw_nonzero().get().cast_unsigned())
}

/// Returns the real user id of this process.
pub(crate) fn user() -> u32 {
    rustix::process::getuid().as_raw()
}

/// Returns the time of the monotonic clock in milliseconds. All processes of the machine share the clock.
pub(crate) fn monotonic_ms() -> u64 {
    crate::sys::monotonic().as_millis() as u64
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "makes files")]
    fn unsealed_arena_file_is_refused() {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let open = rustix::fs::memfd_create("mp-open", flags).unwrap();
        rustix::fs::ftruncate(&open, 4096).unwrap();
        let refused = verify_sealed(open.as_fd());
        assert!(matches!(&refused, Err(Error::NotAnArena(why)) if why.contains("sealed")), "{refused:?}");
        assert_eq!(verify_sealed(create("mp-sealed", 4096).unwrap().as_fd()).unwrap(), 4096);
    }
}
