//! Connections: pipes between processes of one program, and sockets between programs.
//!
//! ```
//! use mp::{Listener, connect, pipe};
//!
//! let (here, there) = pipe()?; // within a program; either end may be sent to another process
//! here.send(("x".to_string(), 1.5))?;
//! assert_eq!(there.recv::<(String, f64)>()?, ("x".to_string(), 1.5));
//!
//! let address = format!("@example-{}", std::process::id()); // between programs of one user
//! let listener = Listener::bind(&*address)?;
//! let client = connect(&*address)?;
//! let server = listener.accept()?;
//! client.send(7)?;
//! assert_eq!(server.recv::<i32>()?, 7);
//! # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
//! ```
//!
//! Programs that share no memory yet can share it by invitation. [`invite`] puts a value, such as a queue,
//! into a `std::process::Command`. [`Connection::invite`] sends a value to a connected program. The other
//! program takes the value by [`accept_invitation`] or [`Connection::accept_invitation`].
//!
//! Programs on several machines meet at a host and a port: [`Address::tcp`].
//!
//! Start with three types: [`Connection`] is one end, which sends and receives values of any type.
//! [`Listener`] accepts connections. [`SocketOptions`] configures both: key, limits and time-outs.

#[doc(no_inline)]
pub use crate::{Connection, Listener, connect, pipe};
pub use mp_queue::{
    Address, ConnectError, IncomingConnections, Invitation, InvitationState, RecvIntoError, SocketOptions,
    accept_invitation, connect_async, invite, one_way_pipe,
};
