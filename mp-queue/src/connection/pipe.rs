//! Pipes: pairs of connected ends in shared memory.

use mp_reduce::{Error, TypeFingerprint};

use crate::connection::{Connection, Transport};
use crate::queue::channel::{ChannelEnd, ends_for};
use crate::raw::RawQueue;
use crate::raw::header::PIPE;
use crate::raw::options::QueueOptions;

/// Returns the fingerprint and name of the message type of all pipes.
pub(crate) fn type_of() -> (u64, &'static str) {
    (TypeFingerprint::<Connection>::new().get(), PIPE)
}

fn create_ends() -> Result<(ChannelEnd, ChannelEnd), Error> {
    ends_for(RawQueue::create(QueueOptions::new().deliveries(0), type_of(), false)?)
}

/// Creates a pipe whose ends both send and receive.
///
/// # Errors
/// Returns an error if there is not enough shared memory.
#[doc(alias = "Pipe")]
pub fn pipe() -> Result<(Connection, Connection), Error> {
    let (there_out, there_into) = create_ends()?;
    let (back_out, back_into) = create_ends()?;
    let here = Transport::Pipe { recv: Some(back_into), send: Some(there_out) };
    let there = Transport::Pipe { recv: Some(there_into), send: Some(back_out) };
    Ok((Connection::of(here), Connection::of(there)))
}

/// Creates a pipe whose first end only receives and whose second end only sends: Python's
/// `Pipe(duplex=False)`.
///
/// # Errors
/// Returns an error if there is not enough shared memory.
pub fn one_way_pipe() -> Result<(Connection, Connection), Error> {
    let (out, into) = create_ends()?;
    let receiver = Transport::Pipe { recv: Some(into), send: None };
    let sender = Transport::Pipe { recv: None, send: Some(out) };
    Ok((Connection::of(receiver), Connection::of(sender)))
}
