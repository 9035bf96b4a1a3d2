//! Which kind of shared memory new arenas use.

use std::fmt;
use std::str::FromStr;

use crate::error::Error;

/// How memory is shared between processes.
///
/// ```
/// use mp_core::{SharingStrategy, get_all_sharing_strategies, get_sharing_strategy};
///
/// assert_eq!(get_sharing_strategy(), SharingStrategy::FileDescriptor);
/// assert!(get_all_sharing_strategies().contains(&SharingStrategy::FileDescriptor));
/// assert!("file_sistem".parse::<SharingStrategy>().is_err());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum SharingStrategy {
    /// One anonymous file (memfd) whose descriptor is handed to each child. Nothing has a name, nothing is left behind.
    FileDescriptor,
}

impl SharingStrategy {
    const ALL: &'static [Self] =
        if cfg!(feature = "file_descriptor") { &[Self::FileDescriptor] } else { &[] };

    /// Its name, as torch has it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::FileDescriptor => "file_descriptor",
        }
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
        Self::ALL.iter().copied().find(|s| s.name() == name).ok_or_else(|| Error::Strategy {
            asked: name.into(),
            supported: Self::ALL.iter().map(|s| s.name()).collect(),
        })
    }
}

/// The strategies that this build supports on this platform.
pub fn get_all_sharing_strategies() -> &'static [SharingStrategy] {
    SharingStrategy::ALL
}

/// The strategy that is used for what is shared from now on.
pub fn get_sharing_strategy() -> SharingStrategy {
    SharingStrategy::FileDescriptor
}

/// Chooses the strategy for what is shared from now on.
///
/// # Errors
/// [`Error::Strategy`] for one that this build does not support.
pub fn set_sharing_strategy(strategy: SharingStrategy) -> Result<(), Error> {
    strategy.name().parse().map(|_: SharingStrategy| ())
}
