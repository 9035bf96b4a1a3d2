//! Kinds of shared memory for new tensors.

use std::fmt;
use std::str::FromStr;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::Error;

/// Strategy for sharing the memory of tensors between processes.
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
/// Tensors of both strategies can coexist, and can be in one message. The memory of queues and messages is
/// always in the arena.
///
/// | property | [`FileDescriptor`](Self::FileDescriptor) | [`FileSystem`](Self::FileSystem) |
/// |---|---|---|
/// | memory | one anonymous file | some files in a directory of the user, of 64 GiB of addresses each |
/// | a new process | receives the file's descriptor | opens each file by name when it first uses a tensor in it |
/// | limits | memory of the machine, the cgroup, the budget | also the free space of the directory; RLIMIT_FSIZE |
/// | after all processes have died | nothing is left | files without holders, which the next start removes |
/// | use for | nearly everything | huge pages (a hugetlbfs directory), a disk, a separate size limit (a tmpfs) |
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
#[doc(alias = "torch_shm_manager")]
pub enum SharingStrategy {
    /// A single anonymous file (memfd) whose descriptor is passed to each child. The file has no name, and
    /// does not remain after the last process has ended.
    FileDescriptor,
    /// Named files, in the directory set by [`set_sharing_directory`](crate::set_sharing_directory).
    FileSystem,
}

impl SharingStrategy {
    const ALL: &'static [Self] = match (cfg!(feature = "file_descriptor"), cfg!(feature = "file_system")) {
        (true, true) => &[Self::FileDescriptor, Self::FileSystem],
        (true, false) => &[Self::FileDescriptor],
        (false, true) => &[Self::FileSystem],
        (false, false) => &[],
    };

    /// Returns the strategy's name, as in torch.
    pub const fn name(self) -> &'static str {
        match self {
            Self::FileDescriptor => "file_descriptor",
            Self::FileSystem => "file_system",
        }
    }

    /// Returns `true` if this build supports the strategy.
    #[inline]
    pub(crate) fn supported(self) -> bool {
        Self::all().contains(&self)
    }

    /// Returns the strategies that this build supports.
    #[cfg(not(feature = "inject"))]
    #[inline]
    pub(crate) const fn all() -> &'static [Self] {
        Self::ALL
    }

    /// Test only: returns only the strategy in the environment variable `MP_STRATEGY`, if set, as in a build
    /// with only that strategy's feature.
    #[cfg(feature = "inject")]
    pub(crate) fn all() -> &'static [Self] {
        // fork: a child inherits the environment, which determines this value.
        static ALONE: std::sync::OnceLock<Option<usize>> = std::sync::OnceLock::new();
        let named = || std::env::var("MP_STRATEGY").ok();
        match ALONE.get_or_init(|| named().and_then(|name| Self::ALL.iter().position(|s| s.name() == name))) {
            Some(at) => &Self::ALL[*at..=*at],
            None => Self::ALL,
        }
    }
}

/// Serializes the [name](SharingStrategy::name).
impl Serialize for SharingStrategy {
    fn serialize<S: Serializer>(&self, s: S) -> std::result::Result<S::Ok, S::Error> {
        s.serialize_str(self.name())
    }
}

/// Deserializes a strategy that this build supports.
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
