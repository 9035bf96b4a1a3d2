//! Limits of one process, and the identity that it runs under.

use std::fmt;
use std::path::PathBuf;

use rustix::process::Resource;

use crate::protocol::fields::{field_enum, fields};

/// Limits of a worker process: resources, shared memory, user, process group, control group.
///
/// ```
/// use mp_spawn::{Limits, Process, ResourceLimit};
///
/// let limits = Limits::new().resource(ResourceLimit::CpuSeconds, 60).resource(ResourceLimit::OpenFiles, 64);
/// let child = Process::builder().limits(limits).spawn(|n: u32| n + 1, 1)?;
/// assert_eq!(child.join()?, 2);
/// # Ok::<(), mp_spawn::SpawnError>(())
/// ```
///
/// The process applies its limits before it calls its function. If the system refuses a limit, the process
/// fails with [`SpawnError::Launch`](crate::SpawnError::Launch), which names the limit. The limits hold for
/// each start of a supervised process, and for processes that the worker starts.
///
/// The steps are taken in this order: control group, process group, limit of shared memory, resources,
/// joining the shared memory, user. So a privileged program can move a worker into a control group that the
/// worker's user can't write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Limits {
    pub(crate) resources: Vec<(ResourceLimit, u64)>,
    pub(crate) user: Option<u32>,
    pub(crate) group: Option<u32>,
    pub(crate) process_group: Option<u32>,
    pub(crate) cgroup: Option<PathBuf>,
    pub(crate) shared_memory: Option<u64>,
}

/// Resource of a process that the kernel limits. See `getrlimit(2)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ResourceLimit {
    /// Bytes of address space (`RLIMIT_AS`). The whole address range of the arena counts, 1 TiB by default: a
    /// worker that uses shared memory needs a smaller arena, by `MP_ARENA_SIZE` or `ArenaOptions::size` in
    /// the program that starts it. `Data` or a control group limit memory without this restriction.
    AddressSpace,
    /// Bytes of a core file (`RLIMIT_CORE`).
    Core,
    /// Seconds of processor time (`RLIMIT_CPU`). SIGXCPU ends the process, with
    /// [`ExitDetail::CpuTime`](crate::ExitDetail::CpuTime). If the process handles that signal, SIGKILL
    /// follows 5 seconds later.
    CpuSeconds,
    /// Bytes of private memory that can be written (`RLIMIT_DATA`): heap, stacks of threads. Shared memory
    /// does not count.
    Data,
    /// Bytes of a file that the process writes (`RLIMIT_FSIZE`).
    FileSize,
    /// Bytes of locked memory (`RLIMIT_MEMLOCK`).
    LockedMemory,
    /// Number of open descriptors (`RLIMIT_NOFILE`).
    OpenFiles,
    /// Number of processes and threads of the user (`RLIMIT_NPROC`), of all programs together.
    Processes,
    /// Bytes of the main thread's stack (`RLIMIT_STACK`).
    Stack,
}

impl ResourceLimit {
    /// Returns the resource, and the name that the kernel uses.
    fn names(self) -> (Resource, &'static str) {
        match self {
            ResourceLimit::AddressSpace => (Resource::As, "RLIMIT_AS"),
            ResourceLimit::Core => (Resource::Core, "RLIMIT_CORE"),
            ResourceLimit::CpuSeconds => (Resource::Cpu, "RLIMIT_CPU"),
            ResourceLimit::Data => (Resource::Data, "RLIMIT_DATA"),
            ResourceLimit::FileSize => (Resource::Fsize, "RLIMIT_FSIZE"),
            ResourceLimit::LockedMemory => (Resource::Memlock, "RLIMIT_MEMLOCK"),
            ResourceLimit::OpenFiles => (Resource::Nofile, "RLIMIT_NOFILE"),
            ResourceLimit::Processes => (Resource::Nproc, "RLIMIT_NPROC"),
            ResourceLimit::Stack => (Resource::Stack, "RLIMIT_STACK"),
        }
    }

    pub(crate) fn resource(self) -> Resource {
        self.names().0
    }
}

/// Writes the name that the kernel uses.
impl fmt::Display for ResourceLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.names().1)
    }
}

impl Limits {
    /// Returns limits that change nothing.
    pub fn new() -> Limits {
        Limits::default()
    }

    /// Limits a resource. The soft and the hard limit become `most`.
    pub fn resource(mut self, resource: ResourceLimit, most: u64) -> Limits {
        self.resources.push((resource, most));
        self
    }

    /// Sets the user that the process runs as. This requires privileges. The process then has no
    /// supplementary groups. [`group`](Self::group) should be set, too. With the sharing strategy
    /// `file_system`, the process can't open files that other processes create later.
    #[doc(alias = "setuid")]
    pub fn user(mut self, uid: u32) -> Limits {
        self.user = Some(uid);
        self
    }

    /// Sets the group that the process runs as. This requires privileges.
    #[doc(alias = "setgid")]
    pub fn group(mut self, gid: u32) -> Limits {
        self.group = Some(gid);
        self
    }

    /// Moves the process into a process group. 0 means a new group. In another group than its parent, the
    /// process does not receive signals that are sent to the parent's group, for example by a terminal.
    #[doc(alias = "setpgid")]
    pub fn process_group(mut self, group: u32) -> Limits {
        self.process_group = Some(group);
        self
    }

    /// Moves the process into a control group. `folder` is the folder of an existing group, which has a file
    /// `cgroup.procs`, such as `/sys/fs/cgroup/app/worker`.
    pub fn cgroup(mut self, folder: impl Into<PathBuf>) -> Limits {
        self.cgroup = Some(folder.into());
        self
    }

    /// Limits the memory of tensors that the process holds at once, in bytes. An allocation of a tensor
    /// beyond the limit fails with [`Error::OutOfMemory`](mp_core::Error::OutOfMemory), in that process
    /// alone. A tensor that was dropped or sent makes room again.
    ///
    /// ```
    /// use mp_spawn::{Limits, Process};
    /// use mp_tensor::Tensor;
    ///
    /// let work = |(): ()| {
    ///     let first = Tensor::<u8>::zeros([6 << 20]);
    ///     let second = Tensor::<u8>::zeros([6 << 20]);
    ///     (first.is_ok(), second.unwrap_err().to_string())
    /// };
    /// let child = Process::builder().limits(Limits::new().shared_memory(8 << 20)).spawn(work, ())?;
    /// let (first, second) = child.join()?;
    /// // out of shared memory: 6 MiB asked, 2 MiB left under the 8 MiB that this process may hold (…)
    /// assert!(first && second.contains("8 MiB that this process may hold"), "{second}");
    /// # Ok::<(), mp_spawn::SpawnError>(())
    /// ```
    ///
    /// A block of memory counts once for each process that has a tensor in it. The block may be a quarter
    /// larger than the tensor. Memory of queues and of messages that the process is reading counts as well.
    /// Memory in a queue counts for no process: the queue's capacity bounds it, and
    /// [`Arena::set_budget`](mp_core::Arena::set_budget) bounds the sum of all processes. Only allocations of
    /// tensors are refused: messages and queues need their memory to report the refusal.
    ///
    /// A child of the limited process has a separate count, and the same limit or a lower limit that is set
    /// for the child.
    #[doc(alias("budget", "set_per_process_memory_fraction"))]
    pub fn shared_memory(mut self, bytes: u64) -> Limits {
        self.shared_memory = Some(bytes);
        self
    }

    /// Returns these limits for a child of this process. The limit of shared memory is at most the limit of
    /// this process.
    pub(crate) fn for_child(&self) -> Limits {
        let own = mp_core::held_memory_limit();
        Limits { shared_memory: own.into_iter().chain(self.shared_memory).min(), ..self.clone() }
    }

    /// Returns `true` if the process runs as another user or group.
    #[inline]
    pub(crate) fn changes_user(&self) -> bool {
        self.user.is_some() || self.group.is_some()
    }

    /// Returns the limit of processor time that is set here, or else the limit of this process, which a child
    /// inherits.
    pub(crate) fn cpu_seconds(&self) -> Option<u64> {
        let set = self.resources.iter().rfind(|(resource, _)| *resource == ResourceLimit::CpuSeconds);
        let inherited = || rustix::process::getrlimit(Resource::Cpu).current;
        set.map(|(_, most)| *most).or_else(inherited)
    }

    #[cfg(any(test, feature = "fuzz"))]
    pub(crate) fn example() -> Limits {
        let limits = Limits::new().resource(ResourceLimit::Stack, 1 << 20).user(1).process_group(0);
        limits.cgroup("/sys/fs/cgroup/a").shared_memory(1 << 30)
    }
}

fields!(Limits { resources, user, group, process_group, cgroup, shared_memory });
field_enum!(ResourceLimit {
    AddressSpace,
    Core,
    CpuSeconds,
    Data,
    FileSize,
    LockedMemory,
    OpenFiles,
    Processes,
    Stack,
});
