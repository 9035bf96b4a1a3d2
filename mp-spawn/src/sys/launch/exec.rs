//! Execution of a program by `posix_spawn(3)`, with inherited files and signals, and copies by `fork(3)`.
//!
//! # Safety
//! Unsafe, because it passes libc pointers, and because a copy has only one of several threads.
//! Sound, because each pointer is made from a reference or an owned buffer that outlives the call. The caller
//! of `fork` vouches for the code that runs in the copy.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::{io, ptr};

use rustix::process::Pid;

use crate::sys::signals::{STANDARD_SIGNALS, initial_signal_mask, no_signals};
use crate::sys::{Environment, check, descriptors};

/// Program to be executed, and its setup.
#[derive(Debug)]
pub(crate) struct Program<'a> {
    pub(crate) path: &'a CStr,
    /// Name under which the program is started (`argv[0]`), and its arguments.
    pub(crate) argv: &'a [CString],
    pub(crate) environment: &'a Environment,
    /// Additional entry of the environment.
    pub(crate) token: CString,
    /// File that the program inherits under its own number. Only this file, the standard streams and `files`
    /// are inherited.
    pub(crate) inherit: BorrowedFd<'a>,
    /// Files that the program inherits, with their numbers in the program. In this process, no file of this
    /// struct has one of these numbers.
    pub(crate) files: &'a [(RawFd, Arc<OwnedFd>)],
    /// `true` if SIGINT and SIGTERM are blocked until the program unblocks them.
    pub(crate) interrupts_wait: bool,
    /// Standard output, if it is not inherited.
    pub(crate) stdout: Option<BorrowedFd<'a>>,
    /// Standard error, if it is not inherited.
    pub(crate) stderr: Option<BorrowedFd<'a>>,
}

impl Program<'_> {
    /// Returns the arguments in the kernel's format: C strings that live in `self`, and a null pointer.
    pub(crate) fn argv(&self) -> Vec<*mut c_char> {
        let argv = self.argv.iter().map(|arg| arg.as_ptr()).chain([ptr::null()]);
        argv.map(<*const c_char>::cast_mut).collect()
    }

    /// Returns the environment in the format of [`argv`](Self::argv).
    pub(crate) fn environment(&self) -> Vec<*mut c_char> {
        let entries = self.environment.pointers().chain([self.token.as_ptr(), ptr::null()]);
        entries.map(<*const c_char>::cast_mut).collect()
    }
}

/// Signals that children ignore if this process ignores them, because it was started by `nohup(1)`, or by a
/// shell that runs it in the background. Without this rule, the end of a terminal would end the workers of a
/// program that survives.
pub(crate) const INHERITED_IGNORED: [c_int; 3] = [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT];

/// Starts a program with no signal blocked and every standard signal at its default, except the ignored ones
/// of `INHERITED_IGNORED`. See `posix_spawn(3)`.
pub(crate) fn posix_spawn(program: &Program<'_>) -> io::Result<Pid> {
    // If both numbers are the same, glibc clears close-on-exec instead of duplicating.
    let mut actions = FileActions::new()?;
    // The program inherits files that other threads open meanwhile without close-on-exec, because no call
    // here can close all files.
    for number in descriptors::inheritable() {
        actions.close(number)?;
    }
    actions.duplicate(program.inherit, program.inherit.as_raw_fd())?;
    for (number, file) in program.files {
        actions.duplicate(file.as_fd(), *number)?;
    }
    for (from, to) in [(program.stdout, libc::STDOUT_FILENO), (program.stderr, libc::STDERR_FILENO)] {
        from.map_or(Ok(()), |from| actions.duplicate(from, to))?;
    }
    let attributes = SpawnAttributes::with_default_signals(program.interrupts_wait)?;
    let (argv, environment) = (program.argv(), program.environment());
    let mut pid = 0;
    // SAFETY:
    // - `path`, and each entry of `argv` and `environment` except the last, are C strings that live in
    //   `program`. The last entries are null. The function doesn't write to any of them.
    // - `actions` and `attributes` are initialised by their constructors.
    // - The child shares this memory until it executes the program. glibc blocks signals and gives it a
    //   separate stack meanwhile.
    let error = unsafe {
        libc::posix_spawn(
            &raw mut pid,
            program.path.as_ptr(),
            &raw const actions.0,
            &raw const attributes.0,
            argv.as_ptr(),
            environment.as_ptr(),
        )
    };
    check(error)?;
    Pid::from_raw(pid).ok_or_else(|| io::Error::other("posix_spawn returned no process id"))
}

/// Actions on file descriptors in the child.
struct FileActions(libc::posix_spawn_file_actions_t);

impl FileActions {
    fn new() -> io::Result<FileActions> {
        let mut actions = MaybeUninit::uninit();
        // SAFETY: the function initialises the target of a valid pointer.
        check(unsafe { libc::posix_spawn_file_actions_init(actions.as_mut_ptr()) })?;
        // SAFETY: initialised just now, because the call returned zero.
        Ok(FileActions(unsafe { actions.assume_init() }))
    }

    /// Adds an action that closes the descriptor `number` in the child, if it is open there.
    fn close(&mut self, number: RawFd) -> io::Result<()> {
        // SAFETY: the actions are initialised; the number is a value, checked in the child.
        check(unsafe { libc::posix_spawn_file_actions_addclose(&raw mut self.0, number) })
    }

    /// Adds an action that duplicates the file to the number `to` in the child.
    fn duplicate(&mut self, fd: BorrowedFd<'_>, to: c_int) -> io::Result<()> {
        // SAFETY: the actions are initialised; the numbers are values, checked in the child.
        check(unsafe { libc::posix_spawn_file_actions_adddup2(&raw mut self.0, fd.as_raw_fd(), to) })
    }
}

impl Drop for FileActions {
    fn drop(&mut self) {
        // SAFETY: initialised by the constructor and destroyed only here.
        unsafe { libc::posix_spawn_file_actions_destroy(&raw mut self.0) };
    }
}

/// Attributes of the child.
struct SpawnAttributes(libc::posix_spawnattr_t);

impl SpawnAttributes {
    fn with_default_signals(interrupts_wait: bool) -> io::Result<SpawnAttributes> {
        let mut attributes = MaybeUninit::uninit();
        // SAFETY: the function initialises the target of a valid pointer.
        check(unsafe { libc::posix_spawnattr_init(attributes.as_mut_ptr()) })?;
        // SAFETY: initialised just now, because the call returned zero.
        let mut attributes = SpawnAttributes(unsafe { attributes.assume_init() });
        let (mut defaults, blocked) = (no_signals(), initial_signal_mask(interrupts_wait));
        for signal in STANDARD_SIGNALS.filter(|signal| !INHERITED_IGNORED.contains(signal)) {
            // SAFETY: the set is initialised, and the number is a signal's. Signals outside the set stay
            // ignored, or are reset to the default when the program is executed.
            unsafe { libc::sigaddset(&raw mut defaults, signal) };
        }
        // SAFETY: the attributes and the set are initialised, and the set is copied.
        check(unsafe { libc::posix_spawnattr_setsigdefault(&raw mut attributes.0, &raw const defaults) })?;
        // SAFETY: the attributes and the set are initialised, and the set is copied.
        check(unsafe { libc::posix_spawnattr_setsigmask(&raw mut attributes.0, &raw const blocked) })?;
        let flags = (libc::POSIX_SPAWN_SETSIGDEF | libc::POSIX_SPAWN_SETSIGMASK) as libc::c_short;
        // SAFETY: the attributes are initialised.
        check(unsafe { libc::posix_spawnattr_setflags(&raw mut attributes.0, flags) })?;
        Ok(attributes)
    }
}

impl Drop for SpawnAttributes {
    fn drop(&mut self) {
        // SAFETY: initialised by the constructor and destroyed only here.
        unsafe { libc::posix_spawnattr_destroy(&raw mut self.0) };
    }
}

/// Copies this process with `fork(3)` of the C library. Returns `None` in the copy.
///
/// # Safety
/// Code that runs in the copy must not depend on unfinished work of other threads of this process, locks
/// included.
pub(crate) unsafe fn fork() -> io::Result<Option<Pid>> {
    // SAFETY: the caller vouches for the code that runs in the copy.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        pid => Ok(Pid::from_raw(pid)),
    }
}
