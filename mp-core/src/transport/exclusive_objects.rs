//! Objects that move with their message: one process has them at a time, like an exclusive tensor.

use std::any::Any;
use std::sync::Arc;

use crate::alloc::handles::Hold;
use crate::blocks::Blocks;
use crate::error::{Error, Result};
use crate::transport::{Attached, LoanedValue, Messages, ReceivedAttachments, UnsentValues};
use crate::words::{Access, Grant};

/// Grant for objects that move with their message: exclusive, without an element type.
pub(super) const EXCLUSIVE: Grant = Grant::new(Access::Exclusive, 31);

/// Describes the holders of an object that should have only one, for an error.
#[cold]
fn others(hold: &Hold) -> String {
    format!(
        "this process has {} handles, where one is needed, and {} other processes or messages hold it, \
        too; send it as one that is \
         shared, or drop the others",
        hold.count(),
        hold.other_holders()
    )
}

impl Attached {
    /// Moves the handle of an object into the message, and returns the attachment's number. `hold` must be
    /// the only handle to the object in all processes. Afterwards it holds nothing, until the object is
    /// [taken back](crate::message::UnsentValues::take).
    ///
    /// # Errors
    /// [`Error::Unsendable`] if the block is not an object, or if another handle, process or message holds
    /// the block (including a dead process that was not reclaimed). [`Error::LimitExceeded`] if there are too
    /// many attachments. [`Error::Forked`]. After an error, `hold` is unchanged.
    pub fn attach_object_exclusive(&mut self, hold: &mut Hold) -> Result<u32> {
        let place = self.place(hold, EXCLUSIVE)?;
        let arena = hold.arena();
        let refused = |why: &str| Err(Error::Unsendable(format!("an object can't move in a message: {why}")));
        if !Blocks(arena).kind_of(hold.block()).is_object() {
            return refused("it is memory for something else");
        }
        let is_alone = hold.count() == 1 && hold.is_only_holder();
        if !is_alone {
            return refused(&others(hold));
        }
        place.or_else(|free| Ok(self.add(|| hold.take(), EXCLUSIVE, free)))
    }

    /// Records the loan of an object that was [moved](Self::attach_object_exclusive) into this message as
    /// attachment `attachment`. Returns the mark, of 61 bits, by which the value
    /// [takes](UnsentValues::take_object) the object back.
    ///
    /// The value's type restores the value from the object, `beside` and `note`. In contrast to
    /// [`lends`](Self::lends), this function is safe: an object gives no access to memory by itself, so wrong
    /// data can't lead to a wrong access.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if no object was moved into the message as `attachment`, or if a loan of
    /// this attachment or of one with a greater number was recorded before.
    #[inline]
    pub fn lends_object(
        &mut self,
        attachment: u32,
        beside: Arc<dyn Any + Send + Sync>,
        note: u64,
    ) -> Result<u64> {
        self.record_loan(LoanedValue { attachment, grant: EXCLUSIVE, bytes: 0, beside, note })
    }
}

impl UnsentValues {
    /// Returns the object that was [lent](Attached::lends_object) under this mark, and its loan. Returns
    /// `None` if the object was taken before, or the mark is of another message.
    pub fn take_object(&mut self, mark: u64) -> Option<(Hold, &LoanedValue)> {
        self.take(mark, EXCLUSIVE)
    }
}

impl ReceivedAttachments {
    /// Returns the handle of an object that was [moved](Attached::attach_object_exclusive) into the message
    /// as this attachment. The handle can be taken once.
    ///
    /// # Errors
    /// [`Error::Malformed`] if the attachment doesn't exist, has another grant, or was taken already.
    #[inline]
    pub fn take_object_exclusive(&mut self, attachment: u32) -> Result<Hold> {
        self.take(attachment, EXCLUSIVE)
    }
}

impl Messages {
    /// Returns `true` if a block is suitable for an exclusive attachment with this grant.
    pub(crate) fn may_be_exclusive(self, hold: &Hold, grant: Grant) -> bool {
        if grant == EXCLUSIVE {
            !hold.is_nowhere() && Blocks(self.0).kind_of(hold.block()).is_object()
        } else {
            hold.was_never_opened()
        }
    }
}
