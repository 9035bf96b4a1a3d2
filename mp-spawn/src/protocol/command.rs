//! What processes are started from: the running program, or the command that was set instead.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use mp_core::fork::{GENERATIONS, PerProcess};
use mp_core::mutex::Mutex;
use rustix::fs::Access;

use crate::protocol::fields::{Fields, put_bytes, put_number};

/// A program, and what it is given as arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Words {
    program: OsString,
    pub(crate) args: Vec<OsString>,
    /// Whether a program without a slash in its name is searched for in `PATH`.
    search: bool,
}

/// What [`set_executable`] or [`set_command`] has set; the running program without it.
static USUAL: PerProcess<Mutex<Option<Words>>> = PerProcess::new([const { Mutex::new(None) }; GENERATIONS]);

/// From now on, starts another program instead of the running one, unless [`SpawnOptions::executable`] or
/// [`ProcessBuilder::executable`] names one; `None` takes that back. It must be the same build: the function is looked up
/// in it. Processes that are started from now on begin with the same setting.
///
/// ```
/// mp_spawn::set_executable(Some(std::env::current_exe()?));
/// mp_spawn::spawn(|_: usize, (): ()| {}, (), 1)?;
/// mp_spawn::set_executable(None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// This helps where the running program can't be found, as when it was deleted and runs under valgrind or by the loader
/// (`ld.so ./program`). For a program that needs arguments to become a worker, use [`set_command`].
///
/// [`SpawnOptions::executable`]: crate::SpawnOptions::executable
/// [`ProcessBuilder::executable`]: crate::ProcessBuilder::executable
pub fn set_executable(program: Option<PathBuf>) {
    *USUAL.lock() = program.map(Words::program);
}

/// From now on, starts processes by this command, a program and its arguments, unless [`SpawnOptions::command`] names another;
/// an empty one takes that back, and what [`set_executable`] has set. A program without a slash in its name is searched for in
/// the directories of `PATH`: name it by its path where `PATH` is not trusted. Processes that are started from now on begin with
/// the same setting.
///
/// ```
/// // Through another program, which executes this one at last.
/// let program = std::env::current_exe()?.into_os_string();
/// mp_spawn::set_command(["env".into(), "THROUGH=env".into(), program]);
/// let seen = mp_spawn::spawn(|_: usize, (): ()| Ok::<_, String>(std::env::var("THROUGH").is_ok()), (), 1)?;
/// assert_eq!(seen, [true]);
/// mp_spawn::set_command::<&str>([]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// The program that it runs in the end must become a worker: the same build of this one; or, where this crate is part of a shared
/// library, any program that loads the library and calls what [`export_child_main!`] makes, as with
/// `set_command(["python3", "-c", "import ctypes; ctypes.CDLL('./libjob.so').mp_child_main()"])`. It may execute another
/// program, as `env` and `sh -c 'exec …'` do, but not start a process that does: the process that is started has to be the
/// worker.
///
/// [`SpawnOptions::command`]: crate::SpawnOptions::command
/// [`export_child_main!`]: crate::export_child_main!
#[doc(alias = "set_executable")]
pub fn set_command<S: Into<OsString>>(command: impl IntoIterator<Item = S>) {
    *USUAL.lock() = Words::command(command);
}

/// What was set.
pub(crate) fn usual() -> Option<Words> {
    USUAL.lock().clone()
}

/// In a process that was just started: begins with what the parent has set.
#[inline]
pub(crate) fn inherit(words: Option<Words>) {
    if words.is_some() {
        *USUAL.lock() = words;
    }
}

impl Words {
    /// A program at a path.
    pub(crate) fn program(path: PathBuf) -> Words {
        Words { program: path.into_os_string(), args: Vec::new(), search: false }
    }

    /// `None` if there are no words.
    pub(crate) fn command<S: Into<OsString>>(words: impl IntoIterator<Item = S>) -> Option<Words> {
        let mut words = words.into_iter().map(Into::into);
        Some(Words { program: words.next()?, args: words.collect(), search: true })
    }

    /// What it is called when it runs.
    pub(crate) fn name(&self) -> &OsStr {
        &self.program
    }

    /// Where the program is.
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

    /// Appends it to a message.
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        out.push(self.search.into());
        put_number(out, self.args.len() as u64);
        for word in [&self.program].into_iter().chain(&self.args) {
            put_bytes(out, word.as_bytes());
        }
    }

    /// Reads one from a message.
    pub(crate) fn read(fields: &mut Fields<'_>) -> Option<Words> {
        let (search, count) = (fields.flag()?, fields.size()?);
        let mut word = || fields.bytes().map(|bytes| OsString::from_vec(bytes.to_vec()));
        let program = word()?;
        let mut args = Vec::new();
        // One by one: the count in the message is not trusted to allocate by.
        for _ in 0..count {
            args.push(word()?);
        }
        Some(Words { program, args, search })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_in_path_unless_they_are_paths() {
        let find = |words: &[&str]| Words::command(words.iter().copied()).unwrap().find();
        assert!(find(&["sh", "-c"]).unwrap().is_absolute());
        assert_eq!(find(&["./sh"]).unwrap(), Path::new("./sh"));
        assert_eq!(find(&["no-such-program"]).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(Words::program("sh".into()).find().unwrap(), Path::new("sh"));
        assert_eq!(Words::command::<&str>([]), None);
    }

    #[test]
    fn words_are_read_as_they_were_written() {
        let words = Words::command(["a", "", "c d"]).unwrap();
        let mut out = Vec::new();
        words.put(&mut out);
        assert_eq!(Words::read(&mut Fields(&out)), Some(words));
        for end in 0..out.len() {
            assert_eq!(Words::read(&mut Fields(&out[..end])), None);
        }
    }
}
