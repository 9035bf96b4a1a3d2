//! Lifeline: a pipe that ends a process when its parent executes another program.
//!
//! The kernel can end a process with its parent (the parent-death signal), but regards the thread that has
//! started the process as the parent. When a program executes another program, the executing thread
//! continues, and so do the children that it has started, which are unknown to the new program. The
//! close-on-exec files of the process are closed, though. So each child holds the read end of a pipe. Only
//! the parent has the write end, and nothing is ever written to it. When the write end is closed, the kernel
//! sends a SIGKILL to the child (`F_SETSIG` in `fcntl(2)`), so no thread has to wait for the end. (A fork
//! server has no lifeline. It waits at its socket, and detects the end there.)
//!
//! | the parent | closes the write end | ends the process |
//! |---|---|---|
//! | executes another program | the kernel, because it is close-on-exec | the lifeline |
//! | ends, or is killed | the kernel | the lifeline, or the parent-death signal, whichever comes first |
//! | has ended, or executed another program, before the process holds the pipe | the kernel | the process itself: it checks after it has requested the signal |
//! | was copied by foreign code, and the copy lives | not closed while that copy lives | the parent-death signal, when the parent ends |
//!
//! The signal belongs to an open file description, so each process gets its own description. The parent opens
//! it. If the process opened it, the kernel would create a directory in `/proc` for the process, which costs
//! as much as a dozen system calls, at its start and again at its end. Without `/proc` there is no lifeline.
//! A parent that has changed its user may not open its earlier pipe, and creates another one. A child that
//! closes its read end, for example with all its files, has no lifeline either.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use mp_core::fork::{PerProcess, SetOnce};
use mp_core::long_lived_fds;
use mp_core::mutex::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::PipeFlags;

use crate::error::{Result, launch_error};
use crate::protocol::control_socket::identity;
use crate::sys::{self, above_standard, moved_off};

#[derive(Debug)]
struct Pipe {
    read: OwnedFd,
    /// Write end, which is never written to.
    write: OwnedFd,
}

impl Pipe {
    fn new() -> io::Result<Pipe> {
        let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        let pipe = Pipe { read: above_standard(read)?, write: above_standard(write)? };
        long_lived_fds::register("lifeline: read", &pipe.read);
        long_lived_fds::register("lifeline: write", &pipe.write);
        Ok(pipe)
    }

    /// Opens the read end again, as another open file description. Returns `None` if that is impossible.
    fn reopen(&self) -> io::Result<Option<OwnedFd>> {
        let number = self.read.as_raw_fd();
        // The second path is that of this thread, which may have its own table of files. The lookup of the
        // second path takes longer.
        for path in [format!("/proc/self/fd/{number}"), format!("/proc/thread-self/fd/{number}")] {
            // The open must never block.
            let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
            match rustix::fs::open(path, flags, Mode::empty()) {
                Ok(new_end) if identity(&new_end)? == identity(&self.read)? => {
                    return Ok(Some(above_standard(new_end)?));
                }
                Err(error @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM)) => return Err(error.into()),
                Ok(_) | Err(_) => {}
            }
        }
        Ok(None)
    }
}

/// Lifeline pipes for the children of this process: the present pipe, and earlier pipes that can't be opened
/// for new children.
static PIPES: PerProcess<Mutex<Vec<Pipe>>> = mp_core::per_process!(Mutex::new(Vec::new()));

/// Lifeline of this process.
static LIFELINE: PerProcess<SetOnce<OwnedFd>> = mp_core::per_process!(SetOnce::new());

/// Duplicate of the lifeline under another number. Set if the first number was needed for an inherited file.
static MOVED: PerProcess<SetOnce<OwnedFd>> = mp_core::per_process!(SetOnce::new());

/// Returns the lifeline of this process, under its current number.
fn current() -> Option<&'static OwnedFd> {
    MOVED.get().or_else(|| LIFELINE.get())
}

/// Moves the lifeline of a starting child to another number, if its number is among `numbers`. Returns the
/// former number, which is reserved for an inherited file.
pub(crate) fn free_numbers(numbers: &[RawFd]) -> io::Result<Option<RawFd>> {
    let Some(own) = LIFELINE.get() else { return Ok(None) };
    let Some(moved) = moved_off(own.as_fd(), numbers)? else { return Ok(None) };
    MOVED.set(moved);
    Ok(Some(own.as_raw_fd()))
}

/// Opens another read end of the lifeline's pipe, for one child. Returns `None` if the pipe can't be
/// reopened, for example without `/proc`.
pub(crate) fn new_end() -> Result<Option<OwnedFd>> {
    let refused = |error: io::Error| launch_error("the pipe that ends a process with this one", None, error);
    let mut pipes = PIPES.lock();
    let last = pipes.last().map_or(Ok(None), Pipe::reopen).map_err(refused)?;
    if last.is_some() {
        return Ok(last);
    }
    // This is the first pipe, or this process has changed its user and may not open the pipe of the former
    // user.
    let pipe = Pipe::new().map_err(refused)?;
    let new_end = pipe.reopen().map_err(refused)?;
    if new_end.is_some() {
        pipes.push(pipe);
    }
    Ok(new_end)
}

/// Returns both ends of all lifeline pipes, which a copy of this process does not need.
pub(crate) fn files() -> Vec<RawFd> {
    let pipes = PIPES.lock();
    pipes.iter().flat_map(|pipe| [pipe.read.as_raw_fd(), pipe.write.as_raw_fd()]).collect()
}

/// Makes the kernel end this process, a child, when the parent closes the write end of the lifeline. Returns
/// `false` if the write end is closed already.
#[inline]
pub(crate) fn hold(new_end: OwnedFd) -> bool {
    // The file is leaked, because closing it could be an event as well.
    let open = arm(&new_end);
    LIFELINE.set(new_end);
    open
}

#[inline]
fn arm(new_end: &OwnedFd) -> bool {
    if sys::kill_on_close(new_end.as_fd()).is_err() {
        return true;
    }
    let closed = PollFlags::HUP;
    let mut ends = [PollFd::new(new_end, closed)];
    let hung_up = rustix::event::poll(&mut ends, Some(&Timespec::default())).is_ok()
        && ends[0].revents().contains(closed);
    !hung_up
}

/// Lets this process outlive the process that started it. Use this for processes that are detached on
/// purpose, such as a server. A parent that exits while this process lives still waits for this process, or
/// ends it.
///
/// ```
/// let child = mp_spawn::Process::spawn(|(): ()| mp_spawn::detach(), ())?;
/// child.join()?;
/// # Ok::<(), mp_spawn::SpawnError>(())
/// ```
///
/// After the parent's end, no process receives the final report of this process. Processes that this one has
/// started still end with it. In a process that was not started by this crate, the call has no relevant
/// effect.
///
/// # Errors
///
/// Returns the errors of `prctl(2)` and `fcntl(2)`.
pub fn detach() -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(None)?;
    // The file stays open, because closing it can be an event as well.
    let own = current().map(|own| (own, rustix::fs::fcntl_getfl(own)));
    match own {
        // Otherwise this process has closed it, and another file may have its number.
        Some((own, Ok(flags))) if flags.contains(OFlags::ASYNC) => {
            Ok(rustix::fs::fcntl_setfl(own, flags - OFlags::ASYNC)?)
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_get_separate_ends_of_one_lifeline_pipe() {
        let new_end = new_end().unwrap().unwrap();
        let id = |fd: std::os::fd::BorrowedFd<'_>| rustix::fs::fstat(fd).unwrap().st_ino;
        let other = super::new_end().unwrap().unwrap();
        assert_eq!(id(other.as_fd()), id(new_end.as_fd()));
        rustix::fs::fcntl_setfl(&other, OFlags::empty()).unwrap();
        assert!(rustix::fs::fcntl_getfl(&new_end).unwrap().contains(OFlags::NONBLOCK));
    }

    #[test]
    fn unusable_lifeline_pipe_is_replaced() {
        let replaces = |(): ()| {
            // A socket can't be reopened by its path, like a pipe of another user.
            let (read, write) = std::os::unix::net::UnixStream::pair()?;
            PIPES.lock().push(Pipe { read: read.into(), write: write.into() });
            let new_end = new_end().map_err(io::Error::other)?.expect("an end");
            let is_new = rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(&new_end)?.st_mode);
            Ok::<_, io::Error>((is_new == rustix::fs::FileType::Fifo, files().len()))
        };
        assert_eq!(crate::Process::spawn(replaces, ()).unwrap().join().unwrap(), (true, 4));
    }

    #[test]
    fn lifeline_detects_an_earlier_and_a_later_close() {
        let notices = |(): ()| {
            let (read, write) = rustix::pipe::pipe()?;
            drop(write);
            // Closing the read end would be an event, which ends this process.
            let read = std::mem::ManuallyDrop::new(read);
            Ok::<_, io::Error>(!arm(&read))
        };
        assert!(crate::Process::spawn(notices, ()).unwrap().join().unwrap());
        let dies = |(): ()| {
            let (read, write) = rustix::pipe::pipe()?;
            let armed = arm(&read);
            drop(write);
            Ok::<_, io::Error>(armed)
        };
        let error = crate::Process::spawn(dies, ()).unwrap().join().unwrap_err();
        assert!(error.to_string().contains("SIGKILL"), "{error}");
    }
}
