//! Acceptance of connections, and limits for peers that have not proved who they are.
//!
//! A connection has a [`Gate`], which opens when its peer has greeted with a valid proof. Until then the
//! connection ends after the lease, or after [`MOST_BYTES`] received bytes. If [`MOST_UNPROVEN`] gates are
//! closed, the next connection waits until a gate opens. If the oldest connection with a closed gate has
//! existed for [`OWN_TIME`], this connection is ended instead.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use mp_core::mutex::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::sync::{Notify, oneshot};
use tokio::time::Sleep;
use tonic::transport::server::Connected;

use crate::link::NodeIdentity;
use crate::socket::{AsyncSocket, HTTP2_SETTINGS, TLS_ALERT, TLS_HANDSHAKE, broken, forward_writes};
use crate::sync::{AtomicBool, AtomicU64, Ordering};

/// Maximum number of connections whose peers have not proved who they are.
const MOST_UNPROVEN: usize = 256;
/// Age from which an unproven connection can be ended to make room for another connection. A handshake takes
/// less time, even if [`MOST_UNPROVEN`] members connect at once.
const OWN_TIME: Duration = Duration::from_millis(500);
/// Maximum number of bytes that an unproven peer may send: a greeting of 64 KiB, and frames of TLS and
/// HTTP/2.
const MOST_BYTES: usize = 192 << 10;
/// Shortest and longest pause after a failed attempt to accept a connection. The pause doubles after each
/// failure.
const PAUSES: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(1));

/// Connections whose peers have not proved who they are.
#[derive(Default)]
pub(crate) struct UnprovenConnections {
    /// All unproven connections, the oldest first.
    all: Mutex<VecDeque<UnprovenConnection>>,
    /// Wakes the task that accepts connections if there may be room for another connection.
    freed: Notify,
    /// Number of connections that ended without a proof.
    refused: AtomicU64,
}

/// Connection whose peer has not proved who it is. Dropping this value ends the connection.
struct UnprovenConnection {
    gate: Weak<Gate>,
    since: Instant,
    _keeper: oneshot::Sender<()>,
}

/// Gate of an accepted connection: open after the peer has proved its identity. The gate is shared by the
/// socket and the requests of the connection.
pub(crate) struct Gate {
    peer: SocketAddr,
    is_open: AtomicBool,
    /// Reason why the connection was refused. Only the first reason is stored.
    why: OnceLock<String>,
    unproven: Arc<UnprovenConnections>,
}

impl UnprovenConnections {
    /// Returns the number of connections that ended without a proof.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Closes all unproven connections.
    pub(crate) fn close(&self) {
        self.all.lock().clear();
    }

    /// Waits until there are fewer than [`MOST_UNPROVEN`] unproven connections. Ends the oldest unproven
    /// connection when its age is [`OWN_TIME`].
    async fn room(&self) {
        let mut has_yielded = false;
        loop {
            let left = {
                let mut all = self.all.lock();
                all.retain(|one| {
                    one.gate.upgrade().is_some_and(|gate| !gate.is_open.load(Ordering::Relaxed))
                });
                let Some(oldest) = all.front().filter(|_| all.len() >= MOST_UNPROVEN) else { return };
                let left = OWN_TIME.saturating_sub(oldest.since.elapsed());
                if left.is_zero() && has_yielded {
                    all.pop_front();
                    return;
                }
                left
            };
            if left.is_zero() {
                // If the proof of the oldest connection has arrived, it is read before that connection is
                // ended.
                has_yielded = true;
                tokio::task::yield_now().await;
                continue;
            }
            // A time-out is not a failure: the loop then ends the oldest connection.
            _ = tokio::time::timeout(left, self.freed.notified()).await;
        }
    }

    /// Adds an unproven connection, which ends after `limit` unless its gate has opened.
    fn add(self: &Arc<Self>, socket: TcpStream, peer: SocketAddr, limit: Duration) -> GatedSocket {
        let (is_open, why) = (AtomicBool::new(false), OnceLock::new());
        let gate = Arc::new(Gate { peer, is_open, why, unproven: self.clone() });
        let (keeper, replaced) = oneshot::channel();
        let one = UnprovenConnection { gate: Arc::downgrade(&gate), since: Instant::now(), _keeper: keeper };
        self.all.lock().push_back(one);
        let end = Box::pin(tokio::time::sleep(limit));
        let limits = GateLimits { end, replaced, left: MOST_BYTES, exceeded: None };
        GatedSocket { socket, limits: Some(limits), gate }
    }
}

impl Gate {
    /// Opens the gate: the limits of the connection end, because the peer has proved its identity.
    pub(crate) fn open(&self) {
        self.is_open.store(true, Ordering::Relaxed);
        self.unproven.freed.notify_one();
    }

    /// Records the reason why the connection is refused.
    pub(crate) fn refuse(&self, why: String) {
        _ = self.why.set(why);
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        if !self.is_open.load(Ordering::Relaxed) {
            self.unproven.refused.fetch_add(1, Ordering::Relaxed);
            self.unproven.freed.notify_one();
            let why = self.why.get().map_or("it ended before it proved who it is", String::as_str);
            log::warn!("a connection from {} to this member of the cluster was refused: {why}", self.peer);
        }
    }
}

/// Limits of a connection before its gate opens.
struct GateLimits {
    end: Pin<Box<Sleep>>,
    replaced: oneshot::Receiver<()>,
    /// Number of bytes that the peer may still send.
    left: usize,
    /// Text that names the exceeded limit.
    exceeded: Option<&'static str>,
}

/// Socket of a connection that ends unless its peer proves who it is.
struct GatedSocket {
    socket: TcpStream,
    limits: Option<GateLimits>,
    gate: Arc<Gate>,
}

impl GatedSocket {
    /// Returns an error if a limit was exceeded.
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let Some(limits) = &mut self.limits else { return Ok(()) };
        if self.gate.is_open.load(Ordering::Relaxed) {
            self.limits = None;
            return Ok(());
        }
        let why = if let Some(why) = limits.exceeded {
            // A write that follows a failed read returns the same error.
            why
        } else if limits.left == 0 {
            "it sent too many bytes before it proved who it is"
        } else if limits.end.as_mut().poll(cx).is_ready() {
            "it did not prove who it is within the lease"
        } else if Pin::new(&mut limits.replaced).poll(cx).is_ready() {
            "it was the oldest of too many that had not proved who they are"
        } else {
            return Ok(());
        };
        limits.exceeded = Some(why);
        self.gate.refuse(why.into());
        Err(broken(why))
    }

    /// Returns the first byte without consuming it, or `None` at the end of the stream.
    async fn first_byte(&mut self) -> io::Result<Option<u8>> {
        std::future::poll_fn(|cx| {
            self.check(cx)?;
            let mut byte = [0];
            let read = ready!(self.socket.poll_peek(cx, &mut ReadBuf::new(&mut byte)))?;
            Poll::Ready(Ok((read > 0).then_some(byte[0])))
        })
        .await
    }

    /// Answers a refused peer, and waits until the peer has read the answer. If the socket were closed with
    /// unread bytes, the kernel would reset the connection and discard the answer.
    async fn refuse(mut self, why: String, answer: &[u8]) {
        self.gate.refuse(why);
        if self.write_all(answer).await.is_ok() && self.shutdown().await.is_ok() {
            let mut rest = [0; 1024];
            while self.read(&mut rest).await.is_ok_and(|read| read > 0) {}
        }
    }
}

impl AsyncRead for GatedSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(cx)?;
        let before = to.filled().len();
        ready!(Pin::new(&mut self.socket).poll_read(cx, to))?;
        if let Some(limits) = &mut self.limits {
            limits.left = limits.left.saturating_sub(to.filled().len() - before);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for GatedSocket {
    forward_writes!(check);
}

/// Accepted connection, with or without TLS, and its gate.
pub(crate) struct HomeSocket {
    socket: Box<dyn AsyncSocket>,
    gate: Arc<Gate>,
}

impl AsyncRead for HomeSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(cx, to)
    }
}

impl AsyncWrite for HomeSocket {
    forward_writes!();
}

/// Adds the gate of the connection to the extensions of each request.
impl Connected for HomeSocket {
    type ConnectInfo = Arc<Gate>;

    fn connect_info(&self) -> Arc<Gate> {
        self.gate.clone()
    }
}

/// Accepted connections, as a stream for the server.
pub(crate) struct AcceptedSockets(pub(crate) UnboundedReceiver<HomeSocket>);

impl futures_core::Stream for AcceptedSockets {
    type Item = io::Result<HomeSocket>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(cx).map(|socket| socket.map(Ok))
    }
}

/// Accepts connections and sends them to `to`, until the task is dropped.
pub(crate) async fn accept(
    me: Arc<NodeIdentity>,
    unproven: Arc<UnprovenConnections>,
    listener: TcpListener,
    to: UnboundedSender<HomeSocket>,
) {
    let mut pause = PAUSES.0;
    loop {
        match listener.accept().await {
            Ok((socket, peer)) => {
                pause = PAUSES.0;
                unproven.room().await;
                let socket = unproven.add(socket, peer, me.config.lease);
                tokio::spawn(begin(me.clone(), socket, to.clone()));
            }
            Err(error) => {
                log::warn!("this member of the cluster can't accept a connection for {pause:?}: {error}");
                // There may be too few descriptors.
                unproven.all.lock().pop_front();
                tokio::time::sleep(pause).await;
                pause = (2 * pause).min(PAUSES.1);
            }
        }
    }
}

/// Performs the TLS handshake if this process has certificates, and sends the accepted socket to `to`.
/// Refuses a peer that uses TLS only on its own side.
async fn begin(me: Arc<NodeIdentity>, mut socket: GatedSocket, to: UnboundedSender<HomeSocket>) {
    let gate = socket.gate.clone();
    _ = socket.socket.set_nodelay(true);
    let Ok(Some(first)) = socket.first_byte().await else { return };
    let socket: Box<dyn AsyncSocket> = match (&me.config.tls, first == TLS_HANDSHAKE) {
        (None, false) => Box::new(socket),
        (Some(tls), true) => match tls.accept(socket).await {
            Ok(socket) => socket,
            // TLS has sent an alert, which is the answer.
            Err((why, socket)) => return socket.refuse(why, &[]).await,
        },
        (Some(_), false) => return socket.refuse("it uses no TLS".into(), &TLS_ALERT).await,
        (None, true) => {
            let why = "it uses TLS, and this process has no certificate: see ClusterConfig::tls";
            return socket.refuse(why.into(), &HTTP2_SETTINGS).await;
        }
    };
    // Fails only if the server has ended.
    _ = to.send(HomeSocket { socket, gate });
}
