//! Handles of remote queues in messages.
//!
//! A handle contains the address of its home, and the configuration of the member that sent the handle. The
//! receiver is a worker process of that member, or another member. The receiver connects to the home itself,
//! when it makes the first call. The key of the cluster, and the certificate with its private key, are masked
//! by the secret of the family of processes ([`mp_core::authkey`]), so they can't be read from shared memory
//! or by other programs. A receiver that is a member of the same cluster uses its own configuration.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use mp_core::AuthKey;
use mp_core::fork::PerProcess;
use mp_core::mutex::Mutex;
use serde::{Deserialize, Serialize};

use crate::auth;
use crate::config::ClusterConfig;
use crate::error::NetError;
use crate::link::{HomeLink, HomePeer, NodeIdentity, host_name};
use crate::tls::ClusterTls;
use crate::wire::messages::Node;

/// Links and memberships of this process. The key of a link consists of two session numbers: first the number
/// of this process's home, and then the number of the home at the other end.
#[derive(Default)]
struct LinkTable {
    links: HashMap<(u64, u64), Weak<HomeLink>>,
    members: Vec<Weak<NodeIdentity>>,
}

static TABLE: PerProcess<Mutex<Option<LinkTable>>> = mp_core::per_process!(Mutex::new(None));

/// Calls `with` on the locked table of this process.
fn table<R>(with: impl FnOnce(&mut LinkTable) -> R) -> R {
    let mut table = TABLE.lock();
    with(table.get_or_insert_default())
}

/// Adds a membership of this process to the table.
pub(crate) fn add_member(me: &Arc<NodeIdentity>) {
    table(|table| {
        table.members.retain(|member| member.strong_count() > 0);
        table.members.push(Arc::downgrade(me));
    });
}

/// Returns all links of a member.
pub(crate) fn links(me: &NodeIdentity) -> Vec<Arc<HomeLink>> {
    let of_me =
        |((own, _), link): (&(u64, u64), &Weak<HomeLink>)| link.upgrade().filter(|_| *own == me.node.home);
    table(|table| table.links.iter().filter_map(of_me).collect())
}

/// Returns the link of a member to a home.
///
/// # Errors
/// Returns an error if the thread for the network can't be started.
pub(crate) fn link(me: &Arc<NodeIdentity>, peer: HomePeer) -> Result<Arc<HomeLink>, NetError> {
    table(|table| {
        let ends = (me.node.home, peer.home);
        if let Some(link) = table.links.get(&ends).and_then(Weak::upgrade) {
            return Ok(link);
        }
        table.links.retain(|_, link| link.strong_count() > 0);
        let link = HomeLink::new(peer, me.clone())?;
        table.links.insert(ends, Arc::downgrade(&link));
        Ok(link)
    })
}

/// Masked bytes, which only the sender and its family of processes can read.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct MaskedBytes {
    nonce: Vec<u8>,
    masked: Vec<u8>,
}

impl MaskedBytes {
    fn new(bytes: &[u8]) -> Result<Self, mp_core::Error> {
        let nonce = auth::nonce()?.to_vec();
        let masked = auth::mask(&mp_core::authkey()?, &nonce, bytes);
        Ok(Self { nonce, masked })
    }

    fn bytes(&self) -> Result<Vec<u8>, mp_core::Error> {
        Ok(auth::mask(&mp_core::authkey()?, &self.nonce, &self.masked))
    }
}

fn mask_pem(tls: &ClusterTls) -> Result<[MaskedBytes; 3], mp_core::Error> {
    let [ca, certificate, key] = tls.pem();
    Ok([MaskedBytes::new(&ca)?, MaskedBytes::new(&certificate)?, MaskedBytes::new(&key)?])
}

/// Configuration of the member that sent a handle.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Membership {
    rank: usize,
    ranks: usize,
    first: String,
    address: String,
    home: u64,
    key: Option<MaskedBytes>,
    /// CA, certificate and private key of the sender, if it uses TLS.
    tls: Option<[MaskedBytes; 3]>,
    lease: Duration,
    grace: Duration,
    timeout: Duration,
    largest: u64,
    credits: (u32, u64),
}

/// Serialized form of a handle.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct HandleParts {
    pub(crate) name: String,
    pub(crate) object: u64,
    pub(crate) fingerprint: u64,
    pub(crate) type_name: String,
    address: String,
    rank: usize,
    host: String,
    home: u64,
    member: Membership,
}

impl HandleParts {
    /// Creates the serialized form of a handle. The object is at the other end of the link.
    ///
    /// # Errors
    /// Returns an error if the system has no random bytes.
    pub(crate) fn new(
        link: &HomeLink,
        name: &str,
        object: u64,
        of: (u64, String),
    ) -> Result<Self, mp_core::Error> {
        let (NodeIdentity { config, node }, peer) = (link.me(), link.peer());
        let member = Membership {
            rank: config.rank,
            ranks: config.ranks,
            first: config.first.clone(),
            address: node.address.clone(),
            home: node.home,
            key: config.key.as_ref().map(|key| MaskedBytes::new(key.as_ref())).transpose()?,
            tls: config.tls.as_ref().map(mask_pem).transpose()?,
            lease: config.lease,
            grace: config.grace,
            timeout: config.timeout,
            largest: config.largest,
            credits: (config.calls, config.bytes),
        };
        let HomePeer { address, rank, host, home } = peer;
        let (fingerprint, type_name) = of;
        Ok(Self { name: name.to_owned(), object, fingerprint, type_name, address, rank, host, home, member })
    }

    /// Returns the link of this process to the home.
    ///
    /// # Errors
    /// Returns an error if the thread for the network can't be started, or the system has no random bytes.
    pub(crate) fn link(&self) -> Result<Arc<HomeLink>, NetError> {
        let peer = HomePeer {
            address: self.address.clone(),
            rank: self.rank,
            host: self.host.clone(),
            home: self.home,
        };
        link(&self.member.identity()?, peer)
    }
}

impl Membership {
    /// Returns the membership of this process in the cluster. If this process is not a member, returns the
    /// membership of the handle's sender.
    fn identity(&self) -> Result<Arc<NodeIdentity>, NetError> {
        let joined: Vec<_> = table(|table| table.members.iter().filter_map(Weak::upgrade).collect());
        let same = joined.iter().find(|me| me.node.home == self.home);
        // The same address may have belonged to an earlier cluster: the latest membership is tried first.
        // Port 0 identifies no cluster.
        let is_same = |me: &&Arc<NodeIdentity>| {
            me.config.first == self.first && me.config.ranks == self.ranks && !self.first.ends_with(":0")
        };
        if let Some(me) = same.or_else(|| joined.iter().rev().find(is_same)) {
            return Ok(me.clone());
        }
        let mut config = ClusterConfig::new(self.rank, self.ranks, &self.first)
            .lease(self.lease)
            .grace(self.grace)
            .timeout(self.timeout)
            .largest_message(self.largest)
            .credits(self.credits.0, self.credits.1);
        config.key = self.key.as_ref().map(|key| key.bytes()).transpose()?.map(|key| AuthKey::from(&key[..]));
        if let Some(pem) = &self.tls {
            let [ca, certificate, key] = pem;
            config.tls = Some(ClusterTls::from_pem(&ca.bytes()?, &certificate.bytes()?, &key.bytes()?)?);
        }
        let node = Node {
            rank: self.rank as u32,
            ranks: self.ranks as u32,
            host: host_name(),
            pid: std::process::id(),
            address: self.address.clone(),
            home: self.home,
            ..Node::default()
        };
        let me = Arc::new(NodeIdentity { config, node });
        // The links of this process keep the identity alive, so handles that arrive later find it.
        add_member(&me);
        Ok(me)
    }
}
