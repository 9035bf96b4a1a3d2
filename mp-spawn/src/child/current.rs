//! Identity of this process, and the process that started it.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

#[cfg(feature = "authkey")]
use mp_core::AuthKey;
use mp_core::fork::{PerProcess, SetOnce};
use mp_core::{Descriptor, WaitPoint, Waitable};
use rustix::process::{Pid, PidfdFlags};

use crate::sys::{deadline, wait_readable};

/// Identity of a worker. [`current_process`] inserts the process id at each call, because the process may be
/// forked.
#[derive(Debug)]
pub(crate) struct WorkerIdentity {
    pub(crate) process: CurrentProcess,
    pub(crate) parent: u32,
}

static CURRENT: PerProcess<SetOnce<WorkerIdentity>> = mp_core::per_process!(SetOnce::new());

/// Records the identity of this process, once, before its function is called.
#[inline]
pub(crate) fn set(current: WorkerIdentity) {
    mp_core::waits::name_process(&current.process.name);
    // The only caller runs once in the life of a process.
    CURRENT.set(current);
}

/// Returns the rank of this process. Returns `None` in a process that was started as a single
/// [`Process`](crate::Process), or not by this crate.
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
    CURRENT.get().and_then(|current| current.process.rank)
}

/// Returns the name of this process, such as `rank-3`, or `None` if it was not started by this crate.
#[must_use]
pub fn name() -> Option<&'static str> {
    CURRENT.get().map(|current| current.process.name.as_str())
}

/// Returns `true` if this process was started by this crate.
#[must_use]
pub fn is_child() -> bool {
    CURRENT.get().is_some()
}

/// Returns the id of the process that started this one, or `None` if it was not started by this crate.
#[must_use]
pub fn parent_pid() -> Option<u32> {
    CURRENT.get().map(|current| current.parent)
}

/// Identity of this process.
///
/// ```
/// use mp_spawn::{Process, current_process};
///
/// assert_eq!(current_process().name, "main");
/// let name = |(): ()| Ok::<_, String>(current_process().name);
/// let child = Process::builder().name("loader").spawn(name, ())?;
/// assert_eq!(child.join()?, "loader");
/// # Ok::<(), mp_spawn::SpawnError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CurrentProcess {
    /// Name of the process. `main` if it was not started by this crate.
    pub name: String,
    /// Process id.
    pub pid: u32,
    /// Rank of the process, if it was started as one of several processes: see [`rank`].
    pub rank: Option<usize>,
    /// `true` if an exit of the parent ends this process, `false` if the parent waits for it.
    pub daemon: bool,
    /// Number of the start: 2 or more in a [supervised](crate::Restart) process that was restarted, 1 in any
    /// other process.
    #[doc(alias = "TORCHELASTIC_RESTART_COUNT")]
    pub attempt: u32,
}

/// Returns the identity of this process.
#[must_use]
pub fn current_process() -> CurrentProcess {
    let pid = std::process::id();
    match CURRENT.get() {
        Some(current) => CurrentProcess { pid, ..current.process.clone() },
        None => CurrentProcess { name: "main".to_string(), pid, rank: None, daemon: false, attempt: 1 },
    }
}

/// Methods for the secret of a family of processes.
#[cfg(feature = "authkey")]
impl CurrentProcess {
    /// Returns the secret of this process: 32 random bytes, shared with its parent and its children, and so
    /// with the whole family of processes. Processes that connect to each other can prove that they have the
    /// secret: see `SocketOptions::authkey_of_family` in the layer of queues.
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
    /// The secret is never in the environment, in a list of arguments or in shared memory: only a process
    /// that can read the memory of one of these processes can read it. It is never printed.
    ///
    /// # Errors
    ///
    /// Returns an error if the system has no random bytes.
    pub fn authkey(&self) -> mp_core::Result<AuthKey> {
        mp_core::authkey()
    }

    /// Sets the secret for this process and for processes that it starts later. Peers treat an empty key as
    /// missing when they connect.
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

/// Handle to the process that started this one.
///
/// ```
/// use std::time::Duration;
/// use mp_spawn::{Process, parent_process};
///
/// assert!(parent_process().is_none());
/// let child = |(): ()| {
///     let parent = parent_process().ok_or("no parent")?;
///     let ended = parent.wait_timeout(Duration::ZERO)?;
///     Ok::<_, Box<dyn std::error::Error + Send + Sync>>((parent.pid(), ended))
/// };
/// assert_eq!(Process::spawn(child, ())?.join()?, (std::process::id(), false));
/// # Ok::<(), mp_spawn::SpawnError>(())
/// ```
///
/// A process of this crate ends with its parent, so it seldom needs to wait for the parent. A forked copy may
/// need to.
#[derive(Debug)]
pub struct ParentProcess {
    pid: u32,
    pidfd: OwnedFd,
}

/// Returns a handle to the process that started this one. Returns `None` if this process was not started by
/// this crate, if the parent has ended, or if the kernel has no pidfds (see `pidfd_open(2)`).
#[must_use]
pub fn parent_process() -> Option<ParentProcess> {
    let pid = parent_pid()?;
    let raw = Pid::from_raw(i32::try_from(pid).ok()?)?;
    let pidfd = rustix::process::pidfd_open(raw, PidfdFlags::empty()).ok()?;
    // The id is certain to refer to the parent only while that process is the parent of this one.
    (rustix::process::getppid() == Some(raw)).then_some(ParentProcess { pid, pidfd })
}

impl ParentProcess {
    /// Returns the process id of the parent.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns a descriptor that becomes readable when the parent ends, for `poll(2)` and similar calls.
    #[must_use]
    pub fn sentinel(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Waits until the parent ends, at most for `timeout`. Returns `true` if it has ended.
    ///
    /// # Errors
    ///
    /// Returns the errors of `poll(2)`, for example if there is no memory.
    pub fn wait_timeout(&self, timeout: Duration) -> io::Result<bool> {
        wait_readable(self.sentinel(), deadline(timeout))
    }
}

/// Ready when the parent has ended.
impl Waitable for ParentProcess {
    fn wait_point(&self) -> WaitPoint<'_> {
        WaitPoint::Readable(self.sentinel())
    }

    fn is_ready(&self) -> bool {
        Descriptor(self.sentinel()).is_ready()
    }
}

/// Returns the name of the calling thread, as `ps -L` and `top -H` show it. See `PR_GET_NAME` in `prctl(2)`.
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

/// Sets the name of the calling thread. The kernel stores the first 15 bytes. On the main thread this is the
/// name of the process in `ps` and `top`.
///
/// # Errors
///
/// Returns an error if the name contains a zero byte.
#[doc(alias = "_set_thread_name")]
pub fn set_thread_name(name: &str) -> io::Result<()> {
    Ok(rustix::thread::set_name(&CString::new(name)?)?)
}
