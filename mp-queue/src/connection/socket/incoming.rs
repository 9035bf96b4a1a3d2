//! Iterator over accepted connections.

use super::{ConnectError, Listener};
use crate::connection::Connection;

/// Endless iterator over the connections to a [`Listener`]: see [`Listener::incoming`].
#[derive(Debug)]
pub struct IncomingConnections<'a> {
    listener: &'a Listener,
}

impl Listener {
    /// Returns an iterator over connections, which skips refused peers.
    ///
    /// ```
    /// use mp_queue::{Listener, connect};
    ///
    /// let listener = Listener::bind("@example-of-incoming")?;
    /// let other = std::thread::spawn(|| {
    ///     // Another program that happens to connect.
    ///     # use std::os::linux::net::SocketAddrExt;
    ///     let stranger = std::os::unix::net::SocketAddr::from_abstract_name("example-of-incoming").unwrap();
    ///     let mut stranger = std::os::unix::net::UnixStream::connect_addr(&stranger).unwrap();
    ///     std::io::Write::write_all(&mut stranger, b"GET / HTTP/1.1\r\n\r\n").unwrap();
    ///     connect("@example-of-incoming").unwrap().send(7_u8).unwrap();
    /// });
    /// for connection in listener.incoming() {
    ///     assert_eq!(connection?.recv::<u8>()?, 7);
    ///     # break;
    /// }
    /// # other.join().unwrap();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// `next` blocks until a connection is established. A server that calls [`accept`](Self::accept) with `?`
    /// ends when a stranger connects, or when a peer has another key or dies in its handshake. This iterator
    /// skips such peers. To log them, call `accept` and check [`ConnectError::is_of_peer`].
    ///
    /// # Errors
    /// Returns [`ConnectError::Io`], for example if this process has no descriptors left. The iterator can be
    /// used after that.
    pub fn incoming(&self) -> IncomingConnections<'_> {
        IncomingConnections { listener: self }
    }
}

impl Iterator for IncomingConnections<'_> {
    type Item = Result<Connection, ConnectError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.listener.accept() {
                Err(error) if error.is_of_peer() => {}
                result => return Some(result),
            }
        }
    }
}
