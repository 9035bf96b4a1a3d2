//! Bytes and traits that both ends of a connection use, and resolution of addresses.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};

use crate::error::NetError;

/// First byte of a connection with TLS: a record of its handshake.
pub(crate) const TLS_HANDSHAKE: u8 = 0x16;
/// Answer to a peer without TLS: an alert of TLS, for an unsupported version.
pub(crate) const TLS_ALERT: [u8; 7] = [0x15, 3, 3, 0, 2, 2, 70];
/// Answer to a peer with TLS: the first frame of HTTP/2, without settings.
pub(crate) const HTTP2_SETTINGS: [u8; 9] = [0, 0, 0, HTTP2_SETTINGS_KIND, 0, 0, 0, 0, 0];
/// Kind of a settings frame, which is byte 3 of the frame.
pub(crate) const HTTP2_SETTINGS_KIND: u8 = 4;

/// Socket of a connection, with or without encryption.
pub(crate) trait AsyncSocket: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> AsyncSocket for T {}

/// Forwards the methods of `AsyncWrite` to the field `socket`. The method `$check`, if given, is called
/// before each write.
macro_rules! forward_writes {
    ($($check:ident)?) => {
        fn poll_write(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            $(self.$check(cx)?;)?
            Pin::new(&mut self.socket).poll_write(cx, bytes)
        }

        fn poll_write_vectored(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            bytes: &[io::IoSlice<'_>],
        ) -> Poll<io::Result<usize>> {
            $(self.$check(cx)?;)?
            Pin::new(&mut self.socket).poll_write_vectored(cx, bytes)
        }

        fn is_write_vectored(&self) -> bool {
            self.socket.is_write_vectored()
        }

        fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.socket).poll_flush(cx)
        }

        fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.socket).poll_shutdown(cx)
        }
    };
}
pub(crate) use forward_writes;

/// Creates the error of a broken socket, with this reason.
pub(crate) fn broken(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.to_owned())
}

/// Resolves `host:port`, and returns all its addresses. An IPv6 address is in brackets, and may have a zone
/// (`[fe80::1%eth0]:29500`).
pub(crate) async fn resolve(address: &str, limit: Duration) -> Result<Vec<SocketAddr>, NetError> {
    let unreachable =
        |cause: String| NetError::Unreachable { address: address.to_owned(), waited: limit, cause };
    let parts = address.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse::<u16>().ok()?)));
    let Some((host, port)) = parts else { return Err(unreachable("write host:port".into())) };
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    found_within(limit, tokio::net::lookup_host((host, port))).await.map_err(unreachable)
}

/// Returns the addresses of a host name from the name service, within the time limit. The error is the text
/// of the cause.
async fn found_within(
    limit: Duration,
    lookup: impl Future<Output = io::Result<impl Iterator<Item = SocketAddr>>>,
) -> Result<Vec<SocketAddr>, String> {
    let found = tokio::time::timeout(limit, lookup).await;
    let found = found.map_err(|_| "the name service does not answer")?.map_err(|e| e.to_string())?;
    let found: Vec<_> = found.collect();
    if found.is_empty() { Err("the name has no address".into()) } else { Ok(found) }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Lookup = io::Result<std::vec::IntoIter<SocketAddr>>;

    #[test]
    fn silent_or_empty_name_service_is_an_error() {
        let within = |lookup: &mut (dyn Future<Output = Lookup> + Unpin)| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
            runtime.block_on(found_within(Duration::from_millis(20), lookup)).unwrap_err()
        };
        assert_eq!(within(&mut std::future::pending()), "the name service does not answer");
        assert_eq!(within(&mut std::future::ready(Ok(Vec::new().into_iter()))), "the name has no address");
        let failed = std::future::ready(Err(io::Error::other("no such name")));
        assert_eq!(within(&mut { failed }), "no such name");
    }
}
