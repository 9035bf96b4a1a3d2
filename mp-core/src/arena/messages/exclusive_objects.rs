//! Objects that move with their message: one process has them at a time, as it has an exclusive tensor.

use std::any::Any;
use std::sync::Arc;

use crate::arena::messages::{Arrived, Attached, Lent, Returned};
use crate::arena::{Arena, Hold};
use crate::error::{Error, Result};
use crate::words::{Access, Grant};

/// As what they are attached: exclusive, and of no element type.
const EXCLUSIVE: Grant = Grant::new(Access::Exclusive, 31);

/// Who else has it, in words.
#[cold]
fn others(hold: &Hold) -> String {
    format!(
        "this process has {} handles, where one is needed, and {} other processes or messages hold it, too; send it as one that is \
         shared, or drop the others",
        hold.count(),
        hold.arena().other_holders(hold)
    )
}

impl Attached {
    /// Moves the handle of an object here that this process alone holds, by this handle: its number. What is left holds nothing,
    /// until it is [taken back](crate::message::Returned::take).
    ///
    /// # Errors
    /// [`Error::Unsendable`] if it is no object, or other handles, processes or messages have it (that of a process that died, until it
    /// is swept); [`Error::LimitExceeded`] when there are too many attachments; [`Error::Forked`]. Then the handle stays.
    pub fn attach_object_exclusive(&mut self, hold: &mut Hold) -> Result<u32> {
        let place = self.place(hold, EXCLUSIVE)?;
        let arena = hold.arena();
        let refused = |why: &str| Err(Error::Unsendable(format!("an object can't move in a message: {why}")));
        if !arena.kind_of(hold.block()).is_object() {
            return refused("it is memory for something else");
        }
        let is_alone = hold.count() == 1 && arena.is_only_holder(hold);
        if !is_alone {
            return refused(&others(hold));
        }
        place.or_else(|free| Ok(self.add(|| hold.take(), EXCLUSIVE, free)))
    }

    /// Records the loan of an object that was [moved](Self::attach_object_exclusive) here under this number: `beside` it, all that its
    /// value needs to be as it was, and a few bits. Returns the mark, of 61 bits, by which the value [takes](Returned::take_object)
    /// the object back. An object gives no access to memory by itself, so that any loan of it may be recorded, once.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if no object was moved here under this number, or a loan was recorded of it or of a later one.
    #[inline]
    pub fn lends_object(
        &mut self,
        attachment: u32,
        beside: Arc<dyn Any + Send + Sync>,
        note: u64,
    ) -> Result<u64> {
        self.record_loan(Lent { attachment, grant: EXCLUSIVE, bytes: 0, beside, note })
    }
}

impl Returned {
    /// The object that was [lent](Attached::lends_object) under this mark, if it was not taken yet, and what was noted of it. `None` for
    /// the mark of another message.
    pub fn take_object(&mut self, mark: u64) -> Option<(Hold, &Lent)> {
        self.take(mark, EXCLUSIVE)
    }
}

impl Arrived {
    /// The handle of an object that was [moved](Attached::attach_object_exclusive) into the message under this number, once.
    ///
    /// # Errors
    /// [`Error::Malformed`] when there is no such attachment, it is another thing, or was taken already.
    #[inline]
    pub fn take_object_exclusive(&mut self, attachment: u32) -> Result<Hold> {
        self.take(attachment, EXCLUSIVE)
    }
}

impl Arena {
    /// Whether a block is what an exclusive attachment of this grant has to be.
    pub(in crate::arena) fn may_be_exclusive(&self, hold: &Hold, grant: Grant) -> bool {
        if grant == EXCLUSIVE {
            !hold.is_nowhere() && self.kind_of(hold.block()).is_object()
        } else {
            hold.was_never_opened()
        }
    }
}
