//! Configuration of a cluster.

use std::ffi::OsString;
use std::time::Duration;

use mp_core::AuthKey;

use crate::error::NetError;
use crate::launcher::{self, LauncherError};
use crate::tls::ClusterTls;

/// Maximum value of the time settings: a year.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);
/// Upper bound in bytes for [`largest_message`](ClusterConfig::largest_message). (Without its tensors, a
/// message must also fit into one frame of gRPC, whose length has 32 bits.)
const MOST_BYTES: u64 = 1 << 40;
/// Maximum length of a job's identifier in bytes. The greeting of a connection contains the identifier.
const MOST_JOB_BYTES: usize = 1 << 12;

/// Configuration of one process in a cluster: rank, addresses, credentials and limits.
///
/// ```
/// use mp_net::ClusterConfig;
///
/// // Rank 0 of 2, which listens on port 29501 of this host.
/// let config = ClusterConfig::new(0, 2, "127.0.0.1:29501").key(b"known to all hosts");
/// assert!(format!("{config:?}").contains("29501"));
/// ```
///
/// Connections that are not confined to this host need a [`key`](Self::key), certificates
/// ([`tls`](Self::tls)), or [`insecure`](Self::insecure).
#[derive(Clone, Debug)]
pub struct ClusterConfig {
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
    pub(crate) first: String,
    pub(crate) job: String,
    pub(crate) listen: Option<String>,
    pub(crate) advertise: Option<String>,
    pub(crate) key: Option<AuthKey>,
    pub(crate) tls: Option<ClusterTls>,
    pub(crate) insecure: bool,
    pub(crate) lease: Duration,
    pub(crate) grace: Duration,
    pub(crate) timeout: Duration,
    pub(crate) largest: u64,
    pub(crate) calls: u32,
    pub(crate) bytes: u64,
}

impl ClusterConfig {
    /// Creates the configuration of one rank of a cluster. `first` is the address of rank 0: a host name or
    /// an IP address (IPv6 in brackets), and a port.
    pub fn new(rank: usize, ranks: usize, first: &str) -> Self {
        let lease = Duration::from_secs(2);
        Self {
            rank,
            ranks,
            first: first.to_owned(),
            job: String::new(),
            listen: None,
            advertise: None,
            key: None,
            tls: None,
            insecure: false,
            lease,
            grace: Duration::ZERO,
            timeout: Duration::from_secs(60),
            largest: 1 << 30,
            calls: 4096,
            bytes: 64 << 20,
        }
    }

    /// Creates the configuration from the environment that a [launcher](crate::launcher) has set. A process
    /// without a launcher is rank 0 of a cluster of one rank, and listens at a free port of this host only.
    ///
    /// `MP_TLS_CA`, `MP_TLS_CERT` and `MP_TLS_KEY` name the files of [`ClusterTls::from_pem_files`].
    /// `MP_CLUSTER_KEY_FILE` names a file with the [`key`](Self::key), whose mode must give other users no
    /// access, and whose owner is this user or root. Instead, `MP_CLUSTER_KEY` can contain the key itself,
    /// which all programs that this process starts inherit. A newline at the end of the key is ignored.
    ///
    /// # Errors
    /// Returns an error if the variables of the launcher are invalid, incomplete or contradictory, or the
    /// files of certificates or of the key can't be used.
    pub fn from_env() -> Result<Self, LauncherError> {
        Self::from_vars(|name| std::env::var_os(name))
    }

    pub(crate) fn from_vars(get: impl Fn(&str) -> Option<OsString>) -> Result<Self, LauncherError> {
        let config = match launcher::from_vars(&get)? {
            Some(placement) => Self::new(placement.rank, placement.world_size, &placement.home.to_string())
                .job(&placement.job_id.unwrap_or_default()),
            None => Self::new(0, 1, "127.0.0.1:0"),
        };
        Ok(Self { key: launcher::key(&get)?, tls: ClusterTls::from_vars(&get)?, ..config })
    }

    /// Sets the key that all members know. Each side of a connection proves that it has the key, without
    /// sending it. Only [`tls`](Self::tls) encrypts the bytes on the network.
    #[must_use]
    pub fn key(self, key: &[u8]) -> Self {
        Self { key: Some(AuthKey::from(key)), ..self }
    }

    /// Encrypts all connections by TLS. Each side shows a certificate of the cluster's CA, so all members
    /// need certificates, and none needs a [`key`](Self::key). If there is a key, it is proved inside TLS.
    ///
    /// ```no_run
    /// use mp_net::{ClusterConfig, ClusterTls};
    ///
    /// let tls = ClusterTls::from_pem_files("ca.pem", "member.pem", "member.key")?;
    /// let config = ClusterConfig::new(0, 2, "host-a:29501").tls(tls);
    /// # Ok::<(), mp_net::NetError>(())
    /// ```
    #[must_use]
    pub fn tls(self, tls: ClusterTls) -> Self {
        Self { tls: Some(tls), ..self }
    }

    /// Allows connections without a key and without certificates. Any process that reaches a port of the
    /// cluster can then take and put messages.
    #[must_use]
    pub fn insecure(self) -> Self {
        Self { insecure: true, ..self }
    }

    /// Sets an identifier of the job. Members with different identifiers refuse each other. So two jobs that
    /// use one port by mistake are not mixed. A member without an identifier accepts members of any job.
    /// `from_env` sets the identifier of Slurm or torchrun.
    ///
    /// ```
    /// let config = mp_net::ClusterConfig::new(1, 2, "host-a:29501").job("training 7");
    /// ```
    #[must_use]
    pub fn job(self, job: &str) -> Self {
        Self { job: job.to_owned(), ..self }
    }

    /// Sets the address at which this process listens. By default rank 0 listens at its port on all
    /// interfaces, or only on loopback if its address is a loopback address. Other ranks listen at a free
    /// port of the interface that reaches rank 0.
    #[must_use]
    pub fn listen(self, address: &str) -> Self {
        Self { listen: Some(address.to_owned()), ..self }
    }

    /// Sets the address that other members connect to, if it differs from the address at which this process
    /// listens.
    #[must_use]
    pub fn advertise(self, address: &str) -> Self {
        Self { advertise: Some(address.to_owned()), ..self }
    }

    /// Sets the lease: the time after which a silent connection counts as interrupted. The default is 2 s,
    /// and the minimum is 20 ms. If the peer is silent for the lease and the [grace](Self::grace), it is
    /// lost.
    #[must_use]
    pub fn lease(self, lease: Duration) -> Self {
        Self { lease: lease.clamp(Duration::from_millis(20), LONGEST), ..self }
    }

    /// Sets the grace: the time, after the [lease](Self::lease), in which an interrupted connection can be
    /// restored. The default is 0. If the connection is restored in time, calls continue, and nothing is lost
    /// or repeated. Otherwise the calls return [`PeerLost`](crate::PeerLost).
    #[must_use]
    pub fn grace(self, grace: Duration) -> Self {
        Self { grace: grace.min(LONGEST), ..self }
    }

    /// Sets the time limit for [`Cluster::join`](crate::Cluster::join), which waits for rank 0, and for
    /// [`RemoteQueue::connect`](crate::RemoteQueue::connect), which waits for a name. The default is 60 s.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout: timeout.min(LONGEST), ..self }
    }

    /// Sets the maximum size of a message that this process accepts, in bytes and including tensors. The
    /// default is 1 GiB. The size is checked before memory is allocated.
    #[must_use]
    pub fn largest_message(self, bytes: u64) -> Self {
        Self { largest: bytes.min(MOST_BYTES), ..self }
    }

    /// Limits the unanswered puts that this process accepts from one other process: their number (4,096 by
    /// default) and their bytes (64 MiB by default). A message with more bytes is sent alone.
    ///
    /// A process can have at most 65,536 unanswered calls of all kinds, including waits for events and
    /// permits. An additional call returns [`NetError::Home`](crate::NetError::Home). Calls that acknowledge
    /// or give back messages and permits are not limited.
    #[must_use]
    pub fn credits(self, calls: u32, bytes: u64) -> Self {
        Self { calls: calls.max(1), bytes, ..self }
    }

    /// Validates the settings, without using the network.
    pub(crate) fn check(&self) -> Result<(), NetError> {
        let invalid = |why: String| Err(NetError::Configuration(why));
        if self.ranks == 0 || self.rank >= self.ranks || u32::try_from(self.ranks).is_err() {
            let (rank, ranks) = (self.rank, self.ranks);
            return invalid(format!(
                "rank {rank} is invalid in a cluster of {ranks} ranks: each rank is less than their number"
            ));
        }
        if self.job.len() > MOST_JOB_BYTES {
            return invalid(format!("the identifier of the job has more than {MOST_JOB_BYTES} bytes"));
        }
        if self.key.as_ref().is_some_and(|key| key.as_ref().is_empty()) {
            return invalid("the key of the cluster is empty: is a variable missing?".into());
        }
        if self
            .first
            .rsplit_once(':')
            .is_none_or(|(host, port)| host.is_empty() || port.parse::<u16>().is_err())
        {
            return invalid(format!("{:?} is not an address of rank 0: write host:port", self.first));
        }
        Ok(())
    }
}
