//! Pipes: pairs of connected ends in shared memory.

use mp_reduce::{Error, TypeFingerprint};

use crate::connection::{Connection, Transport};
use crate::queue::channel::create_ends;
use crate::raw::waiting::PIPE;

/// Returns the type of the queues of pipes.
pub(crate) fn type_of() -> (u64, &'static str) {
    (TypeFingerprint::<Connection>::new().get(), PIPE)
}

/// Creates a pipe whose ends both send and receive.
///
/// # Errors
/// Returns an error if there is not enough shared memory.
#[doc(alias = "Pipe")]
pub fn pipe() -> Result<(Connection, Connection), Error> {
    let (there_out, there_into) = create_ends(None, true, type_of(), false)?;
    let (back_out, back_into) = create_ends(None, true, type_of(), false)?;
    let here = Transport::Duplex { recv: back_into, send: there_out };
    let there = Transport::Duplex { recv: there_into, send: back_out };
    Ok((Connection::of(here), Connection::of(there)))
}

/// Creates a pipe whose first end only receives and whose second end only sends: Python's
/// `Pipe(duplex=False)`.
///
/// # Errors
/// Returns an error if there is not enough shared memory.
pub fn one_way_pipe() -> Result<(Connection, Connection), Error> {
    let (out, into) = create_ends(None, true, type_of(), false)?;
    Ok((Connection::of(Transport::RecvOnly(into)), Connection::of(Transport::SendOnly(out))))
}
