//! Results of attempts to find and to get a message.

use mp_core::words::{EnvelopeId, Owner};

use super::slot::Position;
use super::small_message::SmallMessage;

/// Result of an attempt to get, in every layer. `M` is the message that a step machine has found or taken. In
/// the layers above, which store the message in a place of the caller, `M` is `()`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum GetOutcome<M = TakenMessage> {
    /// A message was found or taken.
    Done(M),
    /// The queue is empty.
    Empty,
    /// The queue is empty and closed.
    Closed,
}

/// Message taken by [`Get`](super::Get).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum TakenMessage {
    /// An envelope, which now belongs to the caller with this owner word. It was taken at this position.
    Envelope(EnvelopeId, Owner, Position),
    /// The slot named an envelope that does not exist or is not queued, because a process wrote garbage. Only
    /// the slot is taken.
    Stray(EnvelopeId),
    /// A small message, taken at this position. If it is to be leased, it is still in the slot, for
    /// [`Enclose`].
    ///
    /// [`Enclose`]: super::Enclose
    Small(SmallMessage, Position),
}

/// Result of [`FindOldest`](super::FindOldest).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum OldestMessage {
    /// An envelope in the slot with this word, at this position. It is not taken yet.
    Envelope(u64, Position),
    /// The slot named an envelope that does not exist. The slot is taken.
    Stray(EnvelopeId),
    /// A small message, taken at this position. If it is to be leased, it is still in the slot, for
    /// [`Enclose`](super::Enclose).
    Small(SmallMessage, Position),
}
