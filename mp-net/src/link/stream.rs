//! Connection to a home: the stream, and the proof of both sides.

use std::time::Duration;

use http::{HeaderValue, Request};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tonic::body::Body;
use tonic::transport::Endpoint;
use tower_service::Service;

use crate::auth::{self, ProofSide};
use crate::error::{NetError, Refusal};
use crate::link::{HomePeer, NodeIdentity, probes};
use crate::wire::messages::{
    CallOutcome, CallerGreeting, CallerMessage, CallerMessageKind, Challenge, HomeMessage, HomeMessageKind,
    PATH, VERSION, Welcome,
};
use crate::wire::receive::{Part, StreamReader, causes};
use crate::wire::send::{FrameBody, StreamPacket};

/// Windows of HTTP/2: with the default ones, large messages wait for each other.
pub(crate) const STREAM_WINDOW: u32 = 32 << 20;
pub(crate) const CONNECTION_WINDOW: u32 = 64 << 20;
/// Maximum size in bytes of a frame of HTTP/2. With the default of 16 KiB, each frame costs a system call.
pub(crate) const FRAME: u32 = 256 << 10;
/// Maximum length in bytes of a message that comes before the proof.
const GREETING: usize = 1 << 16;
/// Additional bytes of a message that is as large as allowed.
pub(crate) const BESIDE: u64 = 1 << 16;

/// A connected stream.
pub(crate) struct Stream {
    pub(crate) to: UnboundedSender<StreamPacket>,
    pub(crate) from: StreamReader,
    pub(crate) welcome: Welcome,
}

/// Cause of a failed connection.
pub(crate) enum StreamError {
    /// The home refused this process: trying again is useless.
    Refused(NetError),
    /// No process listens at the address, or another session of it.
    Gone(String),
    /// No answer.
    Silent(String),
}

/// Returns `true` if a listener is missing at the address.
fn is_refused(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if error
            .downcast_ref::<std::io::Error>()
            .is_some_and(|e| e.kind() == std::io::ErrorKind::ConnectionRefused)
        {
            return true;
        }
        next = error.source();
    }
    false
}

/// Connects, within `limit`.
pub(crate) async fn connect(
    me: &NodeIdentity,
    peer: &HomePeer,
    session: u64,
    limit: Duration,
) -> Result<Stream, StreamError> {
    match tokio::time::timeout(limit, open(me, peer, session)).await {
        Ok(result) => result,
        Err(_) => Err(StreamError::Silent(format!("no answer within {limit:?}"))),
    }
}

async fn open(me: &NodeIdentity, peer: &HomePeer, session: u64) -> Result<Stream, StreamError> {
    let (interval, timeout) = probes(me.config.lease);
    let invalid = |e: &dyn std::error::Error| {
        let why = format!("{:?} is not an address: {}", peer.address, causes(e));
        StreamError::Refused(NetError::Configuration(why))
    };
    let endpoint = Endpoint::from_shared(format!("http://{}", peer.address)).map_err(|e| invalid(&e))?;
    let endpoint = endpoint
        .tcp_nodelay(true)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(FRAME)
        .http2_keep_alive_interval(interval)
        .keep_alive_timeout(timeout)
        .keep_alive_while_idle(true);
    let mut channel = endpoint.connect().await.map_err(|e| match is_refused(&e) {
        true => StreamError::Gone("its port is closed, so its process has ended".into()),
        false => StreamError::Silent(causes(&e)),
    })?;
    let (to, frames) = unbounded_channel();
    let request = Request::post(PATH)
        .header("content-type", HeaderValue::from_static("application/grpc"))
        .header("te", HeaderValue::from_static("trailers"))
        .body(Body::new(FrameBody::new(frames)))
        .map_err(|e| invalid(&e))?;
    let failed = |e: &dyn std::error::Error| StreamError::Silent(causes(e));
    std::future::poll_fn(|cx| channel.poll_ready(cx)).await.map_err(|e| failed(&e))?;
    let response = channel.call(request).await.map_err(|e| failed(&e))?;
    let mut from = StreamReader::new(response.into_body(), GREETING);
    let challenge = match from.next::<HomeMessage>().await.map_err(|e| failed(&e))? {
        Part::Message(HomeMessage { kind: Some(HomeMessageKind::Challenge(challenge)) }) => challenge,
        _ => return Err(refused(peer, Refusal::Other("it is not a member of a cluster".into()))),
    };
    let nonce = auth::nonce().map_err(|e| StreamError::Refused(e.into()))?;
    let hello = hello(me, peer, session, &challenge, &nonce)?;
    _ = to.send(StreamPacket::of(&CallerMessage { kind: Some(CallerMessageKind::Hello(hello)) }));
    let welcome = match from.next::<HomeMessage>().await.map_err(|e| failed(&e))? {
        Part::Message(HomeMessage { kind: Some(HomeMessageKind::Welcome(welcome)) }) => welcome,
        _ => return Err(refused(peer, Refusal::Other("it did not answer as a member of a cluster".into()))),
    };
    check(me, peer, &challenge, &nonce, &welcome)?;
    from.allow(usize::try_from(me.config.largest.saturating_add(BESIDE)).unwrap_or(usize::MAX));
    Ok(Stream { to, from, welcome })
}

fn refused(peer: &HomePeer, why: Refusal) -> StreamError {
    StreamError::Refused(NetError::Refused { address: peer.address.clone(), why })
}

fn hello(
    me: &NodeIdentity,
    peer: &HomePeer,
    session: u64,
    challenge: &Challenge,
    nonce: &[u8],
) -> Result<CallerGreeting, StreamError> {
    if challenge.version != VERSION {
        return Err(refused(peer, Refusal::Version { theirs: challenge.version, ours: VERSION }));
    }
    let key = me.config.key.as_ref();
    if challenge.needs_key != key.is_some() {
        let why = match key {
            Some(_) => "it has no key, and this process has one: give all members of a cluster the same key",
            None => "it has a key, and this process has none: see ClusterConfig::key",
        };
        return Err(refused(peer, Refusal::Key(why.into())));
    }
    let proof =
        key.map(|key| auth::prove(key, ProofSide::Caller, nonce, &challenge.nonce)).unwrap_or_default();
    let (version, nonce) = (VERSION, nonce.to_vec());
    let (home, from, largest) = (peer.home, Some(me.node.clone()), me.config.largest);
    Ok(CallerGreeting { version, nonce, proof, session, home, from, largest })
}

/// Checks the answer of a home.
fn check(
    me: &NodeIdentity,
    peer: &HomePeer,
    challenge: &Challenge,
    nonce: &[u8],
    welcome: &Welcome,
) -> Result<(), StreamError> {
    if !welcome.refusal.is_empty() {
        let text = mp_core::printable(&welcome.refusal);
        return Err(match welcome.outcome() {
            CallOutcome::WrongCluster if peer.home != 0 => StreamError::Gone(text),
            CallOutcome::WrongCluster => refused(peer, Refusal::Cluster(text)),
            CallOutcome::WrongKey => refused(peer, Refusal::Key(text)),
            _ => refused(peer, Refusal::Other(text)),
        });
    }
    if let Some(key) = &me.config.key
        && !auth::is_proof(key, ProofSide::Home, &challenge.nonce, nonce, &welcome.proof)
    {
        let why = "it does not know the key of this process: give all members of a cluster the same key";
        return Err(refused(peer, Refusal::Key(why.into())));
    }
    Ok(())
}
