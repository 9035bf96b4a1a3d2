//! Socket of a link: addresses, TLS, and peers that are not homes.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::error::{NetError, Refusal};
use crate::socket::{AsyncSocket, HTTP2_SETTINGS_KIND, TLS_ALERT, broken, forward_writes, resolve};
use crate::tls::{self, ClusterTls};

/// Socket of a caller. Records the reason if the home refuses the connection before HTTP/2 begins.
pub(crate) struct CallerSocket {
    socket: Box<dyn AsyncSocket>,
    /// `true` until bytes have arrived.
    is_new: bool,
    refusal: Arc<OnceLock<Refusal>>,
}

impl CallerSocket {
    /// Connects to an address, within `limit`. The second value is the home's refusal, which is set only if
    /// the home refuses this process later.
    ///
    /// # Errors
    /// `Err(Ok(refusal))` if the home refused this process, and `Err(Err(error))` if the socket failed.
    pub(crate) async fn connect(
        address: &str,
        tls: Option<&ClusterTls>,
        limit: Duration,
    ) -> Result<(Self, Arc<OnceLock<Refusal>>), Result<Refusal, io::Error>> {
        let unresolved = |error| {
            let NetError::Unreachable { cause, .. } = error else {
                return Err(io::Error::other(error.to_string()));
            };
            Err(io::Error::new(io::ErrorKind::NotFound, cause))
        };
        let all = resolve(address, limit).await.map_err(unresolved)?;
        let each = limit / u32::try_from(all.len()).unwrap_or(u32::MAX);
        let mut last = Err(io::Error::from(io::ErrorKind::AddrNotAvailable));
        for at in all {
            let connecting = tokio::time::timeout(each, Self::connect_to(at, tls));
            match connecting.await.unwrap_or_else(|e| Err(Err(e.into()))) {
                Ok(socket) => {
                    let refusal = Arc::new(OnceLock::new());
                    return Ok((Self { socket, is_new: true, refusal: refusal.clone() }, refusal));
                }
                // A refusal is more informative than the socket error of another address.
                Err(error) if error.is_ok() || last.is_err() => last = error,
                Err(_) => {}
            }
        }
        Err(last)
    }

    async fn connect_to(
        at: SocketAddr,
        tls: Option<&ClusterTls>,
    ) -> Result<Box<dyn AsyncSocket>, Result<Refusal, io::Error>> {
        let socket = TcpStream::connect(at).await.map_err(Err)?;
        socket.set_nodelay(true).map_err(Err)?;
        match tls {
            Some(tls) => tls.connect(socket).await,
            None => Ok(Box::new(socket)),
        }
    }

    /// Records a refusal, and returns it as an error of the connection.
    fn refused(&self, why: Refusal) -> Poll<io::Result<()>> {
        let error = broken(&why.to_string());
        _ = self.refusal.set(why);
        Poll::Ready(Err(error))
    }
}

impl AsyncRead for CallerSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = to.filled().len();
        if let Err(error) = ready!(Pin::new(&mut self.socket).poll_read(cx, to)) {
            return match tls::refusal(&error) {
                Some(why) => self.refused(why),
                None => Poll::Ready(Err(error)),
            };
        }
        let bytes = to.filled().get(before..).unwrap_or_default();
        if self.is_new && !bytes.is_empty() {
            self.is_new = false;
            if bytes.starts_with(&TLS_ALERT[..1]) {
                return self.refused(Refusal::Certificate(
                    "it accepts only connections with TLS, and this process has no certificate: see \
                     ClusterConfig::tls"
                        .into(),
                ));
            }
            if bytes.get(3).is_some_and(|kind| *kind != HTTP2_SETTINGS_KIND) {
                let why = "it is not a member of a cluster: another program uses the port";
                return self.refused(Refusal::Other(why.into()));
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for CallerSocket {
    forward_writes!();
}
