//! Execution of the running program.
//!
//! | the program runs | `/proc/self/exe` is | executed file |
//! |---|---|---|
//! | by itself | the program, even if its file was deleted or replaced | that file |
//! | under valgrind | the program if opened or read, valgrind if executed | the path in the link |
//! | through the loader (`ld.so --options ./program`, see `ld.so(8)`) | the loader | the loader, with its options and the program's path |
//!
//! A program that was deleted while it runs can't be found in the second and the third case. The executed
//! program then does not become a worker, and the error names a remedy.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use crate::protocol::function::loaded_objects::{self, mapped_at};
use crate::sys;

/// Path of the running program, valid even if its file was deleted or replaced.
const SELF: &str = "/proc/self/exe";

/// Program to be executed, with its arguments.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ProgramCommand {
    /// Program, as errors name it.
    pub(crate) program: PathBuf,
    /// Path that the kernel executes.
    pub(crate) path: PathBuf,
    pub(crate) argv: Vec<OsString>,
}

/// Returns the command that executes this program.
pub(crate) fn own_command() -> ProgramCommand {
    let name = || std::env::args_os().next().unwrap_or_else(|| OsString::from(SELF));
    let by_path = |path: PathBuf| ProgramCommand { program: path.clone(), path, argv: vec![name()] };
    if mp_core::under_valgrind()
        && let Ok(path) = std::fs::read_link(SELF)
    {
        return by_path(path);
    }
    loader_command().unwrap_or_else(|| by_path(SELF.into()))
}

/// Returns the command through the loader, if this program runs through it.
fn loader_command() -> Option<ProgramCommand> {
    // A statically linked program that the loader executes replaces the loader.
    if cfg!(target_feature = "crt-static") || sys::has_interpreter() {
        return None;
    }
    let maps = std::fs::read("/proc/self/maps").ok()?;
    let program = mapped_at(&maps, loaded_objects::program()?.start()?).filter(|path| path.exists())?;
    if std::fs::read_link(SELF).ok()? == program {
        return None;
    }
    let said = std::fs::read("/proc/self/cmdline").ok()?;
    let args: Vec<OsString> = std::env::args_os().collect();
    let argv = loader_args(&said, &args).into_iter().chain([program.clone().into_os_string()]).collect();
    Some(ProgramCommand { program, path: SELF.into(), argv })
}

/// Returns the words of the loader in a command line, before the path of the program: the name of the loader
/// and its options. If the program has overwritten its arguments, returns only the name. `said` is the
/// content of `/proc/self/cmdline`, and `args` are the program's own arguments.
fn loader_args(said: &[u8], args: &[OsString]) -> Vec<OsString> {
    let words: Vec<&OsStr> =
        said.strip_suffix(b"\0").unwrap_or(said).split(|byte| *byte == 0).map(OsStr::from_bytes).collect();
    // The program's own arguments are the last words. Its name may differ (`--argv0`).
    let own = args.len().max(1);
    let before = words.len().checked_sub(own).filter(|before| *before > 0);
    match before.filter(|before| words[before + 1..].iter().eq(args.iter().skip(1))) {
        Some(before) => words[..before].iter().map(|word| (*word).to_owned()).collect(),
        // The program has overwritten its arguments.
        None => vec![SELF.into()],
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn words(all: &[&str]) -> Vec<OsString> {
        all.iter().map(OsString::from).collect()
    }

    #[test]
    fn dynamic_loader_options_end_before_the_program() {
        let said = b"ld.so\0--argv0\0me\0./program\0a\0b\0";
        assert_eq!(loader_args(said, &words(&["me", "a", "b"])), words(&["ld.so", "--argv0", "me"]));
        assert_eq!(loader_args(b"ld.so\0./program\0", &words(&["./program"])), words(&["ld.so"]));
        // Overwritten words, and fewer words than possible.
        for (said, args) in
            [(&b"ld.so\0./program\0x\0"[..], &["p", "y"][..]), (b"title", &["p", "y"]), (b"", &["p"])]
        {
            assert_eq!(loader_args(said, &words(args)), words(&[SELF]));
        }
    }

    #[test]
    fn mapped_file_is_found_by_an_address_within_it() {
        let own = std::env::current_exe().unwrap();
        let maps = std::fs::read("/proc/self/maps").unwrap();
        let address = loaded_objects::program().unwrap().start().unwrap();
        assert_eq!(mapped_at(&maps, address), Some(std::fs::canonicalize(own).unwrap()));
        assert_eq!(mapped_at(&maps, 1), None);
        let deleted = mapped_at(b"1000-2000 r-xp 0 0 0 /no/such/file (deleted)\n", 0x1000);
        assert_eq!(deleted.unwrap(), Path::new("/no/such/file (deleted)"));
        assert_eq!(mapped_at(b"1000-2000 r-xp 0 0 0 [vdso]\nnonsense\n", 0x1fff), None);
    }

    #[test]
    fn program_run_without_a_loader_is_proc_self_exe() {
        assert_eq!(own_command().path, Path::new(SELF));
        assert_eq!(loader_command(), None);
    }
}
