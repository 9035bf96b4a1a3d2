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
//! Programs that shared no memory so far may share it from now on: [`invite`] puts a value, such as a queue, into a
//! `std::process::Command`, [`Connection::invite`] hands it to a program that has connected; the other program takes it with
//! [`accept_invitation`] or [`Connection::accept_invitation`].
//!
//! Programs on several machines meet at a host and a port: [`Address::tcp`].
//!
//! The three types to know: [`Connection`], one end, which sends and receives values of any type; [`Listener`], which accepts
//! connections; [`SocketOptions`], what both are made with: a key, limits, time-outs.

#[doc(no_inline)]
pub use crate::{Connection, Listener, connect, pipe};
pub use mp_queue::{
    Address, ConnectError, Incoming, Invitation, InvitationState, RecvIntoError, SocketOptions,
    accept_invitation, connect_async, invite, one_way_pipe,
};
