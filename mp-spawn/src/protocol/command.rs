//! Program or command that processes are started from.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::{env, io};

use mp_core::fork::PerProcess;
use mp_core::mutex::Mutex;
use rustix::fs::Access;

use crate::protocol::fields::fields;

/// Program with its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CommandLine {
    program: OsString,
    pub(crate) args: Vec<OsString>,
    /// `true` if a program without a slash in its name is searched for in `PATH`.
    search: bool,
}

/// Command set by [`set_executable`] or [`set_command`]. `None` means the running program.
static DEFAULT: PerProcess<Mutex<Option<CommandLine>>> = mp_core::per_process!(Mutex::new(None));

/// Sets the program that later starts execute instead of the current program, unless
/// [`SpawnOptions::executable`] or [`ProcessBuilder::executable`] names a program. `None` restores the
/// default. The program must be the same build, because the function is looked up in it. Processes that are
/// started later inherit the setting.
///
/// ```
/// mp_spawn::set_executable(Some(std::env::current_exe()?));
/// mp_spawn::spawn(|_: usize, (): ()| {}, (), 1)?;
/// mp_spawn::set_executable(None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Use this if the running program can't be found, for example because it was deleted and runs under valgrind
/// or through the loader (`ld.so ./program`). For a program that needs arguments to become a worker, use
/// [`set_command`].
///
/// [`SpawnOptions::executable`]: crate::SpawnOptions::executable
/// [`ProcessBuilder::executable`]: crate::ProcessBuilder::executable
pub fn set_executable(program: Option<PathBuf>) {
    *DEFAULT.lock() = program.map(CommandLine::program);
}

/// Sets a command, a program and its arguments, by which later starts execute processes, unless
/// [`SpawnOptions::command`] names another command. An empty command restores the default, and also resets
/// [`set_executable`]. A program without a slash in its name is searched for in the directories of `PATH`:
/// name it by its path if `PATH` is not trusted. Processes that are started later inherit the setting.
///
/// ```
/// // Starts `env`, which then executes this program.
/// let program = std::env::current_exe()?.into_os_string();
/// mp_spawn::set_command(["env".into(), "THROUGH=env".into(), program]);
/// let seen = mp_spawn::spawn(|_: usize, (): ()| Ok::<_, String>(std::env::var("THROUGH").is_ok()), (), 1)?;
/// assert_eq!(seen, [true]);
/// mp_spawn::set_command::<&str>([]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// The program that the command finally executes must become a worker. This program may be the same build as
/// the running program. If this crate is part of a shared library, the command may also execute any program
/// that loads the library and calls the function of [`export_child_main!`], such as `set_command(["python3",
/// "-c", "import ctypes; ctypes.CDLL('./libjob.so').mp_child_main()"])`. The command may execute another
/// program, as `env` and `sh -c 'exec …'` do. It must not start the worker as a child process: the started
/// process itself must become the worker.
///
/// [`SpawnOptions::command`]: crate::SpawnOptions::command
/// [`export_child_main!`]: crate::export_child_main!
#[doc(alias = "set_executable")]
pub fn set_command<S: Into<OsString>>(command: impl IntoIterator<Item = S>) {
    *DEFAULT.lock() = CommandLine::command(command);
}

/// Returns the command that was set.
pub(crate) fn default_command() -> Option<CommandLine> {
    DEFAULT.lock().clone()
}

/// Sets the command of the parent, in a process that was just started.
#[inline]
pub(crate) fn inherit(words: Option<CommandLine>) {
    if words.is_some() {
        *DEFAULT.lock() = words;
    }
}

impl CommandLine {
    /// Creates a command from the path of a program.
    pub(crate) fn program(path: PathBuf) -> CommandLine {
        CommandLine { program: path.into_os_string(), args: Vec::new(), search: false }
    }

    /// Creates a command from its words. Returns `None` if there are none.
    pub(crate) fn command<S: Into<OsString>>(words: impl IntoIterator<Item = S>) -> Option<CommandLine> {
        let mut words = words.into_iter().map(Into::into);
        Some(CommandLine { program: words.next()?, args: words.collect(), search: true })
    }

    /// Returns the name of the program.
    pub(crate) fn name(&self) -> &OsStr {
        &self.program
    }

    /// Returns the path of the program, after a search in `PATH` if necessary.
    pub(crate) fn find(&self) -> io::Result<PathBuf> {
        let name = Path::new(&self.program);
        if !self.search || self.program.as_bytes().contains(&b'/') {
            return Ok(name.to_owned());
        }
        let path = env::var_os("PATH").unwrap_or_default();
        let is_one = |path: &PathBuf| path.is_file() && rustix::fs::access(path, Access::EXEC_OK).is_ok();
        env::split_paths(&path).map(|folder| folder.join(name)).find(is_one).ok_or_else(|| {
            io::Error::new(io::ErrorKind::NotFound, "it is in none of the directories of PATH")
        })
    }
}

fields!(CommandLine { search, program, args });

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::fields::{from_bytes, to_bytes};

    #[test]
    fn commands_without_a_slash_are_found_in_path() {
        let find = |words: &[&str]| CommandLine::command(words.iter().copied()).unwrap().find();
        assert!(find(&["sh", "-c"]).unwrap().is_absolute());
        assert_eq!(find(&["./sh"]).unwrap(), Path::new("./sh"));
        assert_eq!(find(&["no-such-program"]).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(CommandLine::program("sh".into()).find().unwrap(), Path::new("sh"));
        assert_eq!(CommandLine::command::<&str>([]), None);
    }

    #[test]
    fn command_words_round_trip() {
        let words = CommandLine::command(["a", "", "c d"]).unwrap();
        let bytes = to_bytes(&words);
        for end in 0..bytes.len() {
            assert_eq!(from_bytes::<CommandLine>(&bytes[..end]), None);
        }
        assert_eq!(from_bytes(&bytes), Some(words));
    }
}
