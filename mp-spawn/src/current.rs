//! What this process is.

use std::sync::OnceLock;

#[derive(Debug)]
pub(crate) struct Current {
    pub(crate) rank: usize,
    pub(crate) name: String,
    pub(crate) parent: u32,
}

static CURRENT: OnceLock<Current> = OnceLock::new();

/// Says what this process is; once, before its function is called.
pub(crate) fn set(current: Current) {
    // The one caller runs once in the life of a process.
    let _ = CURRENT.set(current);
}

/// The rank of this process; `None` in one that was not started by this crate.
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
    CURRENT.get().map(|current| current.rank)
}

/// The name of this process, as in `rank-3`; `None` in one that was not started by this crate.
#[must_use]
#[doc(alias = "current_process")]
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
#[doc(alias = "parent_process")]
pub fn parent_pid() -> Option<u32> {
    CURRENT.get().map(|current| current.parent)
}
