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
//! The three types to know: [`Connection`], one end, which sends and receives values of any type; [`Listener`], which accepts
//! connections; [`SocketOptions`], what both are made with: a key, limits, time-outs.

#[doc(no_inline)]
pub use crate::{Connection, Listener, connect, pipe};
pub use mp_queue::{Address, ConnectError, RecvIntoError, SocketOptions, connect_async, one_way_pipe};
