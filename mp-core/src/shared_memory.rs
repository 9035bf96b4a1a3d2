//! Shared memory with a name, for processes that are not of one tree.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::{Bytes, Error, Result};
use crate::mem::Word;
use crate::mem::bytes;
use crate::sync::shared::AtomicU64;
use crate::sys::foreign;
use crate::sys::region::{MapFor, Region};

/// A piece of shared memory with a name under `/dev/shm`, which any process of the same user can open; also Python's
/// `multiprocessing.shared_memory.SharedMemory`, under the same name.
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
/// Among the processes of one tree, tensors and arrays do the same without names, and nothing is left of
/// them.
///
/// # Access
/// The file is readable and writable by its user only (0600). Opening refuses what is another user's, or no
/// regular file; symbolic links are not followed. Any process that has it open may write to it at any time:
/// what is read can be a mixture of old and new bytes, and is to be checked as if it came over a network.
///
/// # Names are the user's
/// A name lives until a process [`unlink`](Self::unlink)s it, or the machine restarts. Nothing is unlinked
/// unasked: not when the last process closes it, not when its maker crashes. (Python's resource
/// tracker does that: a Python before 3.13 that merely *opened* a name unlinks it when it exits, cpython
/// #82300. Pass `track=False` there, or unregister it.) To have it gone with the handle, call
/// [`unlink_on_drop`](Self::unlink_on_drop); a SIGKILL leaves the name even then.
///
/// # When a process dies
/// What it had written is there, what it was writing is partly there. There is no lock in it; an
/// [`atomic`](Self::atomic) word can be one.
///
/// # When the file shrinks
/// Pages are reserved when it is made and when it is opened, so that a full `/dev/shm` is an error and not a signal. But
/// files with names can't be sealed: if some process of this user makes the file shorter (`ftruncate`), access behind its
/// new end is a SIGBUS, which ends the process. Nothing in this library does that.
///
/// # As a message
/// It travels as its name and is opened by the receiver, which fails when it was unlinked meanwhile.
///
/// # Clones
/// They are of one mapping and one descriptor, and cost a count.
#[derive(Clone)]
pub struct SharedMemory(Arc<Opened>);

/// What the clones of one handle have in common.
struct Opened {
    name: String,
    region: Region,
    file: OwnedFd,
    /// The process that made it.
    maker: Option<u32>,
    /// Whether the last clone takes the name away.
    unlink: OnceLock<()>,
}

/// Checks a name; without the `/` that POSIX has in front.
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
    /// New shared memory of `len` bytes, all zero, under a generated name that can't be guessed.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub fn new(len: usize) -> Result<Self> {
        let hex: String = foreign::random()?.iter().map(|b| format!("{b:02x}")).collect();
        Self::create(&format!("mp_{hex}"), len)
    }

    /// New shared memory of `len` bytes, all zero, under a name that does not exist yet. A `/` in front is ignored.
    ///
    /// # Errors
    /// [`Error::Os`] when the name exists (`EEXIST`), [`Error::InvalidArgument`] for what can't be a name,
    /// [`Error::OutOfMemory`] when there is no room, [`Error::InvalidArgument`] for 0 bytes.
    pub fn create(name: &str, len: usize) -> Result<Self> {
        let name = checked(name)?;
        if len == 0 {
            return Err(Error::InvalidArgument("shared memory of 0 bytes: ask for one at least".into()));
        }
        let file = foreign::create(name, len as u64)?;
        match Region::new(file.as_fd(), len as u64, MapFor::Sharing) {
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

    /// Opens shared memory that exists, whichever process made it: all of it.
    ///
    /// # Errors
    /// [`Error::Os`] when there is none (`ENOENT`), [`Error::NotShareable`] when it is another user's, no regular file, or
    /// empty, [`Error::InvalidArgument`] for what can't be a name, [`Error::OutOfMemory`] when its pages can't be reserved.
    #[doc(alias = "attach")]
    pub fn open(name: &str) -> Result<Self> {
        let name = checked(name)?;
        let (file, len) = foreign::open(name)?;
        if len == 0 {
            return Err(Error::NotShareable(format!("{name:?} has 0 bytes: is it still being made?")));
        }
        foreign::commit(file.as_fd(), len)?;
        let region = Region::new(file.as_fd(), len, MapFor::Sharing)?;
        Ok(Self::of(name, region, file, None))
    }

    fn of(name: &str, region: Region, file: OwnedFd, maker: Option<u32>) -> Self {
        Self(Arc::new(Opened { name: name.to_owned(), region, file, maker, unlink: OnceLock::new() }))
    }

    /// Takes the name away, whether a process has it open or not. A process that has it open keeps it.
    ///
    /// # Errors
    /// [`Error::Os`] when there is none (`ENOENT`), [`Error::InvalidArgument`] for what can't be a name.
    pub fn unlink(name: &str) -> Result<()> {
        foreign::unlink(checked(name)?)
    }

    /// From now on, dropping this handle and all its clones takes the name away.
    ///
    /// Only in the process that made it: on a handle that was opened, this changes nothing.
    #[must_use]
    pub fn unlink_on_drop(self) -> Self {
        _ = self.0.unlink.set(());
        self
    }

    /// Its name, without a `/` in front.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Its length in bytes, as it was when it was made or opened.
    #[doc(alias = "size")]
    pub fn len(&self) -> usize {
        self.0.region.size() as usize
    }

    /// Never.
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

    /// Copies bytes out, from byte `at` on.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] when there are not that many.
    pub fn read_at(&self, at: usize, to: &mut [u8]) -> Result<()> {
        self.check(at, to.len())?;
        bytes::read(&self.0.region, Word::at(0), at as u64, to);
        Ok(())
    }

    /// A copy of `len` bytes from byte `at` on.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] when there are not that many.
    pub fn read(&self, at: usize, len: usize) -> Result<Vec<u8>> {
        self.check(at, len)?;
        let mut bytes = vec![0; len];
        self.read_at(at, &mut bytes)?;
        Ok(bytes)
    }

    /// Copies bytes in, from byte `at` on.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] when there is no room for all of `from`; nothing is written then.
    pub fn write_at(&self, at: usize, from: &[u8]) -> Result<()> {
        self.check(at, from.len())?;
        bytes::write(&self.0.region, Word::at(0), at as u64, from);
        Ok(())
    }

    /// Copies all of `from`, from its byte 0 on, to byte 0 of this.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] when there is no room for it.
    pub fn copy_from(&self, from: &SharedMemory) -> Result<()> {
        self.check(0, from.len())?;
        // In pieces: neither has to fit into ordinary memory.
        let mut piece = vec![0; from.len().min(1 << 16)];
        for at in (0..from.len()).step_by(piece.len()) {
            let n = piece.len().min(from.len() - at);
            from.read_at(at, &mut piece[..n])?;
            self.write_at(at, &piece[..n])?;
        }
        Ok(())
    }

    /// The 8 bytes at byte `8 * i`, as an atomic; `None` if they are not all there.
    pub fn atomic(&self, i: usize) -> Option<&AtomicU64> {
        let at = i.checked_mul(8)?;
        self.check(at, 8).ok()?;
        Some(self.0.region.word(Word::at(at as u64)))
    }

    /// Where it is in this process, as long as this handle lives.
    ///
    /// To read or write through it is `unsafe`: other processes may do so at the same time, and that is a data race unless
    /// both sides use atomics of one width, as [`read_at`](Self::read_at) and [`write_at`](Self::write_at) do (8 bytes).
    pub fn as_ptr(&self) -> *mut u8 {
        self.0.region.base().as_ptr()
    }

    /// Its words.
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

impl Drop for Opened {
    fn drop(&mut self) {
        // Not in a forked copy, and not if the name is another file's by now.
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
        write!(f, "SharedMemory({:?}, {})", self.0.name, Bytes(self.0.region.size()))
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
    fn names() {
        for bad in ["", "/", ".", "..", "a/b", "//a", "a\0b", &"x".repeat(256)] {
            let error = checked(bad).unwrap_err();
            assert!(matches!(error, Error::InvalidArgument(_)), "{error}");
        }
        assert_eq!(checked("/psm_1").unwrap(), "psm_1");
        assert_eq!(checked(&"x".repeat(255)).unwrap().len(), 255);
    }
}
