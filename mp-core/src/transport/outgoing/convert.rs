//! Conversions between messages that are written and messages that are read.

use crate::transport::attachments::AttachRequest;
use crate::transport::incoming::{Incoming, ReceivedAttachments};
use crate::transport::outgoing::{Attached, Outgoing};

impl Incoming {
    /// Returns the remaining message as one that can be sent on, with all attachments. Returns `None` if an
    /// exclusive value was taken out of it.
    pub fn into_outgoing(self) -> Option<Outgoing> {
        let (bytes, list) = self.into_parts()?;
        Some(Outgoing::again(bytes, list))
    }
}

impl Outgoing {
    /// Turns the message into one to read on this side. A message that could not be packed or put returns to
    /// its sender this way.
    pub fn into_incoming(self) -> Incoming {
        let (bytes, list) = self.into_parts();
        Incoming::returned(bytes, list)
    }
}

impl Attached {
    /// Returns the message as it would arrive, to test whether it can be read. Excludes the memory of
    /// exclusive tensors, which has one owner.
    pub(crate) fn as_arrived(&self) -> ReceivedAttachments {
        let arrived: ReceivedAttachments =
            self.list.iter().map(AttachRequest::again).collect::<Vec<_>>().into();
        arrived.without_exclusive()
    }
}
