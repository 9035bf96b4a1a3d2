//! ELF objects that this process has loaded: the object at an address, the build of each object, the object
//! that holds this copy of the crate, and its initialisers.
//!
//! # Safety
//!
//! This file may hold `unsafe`: it walks the dynamic loader's tables (`dl_iterate_phdr(3)`) and reads program
//! headers, notes and the dynamic section in memory. Every object stays loaded during the walk, because the
//! loader holds its lock. Data that is stored afterwards does not point into an object. The file also loads a
//! library, whose initialisers run then, as those of any library that a program loads. The caller has checked
//! the library's build.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, OsStr, c_int, c_void};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::{io, mem, ptr, slice};

use crate::protocol::function::build_id::BuildIdentity;
use crate::protocol::function::elf;
use mp_core::fork::SetOnce;

#[cfg(target_pointer_width = "64")]
type ProgramHeader = libc::Elf64_Phdr;
#[cfg(target_pointer_width = "32")]
type ProgramHeader = libc::Elf32_Phdr;

const DT_NULL: usize = 0;
const DT_INIT_ARRAY: usize = 25;
const DT_INIT_ARRAYSZ: usize = 27;

/// Loaded object.
#[derive(Debug)]
pub(crate) struct Object {
    base: usize,
    path: PathBuf,
    segments: Vec<Range<usize>>,
    build_id: Option<Vec<u8>>,
    dynamic: Option<Range<usize>>,
    /// `true` for the program itself, `false` for its libraries.
    pub(crate) is_program: bool,
}

impl Object {
    /// Returns the identity of the build, or `None` if the object has neither a build-id nor a file.
    #[inline]
    pub(crate) fn identity(&self) -> Option<BuildIdentity> {
        if let Some(id) = &self.build_id {
            return Some(BuildIdentity::BuildId(id.clone()));
        }
        let path = if self.is_program { Path::new("/proc/self/exe") } else { &self.path };
        elf::file(path).ok()
    }

    /// Returns `true` if this object has the given identity of a build.
    #[inline]
    pub(crate) fn is(&self, identity: &BuildIdentity) -> bool {
        match (&self.build_id, identity) {
            (Some(mine), BuildIdentity::BuildId(id)) => mine == id,
            (Some(_), BuildIdentity::File { .. }) | (None, BuildIdentity::BuildId(_)) => false,
            (None, BuildIdentity::File { .. }) => self.identity().as_ref() == Some(identity),
        }
    }

    /// Returns the loader's name of the object.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the lowest address of the object.
    pub(crate) fn start(&self) -> Option<usize> {
        self.segments.iter().map(|segment| segment.start).min()
    }

    /// Returns the offset of an address in this object, or `None` if no segment of the object contains the
    /// address.
    #[inline]
    pub(crate) fn offset_of(&self, address: usize) -> Option<usize> {
        let inside = self.segments.iter().any(|segment| segment.contains(&address));
        inside.then(|| address.wrapping_sub(self.base))
    }

    /// Returns the address of `size` bytes at this offset. Returns `None` unless all bytes are in one
    /// readable segment.
    #[inline]
    pub(crate) fn address_of(&self, offset: usize, size: usize) -> Option<usize> {
        let start = self.base.checked_add(offset)?;
        let end = start.checked_add(size)?;
        let inside = self.segments.iter().any(|segment| segment.start <= start && end <= segment.end);
        inside.then_some(start)
    }

    /// Returns the addresses of the entries of this object's `.init_array` after the entry at `entry`. The
    /// range is empty if `entry` isn't in it, or if the object has no dynamic section (as in static
    /// programs).
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
        // mapped readable and aligned. It was checked to lie within a PT_LOAD segment. It is requested only
        // for the program, or for the library that holds this very code, by an initialiser of it: it is
        // loaded. The loader writes to it before any initialiser runs and not afterwards.
        unsafe { slice::from_raw_parts(start, count) }
    }
}

/// Returns the program itself, which is inspected once, because almost every function lies in it.
#[inline]
pub(crate) fn program() -> Option<&'static Object> {
    // fork: the program is the same. The parent has looked it up before it starts a process, for the
    // function.
    static PROGRAM: SetOnce<Object> = SetOnce::new();
    PROGRAM.get().or_else(|| walk(1).pop().map(|program| PROGRAM.set(program)))
}

/// Marker of a copy of this crate, identified by its address.
#[derive(Debug)]
pub(crate) struct CrateMarker(#[allow(dead_code, reason = "so that it has an address of its own")] u8);

/// Marker of this copy of the crate.
// fork: never changed.
pub(crate) static MARKER: CrateMarker = CrateMarker(0);

#[cfg(test)]
pub(crate) const fn another_marker() -> CrateMarker {
    CrateMarker(0)
}

/// Returns the object that holds this copy of the crate: the program or a library. The object is inspected
/// once.
#[inline]
pub(crate) fn own() -> Option<&'static Object> {
    let here = (&raw const MARKER).addr();
    let inside = |object: &&Object| object.offset_of(here).is_some();
    program().filter(inside).or_else(own_library)
}

fn own_library() -> Option<&'static Object> {
    // fork: the library is the same. The parent has looked it up before it starts a process, for the
    // function.
    static LIBRARY: SetOnce<Object> = SetOnce::new();
    LIBRARY.get().or_else(|| {
        let here = (&raw const MARKER).addr();
        let mut library = walk(usize::MAX).into_iter().find(|object| object.offset_of(here).is_some())?;
        library.path = file_at(here).unwrap_or(library.path);
        Some(LIBRARY.set(library))
    })
}

/// Returns the file that is mapped at an address. The loader's name of a library may be relative to the
/// working directory at that time.
fn file_at(address: usize) -> Option<PathBuf> {
    let path = mapped_at(&std::fs::read("/proc/self/maps").ok()?, address)?;
    // Former path of the file. Another file may have that path by now.
    let former = path.as_os_str().as_bytes().strip_suffix(b" (deleted)");
    Some(former.map_or_else(|| path.clone(), |former| OsStr::from_bytes(former).into()))
}

/// Returns the path at an address in a list like `/proc/self/maps` (see `proc(5)`). A newline in the path is
/// written as `\012`, and a deleted file is marked as such.
pub(crate) fn mapped_at(maps: &[u8], address: usize) -> Option<PathBuf> {
    let line = maps.split(|byte| *byte == b'\n').find(|line| {
        let range = line.split(|byte| *byte == b' ').next().and_then(|range| str::from_utf8(range).ok());
        let (start, end) = range.and_then(|range| range.split_once('-')).unwrap_or_default();
        let number = |text| usize::from_str_radix(text, 16).unwrap_or(0);
        (number(start)..number(end)).contains(&address)
    })?;
    // Range, access, offset, device and inode precede the path, without a slash.
    let path = &line[line.iter().position(|byte| *byte == b'/')?..];
    Some(OsStr::from_bytes(path).into())
}

/// Returns the file of a loaded build that is neither the program nor the library that holds this copy of the
/// crate. A child may have to load that file.
pub(crate) fn file_of(build: &BuildIdentity) -> Option<PathBuf> {
    if own().is_some_and(|own| own.is(build)) {
        return None;
    }
    let object = walk(usize::MAX).into_iter().find(|object| object.is(build) && !object.is_program)?;
    object.segments.first().and_then(|segment| file_at(segment.start)).or(Some(object.path))
}

/// Returns `true` if a build is loaded.
pub(crate) fn is_loaded(build: &BuildIdentity) -> bool {
    find(|object| object.is(build), |_| ()).is_some()
}

/// Loads a library.
///
/// # Errors
/// The loader's message.
pub(crate) fn load(path: &Path) -> io::Result<()> {
    let name = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the name is a C string. The initialisers that run belong to the build that the parent of this
    // process runs, and they have run there.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_NODELETE) };
    if !handle.is_null() {
        return Ok(());
    }
    // SAFETY: it returns null, or a C string that stays until this thread calls the loader again.
    let why = unsafe { libc::dlerror() };
    if why.is_null() {
        return Err(io::Error::other("the loader doesn't say why"));
    }
    // SAFETY: as above.
    Err(io::Error::other(unsafe { CStr::from_ptr(why) }.to_string_lossy().into_owned()))
}

/// Calls `look` with the first loaded object for which `is_it` returns `true`, and returns the result. The
/// object that holds this copy of the crate is checked first, because almost every function lies in it.
#[inline]
pub(crate) fn find<R>(is_it: impl Fn(&Object) -> bool, look: impl FnOnce(&Object) -> R) -> Option<R> {
    if let Some(object) = own().filter(|own| is_it(own)) {
        return Some(look(object));
    }
    walk(usize::MAX).iter().find(|object| is_it(object)).map(look)
}

/// Objects found in a walk, and their maximum number.
struct ObjectWalk {
    objects: Vec<Object>,
    most: usize,
}

/// Returns the first `most` loaded objects. The program comes first.
#[inline]
fn walk(most: usize) -> Vec<Object> {
    let mut walk = ObjectWalk { objects: Vec::with_capacity(1), most };
    // SAFETY: `add_object` has the signature that the function asks for, and `data` is the exclusive
    // reference that it converts back, valid until the call returns.
    unsafe { libc::dl_iterate_phdr(Some(add_object), (&raw mut walk).cast()) };
    walk.objects
}

#[inline]
unsafe extern "C" fn add_object(info: *mut libc::dl_phdr_info, _size: usize, data: *mut c_void) -> c_int {
    // SAFETY: the loader passes a valid info for the duration of this call.
    let info = unsafe { &*info };
    // SAFETY: `data` is the reference that `walk` passed. Nothing else uses it meanwhile.
    let ObjectWalk { objects, most } = unsafe { &mut *data.cast::<ObjectWalk>() };
    let headers: &[ProgramHeader] = if info.dlpi_phdr.is_null() {
        &[]
    } else {
        // SAFETY: the loader guarantees this many program headers at that address. They stay while the object
        // does.
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
    // Allocated with the full capacity, to avoid the code that grows a vector.
    let mut segments: Vec<Range<usize>> = Vec::with_capacity(headers.len());
    headers.iter().filter(readable).for_each(|header| segments.push(place(header)));
    let within = |part: &Range<usize>| {
        segments.iter().any(|segment| segment.start <= part.start && part.end <= segment.end)
    };
    let of_type = |wanted| {
        headers.iter().filter(move |header| header.p_type == wanted).map(place).filter(|part| within(part))
    };
    let build_id = of_type(libc::PT_NOTE).find_map(|part| {
        // SAFETY: the range lies within a readable segment of this object, which stays loaded during the
        // walk; notes are read-only data.
        let notes = unsafe { slice::from_raw_parts(ptr::with_exposed_provenance(part.start), part.len()) };
        elf::build_id_in(notes)
    });
    let dynamic = of_type(libc::PT_DYNAMIC).find(|part| part.start % mem::align_of::<usize>() == 0);
    Object { base, path, build_id, dynamic, is_program, segments }
}

/// Converts a word of an ELF structure of this machine, whose width is that of an address.
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
    fn program_is_first_loaded_object_with_an_identity() {
        let address = program_is_first_loaded_object_with_an_identity as fn() as usize;
        let here = program().unwrap();
        assert!(here.is_program && here.offset_of(address).is_some());
        assert!(here.identity().is_some());
        assert_eq!(find(|object| object.is_program, |object| object.base), Some(here.base));
        assert!(walk(usize::MAX).iter().filter(|object| object.is_program).count() == 1);
    }

    #[test]
    fn identity_of_an_object_without_build_id_is_its_file() {
        let mut here = walk(usize::MAX).into_iter().next().unwrap();
        here.build_id = None;
        assert!(matches!(here.identity(), Some(BuildIdentity::File { size: 1.., .. })));
    }

    #[test]
    fn initializers_of_object_match_its_dynamic_section() {
        let here = walk(usize::MAX).into_iter().next().unwrap();
        assert!(
            here.initialisers_after(program_is_first_loaded_object_with_an_identity as fn() as usize)
                .is_empty()
        );
        let find = |tag| here.dynamic_entries().iter().find(|entry| entry[0] == tag).map(|entry| entry[1]);
        let (Some(array), Some(size)) = (find(DT_INIT_ARRAY), find(DT_INIT_ARRAYSZ)) else { return };
        let (first, end) = (here.base + array, here.base + array + size);
        assert_eq!(here.initialisers_after(first), first + size_of::<usize>()..end);
        assert!(here.initialisers_after(end).is_empty());
    }

    #[test]
    fn loaded_object_of_this_crate_is_the_program() {
        assert!(own().unwrap().is_program);
        let here = (&raw const MARKER).addr();
        assert_eq!(file_at(here).unwrap(), std::env::current_exe().unwrap());
        assert_eq!(file_at(1), None);
    }

    #[test]
    fn loading_a_missing_shared_library_is_an_error() {
        let error = load(Path::new("/no/such/library.so")).unwrap_err();
        assert!(error.to_string().contains("/no/such/library.so"), "{error}");
    }

    #[test]
    fn offsets_outside_a_loaded_object_are_refused() {
        let here = walk(usize::MAX).into_iter().next().unwrap();
        assert_eq!(here.address_of(usize::MAX - 8, 16), None);
        assert_eq!(here.address_of(usize::MAX / 2, 16), None);
    }
}
