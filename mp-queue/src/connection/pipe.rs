//! Pipes: two connections in shared memory, and whatever is sent into one comes out of the other.

use mp_reduce::{Error, TypeFingerprint};

use crate::connection::{Connection, Ends};
use crate::queue::channel::ends;
use crate::raw::waiting::PIPE;

/// The type that the queues of pipes say they carry.
pub(crate) fn type_of() -> (u64, &'static str) {
    (TypeFingerprint::<Connection>::new().get(), PIPE)
}

/// A pipe whose ends both send and receive.
///
/// # Errors
/// When there is no shared memory for it.
#[doc(alias = "Pipe")]
pub fn pipe() -> Result<(Connection, Connection), Error> {
    let (there_out, there_into) = ends(None, true, type_of(), false)?;
    let (back_out, back_into) = ends(None, true, type_of(), false)?;
    let here = Ends::Both { into: back_into, out: there_out };
    let there = Ends::Both { into: there_into, out: back_out };
    Ok((Connection::of(here), Connection::of(there)))
}

/// A pipe whose first end only receives, and the second only sends: Python's `Pipe(duplex=False)`.
///
/// # Errors
/// When there is no shared memory for it.
pub fn one_way_pipe() -> Result<(Connection, Connection), Error> {
    let (out, into) = ends(None, true, type_of(), false)?;
    Ok((Connection::of(Ends::Into(into)), Connection::of(Ends::Out(out))))
}
