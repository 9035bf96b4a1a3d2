//! Messages over a socket: frames, the sending and the receiving half of a connection, and transfers of
//! values.

mod endpoint;
mod frame;
mod invitation;
mod outbox;
mod reader;
mod transfer;
mod writer;

pub(crate) use endpoint::Socket;
#[cfg(any(test, feature = "fuzz"))]
pub(crate) use reader::fuzz;
pub(in crate::connection) use writer::WriteError;
