//! Membership in a cluster: joining, members, events, and published names.

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use mp_core::Wait;
use mp_core::mutex::{Condvar, Mutex};
use rustix::net::sockopt::set_tcp_user_timeout;
use tokio::net::{TcpListener, UdpSocket};

use crate::auth;
use crate::config::ClusterConfig;
use crate::error::{NetError, Refusal};
use crate::handle;
use crate::home::Home;
use crate::home::object::SharedObject;
use crate::home::registry::ClusterRegistry;
use crate::link::{CallValues, HomeLink, HomePeer, NodeIdentity, host_name};
use crate::member::ClusterMember;
use crate::publish::Publish;
use crate::reactor;
use crate::socket::resolve;
use crate::wire::messages::{CallOutcome, CallReply, MemberPresence, Node, Operation, RemoteCall};

/// Pause between two attempts to join.
pub(crate) const PAUSE: Duration = Duration::from_millis(50);

/// Change in the list of a cluster's members.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClusterEvent {
    /// A process has joined.
    Joined(ClusterMember),
    /// A member has [left](Cluster::leave).
    Left(ClusterMember),
    /// A member was killed, or can't be reached.
    Lost(ClusterMember),
    /// Rank 0 was lost. No further events follow, and objects can't be opened by name. Objects of other
    /// members that are already open continue to work.
    FirstRankLost,
}

/// Members of the cluster, according to the last list from rank 0.
#[derive(Default)]
struct MemberTable {
    members: HashMap<u32, Node>,
    changes: u64,
    subscribers: Vec<Sender<ClusterEvent>>,
    /// `true` after rank 0 was lost: the list receives no further updates.
    is_over: bool,
}

struct JoinedCluster {
    me: Arc<NodeIdentity>,
    home: Arc<Home>,
    first: Arc<HomeLink>,
    known: Arc<(Mutex<MemberTable>, Condvar)>,
    server: tokio::task::AbortHandle,
    watch: OnceLock<tokio::task::AbortHandle>,
}

impl Drop for JoinedCluster {
    fn drop(&mut self) {
        if let Some(watch) = self.watch.get() {
            watch.abort();
        }
        self.server.abort();
        self.home.close();
    }
}

/// Membership of this process in a cluster: programs on several hosts that call each other's queues.
///
/// ```
/// use mp_net::{Cluster, ClusterConfig, RemoteQueue};
/// use mp_queue::Queue;
///
/// // Both ranks are in one process here, as an example.
/// let first = Cluster::join(&ClusterConfig::new(0, 2, "127.0.0.1:29741").key(b"secret"))?;
/// let second = Cluster::join(&ClusterConfig::new(1, 2, "127.0.0.1:29741").key(b"secret"))?;
///
/// let jobs = Queue::<String>::bounded(8)?;
/// first.publish("jobs", &jobs)?;
/// let there = RemoteQueue::<String>::connect(&second, "jobs")?;
/// there.put("resize image 7".into())?;
/// assert_eq!(jobs.get()?.as_deref(), Some("resize image 7"));
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
///
/// A cluster has a fixed number of ranks. Rank 0 stores the lists of members and of names. A lost process can
/// be started again with the same rank.
///
/// Clones are handles to one membership, which ends when the last clone is dropped. If this process has not
/// [left](Self::leave) the cluster before that, other members report it as [lost](ClusterEvent::Lost).
#[derive(Clone)]
pub struct Cluster(Arc<JoinedCluster>);

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Node { rank, ranks, address, .. } = &self.0.me.node;
        let members = mp_core::quantity(self.members().len(), "member");
        write!(f, "Cluster(rank {rank} of {ranks}, at {address}, {members})")
    }
}

/// Returns an error if processes of other hosts could connect to `address` without a key or certificate.
fn check_exposure(config: &ClusterConfig, address: SocketAddr) -> Result<(), NetError> {
    if config.key.is_some() || config.tls.is_some() || config.insecure || address.ip().is_loopback() {
        return Ok(());
    }
    Err(NetError::Configuration(format!(
        "other hosts can reach {address}, and this process has neither a key nor a certificate: set \
         ClusterConfig::key or ClusterConfig::tls, or allow it by ClusterConfig::insecure"
    )))
}

/// Returns the address of the local network interface from which packets to `there` are sent.
async fn address_towards(there: SocketAddr) -> std::io::Result<SocketAddr> {
    let any: SocketAddr = if there.is_ipv6() { ([0; 8], 0).into() } else { ([0; 4], 0).into() };
    let socket = UdpSocket::bind(any).await?;
    // No packet is sent.
    socket.connect(there).await?;
    socket.local_addr()
}

/// Resolves the address of rank 0. Retries until the time limit, because the host name may be registered
/// after this process has started.
async fn resolve_first(config: &ClusterConfig) -> Result<SocketAddr, NetError> {
    let since = Instant::now();
    loop {
        let left = config.timeout.saturating_sub(since.elapsed());
        match resolve(&config.first, left).await {
            Ok(all) => return all.first().copied().ok_or(NetError::Interrupted),
            Err(NetError::Unreachable { address, cause, .. }) if since.elapsed() >= config.timeout => {
                return Err(NetError::Unreachable { address, waited: config.timeout, cause });
            }
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

/// Returns `true` if the address of rank 0 is a loopback address, so that all members are on this host.
fn is_loopback_only(config: &ClusterConfig) -> bool {
    let host = config.first.rsplit_once(':').map_or("", |(host, _)| host);
    let is_protected = config.key.is_some() || config.tls.is_some() || config.insecure;
    let is_address = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok();
    is_address || host == "localhost" || config.ranks == 1 || !is_protected
}

/// Binds the listener. Also returns the address that other members connect to.
async fn listen(config: &ClusterConfig) -> Result<(TcpListener, String), NetError> {
    let first = resolve_first(config).await?;
    let bound = |at: SocketAddr, e: std::io::Error| {
        let hint = if e.kind() == std::io::ErrorKind::AddrInUse {
            ": another cluster or program uses the port"
        } else {
            ""
        };
        NetError::Configuration(format!("this process can't listen at {at}: {e}{hint}"))
    };
    let at = match &config.listen {
        Some(listen) => *resolve(listen, config.timeout).await?.first().ok_or(NetError::Interrupted)?,
        // A host may give its own name a loopback address.
        None if config.rank == 0 && first.ip().is_loopback() && is_loopback_only(config) => first,
        None if config.rank == 0 => {
            let any: SocketAddr = if first.is_ipv6() { ([0; 8], 0).into() } else { ([0; 4], 0).into() };
            SocketAddr::new(any.ip(), first.port())
        }
        None => {
            let unreachable = |e: std::io::Error| NetError::Unreachable {
                address: config.first.clone(),
                waited: Duration::ZERO,
                cause: e.to_string(),
            };
            let mut here = address_towards(first).await.map_err(unreachable)?;
            here.set_port(0);
            here
        }
    };
    check_exposure(config, at)?;
    let listener = TcpListener::bind(at).await.map_err(|e| bound(at, e))?;
    // Accepted connections inherit the option. By default, the kernel resends bytes to a lost peer for 15
    // min.
    let timeout = u32::try_from(config.lease.as_millis()).unwrap_or(u32::MAX);
    set_tcp_user_timeout(&listener, timeout).map_err(|e| bound(at, e.into()))?;
    let at = listener.local_addr().map_err(|e| bound(at, e))?;
    let address = match &config.advertise {
        Some(address) => address.clone(),
        None if config.rank == 0 && first.port() != 0 => config.first.clone(),
        None if at.ip().is_unspecified() => {
            let mut here = address_towards(first).await.map_err(|e| bound(at, e))?;
            here.set_port(at.port());
            here.to_string()
        }
        None => at.to_string(),
    };
    Ok((listener, address))
}

impl Cluster {
    /// Joins a cluster. Blocks until rank 0 has accepted this process, for up to the
    /// [time limit](ClusterConfig::timeout).
    ///
    /// # Errors
    /// [`NetError::Unreachable`] if rank 0 does not answer in time. [`NetError::Refused`] if the keys,
    /// versions or numbers of ranks differ, or the rank is taken. [`NetError::Configuration`] if the
    /// configuration is invalid, the port is in use, or a key is missing. [`NetError::Interrupted`] if this
    /// process is interrupted.
    pub fn join(config: &ClusterConfig) -> Result<Self, NetError> {
        config.check()?;
        mp_core::Arena::current()?.me()?;
        let runtime = reactor::handle()?;
        let (to, from) = channel();
        let asked = config.clone();
        let listening = runtime.spawn(async move { _ = to.send(listen(&asked).await) });
        let (listener, address) = loop {
            match from.recv_timeout(PAUSE) {
                Ok(listening) => break listening?,
                Err(RecvTimeoutError::Timeout) if mp_core::interrupted() => {
                    listening.abort();
                    return Err(NetError::Interrupted);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(NetError::Configuration("the thread for the network has ended".into()));
                }
            }
        };
        let node = Node {
            rank: config.rank as u32,
            ranks: config.ranks as u32,
            host: host_name(),
            pid: std::process::id(),
            address,
            home: auth::random()?,
            presence: MemberPresence::Present.into(),
        };
        let me = Arc::new(NodeIdentity { config: config.clone(), node });
        let home = Home::new((config.rank == 0).then(|| ClusterRegistry::new(config.ranks as u32)));
        _ = home.me.set(me.clone());
        handle::add_member(&me);
        let server = runtime.spawn(home.clone().serve(me.clone(), listener)).abort_handle();
        let first = if config.rank == 0 { me.node.address.clone() } else { config.first.clone() };
        let peer = HomePeer { address: first, ..HomePeer::default() };
        let first = HomeLink::new(peer, me.clone())?;
        let known = Arc::new((Mutex::new(MemberTable::default()), Condvar::new()));
        let cluster =
            Self(Arc::new(JoinedCluster { me, home, first, known, server, watch: OnceLock::new() }));
        cluster.announce()?;
        let members = watch(cluster.0.first.clone(), cluster.0.known.clone(), config.rank == 0);
        _ = cluster.0.watch.set(runtime.spawn(members).abort_handle());
        Ok(cluster)
    }

    /// Sends rank 0 the request to add this process to the members.
    fn announce(&self) -> Result<(), NetError> {
        let since = Instant::now();
        let NodeIdentity { config, node } = &*self.0.me;
        let refused = |text| {
            let why = Refusal::Cluster(text);
            Err(NetError::Refused { address: config.first.clone(), why })
        };
        loop {
            let call = RemoteCall { member: Some(node.clone()), ..RemoteCall::default() };
            let is_over = since.elapsed() >= config.timeout;
            match self.0.first.call(with(call, Operation::Join), Wait::Forever) {
                Ok((reply, _)) => match reply.outcome() {
                    CallOutcome::Done => return Ok(()),
                    // The rank's former process may have been lost: rank 0 detects that within the lease.
                    CallOutcome::Taken if !is_over => {}
                    CallOutcome::Empty => return Err(NetError::Interrupted),
                    _ => return refused(reply.text),
                },
                Err(NetError::Unreachable { address, cause, .. }) if is_over => {
                    return Err(NetError::Unreachable { address, waited: since.elapsed(), cause });
                }
                Err(NetError::Unreachable { .. } | NetError::PeerLost(_)) if !is_over => {
                    // Rank 0 may have been started again.
                    self.0.first.forget_home();
                }
                Err(error) => return Err(error),
            }
            if mp_core::interrupted() {
                return Err(NetError::Interrupted);
            }
            // sleep: rank 0 may not have started yet.
            std::thread::sleep(PAUSE);
        }
    }

    /// Returns the rank of this process.
    pub fn rank(&self) -> usize {
        self.0.me.config.rank
    }

    /// Returns the address at which other members reach this process.
    pub fn address(&self) -> &str {
        &self.0.me.node.address
    }

    /// Returns the number of refused connections. Connections that end before the peer has proved its
    /// identity count, too. Each refusal is logged with its reason.
    ///
    /// ```
    /// # let config = mp_net::ClusterConfig::new(0, 1, "127.0.0.1:0").key(b"secret");
    /// let cluster = mp_net::Cluster::join(&config)?;
    /// assert_eq!(cluster.refused(), 0);
    /// # Ok::<(), mp_net::NetError>(())
    /// ```
    pub fn refused(&self) -> u64 {
        self.0.home.unproven.refused()
    }

    /// Returns the number of ranks.
    pub fn world_size(&self) -> usize {
        self.0.me.config.ranks
    }

    /// Returns the present members in the order of their ranks, as far as this process knows.
    pub fn members(&self) -> Vec<ClusterMember> {
        present(&self.0.known.0.lock())
    }

    /// Blocks until `count` ranks are members, and returns them.
    ///
    /// # Errors
    /// [`NetError::Unreachable`] if fewer ranks are members after `timeout`. The error names the missing
    /// ranks.
    /// [`NetError::Configuration`], at once, if `count` exceeds [`world_size`](Self::world_size).
    pub fn wait_for(&self, count: usize, timeout: Duration) -> Result<Vec<ClusterMember>, NetError> {
        let ranks = self.world_size();
        if count > ranks {
            let why =
                format!("{count} members can't join a cluster of {ranks} ranks: wait for at most {ranks}");
            return Err(NetError::Configuration(why));
        }
        let (known, changed) = &*self.0.known;
        let since = Instant::now();
        let mut state = known.lock();
        loop {
            let members = present(&state);
            if members.len() >= count {
                return Ok(members);
            }
            let Some(left) = timeout.checked_sub(since.elapsed()) else {
                let missing: Vec<_> = (0..ranks)
                    .filter(|rank| members.iter().all(|member| member.rank != *rank))
                    .map(|rank| rank.to_string())
                    .collect();
                return Err(NetError::Unreachable {
                    address: format!("rank {}", missing.join(", ")),
                    waited: timeout,
                    cause: format!("{} of {count} ranks have joined", members.len()),
                });
            };
            if mp_core::interrupted() {
                return Err(NetError::Interrupted);
            }
            changed.wait_until(&mut state, Instant::now() + left.min(PAUSE));
        }
    }

    /// Returns a receiver of all changes of the members after this call. The receiver ends after
    /// [`FirstRankLost`](ClusterEvent::FirstRankLost).
    pub fn events(&self) -> Receiver<ClusterEvent> {
        let (to, from) = channel();
        let mut state = self.0.known.0.lock();
        if !state.is_over {
            state.subscribers.push(to);
        }
        from
    }

    /// Leaves the cluster: other members get an event, and the names of this process are withdrawn. Blocks
    /// until each member whose queues this process has used has confirmed which messages this process has
    /// received.
    ///
    /// # Errors
    /// [`NetError::PeerLost`] if rank 0 was lost.
    pub fn leave(&self) -> Result<(), NetError> {
        let call = RemoteCall { member: Some(self.0.me.node.clone()), ..RemoteCall::default() };
        let links = handle::links(&self.0.me);
        let flushes: Vec<_> = links.iter().map(|link| (link, link.begin_flush())).collect();
        // An error is ignored: a lost home has returned the messages to its queues.
        flushes.into_iter().for_each(|(link, flush)| _ = link.wait(flush));
        let (reply, _) = self.0.first.call(with(call, Operation::Leave), Wait::Forever)?;
        done(&self.0.first, reply)
    }

    /// Publishes an object of this process under a name, for example a queue. Other members
    /// [connect](crate::RemoteQueue::connect) to the object by that name. [`Publish`] lists all objects that
    /// can be published. The cluster keeps a handle to the object until the name is
    /// [withdrawn](Self::withdraw).
    ///
    /// # Errors
    /// [`NetError::NameTaken`]. [`NetError::PeerLost`] if rank 0 was lost.
    pub fn publish(&self, name: &str, object: &impl Publish) -> Result<(), NetError> {
        self.publish_object(name, object.published().0)
    }

    pub(crate) fn publish_object(&self, name: &str, object: Arc<dyn SharedObject>) -> Result<(), NetError> {
        let taken = |by| Err(NetError::NameTaken { name: name.to_owned(), by });
        if !self.0.home.add(name, object) {
            return taken("this process".into());
        }
        let call = RemoteCall {
            name: name.to_owned(),
            member: Some(self.0.me.node.clone()),
            ..RemoteCall::default()
        };
        let result = self.0.first.call(with(call, Operation::Publish), Wait::Forever);
        if !matches!(&result, Ok((reply, _)) if reply.outcome() == CallOutcome::Done) {
            self.0.home.remove(name);
        }
        let (reply, _) = result?;
        match reply.outcome() {
            CallOutcome::Done => Ok(()),
            CallOutcome::Taken => taken(reply.text),
            _ => Err(failed(&self.0.first.peer(), reply)),
        }
    }

    /// Withdraws the name of an object. Afterwards, calls of processes that have opened the object return an
    /// error.
    ///
    /// # Errors
    /// [`NetError::PeerLost`] if rank 0 was lost.
    pub fn withdraw(&self, name: &str) -> Result<(), NetError> {
        let call = RemoteCall {
            name: name.to_owned(),
            member: Some(self.0.me.node.clone()),
            ..RemoteCall::default()
        };
        let result = self.0.first.call(with(call, Operation::Withdraw), Wait::Forever);
        self.0.home.remove(name);
        let (reply, _) = result?;
        // A name that rank 0 has not registered counts as withdrawn.
        if reply.outcome() == CallOutcome::NotFound { Ok(()) } else { done(&self.0.first, reply) }
    }

    /// Returns the link to rank 0.
    pub(crate) fn first_link(&self) -> Arc<HomeLink> {
        self.0.first.clone()
    }

    /// Waits until a member has published `name`, for up to the time limit of the configuration. Returns a
    /// link to that member.
    pub(crate) fn find(&self, name: &str) -> Result<Arc<HomeLink>, NetError> {
        self.find_within(name, self.0.me.config.timeout)
    }

    /// Waits until a member has published `name`, for up to `timeout`. Returns a link to that member.
    pub(crate) fn find_within(&self, name: &str, timeout: Duration) -> Result<Arc<HomeLink>, NetError> {
        let call = RemoteCall { name: name.to_owned(), ..RemoteCall::default() };
        let (reply, _) = self.0.first.call(with(call, Operation::Find), Wait::at_most(timeout))?;
        let Some(node) = reply.members.first() else {
            if mp_core::interrupted() {
                return Err(NetError::Interrupted);
            }
            let names =
                self.0.first.call(with(RemoteCall::default(), Operation::Watch), Wait::Forever)?.0.text;
            let (name, waited, published) = (name.to_owned(), timeout, names);
            return Err(NetError::NotPublished { name, waited, published });
        };
        let peer = HomePeer {
            address: node.address.clone(),
            rank: node.rank as usize,
            host: format!("{}, process {}", node.host, node.pid),
            home: node.home,
        };
        handle::link(&self.0.me, peer)
    }
}

/// Returns the members that are present, in the order of their ranks.
fn present(known: &MemberTable) -> Vec<ClusterMember> {
    let present = known.members.values().filter(|node| node.presence() == MemberPresence::Present);
    let mut members: Vec<ClusterMember> = present.map(ClusterMember::from).collect();
    members.sort_unstable_by_key(|member| member.rank);
    members
}

/// Sets the operation of a call, and returns the call.
pub(crate) fn with(mut call: RemoteCall, operation: Operation) -> RemoteCall {
    call.set_operation(operation);
    call
}

/// Returns the error of a reply, or `Ok` if the reply reports success.
fn done(link: &HomeLink, reply: CallReply) -> Result<(), NetError> {
    if reply.outcome() == CallOutcome::Done { Ok(()) } else { Err(failed(&link.peer(), reply)) }
}

/// Returns the error of a reply that reports a failure.
pub(crate) fn failed(home: &HomePeer, reply: CallReply) -> NetError {
    // These calls do not wait, so `Empty` means that an interrupt has cancelled the call without an effect.
    if reply.outcome() == CallOutcome::Empty {
        return NetError::Interrupted;
    }
    let text = match reply.outcome() {
        CallOutcome::NotFound => "the object was withdrawn: connect again after it is published again".into(),
        _ if reply.text.is_empty() => format!("unexpected outcome {:?}", reply.outcome()),
        _ => mp_core::printable(&reply.text),
    };
    NetError::Home { rank: home.rank, host: home.host.clone(), text }
}

/// Updates the members and reports their changes until rank 0 is lost. If this process is rank 0
/// (`is_first`), it has a connection to itself. That connection breaks if the process is stopped for longer
/// than the lease, and is then opened again.
async fn watch(first: Arc<HomeLink>, known: Arc<(Mutex<MemberTable>, Condvar)>, is_first: bool) {
    loop {
        let seen = known.0.lock().changes;
        let call = RemoteCall { number: seen, ..RemoteCall::default() };
        match first.call_async(with(call, Operation::Watch), CallValues::None).await {
            Ok((reply, _)) => {
                let mut state = known.0.lock();
                let events = state.apply(&reply);
                state.send(&events);
                drop(state);
                known.1.notify_all();
            }
            Err(NetError::PeerLost(_)) if is_first => tokio::time::sleep(PAUSE).await,
            Err(error) => {
                log::warn!("changes of the members are not reported from now on: {error}");
                let mut state = known.0.lock();
                state.send(&[ClusterEvent::FirstRankLost]);
                state.subscribers.clear();
                state.is_over = true;
                return;
            }
        }
    }
}

impl MemberTable {
    /// Applies a list of members from rank 0, and returns the changes.
    fn apply(&mut self, reply: &CallReply) -> Vec<ClusterEvent> {
        self.changes = reply.number;
        let mut events = Vec::new();
        for node in &reply.members {
            let before = self.members.insert(node.rank, node.clone());
            let same = before.as_ref().filter(|before| before.home == node.home);
            if same.is_some_and(|before| before.presence == node.presence) {
                continue;
            }
            let lost = before.as_ref().filter(|before| before.home != node.home);
            if let Some(lost) = lost.filter(|before| before.presence() == MemberPresence::Present) {
                events.push(ClusterEvent::Lost(lost.into()));
            }
            events.push(match node.presence() {
                MemberPresence::Present => ClusterEvent::Joined(node.into()),
                MemberPresence::Left => ClusterEvent::Left(node.into()),
                MemberPresence::Lost => ClusterEvent::Lost(node.into()),
            });
        }
        events
    }

    fn send(&mut self, events: &[ClusterEvent]) {
        self.subscribers.retain(|to| events.iter().all(|event| to.send(event.clone()).is_ok()));
    }
}
