//! Workload with a queue of a cluster on the loopback interface. Workers use the queue like processes of
//! other hosts, over sockets. The *home* is the process that has the queue.
//!
//! | process that is killed, or stopped for longer than lease and grace time | guarantee |
//! |---|---|
//! | a worker that puts | all earlier messages are in the queue; messages of the last call are there at most once |
//! | a worker that takes with acknowledgement | its message is delivered again, unless it was acknowledged |
//! | a worker that takes without acknowledgement | its messages are delivered again, unless the home knew that they were received; if the worker was killed, the messages of one call may be lost |
//! | the home | calls end with [`PeerLost`](mp::cluster::PeerLost) in time; leases return; if it was killed, the messages that it was sending are lost |
//! | none, or a process that is stopped for a shorter time | each message is taken once |
//!
//! In some groups this program is the home, and the workers are killed and stopped. In the other groups the
//! home is a worker, and only that worker is killed and stopped. If stops can exceed lease and grace, signals
//! are rare, because otherwise most workers would be killed before they rejoin. In some of these groups
//! workers are only stopped, and nothing may be lost.

use std::fs;
use std::time::{Duration, Instant};

use mp::cluster::{Cluster, ClusterConfig, ClusterTls, NetError, RemoteQueue};
use mp::queue::DesertedWhen;
use mp::{Event, Queue, SharedTensor, Tensor};
use serde::{Deserialize, Serialize};

use crate::bookkeeping::board::Op;
use crate::bookkeeping::ledger::{Account, Ledger};
use crate::bookkeeping::parcel::Job;
use crate::random::Random;
use crate::rounds::crew::{Clock, Exposure};
use crate::workloads::host_calls::{HostCallEnd, lost};
use crate::workloads::work::Worker;

/// Number of workers that put, and number of workers that take.
const PUTTERS: usize = 2;
const TAKERS: usize = 2;
/// Name of the queue.
const NAME: &str = "jobs";
/// Additional time that a call may take on a busy machine.
const SLACK: Duration = Duration::from_secs(5);
/// Time limit for joining, because the address may be that of a killed home.
const JOIN: Duration = Duration::from_millis(500);
/// CA, certificate and private key of all members.
const CERTIFICATES: [&[u8]; 3] = [
    include_bytes!("../../../../mp-net/tests/certificates/ca.pem"),
    include_bytes!("../../../../mp-net/tests/certificates/member.pem"),
    include_bytes!("../../../../mp-net/tests/certificates/member.key"),
];
/// Time limit for the home to take back the messages of lost workers, and to close their connections.
const SETTLE: Duration = Duration::from_secs(10);

/// Settings by which a worker joins the cluster.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct HostConfig {
    rank: usize,
    /// Port on which the home listens, in shared memory.
    port: SharedTensor<u64>,
    /// Handle to the queue that this program made, if this program is the home. Workers may use it instead of
    /// joining the cluster.
    handle: Option<RemoteQueue<Job>>,
    /// Random number of the cluster, which distinguishes it from an earlier cluster on the same port.
    cluster: u64,
    has_key: bool,
    has_tls: bool,
    lease: Duration,
    grace: Duration,
    /// `true` if messages are taken with acknowledgement.
    acknowledged: bool,
    /// Maximum number of messages in one call.
    pub(super) batch: usize,
}

/// Queue of a group, with its home if this program is the home.
#[derive(Debug)]
pub(crate) struct Hosts {
    config: HostConfig,
    queue: Queue<Job>,
    home: Option<Cluster>,
    /// Number of open sockets of the home while no worker is connected.
    connections: usize,
    exposure: Exposure,
    /// Event that is set when all workers except the home have ended.
    over: Event,
}

/// Returns the number of open TCP connections and listeners of this machine that have this local port.
fn open_at(port: u64) -> mp::AnyResult<usize> {
    /// States of open sockets: established, closed by the other end, listening.
    const OPEN: [&str; 3] = ["01", "08", "0A"];
    let table = fs::read_to_string("/proc/self/net/tcp")?;
    let local = format!(":{port:04X}");
    let is_open = |line: &&str| {
        let mut words = line.split_whitespace().skip(1);
        words.next().is_some_and(|address| address.ends_with(&local))
            && words.nth(1).is_some_and(|state| OPEN.contains(&state))
    };
    Ok(table.lines().filter(is_open).count())
}

/// Creates and drops a cluster, because the first cluster of a process leaves threads and open files.
pub(crate) fn first_cluster(random: &mut Random) -> mp::AnyResult<()> {
    let hosts = Hosts::with(random, false)?;
    let port = hosts.config.port.load(0);
    if let Some(remote) = &hosts.config.handle
        && !remote.get_timeout(Duration::from_millis(1)).is_err_and(|error| error.is_empty())
    {
        return Err("torn: a message of an empty queue".into());
    }
    drop(hosts);
    let mut clock = Clock::new();
    while open_at(port)? > 0 {
        if clock.passed() > SETTLE {
            return Err("leaked: sockets of a cluster that was dropped".into());
        }
        clock.tick();
    }
    Ok(())
}

impl HostConfig {
    fn member(&self, rank: usize, port: u64) -> mp::AnyResult<ClusterConfig> {
        let mut config = ClusterConfig::new(rank, 1 + PUTTERS + TAKERS, &format!("127.0.0.1:{port}"))
            .job(&self.cluster.to_string())
            .lease(self.lease)
            .grace(self.grace);
        if self.has_key {
            config = config.key(&self.cluster.to_le_bytes());
        }
        if self.has_tls {
            let [ca, certificate, key] = CERTIFICATES;
            config = config.tls(ClusterTls::from_pem(ca, certificate, key)?);
        }
        Ok(config)
    }

    /// Makes this process the home of the queue.
    fn publish(&self, queue: &Queue<Job>) -> mp::AnyResult<Cluster> {
        let cluster = loop {
            let joined = Cluster::join(&self.member(0, 0)?)
                .and_then(|cluster| cluster.publish(NAME, queue).map(|()| cluster));
            match joined {
                // This process was stopped, and has lost its connection to itself.
                Err(NetError::PeerLost(_)) => {}
                joined => break joined?,
            }
        };
        let (_, port) = cluster.address().rsplit_once(':').ok_or("an address without a port")?;
        self.port.store(0, port.parse()?);
        Ok(cluster)
    }

    /// Connects to the queue: joins the cluster, or uses the handle of the program that is the home. Tries
    /// again forever, so a worker that can't join is reported as idle.
    fn connect(&self, random: &mut Random) -> mp::AnyResult<(Option<Cluster>, RemoteQueue<Job>)> {
        if let Some(handle) = self.handle.as_ref().filter(|_| random.percent(50)) {
            return Ok((None, handle.clone()));
        }
        loop {
            let config = self.member(self.rank, self.port.load(0))?.timeout(JOIN);
            let joined = Cluster::join(&config)
                .and_then(|cluster| Ok((RemoteQueue::connect(&cluster, NAME)?, cluster)));
            match joined {
                Ok((queue, cluster)) => return Ok((Some(cluster), queue)),
                // The home was killed, or has not detected the end of the former process of this rank.
                Err(
                    NetError::Unreachable { .. }
                    | NetError::Refused { .. }
                    | NetError::PeerLost(_)
                    | NetError::NotPublished { .. },
                ) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Returns an error if a call has taken too long. `wait` is the time for which the call may wait. Not
    /// checked if workers may be stopped.
    pub(super) fn has_ended(&self, since: Instant, wait: Duration) -> mp::AnyResult<()> {
        let (took, most) = (since.elapsed(), wait + self.lease + self.grace + SLACK);
        match self.handle.is_none() && took > most {
            true => Err(format!("hang: a call of {took:?}, which may take {most:?}").into()),
            false => Ok(()),
        }
    }
}

impl Hosts {
    pub(crate) fn new(random: &mut Random) -> mp::AnyResult<Self> {
        let home_dies = random.percent(35);
        Self::with(random, home_dies)
    }

    fn with(random: &mut Random, home_dies: bool) -> mp::AnyResult<Self> {
        // This program takes the remaining messages after all workers have ended.
        let queue = Queue::bounded(random.pick(&[1, 2, 8, 64]))?.deserted_when(DesertedWhen::Never);
        let mut config = HostConfig {
            rank: 0,
            port: Tensor::zeros([1])?.share(),
            handle: None,
            cluster: random.next(),
            has_key: random.percent(50),
            has_tls: random.percent(50),
            lease: Duration::from_millis(random.pick(&[300, 1000])),
            grace: Duration::from_millis(random.pick(&[0, 500])),
            acknowledged: random.percent(60),
            batch: random.pick(&[1, 2, 20]) as usize,
        };
        let home = if home_dies { None } else { Some(config.publish(&queue)?) };
        config.handle = home.as_ref().map(|home| RemoteQueue::connect(home, NAME)).transpose()?;
        let connections = if home_dies { 0 } else { open_at(config.port.load(0))? };
        let longest = 2 * (config.lease + config.grace).as_millis() as u64;
        let exposure = match home_dies || random.percent(50) {
            true => Exposure { kills: random.pick(&[0, 15]), stops: 15, longest: Some(longest) },
            false => Exposure::default(),
        };
        Ok(Self { config, queue, home, connections, exposure, over: Event::new()? })
    }

    /// Returns the number of workers that use the queue until the round ends, and the number of workers that
    /// are the home: 0 or 1.
    pub(crate) fn workers(&self) -> (usize, usize) {
        (PUTTERS + TAKERS, usize::from(self.home.is_none()))
    }

    /// Returns the settings of worker `i`, and `true` if it puts messages.
    pub(crate) fn client(&self, i: usize) -> (HostConfig, bool) {
        (HostConfig { rank: 1 + i, ..self.config.clone() }, i < PUTTERS)
    }

    /// Returns the arguments of a worker that is the home.
    pub(crate) fn home(&self) -> (HostConfig, Queue<Job>, Event) {
        (self.config.clone(), self.queue.clone(), self.over.clone())
    }

    /// Returns the signals to which worker `i` is exposed.
    pub(crate) fn exposure(&self, i: usize) -> Exposure {
        match &self.home {
            None if i < PUTTERS + TAKERS => Exposure { kills: 0, stops: 0, longest: None },
            _ => self.exposure,
        }
    }

    /// Returns the number of messages that the death of worker `i` may lose. `polled` is `true` if the worker
    /// had polled a get once, without receiving a message.
    pub(crate) fn cost(&self, i: usize, polled: bool) -> u64 {
        match i {
            0..PUTTERS => 0,
            _ if polled => 0,
            _ if self.home.is_some() => self.taken(),
            _ if self.acknowledged() => 0,
            // Includes messages of sessions that have ended just before.
            _ => 3 * TAKERS as u64 * self.taken(),
        }
    }

    /// Returns the maximum number of messages that a worker takes at once.
    fn taken(&self) -> u64 {
        if self.acknowledged() { 1 } else { self.config.batch as u64 }
    }

    pub(crate) fn acknowledged(&self) -> bool {
        self.config.acknowledged
    }

    /// Ends the worker that is the home. Called after all other workers have ended.
    pub(crate) fn close(&self) -> mp::AnyResult<()> {
        self.over.set()?;
        Ok(())
    }

    /// Takes the remaining messages, including messages that lost workers had taken, until at most `allowed`
    /// messages are missing. Checks that the home has closed all connections to workers.
    pub(crate) fn settle(&self, ledger: &Ledger, allowed: u64) -> mp::AnyResult<()> {
        take_rest(&self.queue, ledger, SETTLE, |account| {
            account.missing + account.undone <= allowed && !(self.acknowledged() && account.missing > 0)
        })?;
        let Some(home) = &self.home else { return Ok(()) };
        let mut clock = Clock::new();
        loop {
            let (members, open) = (home.members().len(), open_at(self.config.port.load(0))?);
            // On a busy machine, this process may have lost a connection to itself.
            if members == 1 && open <= self.connections {
                return Ok(());
            }
            if clock.passed() > SETTLE {
                let before = self.connections;
                return Err(format!(
                    "leaked: {members} members and {open} connections of a home, without workers 1 and \
                     {before}"
                )
                .into());
            }
            clock.tick();
        }
    }
}

/// Takes the remaining messages, including messages of lost workers that return to the queue. Ends when
/// enough messages have arrived, or after a time limit.
fn take_rest(
    queue: &Queue<Job>,
    ledger: &Ledger,
    time: Duration,
    is_enough: impl Fn(&Account) -> bool,
) -> mp::AnyResult<()> {
    let mut clock = Clock::new();
    loop {
        match queue.get_timeout(Duration::from_millis(20)) {
            Ok(Some(job)) => {
                job.check()?;
                ledger.got_late(job.number)?;
                ledger.done(job.number)?;
                continue;
            }
            Ok(None) => return Err("torn: the end of an open queue".into()),
            Err(error) if error.is_empty() => {}
            Err(error) => return Err(error.into()),
        }
        if is_enough(&ledger.account()) || clock.passed() > time {
            return Ok(());
        }
        clock.tick();
    }
}

impl Worker {
    /// Runs the home, until all other workers have ended.
    pub(crate) fn be_home(
        &mut self,
        config: &HostConfig,
        queue: &Queue<Job>,
        over: &Event,
    ) -> mp::AnyResult<()> {
        let cluster = config.publish(queue)?;
        while !over.wait_timeout(Duration::from_millis(50))? {
            self.row.note(Op::Accept, cluster.members().len() as u64);
        }
        // The time exceeds the period within which lost workers may return.
        let time = config.lease + config.grace + Duration::from_millis(500);
        take_rest(queue, &self.ledger, time, |account| account.missing + account.undone == 0)
    }

    /// Puts messages into the queue, or takes messages from it, until the round has ended. Leaves and rejoins
    /// the cluster at random.
    pub(crate) fn use_home(&mut self, config: &HostConfig, puts: bool) -> mp::AnyResult<()> {
        while !self.row.over() {
            self.row.note(Op::Connect, config.port.load(0));
            let (cluster, queue) = config.connect(&mut self.random)?;
            while !self.row.over() && self.random.below(300) > 0 {
                let end = match (puts, config.acknowledged) {
                    (true, _) => self.put_remote(config, &queue)?,
                    (false, true) => self.lease_remote(config, &queue)?,
                    (false, false) => self.take_remote(config, &queue)?,
                };
                // The same handle can be used again, unless the home was killed.
                if end == HostCallEnd::Lost && self.random.percent(50) {
                    break;
                }
            }
            self.row.note(Op::Leave, 0);
            if let Some(cluster) = cluster.filter(|_| self.random.percent(50)) {
                cluster.leave().or_else(lost)?;
            }
        }
        Ok(())
    }
}
