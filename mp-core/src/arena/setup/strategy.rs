//! Which kind of shared memory tensors are put into from now on.
//!
//! A setting of the process. Children begin with their parent's: each member keeps its own in the arena, for them.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::process::mutex::Mutex;

use crate::error::{Error, Result};
use crate::process::{GENERATIONS, PerProcess};
use crate::sync::shared::{AtomicU64, Ordering};

/// How the memory of tensors is shared between processes.
///
/// ```
/// use mp_core::{SharingStrategy, get_all_sharing_strategies, get_sharing_strategy, set_sharing_strategy};
///
/// for &strategy in get_all_sharing_strategies() {
///     set_sharing_strategy(strategy)?;
///     assert_eq!(get_sharing_strategy(), strategy);
/// }
/// let error = "file_sistem".parse::<SharingStrategy>().unwrap_err();
/// assert!(error.to_string().contains("this build supports"));
/// # Ok::<(), mp_core::Error>(())
/// ```
///
/// Tensors of both kinds live side by side, and travel in one message. The memory of queues and messages is always
/// that of the arena.
///
/// | | [`FileDescriptor`](Self::FileDescriptor) | [`FileSystem`](Self::FileSystem) |
/// |---|---|---|
/// | memory | one anonymous file | some files in a directory of the user's, of 64 GiB of addresses each |
/// | a process that starts | is handed its descriptor | opens each file by name when it first meets a tensor in it |
/// | limits | memory of the machine, the cgroup, the budget | and the free space of the directory; RLIMIT_FSIZE |
/// | after all processes have died | nothing is left | files without holders, which the next start removes |
/// | for | nearly everything | huge pages (a hugetlbfs directory), a disk, a size limit of its own (a tmpfs) |
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
#[doc(alias = "torch_shm_manager")]
pub enum SharingStrategy {
    /// One anonymous file (memfd) whose descriptor is handed to each child. Nothing has a name, nothing is left behind.
    FileDescriptor,
    /// Files with names, in the directory that [`set_sharing_directory`] says.
    FileSystem,
}

impl SharingStrategy {
    const ALL: &'static [Self] = match (cfg!(feature = "file_descriptor"), cfg!(feature = "file_system")) {
        (true, true) => &[Self::FileDescriptor, Self::FileSystem],
        (true, false) => &[Self::FileDescriptor],
        (false, true) => &[Self::FileSystem],
        (false, false) => &[],
    };

    /// Its name, as torch has it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::FileDescriptor => "file_descriptor",
            Self::FileSystem => "file_system",
        }
    }

    /// Whether this build has it.
    #[inline]
    pub(crate) fn supported(self) -> bool {
        Self::all().contains(&self)
    }

    /// The ones that this build has.
    #[cfg(not(feature = "inject"))]
    #[inline]
    const fn all() -> &'static [Self] {
        Self::ALL
    }

    /// Test only: with `MP_STRATEGY` in the environment, that one alone, as in a build with its feature alone.
    #[cfg(feature = "inject")]
    fn all() -> &'static [Self] {
        // fork: what it keeps is what the environment says, which a copy has as its original has.
        static ALONE: std::sync::OnceLock<Option<usize>> = std::sync::OnceLock::new();
        let named = || std::env::var("MP_STRATEGY").ok();
        match ALONE.get_or_init(|| named().and_then(|name| Self::ALL.iter().position(|s| s.name() == name))) {
            Some(at) => &Self::ALL[*at..=*at],
            None => Self::ALL,
        }
    }
}

/// By its [name](SharingStrategy::name).
impl Serialize for SharingStrategy {
    fn serialize<S: Serializer>(&self, s: S) -> std::result::Result<S::Ok, S::Error> {
        s.serialize_str(self.name())
    }
}

/// One that this build supports.
impl<'de> Deserialize<'de> for SharingStrategy {
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        String::deserialize(d)?.parse().map_err(D::Error::custom)
    }
}

impl fmt::Display for SharingStrategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for SharingStrategy {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        Self::all().iter().copied().find(|s| s.name() == name).ok_or_else(|| Error::Strategy {
            asked: name.into(),
            supported: Self::all().iter().map(|s| s.name()).collect(),
        })
    }
}

/// Longer paths than this don't fit the arena.
pub(crate) const MOST_PATH: usize = 248;

/// What this process has set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Settings {
    pub(crate) strategy: SharingStrategy,
    /// The directory in which the user's directory is.
    pub(crate) directory: PathBuf,
}

/// `None`: as it is without any setting.
static SETTINGS: PerProcess<Mutex<Option<Settings>>> =
    PerProcess::new([const { Mutex::new(None) }; GENERATIONS]);
/// Changes with every setting: the lowest bit says whether tensors go to files, the others count.
static STAMP: PerProcess<AtomicU64> = PerProcess::new([const { AtomicU64::new(UNSET) }; GENERATIONS]);
/// The stamp before there was any setting.
const UNSET: u64 = (!cfg!(feature = "file_descriptor") && cfg!(feature = "file_system")) as u64;

impl Default for Settings {
    fn default() -> Self {
        let strategy = SharingStrategy::all().first().copied().unwrap_or(SharingStrategy::FileDescriptor);
        Self { strategy, directory: "/dev/shm".into() }
    }
}

/// Whether tensors go to files, and a number that changes with every setting.
#[inline]
pub(crate) fn stamp() -> (bool, u64) {
    let stamp = STAMP.load(Ordering::Acquire);
    #[cfg(feature = "inject")]
    if stamp == UNSET {
        return (!SharingStrategy::FileDescriptor.supported(), stamp);
    }
    (stamp & 1 == 1, stamp)
}

/// The present settings, and their stamp.
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
    // While it is locked, so that the arena gets the changes in their order.
    crate::arena::publish_settings(&new);
    *settings = Some(new);
}

/// Writes the present settings down in the arena once more.
pub(crate) fn republish() {
    let settings = SETTINGS.lock();
    if let Some(settings) = &*settings {
        crate::arena::publish_settings(settings);
    }
}

/// Whether this process has settings of its own, or of its parent's.
pub(crate) fn is_set() -> bool {
    SETTINGS.lock().is_some()
}

/// Takes over a parent's settings, unless this process has set something itself.
pub(crate) fn inherit(parent: Settings) {
    if SETTINGS.lock().is_none() && parent.strategy.supported() {
        change(|now| *now = parent);
    }
}

/// The strategies that this build supports on this platform: the ones with their cargo features on.
pub fn get_all_sharing_strategies() -> &'static [SharingStrategy] {
    SharingStrategy::all()
}

/// The strategy of this process, for tensors that are made from now on.
pub fn get_sharing_strategy() -> SharingStrategy {
    settings().0.strategy
}

/// Chooses the strategy of this process, for tensors that are made from now on. Children that are started from now on
/// begin with it; those that run already are not affected, and understand tensors of both kinds.
///
/// ```
/// use mp_core::{Arena, SharingStrategy, Storage, get_sharing_strategy, set_sharing_strategy};
///
/// let before = get_sharing_strategy();
/// # if mp_core::get_all_sharing_strategies().contains(&SharingStrategy::FileSystem) {
/// set_sharing_strategy("file_system".parse()?)?;
/// let data = Storage::new(Arena::current()?, 1000, 4)?; // in a file below /dev/shm
/// set_sharing_strategy(before)?; // it stays where it is
/// # assert_eq!(data.len(), 4000);
/// # }
/// # Ok::<(), mp_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::Strategy`] for one that this build does not support.
pub fn set_sharing_strategy(strategy: SharingStrategy) -> Result<(), Error> {
    let _: SharingStrategy = strategy.name().parse()?;
    change(|now| now.strategy = strategy);
    Ok(())
}

/// In which directory the strategy `file_system` has its own, `mp-<uid>`; `/dev/shm` unless something else was set.
pub fn get_sharing_directory() -> PathBuf {
    settings().0.directory
}

/// Chooses where the strategy `file_system` keeps its files, from now on and for children that are started from now
/// on: in `mp-<uid>` below this directory, which is made when it is first needed, with mode 0700.
///
/// What the directory is on decides what the memory is: a tmpfs (`/dev/shm` is one), huge pages (a hugetlbfs; each file
/// and each growth takes whole huge pages), a disk (memory that the kernel can write back). The file system must know
/// `fallocate(2)`, so that memory that was handed out is there.
///
/// Files of programs that were killed are removed when their directory is used next by a program that starts; by one in another
/// process namespace (a container that shares the directory), or without `/proc`, when the killed program's last start is 10
/// s ago. Files of a program that lives are left alone there too. What stays is a file of a program that began to use
/// files after it had started processes, and was killed before all of these had noticed it, which takes them 100 ms or
/// so, longer while they are stopped or compute: set the strategy before the first start. Don't remove or truncate
/// files by hand while they are used: a process that touches memory that was cut off gets a SIGBUS.
///
/// # Errors
/// [`Error::Directory`] if it isn't there, or its path is longer than 248 bytes. That nothing can be written to it shows
/// when a tensor is made, as the same error.
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
