//! What ends a process when its parent executes another program.
//!
//! A process asks the kernel to be ended when its parent ends, and there "parent" is a thread. A program that executes
//! another one keeps the thread that does so, and with it the children of that thread, which the new program does not know. Its
//! close-on-exec files are closed, though. So each process holds the read end of a pipe whose write end only its parent has,
//! and in which nothing is ever written: when that is closed, the kernel sends a SIGKILL (`F_SETSIG` in `fcntl(2)`), without
//! a thread that would have to wait for it. (A fork server has none. It waits at its socket, whose end it sees there.)
//!
//! | the parent | closes the write end | what ends the process |
//! |---|---|---|
//! | executes another program | the kernel, for it is close-on-exec | this |
//! | ends, or is killed | the kernel | this, or the parent-death signal, whichever comes first |
//! | has ended, or executed something, before the process holds the pipe | the kernel | the process itself: it checks, after it has asked for the signal |
//! | was copied by code that isn't ours, and the copy lives | none, while that copy lives | the parent-death signal, where the parent ends |
//!
//! The signal belongs to an open file description, so each process gets its own one. The parent opens it: a process that
//! does so itself has the kernel make a directory in `/proc` for it, which costs as much as a dozen system calls, at its start
//! and again at its end. Where there is no `/proc`, it is as if there were no pipe. A parent that has changed its user may not open
//! what it has made before, and makes another pipe. A process that closes its end (with all its
//! files, say) has none either.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use mp_core::fork::{GENERATIONS, PerProcess, SetOnce};
use mp_core::kept::kept;
use mp_core::mutex::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::PipeFlags;

use crate::error::Result;
use crate::error::failed;
use crate::protocol::control_socket::identity;
use crate::protocol::inherited_files;
use crate::sys;
use crate::sys::descriptors::above_standard;

#[derive(Debug)]
struct Pipe {
    read: OwnedFd,
    /// Never written to.
    write: OwnedFd,
}

impl Pipe {
    fn new() -> io::Result<Pipe> {
        let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        let pipe = Pipe { read: above_standard(read)?, write: above_standard(write)? };
        kept("lifeline: read", &pipe.read);
        kept("lifeline: write", &pipe.write);
        Ok(pipe)
    }

    /// Opens the end that is read once more: another open file description. `None` if that is impossible.
    fn open_again(&self) -> io::Result<Option<OwnedFd>> {
        let number = self.read.as_raw_fd();
        // The second is that of this thread, which may have a table of files of its own; it takes longer to be found.
        for path in [format!("/proc/self/fd/{number}"), format!("/proc/thread-self/fd/{number}")] {
            // Nothing is ever to be waited for here.
            let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
            match rustix::fs::open(path, flags, Mode::empty()) {
                Ok(end) if identity(&end)? == identity(&self.read)? => {
                    return Ok(Some(above_standard(end)?));
                }
                Err(error @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM)) => return Err(error.into()),
                Ok(_) | Err(_) => {}
            }
        }
        Ok(None)
    }
}

/// The pipes of the processes that this one starts: the last one, and others that are of no use to new ones.
static PIPES: PerProcess<Mutex<Vec<Pipe>>> = PerProcess::new([const { Mutex::new(Vec::new()) }; GENERATIONS]);

/// What ends this process.
static HELD: PerProcess<SetOnce<OwnedFd>> = PerProcess::new([const { SetOnce::new() }; GENERATIONS]);

/// The same under another number, if that was in the way of what this process inherits. Its first number is another file's then.
static MOVED: PerProcess<SetOnce<OwnedFd>> = PerProcess::new([const { SetOnce::new() }; GENERATIONS]);

/// What ends this process, under its number of now.
fn held() -> Option<&'static OwnedFd> {
    MOVED.get().or_else(|| HELD.get())
}

/// In a child that begins: if what ends it has one of these numbers, gives it another one, and returns the number that is to be
/// another file's.
pub(crate) fn make_way(numbers: &[RawFd]) -> io::Result<Option<RawFd>> {
    let Some(own) = HELD.get() else { return Ok(None) };
    let Some(moved) = inherited_files::out_of_the_way(own.as_fd(), numbers)? else { return Ok(None) };
    MOVED.set(moved);
    Ok(Some(own.as_raw_fd()))
}

/// The end that goes to one child alone; `None` where there is no `/proc`.
pub(crate) fn end() -> Result<Option<OwnedFd>> {
    let refused = |error: io::Error| failed("the pipe that ends a process with this one", None, error);
    let mut pipes = PIPES.lock();
    let last = pipes.last().map_or(Ok(None), Pipe::open_again).map_err(refused)?;
    if last.is_some() {
        return Ok(last);
    }
    // The first one; or this process has another user by now, and may not open what it has made as the former one.
    let pipe = Pipe::new().map_err(refused)?;
    let end = pipe.open_again().map_err(refused)?;
    if end.is_some() {
        pipes.push(pipe);
    }
    Ok(end)
}

/// What a copy of this process has no use for.
pub(crate) fn files() -> Vec<RawFd> {
    let pipes = PIPES.lock();
    pipes.iter().flat_map(|pipe| [pipe.read.as_raw_fd(), pipe.write.as_raw_fd()]).collect()
}

/// In a child: is ended from now on when its parent closes the other end; false if it has.
#[inline]
pub(crate) fn hold(end: OwnedFd) -> bool {
    // Closing it could be an event as well.
    let open = heed(&end);
    HELD.set(end);
    open
}

#[inline]
fn heed(end: &OwnedFd) -> bool {
    if sys::be_killed_by(end.as_fd()).is_err() {
        return true;
    }
    let closed = PollFlags::HUP;
    let mut ends = [PollFd::new(end, closed)];
    let hung_up = rustix::event::poll(&mut ends, Some(&Timespec::default())).is_ok()
        && ends[0].revents().contains(closed);
    !hung_up
}

/// From now on this process outlives the one that started it, however that ends: for processes that are detached on purpose,
/// such as a server. While both live, nothing is different: the parent still waits for it, or ends it, when it exits.
///
/// ```
/// let child = mp_spawn::Process::spawn(|(): ()| mp_spawn::detach(), ())?;
/// child.join()?;
/// # Ok::<(), mp_spawn::SpawnError>(())
/// ```
///
/// After the parent's end no process receives this one's report at its end; processes that it has started still end with it.
/// In a process that was not started by this crate it does nothing that matters.
///
/// # Errors
///
/// What `prctl(2)` or `fcntl(2)` return.
pub fn detach() -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(None)?;
    // It stays open: closing it can be an event as well.
    let held = held().map(|own| (own, rustix::fs::fcntl_getfl(own)));
    match held {
        // Else this process has closed it, and its number may be that of another file by now.
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
    fn each_child_gets_the_same_pipe_and_another_description() {
        let end = end().unwrap().unwrap();
        let id = |fd: std::os::fd::BorrowedFd<'_>| rustix::fs::fstat(fd).unwrap().st_ino;
        let other = super::end().unwrap().unwrap();
        assert_eq!(id(other.as_fd()), id(end.as_fd()));
        rustix::fs::fcntl_setfl(&other, OFlags::empty()).unwrap();
        assert!(rustix::fs::fcntl_getfl(&end).unwrap().contains(OFlags::NONBLOCK));
    }

    #[test]
    fn a_pipe_that_can_not_be_opened_is_replaced() {
        let replaces = |(): ()| {
            // A socket can't be opened; neither can a pipe of another user.
            let (read, write) = std::os::unix::net::UnixStream::pair()?;
            PIPES.lock().push(Pipe { read: read.into(), write: write.into() });
            let end = end().map_err(io::Error::other)?.expect("an end");
            let is_new = rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(&end)?.st_mode);
            Ok::<_, io::Error>((is_new == rustix::fs::FileType::Fifo, files().len()))
        };
        assert_eq!(crate::Process::spawn(replaces, ()).unwrap().join().unwrap(), (true, 4));
    }

    #[test]
    fn a_pipe_that_is_closed_already_is_noticed_and_one_that_is_closed_later_kills() {
        let notices = |(): ()| {
            let (read, write) = rustix::pipe::pipe()?;
            drop(write);
            // Closing it would be an event, which kills.
            let read = std::mem::ManuallyDrop::new(read);
            Ok::<_, io::Error>(!heed(&read))
        };
        assert!(crate::Process::spawn(notices, ()).unwrap().join().unwrap());
        let dies = |(): ()| {
            let (read, write) = rustix::pipe::pipe()?;
            let held = heed(&read);
            drop(write);
            Ok::<_, io::Error>(held)
        };
        let error = crate::Process::spawn(dies, ()).unwrap().join().unwrap_err();
        assert!(error.to_string().contains("SIGKILL"), "{error}");
    }
}
