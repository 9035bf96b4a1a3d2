//! Workers of a shared library that this crate is part of: the program that becomes the worker, and its
//! start.
//!
//! The program is a host that does not support workers: an interpreter, a C program. If it were executed
//! again, it would begin its own `main`. So the dynamic loader loads the library before all other libraries
//! (`LD_PRELOAD`, see `ld.so(8)`), and the library becomes the worker while it is loaded: the host's own code
//! never runs. Workers that need the host (an interpreter that is called from a worker) are started by a
//! command instead, which calls the function of [`export_child_main!`](crate::export_child_main!).
//!
//! | this copy of the crate is in | started by | the token is for | taken by |
//! |---|---|---|---|
//! | the program | the program, or a command | [`TokenTarget::Program`] | the hook before `main`, or `init` |
//! | a library | a command | [`TokenTarget::Call`] | the caller of `mp_child_main`, or `init` |
//! | a library, and the function is in the same library | the host, with the library loaded first | [`TokenTarget::Load`] | the hook of the library of that build, while the loader initialises the objects of the program |
//! | a library, and the function is in the program or in another library | the host | [`TokenTarget::Call`] | `init`, in the `main` of a program that is linked with the library |
//!
//! A library that is loaded later does not become a worker, because `dlopen` holds the loader's lock while
//! initialisers run, and a worker that loads a library on another thread would wait forever. At the start of
//! a program the loader holds no lock. The library assumes the start of a program if it is the first library
//! in `LD_PRELOAD`, and its hook removes that entry.
//!
//! | problem | result |
//! |---|---|
//! | the library's file was deleted, or is another build by now | the start is refused, before anything is executed |
//! | the file is replaced between the check and the start of the child | another build: its hook ignores the token, the host begins, and the parent reports that the process never reported |
//! | two libraries were made with this crate | each hook takes the token with the number of its build; a call of `mp_child_main` or `init` takes a token for [`TokenTarget::Call`] |
//! | the host is a program with a copy of this crate | the program ignores tokens that are not for programs |
//! | the host closes the library (`dlclose`) | the library stays loaded, because the supervisor's thread has thread-local variables in it, and the C library waits for their destructors |
//! | a host for which the loader ignores `LD_PRELOAD` (set-user-ID) | the start is refused; such a host that another program executes begins its own `main`, and the parent reports that the process never reported |

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use mp_core::fork::PerProcess;
use mp_core::mutex::Mutex;

use crate::error::{FunctionError, SpawnError, launch_error};
use crate::protocol::function::build_id::BuildIdentity;
use crate::protocol::function::loaded_objects::{self, Object};
use crate::protocol::function::{FunctionRef, elf};
use crate::protocol::report::Report;
use crate::protocol::token::TokenTarget;
use crate::sys::Environment;

/// Environment variable that names libraries to the loader.
pub(crate) const PRELOAD: &str = "LD_PRELOAD";

/// File that was found to be the running build, identified by device, inode and similar fields.
static CHECKED: PerProcess<Mutex<Option<BuildIdentity>>> = mp_core::per_process!(Mutex::new(None));

/// Returns the copy of this crate that takes the token of a process that is to call `function`, and the
/// library to be loaded first.
pub(crate) fn taker(
    command: bool,
    function: &FunctionRef,
) -> Result<(TokenTarget, Option<PathBuf>), SpawnError> {
    let Some(library) = loaded_objects::own().filter(|own| !own.is_program) else {
        return Ok((TokenTarget::Program, None));
    };
    if command || !library.is(&function.object) {
        return Ok((TokenTarget::Call, None));
    }
    let path = library.path();
    can_be_loaded(library, &function.object)
        .map_err(|error| launch_error("the loading of the library", Some(path), error))?;
    Ok((TokenTarget::Load(function.object.short()), Some(path.to_owned())))
}

/// Checks that a library can be loaded first, and that its file is the build that runs here.
fn can_be_loaded(library: &Object, identity: &BuildIdentity) -> io::Result<()> {
    let path = library.path();
    let name = path.as_os_str().as_bytes();
    if !name.starts_with(b"/") || name.iter().any(|byte| b" :\n".contains(byte)) {
        return Err(io::Error::other(
            "its path can't be in LD_PRELOAD, where blanks and colons are separators: move it, or start \
             processes by a command that calls its mp_child_main (see `set_command`)",
        ));
    }
    let gone = |error: io::Error| {
        let hint = "was it deleted since this program has loaded it?";
        io::Error::new(error.kind(), format!("{error}; {hint}"))
    };
    let stamp = elf::file(path).map_err(gone)?;
    let mut checked = CHECKED.lock();
    if checked.as_ref() == Some(&stamp) {
        return Ok(());
    }
    let found = elf::build(path).map_err(gone)?;
    if !library.is(&found) {
        return Err(io::Error::other(format!(
            "it was replaced by another build since this program has loaded it: {found}, expected \
             {identity}. Start the program anew"
        )));
    }
    *checked = Some(stamp);
    Ok(())
}

/// In a child: loads the library of its function, unless it is loaded. Only a library that the parent names
/// is loaded. A closure in a message must be in a loaded object, because messages may come from outside.
pub(crate) fn load(path: &Path, build: &BuildIdentity) -> Result<(), Report> {
    if loaded_objects::is_loaded(build) {
        return Ok(());
    }
    let unable = |error| Report::Unable(format!("loading the library {} failed: {error}", path.display()));
    let found = elf::build(path).map_err(unable)?;
    if found != *build {
        let (found, expected) = (format!("{found} at {}", path.display()), build.to_string());
        return Err(Report::Refused(FunctionError::OtherBuild { found, expected }));
    }
    loaded_objects::load(path).map_err(unable)
}

/// Returns this environment with a library that the loader loads first.
pub(crate) fn with_library(environment: &Environment, library: &Path) -> Environment {
    let mut value = library.as_os_str().to_owned();
    if let Some(more) = environment.get(PRELOAD).filter(|more| !more.is_empty()) {
        value.push(":");
        value.push(more);
    }
    // Paths contain none of the bytes that `with` refuses.
    environment.with(OsStr::new(PRELOAD), Some(&value)).unwrap_or_else(|_| environment.clone())
}

/// Returns the libraries that the variable names, without the library that [`with_library`] has put
/// first. Returns `None` if that library isn't the first.
pub(crate) fn without_library(value: &OsStr, library: &Path) -> Option<Option<OsString>> {
    let rest = value.as_bytes().strip_prefix(library.as_os_str().as_bytes())?;
    match rest {
        [] => Some(None),
        [b':', more @ ..] => Some(Some(OsString::from_vec(more.to_vec()))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_of_the_programs_function_loads_no_library() {
        for command in [false, true] {
            assert_eq!(taker(command, &FunctionRef::example()).unwrap(), (TokenTarget::Program, None));
        }
    }

    /// Uses libraries of glibc that few programs load.
    #[test]
    fn shared_library_is_loaded_if_its_build_matches() {
        let folders = ["/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu", "/lib64", "/usr/lib64", "/usr/lib"];
        let all = folders.iter().flat_map(|folder| {
            ["libBrokenLocale.so.1", "libanl.so.1"].map(|name| Path::new(folder).join(name))
        });
        let found = all.into_iter().find_map(|path| Some((elf::build(&path).ok()?, path)));
        let Some((build, path)) = found.filter(|(build, _)| !loaded_objects::is_loaded(build)) else {
            mp_harness::skip("no library of glibc that could be loaded");
            return;
        };
        let other = BuildIdentity::BuildId(vec![1, 2]);
        let refused = load(&path, &other).unwrap_err();
        let Report::Refused(FunctionError::OtherBuild { found, expected }) = refused else {
            panic!("{refused:?}")
        };
        assert!(found.contains(path.to_str().unwrap()) && expected == "build-id 0102", "{found}, {expected}");
        assert!(!loaded_objects::is_loaded(&build));
        let Report::Unable(why) = load(Path::new("/no/such/library"), &build).unwrap_err() else { panic!() };
        assert!(why.contains("/no/such/library"), "{why}");
        load(&path, &build).unwrap();
        assert!(loaded_objects::is_loaded(&build));
        let loaded = loaded_objects::file_of(&build).unwrap();
        assert_eq!(std::fs::canonicalize(loaded).unwrap(), std::fs::canonicalize(&path).unwrap());
    }

    #[test]
    fn preloaded_library_is_removed_from_ld_preload() {
        let library = Path::new("/x/lib.so");
        let empty = Environment::default();
        let more = empty.with(OsStr::new(PRELOAD), Some(&"/y/a.so:/z/b.so".into())).unwrap();
        for (before, after) in [(&empty, None), (&more, Some("/y/a.so:/z/b.so".into()))] {
            let with = with_library(before, library);
            let value = with.get(PRELOAD).unwrap();
            assert_eq!(without_library(value, library), Some(after));
            assert_eq!(without_library(value, Path::new("/x/lib.s")), None);
            assert_eq!(without_library(value, Path::new("/y/a.so")), None);
        }
    }
}
