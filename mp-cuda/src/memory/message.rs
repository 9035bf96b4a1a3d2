//! Pieces in messages. A message has the object of a piece and that of its slab, so a message on its way keeps both. It calls no
//! driver, and a process without a device can pass it on.

use mp_core::Hold;
use mp_core::message::{Arrived, Attached};
use serde::{Deserialize, Serialize};

use super::object::{Mode, PieceObject, SlabObject};
use super::{Piece, here};
use crate::error::Result;

/// The numbers of a piece's attachments in a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Attachments {
    slab: u32,
    piece: u32,
}

impl Attachments {
    /// That of the piece: of one that was [moved](Piece::lend), the one to be noted to get it back.
    pub fn piece(self) -> u32 {
        self.piece
    }
}

impl Piece {
    /// Attaches a piece that others may have as well.
    ///
    /// # Errors
    /// As [`Attached::attach_object`]; `Unsendable` if it was moved into a message.
    pub fn attach(&self, out: &mut Attached) -> Result<Attachments> {
        let slab = out.attach_object(self.slab().object().hold())?;
        let object = self.object();
        let piece = out.attach_object(object.as_ref().ok_or_else(moved)?.hold())?;
        Ok(Attachments { slab, piece })
    }

    /// Moves a piece into a message that no other process, and no other clone, has. What is left holds nothing, and its drop does
    /// nothing to the memory.
    ///
    /// # Errors
    /// As [`Attached::attach_object_exclusive`]; `Unsendable` if there are clones, or it was moved before. Then it stays.
    pub fn lend(&self, out: &mut Attached) -> Result<Attachments> {
        if !self.is_only() {
            let why = "an exclusive tensor of device memory that is used in this process otherwise can't be sent: share or freeze it";
            return Err(mp_core::Error::Unsendable(why.into()).into());
        }
        let slab = out.attach_object(self.slab().object().hold())?;
        let mut object = self.object();
        let piece = out.attach_object_exclusive(object.as_mut().ok_or_else(moved)?.hold_mut())?;
        *object = None;
        Ok(Attachments { slab, piece })
    }

    /// Takes back what was [moved](Self::lend) into a message that did not leave.
    ///
    /// # Errors
    /// `Malformed` if it is another object.
    pub fn take_back(&self, hold: Hold) -> Result<()> {
        let object = PieceObject::open(hold, self.slab().object(), Mode::Exclusive)?;
        if object.mark() != self.id() {
            return Err(crate::Error::Malformed(
                "another piece of device memory came back than was sent".into(),
            ));
        }
        *self.object() = Some(object);
        Ok(())
    }

    /// Takes a piece out of a message that it was attached to in this mode: the one that this process has, if it has it.
    ///
    /// # Errors
    /// `Malformed` if these are other things, or don't fit together.
    pub fn take(arrived: &mut Arrived, attachments: Attachments, mode: Mode) -> Result<Self> {
        let slab = SlabObject::open(arrived.take_object(attachments.slab)?)?;
        let hold = match mode {
            Mode::Exclusive => arrived.take_object_exclusive(attachments.piece)?,
            Mode::Frozen | Mode::Shared => arrived.take_object(attachments.piece)?,
        };
        let object = PieceObject::open(hold, &slab, mode)?;
        Ok(Self::arrived(&here::slab(slab), object))
    }
}

fn moved() -> mp_core::Error {
    mp_core::Error::Unsendable("this tensor was sent already: what is left of it is empty".into())
}
