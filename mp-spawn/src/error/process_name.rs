//! Names of processes in errors.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Process that an error concerns.
///
/// ```
/// use mp_spawn::{Process, SpawnError};
///
/// let failing = |(): ()| Err::<(), _>("no such file");
/// let error = Process::builder().name("loader").spawn(failing, ())?.join().unwrap_err();
/// let who = error.who().expect("it is about a process");
/// assert_eq!((who.rank, who.name.as_str()), (None, "loader"));
/// assert_eq!(error.to_string(), format!("loader (pid {}) failed: no such file", who.pid));
/// # Ok::<(), SpawnError>(())
/// ```
///
/// | started | `Display` |
/// |---|---|
/// | as one of several | `rank 3 (pid 4711)` |
/// | as one of several, with a [name](crate::SpawnOptions::name) | `rank 3 (loader-3, pid 4711)` |
/// | as a [`Process`](crate::Process) | `loader (pid 4711)` |
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ProcessName {
    /// Rank of the process. `None` for a [`Process`](crate::Process), which is not part of a group.
    pub rank: Option<usize>,
    /// Name of the process, such as `rank-3` or `process-1`.
    pub name: String,
    /// Process id.
    pub pid: u32,
}

impl ProcessName {
    #[doc(hidden)]
    #[must_use]
    pub fn new(rank: Option<usize>, name: String, pid: u32) -> ProcessName {
        ProcessName { rank, name, pid }
    }
}

impl fmt::Display for ProcessName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ProcessName { rank, name, pid } = self;
        match rank {
            // The name repeats the rank.
            Some(rank)
                if name.strip_prefix("rank-").and_then(|number| number.parse().ok()) == Some(*rank) =>
            {
                write!(f, "rank {rank} (pid {pid})")
            }
            Some(rank) => write!(f, "rank {rank} ({name}, pid {pid})"),
            None => write!(f, "{name} (pid {pid})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_a_process_by_rank_name_and_pid_once() {
        let text = |rank, name: &str| ProcessName::new(rank, name.to_string(), 7).to_string();
        assert_eq!(text(Some(3), "rank-3"), "rank 3 (pid 7)");
        assert_eq!(text(Some(3), "rank-4"), "rank 3 (rank-4, pid 7)");
        assert_eq!(text(Some(3), "load-3"), "rank 3 (load-3, pid 7)");
        assert_eq!(text(None, "rank-0"), "rank-0 (pid 7)");
    }
}
