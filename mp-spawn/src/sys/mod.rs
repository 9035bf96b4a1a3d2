//! The system calls that have no safe wrapper elsewhere: `posix_spawn`, `fork`, signal dispositions, exit handlers; and
//! `recvmsg`, whose wrapper is one more part of the program that a child would have to load.
//!
//! # Safety
//!
//! This file may hold `unsafe`: it calls into libc with pointers. Each pointer is made from a reference or an
//! owned buffer that outlives the call.
#![allow(unsafe_code)]

pub(crate) mod clock;
pub(crate) mod descriptors;
pub(crate) mod environment;
pub(crate) mod file_privileges;
pub(crate) mod log_event;
pub(crate) mod oom;
pub(crate) mod proc_stat;
pub(crate) mod process_handle;

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io;
use std::mem::{self, MaybeUninit};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::{Arc, OnceLock};

use mp_core::fork::{GENERATIONS, PerProcess};
use rustix::process::Pid;

use crate::sys::descriptors::MAX_FDS;
use crate::sys::environment::Environment;

/// What is to be executed, and how.
#[derive(Debug)]
pub(crate) struct Program<'a> {
    pub(crate) path: &'a CStr,
    /// The name under which it is started (`argv[0]`), and its arguments.
    pub(crate) argv: &'a [CString],
    pub(crate) environment: &'a Environment,
    /// One more entry of the environment.
    pub(crate) token: CString,
    /// Inherited at its own number. Only this, the standard streams and `files` are inherited.
    pub(crate) inherit: BorrowedFd<'a>,
    /// Inherited at these numbers, which none of the files here has by itself.
    pub(crate) files: &'a [(RawFd, Arc<OwnedFd>)],
    /// Its standard output, where it is not inherited.
    pub(crate) stdout: Option<BorrowedFd<'a>>,
    /// Its standard error, where it is not inherited.
    pub(crate) stderr: Option<BorrowedFd<'a>>,
}

impl Program<'_> {
    /// As the kernel takes it: C strings that live in this, and a null pointer.
    pub(crate) fn argv(&self) -> Vec<*mut c_char> {
        let argv = self.argv.iter().map(|arg| arg.as_ptr()).chain([ptr::null()]);
        argv.map(<*const c_char>::cast_mut).collect()
    }

    /// In the same form.
    pub(crate) fn environment(&self) -> Vec<*mut c_char> {
        let entries = self.environment.pointers().chain([self.token.as_ptr(), ptr::null()]);
        entries.map(<*const c_char>::cast_mut).collect()
    }
}

/// A process that ignores these was started so, by `nohup(1)` or a shell that runs it in the background. Its children ignore
/// them, too: else the end of a terminal would end the workers of a program that was to survive it.
pub(crate) const HANDED_DOWN: [c_int; 3] = [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT];

/// The signals that a program finds at their default. (Real-time signals that are ignored stay so.)
pub(crate) const STANDARD_SIGNALS: std::ops::Range<c_int> = 1..32;

/// Starts a program with no signal blocked and every standard signal at its default, but for those that are handed down as
/// ignored. See `posix_spawn(3)`.
pub(crate) fn posix_spawn(program: &Program<'_>) -> io::Result<Pid> {
    // Both numbers the same: glibc then clears close-on-exec instead of duplicating.
    let mut actions = Actions::new()?;
    // The program inherits files that other threads open meanwhile without close-on-exec: no call here would close all.
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
    let attributes = Attributes::with_default_signals()?;
    let (argv, environment) = (program.argv(), program.environment());
    let mut pid = 0;
    // SAFETY:
    // - `path`, and each entry of `argv` and `environment` but the last, are C strings that live in `program`;
    //   the last entries are null; the function doesn't write to any of them.
    // - `actions` and `attributes` are initialised: their constructors did it.
    // - The child shares this memory until it executes the program; glibc blocks signals and gives it a stack
    //   of its own meanwhile.
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

/// Receives bytes, and the file descriptors that come with them, which are close-on-exec. See `recvmsg(2)`.
#[inline]
pub(crate) fn receive(socket: &OwnedFd, bytes: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<usize> {
    // Words, for a header that is aligned as one; with room for all that one message can carry.
    const MOST: usize = size_of::<libc::cmsghdr>() + MAX_FDS * size_of::<RawFd>();
    let mut control = [MaybeUninit::<u64>::uninit(); MOST.div_ceil(size_of::<u64>())];
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: all zeroes is a header that names nothing.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
    (message.msg_control, message.msg_controllen) = (control.as_mut_ptr().cast(), size_of_val(&control) as _);
    let received = loop {
        // SAFETY: the header names `bytes` and `control`, with their sizes, and nothing else; both live longer.
        let count = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) };
        match usize::try_from(count) {
            Ok(count) => break count,
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    };
    // SAFETY: the kernel has filled in the header, and as much of `control` as it says there.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    while !next.is_null() {
        // SAFETY: the macro returns null or a whole header within `control`.
        let header = unsafe { next.read() };
        if (header.cmsg_level, header.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            // SAFETY: behind a header is its data.
            let data = unsafe { libc::CMSG_DATA(next) }.cast::<RawFd>();
            let size = (header.cmsg_len as usize).saturating_sub(data.addr() - next.addr());
            for at in 0..size / size_of::<RawFd>() {
                // SAFETY: the length in the header says that it is there.
                let fd = unsafe { data.add(at) };
                // SAFETY: as above; it need not be aligned.
                let fd = unsafe { fd.read_unaligned() };
                // SAFETY: the kernel has made it just now, for the receiver of the message.
                fds.push(unsafe { OwnedFd::from_raw_fd(fd) });
            }
        }
        // SAFETY: the message and a header of it.
        next = unsafe { libc::CMSG_NXTHDR(&raw const message, next) };
    }
    if message.msg_flags & libc::MSG_CTRUNC != 0 {
        return Err(io::Error::from_raw_os_error(libc::EMFILE));
    }
    Ok(received)
}

/// Whether there is a file with this number.
pub(crate) fn is_open(number: RawFd) -> bool {
    flags(number).is_some()
}

/// Whether a program that is executed finds a file with this number.
pub(crate) fn is_inheritable(number: RawFd) -> bool {
    flags(number).is_some_and(|flags| flags & libc::FD_CLOEXEC == 0)
}

fn flags(number: RawFd) -> Option<c_int> {
    // SAFETY: a command that takes nothing; a number that is no file's is an error.
    let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
    (flags != -1).then_some(flags)
}

/// Has a file under another number as well, which programs that are executed find.
pub(crate) fn place(file: BorrowedFd<'_>, number: RawFd) -> io::Result<()> {
    // SAFETY: the file is open. This process has one thread, and either no file with this number, for which the callers have
    // looked; or it is a copy, by `fork`, and the caller of `allow_fork` vouches that nothing there relies on what has the
    // number.
    if unsafe { libc::dup2(file.as_raw_fd(), number) } == -1 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Copies this process, as `fork(3)` of the C library does it; `None` in the copy.
///
/// # Safety
/// What runs in the copy needs nothing that other threads of this process have half done, locks included.
pub(crate) unsafe fn fork() -> io::Result<Option<Pid>> {
    // SAFETY: the caller vouches for what runs in the copy.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        pid => Ok(Pid::from_raw(pid)),
    }
}

/// Ends the process without calling anything.
pub(crate) fn exit_at_once(code: c_int) -> ! {
    // SAFETY: it has no preconditions.
    unsafe { libc::_exit(code) }
}

/// What has been registered to be called at exit so far will not be, but what is registered from now on will. See
/// `on_exit(3)`.
#[cfg(target_env = "gnu")]
pub(crate) fn skip_exit_handlers_so_far() {
    unsafe extern "C" {
        fn on_exit(call: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
    }

    extern "C" fn end(code: c_int, _: *mut c_void) {
        // What C code has printed. Rust's own buffer has been written out by `std::process::exit`.
        // SAFETY: a null pointer means all streams.
        unsafe { libc::fflush(ptr::null_mut()) };
        exit_at_once(code)
    }

    // SAFETY: the function lives as long as the program, and lets no panic out. They are called last one first, so that
    // it is called after those that are registered later, and none after it. If it fails, out of memory, the others are
    // called as well.
    unsafe { on_exit(end, ptr::null_mut()) };
}

/// Other C libraries can't.
#[cfg(not(target_env = "gnu"))]
pub(crate) fn skip_exit_handlers_so_far() {}

/// Whether the calling thread is the one that the process began with.
#[inline]
pub(crate) fn on_main_thread() -> bool {
    rustix::thread::gettid() == rustix::process::getpid()
}

/// Whether the kernel has loaded the program together with the loader that it asks for: not if it runs by the loader, as in
/// `ld.so ./program`, or needs none. See `getauxval(3)`.
pub(crate) fn has_interpreter() -> bool {
    // SAFETY: it reads what the kernel gave this process at its start.
    unsafe { libc::getauxval(libc::AT_BASE) != 0 }
}

/// Blocks every signal in the calling thread.
pub(crate) fn block_signals() -> io::Result<()> {
    let all = all_signals();
    // SAFETY: `all` is an initialised set; a null pointer says that the old set isn't wanted.
    check(unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, ptr::null_mut()) })
}

/// Calls a function when the process exits, through `exit` or from `main`. See `atexit(3)`.
pub(crate) fn at_exit(then: fn()) {
    static THEN: PerProcess<OnceLock<fn()>> = PerProcess::new([const { OnceLock::new() }; GENERATIONS]);

    extern "C" fn call() {
        // A panic can't leave a C function; its message has been printed.
        let _ = std::panic::catch_unwind(|| THEN.get().map(|then| then()));
    }

    if THEN.set(then).is_ok() {
        // SAFETY: the function lives as long as the program, and lets no panic out. It fails only when out of memory;
        // then nothing is called.
        unsafe { libc::atexit(call) };
    }
}

/// Asks the kernel to kill this process at an event on this file: see `F_SETSIG` in `fcntl(2)`.
#[inline]
pub(crate) fn be_killed_by(file: BorrowedFd<'_>) -> io::Result<()> {
    const F_SETSIG: c_int = 10;
    let me = rustix::process::getpid().as_raw_nonzero().get();
    for (command, value) in
        [(libc::F_SETOWN, me), (F_SETSIG, libc::SIGKILL), (libc::F_SETFL, libc::O_RDONLY | libc::O_ASYNC)]
    {
        // SAFETY: the file is open, and each of these commands takes an integer.
        if unsafe { libc::fcntl(file.as_raw_fd(), command, value) } == -1 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Gives the calling thread a name, for `ps` and debuggers. The kernel cuts it after 15 bytes, and nothing depends on it.
#[inline]
pub(crate) fn name_thread(name: &str) {
    let mut short = [0_u8; 16];
    for (to, from) in short.iter_mut().take(15).zip(name.bytes()) {
        *to = from;
    }
    // SAFETY: sixteen bytes, the last of them zero.
    unsafe { libc::prctl(libc::PR_SET_NAME, short.as_ptr()) };
}

/// Makes a write to a closed pipe an error, as the standard library does before `main`.
#[inline]
pub(crate) fn ignore_sigpipe() {
    // SAFETY: this installs no handler, so there is no code whose safety could matter.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
}

/// Ignores SIGINT from now on; whether it was ignored before.
pub(crate) fn ignore_interrupts() -> bool {
    // SAFETY: this installs no handler, so there is no code whose safety could matter.
    unsafe { libc::signal(libc::SIGINT, libc::SIG_IGN) == libc::SIG_IGN }
}

/// SIGINT ends this process from now on, as it does by default.
pub(crate) fn heed_interrupts() {
    // SAFETY: as above.
    unsafe { libc::signal(libc::SIGINT, libc::SIG_DFL) };
}

/// Blocks every signal in the calling thread, and returns those that were blocked before.
pub(crate) fn hold_signals() -> io::Result<libc::sigset_t> {
    let (all, mut before) = (all_signals(), no_signals());
    // SAFETY: both sets are initialised.
    check(unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before) })?;
    Ok(before)
}

/// Blocks these signals and no others in the calling thread.
pub(crate) fn let_signals(blocked: &libc::sigset_t) {
    // SAFETY: the set is initialised; a null pointer says that the old one isn't wanted. It can't fail for a valid set.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, blocked, ptr::null_mut()) };
}

/// Sets every signal to its default and unblocks all in the calling thread, as [`posix_spawn`] does.
pub(crate) fn forget_signal_handlers() {
    for signal in 1..=libc::SIGRTMAX() {
        // SAFETY: this installs no handler. Of signals that can't be changed it is an error, which changes nothing.
        let before = unsafe { libc::signal(signal, libc::SIG_DFL) };
        if before == libc::SIG_IGN && HANDED_DOWN.contains(&signal) {
            // SAFETY: as above. All signals are blocked meanwhile.
            unsafe { libc::signal(signal, libc::SIG_IGN) };
        }
    }
    let_signals(&no_signals());
}

fn check(error: c_int) -> io::Result<()> {
    if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
}

fn all_signals() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the function initialises the set behind a valid pointer, and can't fail for one.
    unsafe { libc::sigfillset(set.as_mut_ptr()) };
    // SAFETY: initialised just now.
    unsafe { set.assume_init() }
}

fn no_signals() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the function initialises the set behind a valid pointer, and can't fail for one.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: initialised just now.
    unsafe { set.assume_init() }
}

/// What happens to file descriptors in the child.
struct Actions(libc::posix_spawn_file_actions_t);

impl Actions {
    fn new() -> io::Result<Actions> {
        let mut actions = MaybeUninit::uninit();
        // SAFETY: the function initialises what a valid pointer points to.
        check(unsafe { libc::posix_spawn_file_actions_init(actions.as_mut_ptr()) })?;
        // SAFETY: initialised just now, for the call returned zero.
        Ok(Actions(unsafe { actions.assume_init() }))
    }

    /// The child doesn't have this file. It need not be open.
    fn close(&mut self, number: RawFd) -> io::Result<()> {
        // SAFETY: the actions are initialised; the number is a value, checked in the child.
        check(unsafe { libc::posix_spawn_file_actions_addclose(&raw mut self.0, number) })
    }

    /// The child has this file under the number `to`.
    fn duplicate(&mut self, fd: BorrowedFd<'_>, to: c_int) -> io::Result<()> {
        // SAFETY: the actions are initialised; the numbers are values, checked in the child.
        check(unsafe { libc::posix_spawn_file_actions_adddup2(&raw mut self.0, fd.as_raw_fd(), to) })
    }
}

impl Drop for Actions {
    fn drop(&mut self) {
        // SAFETY: initialised by the constructor and destroyed only here.
        unsafe { libc::posix_spawn_file_actions_destroy(&raw mut self.0) };
    }
}

/// What the child starts with.
struct Attributes(libc::posix_spawnattr_t);

impl Attributes {
    fn with_default_signals() -> io::Result<Attributes> {
        let mut attributes = MaybeUninit::uninit();
        // SAFETY: the function initialises what a valid pointer points to.
        check(unsafe { libc::posix_spawnattr_init(attributes.as_mut_ptr()) })?;
        // SAFETY: initialised just now, for the call returned zero.
        let mut attributes = Attributes(unsafe { attributes.assume_init() });
        let (mut defaults, none) = (no_signals(), no_signals());
        for signal in STANDARD_SIGNALS.filter(|signal| !HANDED_DOWN.contains(signal)) {
            // SAFETY: the set is initialised, and the number is a signal's. What isn't in it stays ignored, or becomes the
            // default when the program is executed.
            unsafe { libc::sigaddset(&raw mut defaults, signal) };
        }
        // SAFETY: the attributes and the set are initialised, and the set is copied.
        check(unsafe { libc::posix_spawnattr_setsigdefault(&raw mut attributes.0, &raw const defaults) })?;
        // SAFETY: the attributes and the set are initialised, and the set is copied.
        check(unsafe { libc::posix_spawnattr_setsigmask(&raw mut attributes.0, &raw const none) })?;
        let flags = (libc::POSIX_SPAWN_SETSIGDEF | libc::POSIX_SPAWN_SETSIGMASK) as libc::c_short;
        // SAFETY: the attributes are initialised.
        check(unsafe { libc::posix_spawnattr_setflags(&raw mut attributes.0, flags) })?;
        Ok(attributes)
    }
}

impl Drop for Attributes {
    fn drop(&mut self) {
        // SAFETY: initialised by the constructor and destroyed only here.
        unsafe { libc::posix_spawnattr_destroy(&raw mut self.0) };
    }
}

/// Makes a call while the calling thread gets signals, one after the other, whose handler does nothing: a system call that is
/// interrupted returns `EINTR`. The call gets how many there were so far.
#[cfg(test)]
pub(crate) fn interrupted<R>(call: impl FnOnce(&dyn Fn() -> u32) -> R) -> R {
    use mp_core::sync::shared::{AtomicBool, AtomicU32, Ordering};

    // fork: of tests, which copy no process here.
    static HANDLED: AtomicU32 = AtomicU32::new(0);

    extern "C" fn count(_: c_int) {
        HANDLED.fetch_add(1, Ordering::Relaxed);
    }

    // SAFETY: all zeroes is an action without flags, so that calls are not begun anew.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    action.sa_sigaction = count as extern "C" fn(c_int) as usize;
    // SAFETY: the action is initialised, and its handler adds to a number, which may be done at any time.
    assert_eq!(unsafe { libc::sigaction(libc::SIGURG, &raw const action, ptr::null_mut()) }, 0);
    let thread = rustix::thread::gettid().as_raw_nonzero().get();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let process = std::process::id().cast_signed();
                // SAFETY: numbers of this process and of a thread that waits for this one; the signal has a handler.
                unsafe { libc::syscall(libc::SYS_tgkill, process, thread, libc::SIGURG) };
            }
        });
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            call(&|| HANDLED.load(Ordering::Relaxed))
        }));
        over.store(true, Ordering::Relaxed);
        result.unwrap_or_else(|payload| std::panic::resume_unwind(payload))
    })
}

/// A process id as the standard library has it.
pub(crate) fn pid_number(pid: Pid) -> u32 {
    pid.as_raw_nonzero().get().unsigned_abs()
}
