//! What this process is, and which process started it.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

#[cfg(feature = "authkey")]
use mp_core::AuthKey;
use mp_core::fork::{GENERATIONS, PerProcess, SetOnce};
use mp_core::{Descriptor, WaitPoint, Waitable};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags};

use crate::sys::clock::timespec;

#[derive(Debug)]
pub(crate) struct Current {
    pub(crate) rank: Option<usize>,
    pub(crate) name: String,
    pub(crate) parent: u32,
    pub(crate) daemon: bool,
    pub(crate) attempt: u32,
}

static CURRENT: PerProcess<SetOnce<Current>> = PerProcess::new([const { SetOnce::new() }; GENERATIONS]);

/// Records what this process is; once, before its function is called.
#[inline]
pub(crate) fn set(current: Current) {
    mp_core::waits::name_process(&current.name);
    // The one caller runs once in the life of a process.
    CURRENT.set(current);
}

/// The rank of this process; `None` in one that was not started as one of several: in a [`Process`](crate::Process), or in one
/// that was not started by this crate.
///
/// ```
/// fn worker(rank: usize, (): ()) {
///     assert_eq!(mp_spawn::rank(), Some(rank));
/// }
///
/// assert_eq!(mp_spawn::rank(), None);
/// mp_spawn::spawn(worker, (), 2)?;
/// # Ok::<(), mp_spawn::SpawnError>(())
/// ```
#[must_use]
pub fn rank() -> Option<usize> {
    CURRENT.get().and_then(|current| current.rank)
}

/// The name of this process, as in `rank-3`; `None` in one that was not started by this crate.
#[must_use]
pub fn name() -> Option<&'static str> {
    CURRENT.get().map(|current| current.name.as_str())
}

/// Whether this process was started by this crate.
#[must_use]
pub fn is_child() -> bool {
    CURRENT.get().is_some()
}

/// The process that started this one; `None` in one that was not started by this crate.
#[must_use]
pub fn parent_pid() -> Option<u32> {
    CURRENT.get().map(|current| current.parent)
}

/// This process, as the one that started it sees it.
///
/// ```
/// use mp_spawn::{Process, current_process};
///
/// assert_eq!(current_process().name, "main");
/// let child = Process::builder().name("loader").spawn(|(): ()| Ok::<_, String>(current_process().name), ())?;
/// assert_eq!(child.join()?, "loader");
/// # Ok::<(), mp_spawn::SpawnError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CurrentProcess {
    /// Its name; `main` if it was not started by this crate.
    pub name: String,
    /// Its process id.
    pub pid: u32,
    /// Its rank, if it was started as one of several: see [`rank`].
    pub rank: Option<usize>,
    /// Whether its parent ends it when the parent ends, instead of waiting for it.
    pub daemon: bool,
    /// Which start it is: 2 and more in a [supervised](crate::Restart) process that was started again, 1 in all others.
    #[doc(alias = "TORCHELASTIC_RESTART_COUNT")]
    pub attempt: u32,
}

/// What this process is.
#[must_use]
pub fn current_process() -> CurrentProcess {
    let pid = std::process::id();
    match CURRENT.get() {
        Some(Current { rank, name, daemon, attempt, .. }) => {
            CurrentProcess { name: name.clone(), pid, rank: *rank, daemon: *daemon, attempt: *attempt }
        }
        None => CurrentProcess { name: "main".to_string(), pid, rank: None, daemon: false, attempt: 1 },
    }
}

/// The secret of a family of processes.
#[cfg(feature = "authkey")]
impl CurrentProcess {
    /// The secret of this process: 32 random bytes, which it has in common with the ones that it starts, the one that has
    /// started it, and so on. Where they connect to each other, they can prove it: see `SocketOptions::authkey_of_family`
    /// in the layer of queues.
    ///
    /// ```
    /// use mp_spawn::{Process, current_process};
    ///
    /// let key = current_process().authkey()?;
    /// let child = |(): ()| Ok::<_, mp_core::Error>(current_process().authkey()?.as_ref().to_vec());
    /// assert_eq!(Process::spawn(child, ())?.join()?, key.as_ref());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// It is in no environment, no list of arguments and no shared memory: only a process that can read the memory of one of
    /// these processes can read it. Nothing prints it.
    ///
    /// # Errors
    ///
    /// If the system has no random bytes.
    pub fn authkey(&self) -> mp_core::Result<AuthKey> {
        mp_core::authkey()
    }

    /// Sets it, for this process and those that it starts from now on. An empty key counts as none when peers connect.
    ///
    /// ```
    /// mp_spawn::current_process().set_authkey("what this program reads from a file, say");
    /// assert!(mp_spawn::current_process().authkey()?.as_ref().starts_with(b"what"));
    /// # Ok::<(), mp_core::Error>(())
    /// ```
    pub fn set_authkey(&self, key: impl AsRef<[u8]>) {
        mp_core::set_authkey(key.as_ref().into());
    }
}

/// The process that started this one.
///
/// ```
/// use std::time::Duration;
/// use mp_spawn::{Process, parent_process};
///
/// assert!(parent_process().is_none());
/// let child = |(): ()| {
///     let parent = parent_process().ok_or("no parent")?;
///     Ok::<_, Box<dyn std::error::Error + Send + Sync>>((parent.pid(), parent.wait_timeout(Duration::ZERO)?))
/// };
/// assert_eq!(Process::spawn(child, ())?.join()?, (std::process::id(), false));
/// # Ok::<(), mp_spawn::SpawnError>(())
/// ```
///
/// A process of this crate ends with its parent, so that it seldom has a reason to wait for it; a forked copy may.
#[derive(Debug)]
pub struct ParentProcess {
    pid: u32,
    pidfd: OwnedFd,
}

/// The process that started this one; `None` if that was not this crate, or if it has ended; or if the kernel gives no pidfds
/// (see `pidfd_open(2)`).
#[must_use]
pub fn parent_process() -> Option<ParentProcess> {
    let pid = parent_pid()?;
    let raw = Pid::from_raw(i32::try_from(pid).ok()?)?;
    let pidfd = rustix::process::pidfd_open(raw, PidfdFlags::empty()).ok()?;
    // The number is its own only as long as it is our parent.
    (rustix::process::getppid() == Some(raw)).then_some(ParentProcess { pid, pidfd })
}

impl ParentProcess {
    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Becomes readable when it ends: for `poll(2)` and its like.
    #[must_use]
    pub fn sentinel(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Waits for its end, at most for this long: true if it has ended.
    ///
    /// # Errors
    ///
    /// What `poll(2)` returns, as when there is no memory.
    pub fn wait_timeout(&self, timeout: Duration) -> io::Result<bool> {
        let until = Instant::now().checked_add(timeout);
        loop {
            let left = until.map(|until| timespec(until.saturating_duration_since(Instant::now())));
            match rustix::event::poll(&mut [PollFd::new(&self.pidfd, PollFlags::IN)], left.as_ref()) {
                Ok(count) => return Ok(count > 0),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// For waits on several things: it is ready when it has ended.
impl Waitable for ParentProcess {
    fn place(&self) -> WaitPoint<'_> {
        WaitPoint::Readable(self.sentinel())
    }

    fn is_ready(&self) -> bool {
        Descriptor(self.sentinel()).is_ready()
    }
}

/// The name of the calling thread, as `ps -L` and `top -H` show it; see `PR_GET_NAME` in `prctl(2)`.
///
/// ```
/// mp_spawn::set_thread_name("a-name-that-is-too-long")?;
/// assert_eq!(mp_spawn::thread_name(), "a-name-that-is-");
/// # Ok::<(), std::io::Error>(())
/// ```
#[must_use]
#[doc(alias = "_get_thread_name")]
pub fn thread_name() -> String {
    rustix::thread::name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Names the calling thread; the kernel keeps the first 15 bytes. In the main thread this is the name of the process in
/// `ps` and `top`.
///
/// # Errors
///
/// If the name contains a zero byte.
#[doc(alias = "_set_thread_name")]
pub fn set_thread_name(name: &str) -> io::Result<()> {
    Ok(rustix::thread::set_name(&CString::new(name)?)?)
}
