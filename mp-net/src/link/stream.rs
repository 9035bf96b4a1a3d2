//! Connection to a home: the stream, and the proof of both sides.

use std::future::{Ready, ready};
use std::io::ErrorKind;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use http::{HeaderValue, Request, Uri};
use hyper_util::rt::TokioIo;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tonic::body::Body;
use tonic::transport::Endpoint;
use tower_service::Service;

use crate::auth::{self, ProofSide};
use crate::error::{NetError, Refusal};
use crate::link::socket::CallerSocket;
use crate::link::{HomePeer, NodeIdentity, probes};
use crate::socket::broken;
use crate::wire::messages::{
    CallOutcome, CallerGreeting, CallerMessage, CallerMessageKind, Challenge, HomeMessage, HomeMessageKind,
    PATH, VERSION, Welcome,
};
use crate::wire::receive::{Part, StreamReader, causes};
use crate::wire::send::{FrameBody, StreamPacket};

/// Flow-control windows of HTTP/2 in bytes. With the defaults of HTTP/2, large messages delay each other. If
/// the windows exceed the kernel's receive buffer (6 MiB, `tcp_rmem` in tcp(7)), unread data is evicted from
/// the processor's cache.
pub(crate) const STREAM_WINDOW: u32 = 6 << 20;
pub(crate) const CONNECTION_WINDOW: u32 = 8 << 20;
/// Maximum size in bytes of a frame of HTTP/2. With the default of 16 KiB, each frame costs a system call.
/// Larger frames don't stay in the cache between the two copies of the receiver.
pub(crate) const FRAME: u32 = 128 << 10;
/// Maximum length in bytes of a message that comes before the proof.
const GREETING: usize = 1 << 16;
/// Number of bytes that a message may have in addition to values of the maximum size, for their lengths and
/// lists of attachments.
pub(crate) const BESIDE: u64 = 1 << 16;

/// Stream to a home that has accepted this process.
pub(crate) struct Stream {
    pub(crate) to: UnboundedSender<StreamPacket>,
    pub(crate) from: StreamReader,
    pub(crate) welcome: Welcome,
}

/// Cause of a failed connection.
pub(crate) enum StreamError {
    /// The home refused this process: trying again is useless.
    Refused(NetError),
    /// No process listens at the address, or the process at the address has another session.
    Gone(String),
    /// The connection ended before the home answered.
    Reset(String),
    /// The home did not answer in time.
    Silent(String),
}

/// Connector for tonic that returns an existing socket at its first call.
struct ConnectedSocket(Option<CallerSocket>);

impl Service<Uri> for ConnectedSocket {
    type Response = TokioIo<CallerSocket>;
    type Error = std::io::Error;
    type Future = Ready<Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        ready(self.0.take().map(TokioIo::new).ok_or_else(|| broken("the connection has ended")))
    }
}

/// Connects to a home, and performs the handshake in which both sides prove the key, within `limit`.
pub(crate) async fn connect(
    me: &NodeIdentity,
    peer: &HomePeer,
    session: u64,
    limit: Duration,
) -> Result<Stream, StreamError> {
    match tokio::time::timeout(limit, open(me, peer, session, limit)).await {
        Ok(result) => result,
        Err(_) => Err(StreamError::Silent(format!("no answer within {limit:?}"))),
    }
}

/// A stream whose home waits for a greeting.
struct ChallengedStream {
    to: UnboundedSender<StreamPacket>,
    from: StreamReader,
    challenge: Challenge,
    refusal: Arc<OnceLock<Refusal>>,
}

/// Returns the error of a connection that has ended: the refusal, if the home has refused this process.
fn failed(peer: &HomePeer, refusal: &OnceLock<Refusal>, error: &dyn std::error::Error) -> StreamError {
    match refusal.get() {
        Some(why) => refused(peer, why.clone()),
        None => StreamError::Reset(causes(error)),
    }
}

async fn challenged(
    me: &NodeIdentity,
    peer: &HomePeer,
    limit: Duration,
) -> Result<ChallengedStream, StreamError> {
    let connected = CallerSocket::connect(&peer.address, me.config.tls.as_ref(), limit).await;
    let (socket, refusal) = connected.map_err(|error| match error {
        Ok(why) => refused(peer, why),
        Err(e) if e.kind() == ErrorKind::ConnectionRefused => {
            StreamError::Gone("its port is closed, so its process has ended".into())
        }
        Err(e) if matches!(e.kind(), ErrorKind::ConnectionReset | ErrorKind::UnexpectedEof) => {
            StreamError::Reset(e.to_string())
        }
        Err(e) => StreamError::Silent(e.to_string()),
    })?;
    let failed = |e: &dyn std::error::Error| failed(peer, &refusal, e);
    let (interval, timeout) = probes(me.config.lease);
    // The address is that of the socket.
    let endpoint = Endpoint::from_static("http://mp-cluster")
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(FRAME)
        .http2_keep_alive_interval(interval)
        .keep_alive_timeout(timeout)
        .keep_alive_while_idle(true);
    let channel = endpoint.connect_with_connector(ConnectedSocket(Some(socket))).await;
    let mut channel = channel.map_err(|e| failed(&e))?;
    let (to, frames) = unbounded_channel();
    let request = Request::post(PATH)
        .header("content-type", HeaderValue::from_static("application/grpc"))
        .header("te", HeaderValue::from_static("trailers"))
        .body(Body::new(FrameBody::new(frames)))
        .map_err(|e| failed(&e))?;
    std::future::poll_fn(|cx| channel.poll_ready(cx)).await.map_err(|e| failed(&e))?;
    let response = channel.call(request).await.map_err(|e| failed(&e))?;
    let mut from = StreamReader::new(response.into_body(), GREETING);
    let challenge = match from.next::<HomeMessage>().await.map_err(|e| failed(&e))? {
        Part::Message(HomeMessage { kind: Some(HomeMessageKind::Challenge(challenge)) }) => challenge,
        _ => return Err(refused(peer, Refusal::Other("it is not a member of a cluster".into()))),
    };
    Ok(ChallengedStream { to, from, challenge, refusal })
}

async fn open(
    me: &NodeIdentity,
    peer: &HomePeer,
    session: u64,
    limit: Duration,
) -> Result<Stream, StreamError> {
    let ChallengedStream { to, mut from, challenge, refusal } = challenged(me, peer, limit).await?;
    let nonce = auth::nonce().map_err(|e| StreamError::Refused(e.into()))?;
    let hello = hello(me, peer, session, &challenge, &nonce)?;
    _ = to.send(StreamPacket::of(&CallerMessage { kind: Some(CallerMessageKind::Hello(hello)) }));
    let welcome = match from.next::<HomeMessage>().await.map_err(|e| failed(peer, &refusal, &e))? {
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
    let job = me.config.job.clone();
    Ok(CallerGreeting { version, nonce, proof, session, home, from, largest, job })
}

/// Checks the answer of a home. Returns an error if the home refuses this process, or its proof of the key is
/// wrong.
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
            CallOutcome::WrongVersion => {
                refused(peer, Refusal::Version { theirs: challenge.version, ours: VERSION })
            }
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

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::cluster::Cluster;
    use crate::config::ClusterConfig;
    use crate::wire::messages::Node;

    /// Warnings of this process.
    struct WarningLog(Mutex<Vec<String>>);

    // fork: no test of this program forks.
    static LOG: WarningLog = WarningLog(Mutex::new(Vec::new()));

    impl log::Log for WarningLog {
        fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
            metadata.level() <= log::Level::Warn
        }

        fn log(&self, record: &log::Record<'_>) {
            self.0.lock().unwrap().push(record.args().to_string());
        }

        fn flush(&self) {}
    }

    #[test]
    fn caller_of_another_version_is_logged() {
        log::set_logger(&LOG).unwrap();
        log::set_max_level(log::LevelFilter::Warn);
        let config = ClusterConfig::new(0, 1, "127.0.0.1:0");
        let home = Cluster::join(&config).unwrap();
        let peer = HomePeer { address: home.address().into(), ..HomePeer::default() };
        let me = NodeIdentity { config, node: Node::default() };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let limit = Duration::from_secs(20);
            let Ok(mut stream) = challenged(&me, &peer, limit).await else { panic!("no challenge") };
            let hello = CallerGreeting { version: VERSION + 1, ..CallerGreeting::default() };
            _ = stream
                .to
                .send(StreamPacket::of(&CallerMessage { kind: Some(CallerMessageKind::Hello(hello)) }));
            let Ok(Part::Message(HomeMessage { kind: Some(HomeMessageKind::Welcome(welcome)) })) =
                stream.from.next::<HomeMessage>().await
            else {
                panic!("no answer")
            };
            assert_eq!(welcome.outcome(), CallOutcome::WrongVersion);
        });
        drop(runtime);
        mp_harness::eventually("the caller is counted", || home.refused() == 1);
        let expected = format!("its protocol has version {}", VERSION + 1);
        let is_logged = |text: &String| text.contains("was refused") && text.contains(&expected);
        mp_harness::eventually("the refusal is logged", || LOG.0.lock().unwrap().iter().any(is_logged));
    }

    #[test]
    fn home_of_another_version_is_refused() {
        let me = NodeIdentity { config: ClusterConfig::new(0, 1, "127.0.0.1:0"), node: Node::default() };
        let peer = HomePeer::default();
        let of = |version| hello(&me, &peer, 1, &Challenge { version, ..Challenge::default() }, &[]);
        assert!(of(VERSION).is_ok());
        let Err(StreamError::Refused(error)) = of(VERSION + 1) else { panic!("the home was accepted") };
        let expected = Refusal::Version { theirs: VERSION + 1, ours: VERSION };
        assert!(matches!(&error, NetError::Refused { why, .. } if *why == expected), "{error}");
        // A refusal that the home sends for its version gives the same kind of error.
        let mut welcome = Welcome { refusal: "another version".into(), ..Welcome::default() };
        welcome.set_outcome(CallOutcome::WrongVersion);
        let Err(StreamError::Refused(error)) = check(&me, &peer, &Challenge::default(), &[], &welcome) else {
            panic!("the home was accepted")
        };
        assert!(matches!(&error, NetError::Refused { why: Refusal::Version { .. }, .. }), "{error}");
    }
}
