//! Settings of this process: the kind of shared memory for new tensors, and its directory.
//!
//! Children begin with their parent's settings: each member publishes its settings in the arena.
//!
//! A member publishes three words and a path in its slot. Only the member writes them, and a child reads its
//! parent's words once, after it has joined. The first word is a count, which is odd during a change. A child
//! that reads the words during a change, or after its parent was killed in one, keeps the default settings.

use std::path::{Path, PathBuf};

use crate::arena::Arena;
use crate::error::{Error, Result};
use crate::mem::Mem;
use crate::members::Members;
use crate::process::mutex::Mutex;
use crate::process::{PerProcess, per_process};
use crate::setup::Backing;
use crate::strategy::SharingStrategy;
use crate::sync::shared::{AtomicU64, Ordering};
use crate::sys::memory;

/// Settings of this process. `None` means the defaults.
static SETTINGS: PerProcess<Mutex<Option<Settings>>> = per_process!(Mutex::new(None));
/// Stamp of the present settings. The lowest bit is set if tensors are allocated in files. The other bits
/// count the changes of the settings.
static STAMP: PerProcess<AtomicU64> = per_process!(AtomicU64::new(UNSET));
/// Stamp before the first change of the settings.
const UNSET: u64 = (!cfg!(feature = "file_descriptor") && cfg!(feature = "file_system")) as u64;

/// Returns `true` if tensors are allocated in files, and a number that changes with every setting.
#[inline]
pub(crate) fn stamp() -> (bool, u64) {
    let stamp = STAMP.load(Ordering::Acquire);
    #[cfg(feature = "inject")]
    if stamp == UNSET {
        return (!SharingStrategy::FileDescriptor.supported(), stamp);
    }
    (stamp & 1 == 1, stamp)
}

/// Returns the present settings, and their stamp.
pub(crate) fn settings() -> (Settings, u64) {
    let settings = SETTINGS.lock();
    (settings.clone().unwrap_or_default(), STAMP.load(Ordering::Acquire))
}

fn change(how: impl FnOnce(&mut Settings)) {
    let mut settings = SETTINGS.lock();
    let mut new = settings.clone().unwrap_or_default();
    how(&mut new);
    let files = u64::from(new.strategy == SharingStrategy::FileSystem);
    let next = (STAMP.load(Ordering::Relaxed) | 1) + 1;
    STAMP.store(next | files, Ordering::Release);
    // Under the lock, so that the arena receives the changes in order.
    publish(&new);
    *settings = Some(new);
}

/// Publishes the present settings in the arena again.
pub(crate) fn republish() {
    let settings = SETTINGS.lock();
    if let Some(settings) = &*settings {
        publish(settings);
    }
}

/// Returns `true` if this process has set or inherited settings.
pub(crate) fn is_set() -> bool {
    SETTINGS.lock().is_some()
}

/// Takes over the settings of this process's parent, unless this process has settings of its own. Then
/// publishes the settings of this process.
pub(crate) fn inherit(arena: Arena) {
    if let Some(parent) = of_parent(arena)
        && SETTINGS.lock().is_none()
        && parent.strategy.supported()
    {
        change(|now| *now = parent);
    }
    republish();
}

/// Returns the strategies that this build supports on this platform. Cargo features enable them.
pub fn get_all_sharing_strategies() -> &'static [SharingStrategy] {
    SharingStrategy::all()
}

/// Returns the strategy of this process for new tensors.
pub fn get_sharing_strategy() -> SharingStrategy {
    settings().0.strategy
}

/// Sets the strategy of this process for new tensors. Children that are started later begin with this
/// strategy. Running children are not affected, and accept tensors of both kinds.
///
/// ```
/// use mp_core::{Arena, SharingStrategy, Storage, get_sharing_strategy, set_sharing_strategy};
///
/// let before = get_sharing_strategy();
/// # if mp_core::get_all_sharing_strategies().contains(&SharingStrategy::FileSystem) {
/// set_sharing_strategy("file_system".parse()?)?;
/// let data = Storage::new(Arena::current()?, 1000, 4)?; // in a file below /dev/shm
/// set_sharing_strategy(before)?; // `data` stays in its file
/// # assert_eq!(data.len(), 4000);
/// # }
/// # Ok::<(), mp_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::Strategy`] if this build does not support the strategy.
pub fn set_sharing_strategy(strategy: SharingStrategy) -> Result<(), Error> {
    let _: SharingStrategy = strategy.name().parse()?;
    change(|now| now.strategy = strategy);
    Ok(())
}

/// Returns the directory that contains `mp-<uid>`, the directory for files of the strategy `file_system`. The
/// default is `/dev/shm`.
pub fn get_sharing_directory() -> PathBuf {
    settings().0.directory
}

/// Sets the directory for files of the strategy `file_system`, for this process and for children that are
/// started later. The files are in `mp-<uid>` below this directory, which is created when it is first needed,
/// with mode 0700.
///
/// The directory's file system determines the kind of memory: a tmpfs (such as `/dev/shm`), huge pages (a
/// hugetlbfs, where each file and each growth takes whole huge pages), or a disk (memory that the kernel can
/// write back). The file system must support `fallocate(2)`, so that allocated memory is reserved.
///
/// Files of killed programs are removed when a new program first uses the same directory. If the new program
/// is in another process namespace (a container that shares the directory), or has no `/proc`, it removes
/// them only if the killed program last started a process at least 10 s ago. In that case a file stays if its
/// program began to use files after it had started processes, and was killed before all of these processes
/// had detected the file. They detect it after about 100 ms, or later if they are stopped or compute. To
/// avoid that, set the strategy before the first start.
///
/// Files of a live program are never removed. Don't remove or truncate files by hand while they are used: a
/// process that accesses truncated memory gets a SIGBUS.
///
/// # Errors
/// [`Error::Directory`] if the directory doesn't exist, or its path is longer than 248 bytes. A directory
/// that is not writable is reported when a tensor is created, with the same error.
pub fn set_sharing_directory(directory: impl AsRef<Path>) -> Result<()> {
    let asked = directory.as_ref();
    let fail = |what, source| Error::Directory { path: asked.into(), what, source };
    let path = std::fs::canonicalize(asked).map_err(|e| fail("it can't be found", e))?;
    if !path.is_dir() {
        return Err(fail("it is no directory", std::io::ErrorKind::NotADirectory.into()));
    }
    if path.as_os_str().len() > MOST_PATH {
        let why = std::io::Error::other(format!("{} bytes, at most {MOST_PATH}", path.as_os_str().len()));
        return Err(fail("its path is too long", why));
    }
    change(|now| now.directory = path);
    Ok(())
}

/// Maximum length in bytes of a path that fits into the arena.
pub(crate) const MOST_PATH: usize = 248;

/// Settings of this process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Settings {
    pub(crate) strategy: SharingStrategy,
    /// Directory that contains the user's directory.
    pub(crate) directory: PathBuf,
}

impl Default for Settings {
    fn default() -> Self {
        let strategy = SharingStrategy::all().first().copied().unwrap_or(SharingStrategy::FileDescriptor);
        Self { strategy, directory: "/dev/shm".into() }
    }
}

/// Position in a member's slot of the count of changes. The next words are the strategy, the length of the
/// directory's path, and the path.
const COUNT: u64 = 64;
const STRATEGY: u64 = 65;
const PATH_LEN: u64 = 66;
const PATH: u64 = 67;

/// Publishes the settings of this process, if it is a member.
pub(crate) fn publish(new: &Settings) {
    if let Some(arena) = Arena::get() {
        store(arena, new);
    }
}

fn store(arena: Arena, new: &Settings) {
    let Ok(me) = arena.me() else { return };
    let word = |w| arena.layout().member(me.slot(), w);
    // The slot's previous member may have been killed during a change.
    let count = arena.map().load(word(COUNT)) & !1;
    arena.map().store(word(COUNT), count + 1);
    arena.map().fence_after_rmw();
    arena.map().store(word(STRATEGY), new.strategy as u64);
    let len = Backing(arena).store_path(word(PATH), &new.directory);
    arena.map().store(word(PATH_LEN), len as u64);
    arena.map().store(word(COUNT), count + 2);
}

/// Returns the settings of this process's parent, if the parent is a member and has published settings.
pub(crate) fn of_parent(arena: Arena) -> Option<Settings> {
    load(arena, slot_of(arena, memory::parent_pid())?)
}

fn load(arena: Arena, slot: u32) -> Option<Settings> {
    let word = |w| arena.layout().member(slot, w);
    let count = arena.map().load(word(COUNT));
    let strategy = match arena.map().load(word(STRATEGY)) {
        0 => SharingStrategy::FileDescriptor,
        _ => SharingStrategy::FileSystem,
    };
    let len = arena.map().load(word(PATH_LEN)) as usize;
    if count == 0 || count & 1 == 1 || len == 0 || len > MOST_PATH {
        return None;
    }
    let directory: PathBuf = Backing(arena).load_path(word(PATH), len);
    (arena.map().load(word(COUNT)) == count).then_some(Settings { strategy, directory })
}

fn slot_of(arena: Arena, pid: u32) -> Option<u32> {
    Members(arena).members().into_iter().find(|m| m.live && m.pid == pid).map(|m| m.member.slot())
}
