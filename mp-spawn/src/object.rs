//! The ELF objects that this process has loaded: which one holds an address, which build each one is, and the
//! initialisers of the main program.
//!
//! # Safety
//!
//! This file may hold `unsafe`: it walks the dynamic loader's tables (`dl_iterate_phdr(3)`) and reads program
//! headers, notes and the dynamic section where they lie in memory. Every object seen here stays loaded while
//! the walk lasts, because the loader holds its lock; nothing that is kept afterwards points into an object.
#![allow(unsafe_code)]

use std::ffi::{CStr, OsStr, c_int, c_void};
use std::fmt;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{mem, ptr, slice};

use mp_core::fork::SetOnce;
use serde::{Deserialize, Serialize};

use crate::fields::{Fields, put_bytes, put_number};

#[cfg(target_pointer_width = "64")]
type ProgramHeader = libc::Elf64_Phdr;
#[cfg(target_pointer_width = "32")]
type ProgramHeader = libc::Elf32_Phdr;

const NT_GNU_BUILD_ID: u32 = 3;
const DT_NULL: usize = 0;
const DT_INIT_ARRAY: usize = 25;
const DT_INIT_ARRAYSZ: usize = 27;

/// Which build of which program or library an object is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Identity {
    /// The linker's build-id.
    BuildId(Vec<u8>),
    /// The object carries no build-id, so this is the file it was loaded from.
    File { device: u64, inode: u64, size: u64, modified: (i64, i64) },
}

impl Identity {
    /// Appends it to a message.
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        match self {
            Identity::BuildId(id) => {
                out.push(1);
                put_bytes(out, id);
            }
            Identity::File { device, inode, size, modified: (seconds, nanos) } => {
                out.push(0);
                for number in [*device, *inode, *size, seconds.cast_unsigned(), nanos.cast_unsigned()] {
                    put_number(out, number);
                }
            }
        }
    }

    /// Reads one from a message.
    #[inline]
    pub(crate) fn read(fields: &mut Fields<'_>) -> Option<Identity> {
        if fields.flag()? {
            return Some(Identity::BuildId(fields.bytes()?.to_vec()));
        }
        let mut number = || fields.number();
        let (device, inode, size) = (number()?, number()?, number()?);
        let modified = (number()?.cast_signed(), number()?.cast_signed());
        Some(Identity::File { device, inode, size, modified })
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Identity::BuildId(id) => {
                f.write_str("build-id ")?;
                id.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
            Identity::File { device, inode, size, modified: (seconds, nanos) } => {
                write!(f, "file {device:x}:{inode} of {size} bytes, modified at {seconds}.{nanos:09}")
            }
        }
    }
}

/// A loaded object.
#[derive(Debug)]
pub(crate) struct Object {
    base: usize,
    path: PathBuf,
    segments: Vec<Range<usize>>,
    build_id: Option<Vec<u8>>,
    dynamic: Option<Range<usize>>,
    /// True for the program itself, false for its libraries.
    pub(crate) is_program: bool,
}

impl Object {
    /// Which build this is; `None` when neither a build-id nor a file tells.
    #[inline]
    pub(crate) fn identity(&self) -> Option<Identity> {
        if let Some(id) = &self.build_id {
            return Some(Identity::BuildId(id.clone()));
        }
        let path = if self.is_program { Path::new("/proc/self/exe") } else { &self.path };
        let file = std::fs::metadata(path).ok()?;
        Some(Identity::File {
            device: file.dev(),
            inode: file.ino(),
            size: file.size(),
            modified: (file.mtime(), file.mtime_nsec()),
        })
    }

    /// How far into this object an address lies; `None` when it lies in none of its segments.
    #[inline]
    pub(crate) fn offset_of(&self, address: usize) -> Option<usize> {
        let inside = self.segments.iter().any(|segment| segment.contains(&address));
        inside.then(|| address.wrapping_sub(self.base))
    }

    /// The address of `size` bytes at this offset; `None` unless one readable segment holds them all.
    #[inline]
    pub(crate) fn address_of(&self, offset: usize, size: usize) -> Option<usize> {
        let start = self.base.checked_add(offset)?;
        let end = start.checked_add(size)?;
        let inside = self.segments.iter().any(|segment| segment.start <= start && end <= segment.end);
        inside.then_some(start)
    }

    /// The addresses of the entries of this object's `.init_array` that come after the one at `entry`; none
    /// when `entry` isn't in it, or the object has no dynamic section (as static programs may).
    #[cfg_attr(target_feature = "crt-static", allow(dead_code))]
    #[inline]
    pub(crate) fn initialisers_after(&self, entry: usize) -> Range<usize> {
        let (mut array, mut size) = (0, 0);
        for &[tag, value] in self.dynamic_entries() {
            match tag {
                DT_NULL => break,
                DT_INIT_ARRAY => array = self.base.wrapping_add(value),
                DT_INIT_ARRAYSZ => size = value,
                _ => {}
            }
        }
        let end = array.saturating_add(size);
        if (array..end).contains(&entry) { entry + size_of::<usize>()..end } else { 0..0 }
    }

    #[inline]
    fn dynamic_entries(&self) -> &[[usize; 2]] {
        let Some(dynamic) = &self.dynamic else { return &[] };
        let count = dynamic.len() / size_of::<[usize; 2]>();
        let start = ptr::with_exposed_provenance(dynamic.start);
        // SAFETY: the range is the object's PT_DYNAMIC segment, an array of pairs of words that the loader
        // mapped readable and aligned; it was checked to lie within a PT_LOAD segment. Only the program's own
        // is ever asked for, which stays loaded for the life of the process. The loader writes to it before
        // any initialiser runs and not afterwards.
        unsafe { slice::from_raw_parts(start, count) }
    }
}

/// The program itself, which is looked at once: almost every function lies in it.
#[inline]
pub(crate) fn program() -> Option<&'static Object> {
    // fork: the program is the same. Who starts a process has looked it up before, for the function.
    static PROGRAM: SetOnce<Object> = SetOnce::new();
    PROGRAM.get().or_else(|| walk(1).pop().map(|program| PROGRAM.set(program)))
}

/// Calls `look` with the object that `is_it` picks; the program is asked first.
#[inline]
pub(crate) fn find<R>(is_it: impl Fn(&Object) -> bool, look: impl FnOnce(&Object) -> R) -> Option<R> {
    if let Some(program) = program().filter(|program| is_it(program)) {
        return Some(look(program));
    }
    walk(usize::MAX).iter().find(|object| is_it(object)).map(look)
}

/// What a walk has found, and how many objects it is to find.
struct Walk {
    objects: Vec<Object>,
    most: usize,
}

/// The first so many loaded objects; the program comes first.
#[inline]
fn walk(most: usize) -> Vec<Object> {
    let mut walk = Walk { objects: Vec::with_capacity(1), most };
    // SAFETY: `note` has the signature that the function asks for, and `data` is the exclusive reference that it
    // turns it back into, valid until the call returns.
    unsafe { libc::dl_iterate_phdr(Some(note), (&raw mut walk).cast()) };
    walk.objects
}

#[inline]
unsafe extern "C" fn note(info: *mut libc::dl_phdr_info, _size: usize, data: *mut c_void) -> c_int {
    // SAFETY: the loader passes a valid info for the duration of this call.
    let info = unsafe { &*info };
    // SAFETY: `data` is the reference that `walk` passed; nothing else uses it meanwhile.
    let Walk { objects, most } = unsafe { &mut *data.cast::<Walk>() };
    let headers: &[ProgramHeader] = if info.dlpi_phdr.is_null() {
        &[]
    } else {
        // SAFETY: the loader says that this many program headers lie there; they stay while the object does.
        unsafe { slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) }
    };
    let path = if info.dlpi_name.is_null() {
        PathBuf::new()
    } else {
        // SAFETY: the loader's name of an object is a C string that lives as long as the object.
        let name = unsafe { CStr::from_ptr(info.dlpi_name) };
        PathBuf::from(OsStr::from_bytes(name.to_bytes()))
    };
    let base = word(info.dlpi_addr);
    let is_program = objects.is_empty();
    objects.push(describe(base, path, headers, is_program));
    c_int::from(objects.len() >= *most)
}

#[inline]
fn describe(base: usize, path: PathBuf, headers: &[ProgramHeader], is_program: bool) -> Object {
    let place = |header: &ProgramHeader| {
        let start = base.wrapping_add(word(header.p_vaddr));
        start..start.saturating_add(word(header.p_memsz))
    };
    let readable =
        |header: &&ProgramHeader| header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_R != 0;
    // With room for all, so that none of the code is needed that makes more.
    let mut segments: Vec<Range<usize>> = Vec::with_capacity(headers.len());
    headers.iter().filter(readable).for_each(|header| segments.push(place(header)));
    let within = |part: &Range<usize>| {
        segments.iter().any(|segment| segment.start <= part.start && part.end <= segment.end)
    };
    let of_type = |wanted| {
        headers.iter().filter(move |header| header.p_type == wanted).map(place).filter(|part| within(part))
    };
    let build_id = of_type(libc::PT_NOTE).find_map(|part| {
        // SAFETY: the range lies within a readable segment of this object, which stays loaded during the walk;
        // notes are read-only data.
        let notes = unsafe { slice::from_raw_parts(ptr::with_exposed_provenance(part.start), part.len()) };
        build_id(notes)
    });
    let dynamic = of_type(libc::PT_DYNAMIC).find(|part| part.start % mem::align_of::<usize>() == 0);
    Object { base, path, build_id, dynamic, is_program, segments }
}

/// The build-id in a note segment: entries of name size, description size, type, name, description.
#[inline]
fn build_id(mut notes: &[u8]) -> Option<Vec<u8>> {
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

/// A word of an ELF structure of this machine, whose width is that of an address.
#[cfg(target_pointer_width = "64")]
fn word(value: u64) -> usize {
    value as usize
}
#[cfg(target_pointer_width = "32")]
fn word(value: u32) -> usize {
    value as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_program_is_first_and_has_an_identity() {
        let address = this_program_is_first_and_has_an_identity as fn() as usize;
        let here = program().unwrap();
        assert!(here.is_program && here.offset_of(address).is_some());
        assert!(here.identity().is_some());
        assert_eq!(find(|object| object.is_program, |object| object.base), Some(here.base));
        assert!(walk(usize::MAX).iter().filter(|object| object.is_program).count() == 1);
    }

    #[test]
    fn identity_without_a_build_id_is_the_file() {
        let mut here = walk(usize::MAX).into_iter().next().unwrap();
        here.build_id = None;
        assert!(matches!(here.identity(), Some(Identity::File { size: 1.., .. })));
    }

    #[test]
    fn initialisers_are_those_of_the_array() {
        let here = walk(usize::MAX).into_iter().next().unwrap();
        assert!(
            here.initialisers_after(this_program_is_first_and_has_an_identity as fn() as usize).is_empty()
        );
        let find = |tag| here.dynamic_entries().iter().find(|entry| entry[0] == tag).map(|entry| entry[1]);
        let (Some(array), Some(size)) = (find(DT_INIT_ARRAY), find(DT_INIT_ARRAYSZ)) else { return };
        let (first, end) = (here.base + array, here.base + array + size);
        assert_eq!(here.initialisers_after(first), first + size_of::<usize>()..end);
        assert!(here.initialisers_after(end).is_empty());
    }

    #[test]
    fn notes_that_lie_about_their_sizes() {
        let entry = |name: u32, id: u32, rest: &[u8]| {
            [&name.to_ne_bytes(), &id.to_ne_bytes(), &NT_GNU_BUILD_ID.to_ne_bytes(), rest].concat()
        };
        assert_eq!(build_id(&entry(4, 2, b"GNU\0ab\0\0")), Some(b"ab".to_vec()));
        assert_eq!(build_id(&entry(4, 200, b"GNU\0ab\0\0")), None);
        assert_eq!(build_id(&entry(u32::MAX, u32::MAX, b"GNU\0")), None);
        assert_eq!(build_id(b"abc"), None);
    }

    #[test]
    fn offsets_outside_are_refused() {
        let here = walk(usize::MAX).into_iter().next().unwrap();
        assert_eq!(here.address_of(usize::MAX - 8, 16), None);
        assert_eq!(here.address_of(usize::MAX / 2, 16), None);
    }
}
