//! Rank, number of ranks and address of the first rank, from the environment that launchers set.
//!
//! [`env()`] reads the environment of this process. It resolves no host name and opens no connection.
//!
//! # Variables
//!
//! Launchers are tried in this order. The first one whose rank is set is used.
//!
//! | launcher | rank, number of ranks | local rank, local number | address of rank 0 |
//! |---|---|---|---|
//! | none: the user | `MP_RANK`, `MP_WORLD_SIZE` | `MP_LOCAL_RANK`, `MP_LOCAL_WORLD_SIZE` | `MP_ADDR` |
//! | [torchrun] | `RANK`, `WORLD_SIZE` | `LOCAL_RANK`, `LOCAL_WORLD_SIZE` | `MASTER_ADDR` |
//! | [Open MPI] | `OMPI_COMM_WORLD_RANK`, `OMPI_COMM_WORLD_SIZE` | `OMPI_COMM_WORLD_LOCAL_RANK`, `OMPI_COMM_WORLD_LOCAL_SIZE` | – |
//! | PMI ([MPICH], Intel MPI, Cray) | `PMI_RANK`, `PMI_SIZE` | `MPI_LOCALRANKID`, `MPI_LOCALNRANKS` or `PMI_LOCAL_RANK`, `PMI_LOCAL_SIZE` | – |
//! | PMIx (PRRTE) | `PMIX_RANK`, [no variable][PMIx] | – | – |
//! | Slurm ([srun]) | `SLURM_PROCID`, `SLURM_STEP_NUM_TASKS` or `SLURM_NTASKS` | `SLURM_LOCALID`, entry `SLURM_NODEID` of `SLURM_STEP_TASKS_PER_NODE` or `SLURM_TASKS_PER_NODE`, or `SLURM_NTASKS_PER_NODE` | first host of `SLURM_STEP_NODELIST`, `SLURM_JOB_NODELIST` or `SLURM_NODELIST` |
//! | [Kubernetes], indexed job | `JOB_COMPLETION_INDEX`, no variable | – | – |
//!
//! - `MP_ADDR`, `MP_LOCAL_RANK` and `MP_LOCAL_WORLD_SIZE` replace the values of every launcher. `MASTER_ADDR`
//!   replaces the address that Slurm's list of hosts gives.
//! - PMIx and Kubernetes set no number of ranks: set `MP_WORLD_SIZE` or `WORLD_SIZE`. With other launchers
//!   these two have to agree with the launcher's own number.
//! - If the table has no address, set `MP_ADDR` or `MASTER_ADDR`. In an indexed job of Kubernetes, the
//!   address is `<job>-0.<service>`, with a headless service as the [subdomain] of the pods.
//! - The port is `MP_PORT`. Without it the port is `MASTER_PORT` + 1, because torchrun's own store listens
//!   on `MASTER_PORT`. Without both it is [`DEFAULT_PORT`].
//! - The job's id is `SLURM_JOB_ID`, or `TORCHELASTIC_RUN_ID` under torchrun.
//! - [`ClusterConfig::from_env`](crate::ClusterConfig::from_env) also reads certificates and the key.
//!
//! An empty variable counts as unset.
//!
//! # Launchers inside launchers
//!
//! Launchers are nested: one `torchrun` a host is started by `srun`, and `mpirun` starts its own daemons by
//! `srun`. The variables of the outer launcher remain visible. The order of the table prefers the inner
//! launcher.
//!
//! `RANK` and `WORLD_SIZE` are also often exported by scripts. They are used without comparison only if all
//! six variables of torchrun are set: the five of the table and `MASTER_PORT`. Otherwise they have to agree
//! with the launcher that would be used without them, and that launcher is used. For example, a batch script
//! that exports `RANK=$SLURM_PROCID` and calls `srun` gives all tasks the rank 0: all tasks but one get an
//! error.
//!
//! `srun --mpi=pmi2` and `srun --mpi=pmix` set `PMI_…` and `PMIX_…` for the tasks of Slurm itself. If they
//! agree with Slurm's variables, Slurm's variables are used, because these also contain an address.
//!
//! # Single processes
//!
//! [`env()`] returns `None` if the process was started by none of these launchers. The job then has no other
//! process. `MP_ADDR`, `MP_PORT`, `MASTER_ADDR` and `MASTER_PORT` alone do not count as a launcher.
//!
//! Slurm sets `SLURM_PROCID=0` for the batch script too. A program started there without `srun` is a single
//! process as well. If the job has more than one task or node, an error is returned instead: `srun` was
//! probably forgotten.
//!
//! # Restarts
//!
//! No variable tells the sessions of a restarted job apart. Do not use `TORCHELASTIC_RESTART_COUNT` for that:
//! each agent counts by itself, and a new agent begins at 0 ([pytorch#135712]). `TORCHELASTIC_RUN_ID` and
//! `SLURM_JOB_ID` remain the same after a restart.
//!
//! # Limits
//!
//! With `srun --distribution=arbitrary` rank 0 need not be on the first host of the list, and the address
//! counts as missing. Some versions of torchrun set `MASTER_ADDR` to the host of the rendezvous, which need
//! not be the host of rank 0 ([pytorch#137402]).
//!
//! [torchrun]: https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables
//! [Open MPI]: https://docs.open-mpi.org/en/v5.0.x/tuning-apps/environment-var.html
//! [MPICH]: https://github.com/pmodels/mpich/pull/2371
//! [PMIx]: https://github.com/open-mpi/ompi/issues/9167
//! [srun]: https://slurm.schedmd.com/srun.html#SECTION_OUTPUT-ENVIRONMENT-VARIABLES
//! [Kubernetes]: https://kubernetes.io/docs/tasks/job/indexed-parallel-processing-static/
//! [subdomain]: https://kubernetes.io/docs/tasks/job/job-with-pod-to-pod-communication/
//! [pytorch#135712]: https://github.com/pytorch/pytorch/issues/135712
//! [pytorch#137402]: https://github.com/pytorch/pytorch/issues/137402

mod checked_vars;
mod key;
mod launchers;
mod slurm_lists;
#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::fmt;

use checked_vars::Vars;
pub(crate) use key::key;

/// Port at which rank 0 listens if neither `MP_PORT` nor `MASTER_PORT` is set.
///
/// IANA has assigned none of the ports 29170 to 29998. They are below 32768, where Linux begins to take ports
/// for outgoing connections, and below 30000, where the node ports of Kubernetes begin. torchrun uses 29400
/// and 29500 by default. Two jobs whose rank 0 is on the same host need different ports: set `MP_PORT`.
pub const DEFAULT_PORT: u16 = 29700;

/// Variables that name the files of the CA, the certificate and the private key.
const TLS_VARIABLES: [&str; 3] = ["MP_TLS_CA", "MP_TLS_CERT", "MP_TLS_KEY"];

/// Rank of this process in a job, and the address of rank 0.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Placement {
    /// Rank of this process, below [`world_size`](Self::world_size).
    pub rank: usize,
    /// Number of processes of the job.
    pub world_size: usize,
    /// Rank of this process among the job's processes on this host, if the launcher sets it.
    pub local_rank: Option<usize>,
    /// Number of the job's processes on this host, if the launcher sets it.
    pub local_world_size: Option<usize>,
    /// Address at which rank 0 listens, and to which all other ranks connect.
    pub home: HostAddress,
    /// Identifier that the launcher gave the job. A restarted job can have the same identifier.
    pub job_id: Option<String>,
    /// Launcher whose variables were used.
    pub launcher: Launcher,
}

/// Host and port. Displayed as `host:port`, with brackets around an IPv6 address.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct HostAddress {
    /// Name or address of the host, without brackets.
    pub host: String,
    /// Port number.
    pub port: u16,
}

/// Program that started the processes of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Launcher {
    /// The user: `MP_RANK` is set.
    Explicit,
    /// `torchrun`, or another program that sets `RANK`.
    Torchrun,
    /// `mpirun` of Open MPI.
    OpenMpi,
    /// A launcher that sets `PMI_RANK` or `PMIX_RANK`.
    Pmi,
    /// `srun` of Slurm.
    Slurm,
    /// An indexed job of Kubernetes.
    Kubernetes,
}

/// Error returned when the variables of launchers are invalid, incomplete or contradictory.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LauncherError {
    /// A variable has an invalid value.
    #[error("the environment variable {variable} is invalid: found \"{value}\", but {reason}")]
    Invalid {
        /// Name of the variable.
        variable: &'static str,
        /// Value with escapes, cut if it is long.
        value: String,
        /// Text that describes valid values.
        reason: &'static str,
    },
    /// A variable is missing that must be set together with other variables.
    #[error("the environment has {found}, but {missing} is not set: {advice}")]
    Incomplete {
        /// Variables that are set, with their values.
        found: String,
        /// Names of the missing variables.
        missing: &'static str,
        /// Text that describes a remedy.
        advice: &'static str,
    },
    /// Two variables, or groups of variables, contradict each other.
    #[error("the environment contradicts itself: it has {first} and {second}, but {reason}")]
    Contradiction {
        /// Variables with their values.
        first: String,
        /// Variables with their values that contradict `first`.
        second: String,
        /// Text that describes the violated rule.
        reason: &'static str,
    },
    /// The files that `MP_TLS_CA`, `MP_TLS_CERT` and `MP_TLS_KEY` name can't be used.
    #[error("the certificates of the environment can't be used: {0}")]
    Certificates(String),
    /// The key, or the file that `MP_CLUSTER_KEY_FILE` names, can't be used.
    #[error("the cluster's key of the environment can't be used: {0}")]
    Key(String),
}

mp_core::readable_debug!(LauncherError);

/// Returns the placement of this process, or `None` if no launcher started it.
///
/// ```
/// match mp_net::launcher::env()? {
///     Some(placement) => println!("rank {} of {}", placement.rank, placement.world_size),
///     None => println!("a single process"),
/// }
/// # Ok::<(), mp_net::launcher::LauncherError>(())
/// ```
///
/// # Errors
/// Returns an error if the variables of the launcher are invalid, incomplete or contradictory. The error
/// names the variables with their values.
pub fn env() -> Result<Option<Placement>, LauncherError> {
    from_vars(|name| std::env::var_os(name))
}

/// Returns the placement that the variables of `get` describe, or `None` if no launcher has set them.
///
/// ```
/// use mp_net::launcher::from_vars;
///
/// let vars = [("MP_RANK", "1"), ("MP_WORLD_SIZE", "4"), ("MP_ADDR", "10.0.0.1")];
/// let get = |name: &str| vars.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into());
/// let placement = from_vars(get)?.expect("MP_RANK is set");
/// assert_eq!((placement.rank, placement.world_size), (1, 4));
/// assert_eq!(placement.home.to_string(), "10.0.0.1:29700");
/// # Ok::<(), mp_net::launcher::LauncherError>(())
/// ```
///
/// # Errors
///
/// Returns the errors of [`env()`].
pub fn from_vars(get: impl Fn(&str) -> Option<OsString>) -> Result<Option<Placement>, LauncherError> {
    let vars = Vars(&get);
    launchers::find(&vars)?.map(|claim| claim.into_placement(&vars)).transpose()
}

/// Returns the values of `MP_TLS_CA`, `MP_TLS_CERT` and `MP_TLS_KEY`, or `None` if none of them is set.
pub(crate) fn tls_files(
    get: impl Fn(&str) -> Option<OsString>,
) -> Result<Option<[OsString; 3]>, LauncherError> {
    let files = TLS_VARIABLES.map(|name| get(name).filter(|value| !value.is_empty()));
    let Some(missing) = files.iter().position(Option::is_none) else {
        return Ok(Some(files.map(Option::unwrap_or_default)));
    };
    let found: Vec<_> =
        TLS_VARIABLES.iter().zip(&files).filter(|(_, file)| file.is_some()).map(|(name, _)| *name).collect();
    if found.is_empty() {
        return Ok(None);
    }
    Err(LauncherError::Incomplete {
        found: found.join(" and "),
        missing: TLS_VARIABLES[missing],
        advice: "set all of MP_TLS_CA, MP_TLS_CERT and MP_TLS_KEY, or none",
    })
}

impl fmt::Display for HostAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}
