//! Files of checkpoints. A file is written under another name, and renamed when it is complete.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::checksum::Checksum;
use super::error::CheckpointError;
use super::format::{
    ALIGN, MAX_HEADER, PREFIX, SavedQueue, TRAILER, Trailer, VERSION, header, read_table, table,
};

/// Largest number of bytes that are copied, read or added to a checksum in one step.
pub(super) const CHUNK: usize = 256 << 10;
/// Size of the write buffer in bytes.
const BUFFER: usize = 4 * CHUNK;
/// Number of bytes reserved for the header at first.
const HEADER: u64 = 64 << 10;
/// Largest number of bytes that can be reserved for the header.
const MAX_ROOM: u64 = (8 + MAX_HEADER) / ALIGN * ALIGN;
/// Number of attempts to open and lock the partial file.
const TRIES: usize = 100;
/// Suffix of the partial file, which is renamed when it is complete.
const SUFFIX: &str = ".mp-partial";

/// Writer of a checkpoint file. Dropping it before the file is complete removes the file.
pub(super) struct CheckpointWriter {
    path: PathBuf,
    partial: PathBuf,
    file: File,
    buffer: Box<[u8]>,
    /// Number of bytes in the buffer.
    buffered: usize,
    /// Position in the file of the buffer's first byte.
    buffer_at: u64,
    data_at: u64,
    complete: bool,
}

impl CheckpointWriter {
    pub(super) fn create(path: &Path) -> Result<Self, CheckpointError> {
        let failed = |source| file_error("can't create", path, source);
        let Some(name) = path.file_name() else { return Err(failed(Errno::ISDIR.into())) };
        let mut partial = OsString::from(name);
        partial.push(SUFFIX);
        let partial = path.with_file_name(partial);
        let file = lock(&partial, path)?;
        file.set_len(0).map_err(failed)?;
        let (path, buffer) = (path.to_owned(), vec![0; BUFFER].into());
        let (buffered, buffer_at, data_at) = (0, 0, 0);
        let mut writer = Self { path, partial, file, buffer, buffered, buffer_at, data_at, complete: false };
        writer.restart(HEADER)?;
        Ok(writer)
    }

    /// Discards all data, and reserves `header` bytes for the header.
    pub(super) fn restart(&mut self, header: u64) -> Result<(), CheckpointError> {
        self.buffered = 0;
        self.file.set_len(0).map_err(|e| self.failed(e))?;
        self.data_at = header.next_multiple_of(ALIGN);
        self.buffer_at = self.data_at;
        Ok(())
    }

    fn failed(&self, source: io::Error) -> CheckpointError {
        file_error("can't write", &self.partial, source)
    }

    /// Returns the file position of the next byte to append.
    pub(super) fn position(&self) -> u64 {
        self.buffer_at + self.buffered as u64
    }

    /// Returns the number of bytes that are reserved for the header.
    pub(super) fn header_room(&self) -> u64 {
        self.data_at
    }

    /// Returns the number of bytes after the header, including bytes in the buffer.
    pub(super) fn data_len(&self) -> u64 {
        self.position() - self.data_at
    }

    /// Appends zeros up to the next multiple of the alignment.
    pub(super) fn align(&mut self) -> Result<(), CheckpointError> {
        let pad = self.position().next_multiple_of(ALIGN) - self.position();
        self.append(pad as usize, &mut Checksum::default(), |to| {
            to.fill(0);
            Ok(())
        })
    }

    /// Appends `len` bytes, at most [`CHUNK`], and adds them to the checksum. `fill` writes the bytes.
    pub(super) fn append(
        &mut self,
        len: usize,
        sum: &mut Checksum,
        fill: impl FnOnce(&mut [u8]) -> Result<(), CheckpointError>,
    ) -> Result<(), CheckpointError> {
        if self.buffered + len > BUFFER {
            self.flush()?;
        }
        let to = &mut self.buffer[self.buffered..self.buffered + len];
        fill(to)?;
        sum.add(to);
        self.buffered += len;
        Ok(())
    }

    fn flush(&mut self) -> Result<(), CheckpointError> {
        let bytes = &self.buffer[..self.buffered];
        self.file.write_all_at(bytes, self.buffer_at).map_err(|e| self.failed(e))?;
        self.buffer_at += self.buffered as u64;
        self.buffered = 0;
        Ok(())
    }

    /// Discards all bytes from position `to` on.
    pub(super) fn rewind(&mut self, to: u64) {
        // Bytes of the file after this position are overwritten, or truncated at the end.
        self.buffered = self.buffered.min(to.saturating_sub(self.buffer_at) as usize);
        self.buffer_at = self.buffer_at.min(to);
    }

    /// Returns the error for a queue that is too large for the file format.
    #[cold]
    fn exceeds(&self, why: &'static str) -> CheckpointError {
        self.failed(io::Error::new(io::ErrorKind::InvalidInput, why))
    }

    /// Completes the file, and replaces an earlier file at the same path. If the reserved bytes are too few
    /// for the header, writes nothing. In that case, returns the writer and the number of bytes that the
    /// header needs.
    pub(super) fn finish(mut self, queue: &SavedQueue) -> Result<Result<(), (Self, u64)>, CheckpointError> {
        let table = table(queue);
        let table_at = self.position();
        let end = table_at + table.len() as u64 + TRAILER as u64;
        let mut json = header(queue, self.data_at, end).into_bytes();
        let needed = 8 + json.len() as u64;
        if needed > MAX_ROOM {
            return Err(self.exceeds("more tensors than a file of the format safetensors can name"));
        }
        if needed > self.data_at {
            return Ok(Err((self, needed)));
        }
        json.resize(self.data_at as usize - 8, b' ');
        let mut head = (json.len() as u64).to_le_bytes().to_vec();
        head.append(&mut json);
        let mut header_sum = Checksum::default();
        head.chunks(CHUNK).for_each(|chunk| header_sum.add(chunk));
        let (data_at, table_len) = (self.data_at, table.len() as u64);
        let trailer = Trailer { data_at, table_at, table_len, header_sum: header_sum.get() };
        let packed = trailer.pack(&table);
        if Trailer::unpack(&packed, end) != Some(trailer) {
            return Err(self.exceeds("more messages than a checkpoint can have"));
        }
        self.flush()?;
        let write = |writer: &mut Self| {
            let file = &writer.file;
            file.write_all_at(&table, table_at)?;
            file.write_all_at(&packed, table_at + table_len)?;
            file.write_all_at(&head, 0)?;
            file.set_len(end)?;
            file.sync_all()
        };
        write(&mut self).map_err(|e| self.failed(e))?;
        let folder = self.path.parent().filter(|path| !path.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        let durable = |e| file_error("can't make durable the directory", folder, e);
        let opened = match File::open(folder) {
            // A directory that this process can't read can't be synchronized either.
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => None,
            opened => Some(opened.map_err(durable)?),
        };
        fs::rename(&self.partial, &self.path).map_err(|e| file_error("can't replace", &self.path, e))?;
        self.complete = true;
        match opened.map(|folder| folder.sync_all()) {
            // The file system does not synchronize directories.
            Some(Err(e)) if e.kind() == io::ErrorKind::InvalidInput => {}
            Some(synced) => synced.map_err(durable)?,
            None => {}
        }
        Ok(Ok(()))
    }
}

/// Returns the number of bytes to reserve for a header of `needed` bytes.
pub(super) fn room_for(needed: u64) -> u64 {
    (2 * needed).min(MAX_ROOM)
}

impl Drop for CheckpointWriter {
    fn drop(&mut self) {
        if !self.complete {
            _ = fs::remove_file(&self.partial);
        }
    }
}

/// Opens the partial file, and locks it against other writers of the same checkpoint. Reuses a partial file
/// that a killed writer left, if the file belongs to this user and has no other name.
fn lock(partial: &Path, path: &Path) -> Result<File, CheckpointError> {
    let failed = |source| file_error("can't create", partial, source);
    for _ in 0..TRIES {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.custom_flags(libc::O_NOFOLLOW).open(partial).map_err(failed)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(CheckpointError::Written { path: path.to_owned() }),
            Err(e) => return Err(failed(e.into())),
        }
        // Another writer may have renamed or removed the file between the two calls.
        let opened = file.metadata().map_err(failed)?;
        match fs::symlink_metadata(partial) {
            Ok(found) if (found.dev(), found.ino()) == (opened.dev(), opened.ino()) => {}
            Ok(_) => continue,
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            Err(e) => return Err(failed(e)),
        }
        if opened.is_file() && opened.uid() == geteuid().as_raw() && opened.nlink() == 1 {
            file.set_permissions(Permissions::from_mode(0o600)).map_err(failed)?;
            return Ok(file);
        }
        fs::remove_file(partial).map_err(failed)?;
    }
    Err(CheckpointError::Written { path: path.to_owned() })
}

#[cold]
fn file_error(action: &'static str, path: &Path, source: io::Error) -> CheckpointError {
    let path = path.to_owned();
    match source.raw_os_error() {
        Some(libc::ENOSPC | libc::EFBIG | libc::EDQUOT) => CheckpointError::NoSpace { path, source },
        _ => CheckpointError::File { action, path, source },
    }
}

/// Reader of a complete checkpoint file, with the description of the saved queue. Message data is read later.
pub(super) struct CheckpointReader {
    path: PathBuf,
    file: File,
    pub(super) queue: SavedQueue,
}

impl CheckpointReader {
    pub(super) fn open(path: &Path) -> Result<Self, CheckpointError> {
        let failed = |source| file_error("can't read", path, source);
        let damaged = |what| CheckpointError::Damaged { path: path.to_owned(), what };
        let mut options = OpenOptions::new();
        // Without `O_NONBLOCK`, a named pipe would wait for a writer.
        let file = options.read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        let mut start = Vec::new();
        if metadata.is_file() {
            (&file).take(8 + PREFIX.len() as u64 + 20).read_to_end(&mut start).map_err(failed)?;
        }
        let version = start.get(8..).and_then(|json| json.strip_prefix(PREFIX.as_bytes()));
        let version = version.ok_or_else(|| CheckpointError::NotACheckpoint { path: path.to_owned() })?;
        let version = version.iter().take_while(|digit| digit.is_ascii_digit());
        let version = version.fold(0_u64, |n, d| n.wrapping_mul(10).wrapping_add(u64::from(d - b'0')));
        if version != VERSION {
            let (path, found, expected) = (path.to_owned(), version, VERSION);
            return Err(CheckpointError::Version { path, found, expected });
        }
        let end = metadata.len().checked_sub(TRAILER as u64).ok_or_else(|| damaged("it is too short"))?;
        let mut last = [0; TRAILER];
        file.read_exact_at(&mut last, end).map_err(failed)?;
        let trailer =
            Trailer::unpack(&last, metadata.len()).ok_or_else(|| damaged("its end is missing or changed"))?;
        let mut table = Vec::new();
        let mut header_sum = Checksum::default();
        each_chunk(trailer.table_len, |at, len| {
            let from = table.len();
            table.resize(from + len, 0);
            file.read_exact_at(&mut table[from..], trailer.table_at + at)
        })
        .map_err(failed)?;
        if !Trailer::is_sum_of(&last, &table) {
            return Err(damaged("the checksum of its table is wrong"));
        }
        let mut chunk = Vec::new();
        each_chunk(trailer.data_at, |at, len| {
            chunk.resize(len, 0);
            file.read_exact_at(&mut chunk, at)?;
            header_sum.add(&chunk);
            Ok(())
        })
        .map_err(failed)?;
        if header_sum.get() != trailer.header_sum {
            return Err(damaged("the checksum of its header is wrong"));
        }
        let queue = read_table(&table, &trailer).ok_or_else(|| damaged("its table is invalid"))?;
        Ok(Self { path: path.to_owned(), file, queue })
    }

    /// Fills `to` with the bytes from position `at` on, and adds them to the checksum.
    pub(super) fn read(&self, at: u64, to: &mut [u8], sum: &mut Checksum) -> Result<(), CheckpointError> {
        each_chunk(to.len() as u64, |from, len| {
            let chunk = &mut to[from as usize..from as usize + len];
            self.file.read_exact_at(chunk, at + from)?;
            sum.add(chunk);
            Ok(())
        })
        .map_err(|e| file_error("can't read", &self.path, e))
    }

    /// Appends `len` bytes from position `at` to `to`, and adds them to the checksum. Memory is allocated
    /// chunk by chunk as the file is read.
    pub(super) fn read_more(
        &self,
        at: u64,
        len: u64,
        to: &mut Vec<u8>,
        sum: &mut Checksum,
    ) -> Result<(), CheckpointError> {
        each_chunk(len, |from, len| {
            let start = to.len();
            to.resize(start + len, 0);
            self.read(at + from, &mut to[start..], sum)
        })
    }

    /// Returns the error for a message with a wrong checksum.
    pub(super) fn damaged(&self) -> CheckpointError {
        CheckpointError::Damaged { path: self.path.clone(), what: "the checksum of a message is wrong" }
    }

    /// Returns the error for a file whose messages have another type than `expected`.
    pub(super) fn other_type(&self, expected: String) -> CheckpointError {
        let (path, stored) = (self.path.clone(), mp_core::printable(&self.queue.type_name));
        CheckpointError::OtherType { path, stored, expected }
    }
}

/// Splits `len` bytes into chunks of at most [`CHUNK`] bytes, and calls `each` with the offset and length of
/// each chunk.
pub(super) fn each_chunk<E>(len: u64, mut each: impl FnMut(u64, usize) -> Result<(), E>) -> Result<(), E> {
    let mut at = 0;
    while at < len {
        let now = (len - at).min(CHUNK as u64);
        each(at, now as usize)?;
        at += now;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checkpoint_header_room_is_valid_in_its_trailer() {
        for needed in [1000, MAX_ROOM / 2 + 1, MAX_ROOM] {
            let data_at = room_for(needed).next_multiple_of(ALIGN);
            assert!(data_at >= needed);
            let trailer = Trailer { data_at, table_at: data_at, table_len: 0, header_sum: 0 };
            assert_eq!(Trailer::unpack(&trailer.pack(&[]), trailer.file_len()), Some(trailer), "{needed}");
        }
    }
}
