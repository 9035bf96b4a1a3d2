//! Identification of builds: of a file before it is loaded, and of a loaded object by its notes.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use crate::protocol::function::build_id::BuildIdentity;

const PT_NOTE: u32 = 4;
const NT_GNU_BUILD_ID: u32 = 3;
/// Maximum number of program headers. Programs have a dozen.
const MOST_HEADERS: u64 = 1 << 10;
/// Maximum size of a note segment, in bytes. A build-id note has some forty bytes.
const MOST_NOTES: u64 = 1 << 16;

/// Offsets of fields in an ELF file of this machine: in the file's header, then in a program header.
#[cfg(target_pointer_width = "64")]
mod at {
    pub(super) const CLASS: u8 = 2;
    pub(super) const HEADERS: u64 = 32;
    pub(super) const COUNT: u64 = 56;
    pub(super) const SIZE: u64 = 56;
    pub(super) const OFFSET: u64 = 8;
    pub(super) const LENGTH: u64 = 32;
}
#[cfg(target_pointer_width = "32")]
mod at {
    pub(super) const CLASS: u8 = 1;
    pub(super) const HEADERS: u64 = 28;
    pub(super) const COUNT: u64 = 44;
    pub(super) const SIZE: u64 = 32;
    pub(super) const OFFSET: u64 = 4;
    pub(super) const LENGTH: u64 = 16;
}

/// Returns the identity of a file according to the file system.
pub(crate) fn file(path: &Path) -> io::Result<BuildIdentity> {
    let file = std::fs::metadata(path)?;
    Ok(BuildIdentity::File {
        device: file.dev(),
        inode: file.ino(),
        size: file.size(),
        modified: (file.mtime(), file.mtime_nsec()),
    })
}

/// Returns the identity of the program or library in a file: its build-id if it has one.
///
/// # Errors
/// Returns an error if the file can't be read, or is not for this machine.
pub(crate) fn build(path: &Path) -> io::Result<BuildIdentity> {
    match build_id(&File::open(path)?)? {
        Some(id) => Ok(BuildIdentity::BuildId(id)),
        None => file(path),
    }
}

fn build_id(file: &File) -> io::Result<Option<Vec<u8>>> {
    let mut start = [0; 6];
    file.read_exact_at(&mut start, 0)?;
    let order = if cfg!(target_endian = "little") { 1 } else { 2 };
    if start != [0x7f, b'E', b'L', b'F', at::CLASS, order] {
        return Err(io::Error::other("it is not an ELF program or library for this machine"));
    }
    let (headers, count) = (word(file, at::HEADERS)?, u64::from(half(file, at::COUNT)?));
    for number in 0..count.min(MOST_HEADERS) {
        let header = headers.saturating_add(number * at::SIZE);
        let mut kind = [0; 4];
        file.read_exact_at(&mut kind, header)?;
        if u32::from_ne_bytes(kind) != PT_NOTE {
            continue;
        }
        let place = word(file, header.saturating_add(at::OFFSET))?;
        let length = word(file, header.saturating_add(at::LENGTH))?.min(MOST_NOTES);
        let mut notes = vec![0; usize::try_from(length).unwrap_or(0)];
        file.read_exact_at(&mut notes, place)?;
        if let Some(id) = build_id_in(&notes) {
            return Ok(Some(id));
        }
    }
    Ok(None)
}

/// Returns the build-id in a note segment. An entry of the segment is a name size, a description size, a
/// type, a name and a description.
#[inline]
pub(crate) fn build_id_in(mut notes: &[u8]) -> Option<Vec<u8>> {
    let padded = |length: u32| usize::try_from(length).ok().map(|length| length.next_multiple_of(4));
    loop {
        let (name_size, rest) = notes.split_first_chunk()?;
        let (id_size, rest) = rest.split_first_chunk()?;
        let (kind, rest) = rest.split_first_chunk()?;
        let id_size = u32::from_ne_bytes(*id_size);
        let (name, rest) = rest.split_at_checked(padded(u32::from_ne_bytes(*name_size))?)?;
        if u32::from_ne_bytes(*kind) == NT_GNU_BUILD_ID && name == b"GNU\0" {
            return rest.get(..usize::try_from(id_size).ok()?).map(<[u8]>::to_vec);
        }
        notes = rest.get(padded(id_size)?..)?;
    }
}

fn word(file: &File, at: u64) -> io::Result<u64> {
    let mut bytes = [0; size_of::<usize>()];
    file.read_exact_at(&mut bytes, at)?;
    Ok(usize::from_ne_bytes(bytes) as u64)
}

fn half(file: &File, at: u64) -> io::Result<u16> {
    let mut bytes = [0; 2];
    file.read_exact_at(&mut bytes, at)?;
    Ok(u16::from_ne_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::function::loaded_objects;

    #[test]
    fn program_file_has_the_build_id_of_the_process() {
        let here = loaded_objects::program().unwrap();
        assert!(here.is(&build(Path::new("/proc/self/exe")).unwrap()));
    }

    #[test]
    fn elf_notes_with_wrong_sizes_are_skipped() {
        let entry = |name: u32, id: u32, rest: &[u8]| {
            [&name.to_ne_bytes(), &id.to_ne_bytes(), &NT_GNU_BUILD_ID.to_ne_bytes(), rest].concat()
        };
        assert_eq!(build_id_in(&entry(4, 2, b"GNU\0ab\0\0")), Some(b"ab".to_vec()));
        assert_eq!(build_id_in(&entry(4, 200, b"GNU\0ab\0\0")), None);
        assert_eq!(build_id_in(&entry(u32::MAX, u32::MAX, b"GNU\0")), None);
        assert_eq!(build_id_in(b"abc"), None);
    }

    #[test]
    fn files_other_than_elf_objects_are_refused() {
        let error = build(Path::new("/proc/self/maps")).unwrap_err();
        assert!(error.to_string().contains("not an ELF program or library"), "{error}");
        assert_eq!(build(Path::new("/no/such/library")).unwrap_err().kind(), io::ErrorKind::NotFound);
        // Truncated files.
        let path = std::env::temp_dir().join(format!("mp-elf-{}", std::process::id()));
        let whole = std::fs::read("/proc/self/exe").unwrap();
        for length in [3, 20, 60, 100] {
            std::fs::write(&path, &whole[..length]).unwrap();
            assert_eq!(build(&path).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        }
        std::fs::remove_file(&path).unwrap();
    }
}
