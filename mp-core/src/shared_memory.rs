//! Named shared memory, for processes of different trees.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::{ByteSize, Error, Result};
use crate::mem::{Word, bytes};
use crate::sync::shared::AtomicU64;
use crate::sys::foreign;
use crate::sys::region::{MapMode, Region};

/// Named shared memory under `/dev/shm`, which any process of the same user can open. Compatible with
/// Python's `multiprocessing.shared_memory.SharedMemory`.
///
/// ```
/// use mp_core::SharedMemory;
///
/// let ours = SharedMemory::new(100)?.unlink_on_drop(); // a name that can't be guessed
/// let theirs = SharedMemory::open(ours.name())?; // in another process, usually
/// theirs.write_at(10, b"hello")?;
/// assert_eq!(ours.read(10, 5)?, b"hello");
/// # Ok::<(), mp_core::Error>(())
/// ```
///
/// Processes of one tree can share tensors and arrays, which need no names and leave no files.
///
/// # Access
/// The file is readable and writable by its user only (0600). Opening fails for files of other users and for
/// files that are not regular. Symbolic links are not followed. Any process that has the file open may write
/// to it at any time. So a read can return a mixture of old and new bytes. Validate them like data from a
/// network.
///
/// # Lifetime of names
/// A name exists until a process [`unlink`](Self::unlink)s it, or the machine restarts. The library never
/// unlinks a name by itself, neither when the last process closes the memory nor when its creator crashes. To
/// remove the name together with the handle, call [`unlink_on_drop`](Self::unlink_on_drop). The name remains
/// if the process is killed by SIGKILL.
///
/// Python may unlink a name: when a Python process exits, its resource tracker unlinks every name that the
/// process has opened (cpython #82300). To prevent that, pass `track=False` (Python 3.13), or unregister the
/// name.
///
/// # When a process dies
/// Data that the dead process has written remains. A write in progress is partly visible. The memory contains
/// no lock, but an [`atomic`](Self::atomic) word can serve as a lock.
///
/// # When the file shrinks
/// Pages are reserved when the file is created and when it is opened, so a full `/dev/shm` is reported as an
/// error, not by a signal. But named files can't be sealed. If a process of this user shortens the file
/// (`ftruncate`), an access after the new end raises SIGBUS, which ends the process. This library never
/// shortens a file.
///
/// # As a message
/// A message contains the name, and the receiver opens it. Decoding fails if the name was unlinked in the
/// meantime.
///
/// # Clones
/// Clones share one mapping and one descriptor. Cloning increments a counter.
#[derive(Clone)]
pub struct SharedMemory(Arc<SharedMemoryInner>);

/// State shared by all clones of a handle.
struct SharedMemoryInner {
    name: String,
    region: Region,
    file: OwnedFd,
    /// Process that created the memory.
    maker: Option<u32>,
    /// Set if dropping the last clone unlinks the name.
    unlink: OnceLock<()>,
}

/// Validates a name, and returns it without the leading `/` that POSIX names have.
pub fn checked(name: &str) -> Result<&str> {
    let plain = name.strip_prefix('/').unwrap_or(name);
    let why = match plain {
        "" | "." | ".." => "it names no file",
        _ if plain.contains('/') => "it has a / in it",
        _ if plain.contains('\0') => "it has a NUL in it",
        _ if plain.len() > 255 => "it is longer than 255 bytes",
        _ => return Ok(plain),
    };
    Err(Error::InvalidArgument(format!("{name:?} can't be the name of shared memory: {why}")))
}

impl SharedMemory {
    /// Creates shared memory of `len` bytes, all zero, under a generated name that can't be guessed.
    ///
    /// # Errors
    /// The same as for [`create`](Self::create).
    pub fn new(len: usize) -> Result<Self> {
        let hex: String = foreign::random()?.iter().map(|b| format!("{b:02x}")).collect();
        Self::create(&format!("mp_{hex}"), len)
    }

    /// Creates shared memory of `len` bytes, all zero, under a name that does not exist yet. A leading `/` is
    /// ignored.
    ///
    /// # Errors
    /// [`Error::Os`] if the name exists (`EEXIST`), [`Error::InvalidArgument`] if the name is invalid or
    /// `len` is 0, [`Error::OutOfMemory`] if there is not enough room.
    pub fn create(name: &str, len: usize) -> Result<Self> {
        let name = checked(name)?;
        if len == 0 {
            return Err(Error::InvalidArgument("shared memory of 0 bytes: request at least 1".into()));
        }
        let file = foreign::create(name, len as u64)?;
        match Region::new(file.as_fd(), len as u64, MapMode::ReadWrite) {
            Ok(region) => {
                let maker = Some(std::process::id());
                Ok(Self::of(name, region, file, maker))
            }
            Err(e) => {
                _ = foreign::unlink(name);
                Err(e)
            }
        }
    }

    /// Opens existing shared memory, created by any process, and maps all of it.
    ///
    /// # Errors
    /// [`Error::Os`] if the name does not exist (`ENOENT`), [`Error::NotShareable`] if the file belongs to
    /// another user, is not regular or is empty, [`Error::InvalidArgument`] if the name is invalid,
    /// [`Error::OutOfMemory`] if its pages can't be reserved.
    #[doc(alias = "attach")]
    pub fn open(name: &str) -> Result<Self> {
        let name = checked(name)?;
        let (file, len) = foreign::open(name)?;
        if len == 0 {
            return Err(Error::NotShareable(format!("{name:?} has 0 bytes: is it still being made?")));
        }
        foreign::commit(file.as_fd(), len)?;
        let region = Region::new(file.as_fd(), len, MapMode::ReadWrite)?;
        Ok(Self::of(name, region, file, None))
    }

    fn of(name: &str, region: Region, file: OwnedFd, maker: Option<u32>) -> Self {
        Self(Arc::new(SharedMemoryInner {
            name: name.to_owned(),
            region,
            file,
            maker,
            unlink: OnceLock::new(),
        }))
    }

    /// Removes the name. Processes that have the memory open keep it.
    ///
    /// # Errors
    /// [`Error::Os`] if the name does not exist (`ENOENT`), [`Error::InvalidArgument`] if the name is
    /// invalid.
    pub fn unlink(name: &str) -> Result<()> {
        foreign::unlink(checked(name)?)
    }

    /// Unlinks the name when this handle and all its clones are dropped.
    ///
    /// Has an effect only in the process that created the memory, not on an opened handle.
    #[must_use]
    pub fn unlink_on_drop(self) -> Self {
        _ = self.0.unlink.set(());
        self
    }

    /// Returns the name, without a leading `/`.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns the length in bytes at the time of creation or opening.
    #[doc(alias = "size")]
    pub fn len(&self) -> usize {
        self.0.region.size() as usize
    }

    /// Returns `false`: shared memory is never empty.
    pub fn is_empty(&self) -> bool {
        false
    }

    fn check(&self, at: usize, len: usize) -> Result<()> {
        match at.checked_add(len) {
            Some(end) if end <= self.len() => Ok(()),
            _ => Err(Error::OutOfBounds(format!(
                "{len} bytes at {at} of shared memory of {} bytes",
                self.len()
            ))),
        }
    }

    /// Copies bytes from position `at` into `to`.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] if the range exceeds the memory.
    pub fn read_at(&self, at: usize, to: &mut [u8]) -> Result<()> {
        self.check(at, to.len())?;
        bytes::read(&self.0.region, Word::at(0), at as u64, to);
        Ok(())
    }

    /// Returns a copy of `len` bytes from position `at`.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] if the range exceeds the memory.
    pub fn read(&self, at: usize, len: usize) -> Result<Vec<u8>> {
        self.check(at, len)?;
        let mut bytes = vec![0; len];
        self.read_at(at, &mut bytes)?;
        Ok(bytes)
    }

    /// Copies `from` into the memory at position `at`.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] if there is no room for all of `from`. Nothing is written then.
    pub fn write_at(&self, at: usize, from: &[u8]) -> Result<()> {
        self.check(at, from.len())?;
        bytes::write(&self.0.region, Word::at(0), at as u64, from);
        Ok(())
    }

    /// Copies all of `from` to the beginning of this memory.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] if there is not enough room.
    pub fn copy_from(&self, from: &SharedMemory) -> Result<()> {
        self.check(0, from.len())?;
        // In pieces, so that no buffer as large as the shared memory is needed.
        let mut piece = vec![0; from.len().min(1 << 16)];
        for at in (0..from.len()).step_by(piece.len()) {
            let n = piece.len().min(from.len() - at);
            from.read_at(at, &mut piece[..n])?;
            self.write_at(at, &piece[..n])?;
        }
        Ok(())
    }

    /// Returns the 8 bytes at position `8 * i` as an atomic, or `None` if they exceed the memory.
    pub fn atomic(&self, i: usize) -> Option<&AtomicU64> {
        let at = i.checked_mul(8)?;
        self.check(at, 8).ok()?;
        Some(self.0.region.word(Word::at(at as u64)))
    }

    /// Returns the address of the memory in this process, valid while this handle exists.
    ///
    /// Access through the pointer is `unsafe`: other processes may access the memory at the same time. That
    /// is a data race unless both sides use atomics of one width. [`read_at`](Self::read_at) and
    /// [`write_at`](Self::write_at) use atomics of 8 bytes.
    pub fn as_ptr(&self) -> *mut u8 {
        self.0.region.base().as_ptr()
    }

    /// Returns the words of the memory.
    #[doc(hidden)]
    pub fn region(&self) -> &Region {
        &self.0.region
    }
}

impl AsFd for SharedMemory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.file.as_fd()
    }
}

impl Drop for SharedMemoryInner {
    fn drop(&mut self) {
        // Not in a forked copy, and not if the name meanwhile belongs to another file.
        if self.unlink.get().is_some()
            && self.maker == Some(std::process::id())
            && foreign::is_named(self.file.as_fd(), &self.name)
        {
            _ = foreign::unlink(&self.name);
        }
    }
}

impl fmt::Debug for SharedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedMemory({:?}, {})", self.0.name, ByteSize(self.0.region.size()))
    }
}

impl Serialize for SharedMemory {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        (&self.0.name, self.0.region.size()).serialize(s)
    }
}

impl<'de> Deserialize<'de> for SharedMemory {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let (name, len) = <(String, u64)>::deserialize(d)?;
        let opened = Self::open(&name).map_err(D::Error::custom)?;
        if opened.0.region.size() < len {
            return Err(D::Error::custom(format!("{opened:?} had {len} bytes when it was sent")));
        }
        Ok(opened)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_shared_memory_names_are_refused() {
        for bad in ["", "/", ".", "..", "a/b", "//a", "a\0b", &"x".repeat(256)] {
            let error = checked(bad).unwrap_err();
            assert!(matches!(error, Error::InvalidArgument(_)), "{error}");
        }
        assert_eq!(checked("/psm_1").unwrap(), "psm_1");
        assert_eq!(checked(&"x".repeat(255)).unwrap().len(), 255);
    }
}
