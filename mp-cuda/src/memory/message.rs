//! Pieces in messages. A message has the object of a piece and that of its slab, so a message on its way keeps both. It calls no
//! driver, and a process without a device can pass it on.

use std::sync::Arc;

use mp_core::Hold;
use mp_core::message::{Arrived, Attached};
use mp_tensor::parts::View;

use super::object::{Mode, PieceObject, SlabObject};
use super::{Piece, here};
use crate::error::Result;

/// The numbers of a piece's attachments in a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attachments {
    slab: u32,
    piece: u32,
}

impl Attachments {
    /// How many bytes they are in a message.
    pub const BYTES: usize = 8;

    /// As they are in a message.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        (u64::from(self.slab) | u64::from(self.piece) << 32).to_le_bytes()
    }

    /// What [`to_bytes`](Self::to_bytes) wrote.
    pub fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        let both = u64::from_le_bytes(bytes);
        Self { slab: both as u32, piece: (both >> 32) as u32 }
    }

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
    ///
    /// It takes a lock: see [`is_here`](Self::is_here).
    pub fn attach(&self, out: &mut Attached) -> Result<Attachments> {
        let slab = out.attach_object(self.slab().object().hold())?;
        let held = self.held();
        let piece = out.attach_object(held.object.as_ref().ok_or_else(moved)?.hold())?;
        Ok(Attachments { slab, piece })
    }

    /// Moves a piece into a message that no other process, and no other clone, has. What is left holds nothing but the view of the
    /// tensor that it was in, and its drop does nothing to the memory.
    ///
    /// # Errors
    /// As [`Attached::attach_object_exclusive`]; `Unsendable` if there are clones, or it was moved before. Then it stays.
    ///
    /// It takes a lock: see [`is_here`](Self::is_here).
    pub fn lend(&self, out: &mut Attached, view: &Arc<View>) -> Result<Attachments> {
        if !self.is_only() {
            let why = "an exclusive tensor of device memory that is used in this process otherwise can't be sent: share or freeze it";
            return Err(mp_core::Error::Unsendable(why.into()).into());
        }
        let slab = out.attach_object(self.slab().object().hold())?;
        let mut held = self.held();
        let piece = out.attach_object_exclusive(held.object.as_mut().ok_or_else(moved)?.hold_mut())?;
        held.object = None;
        held.view = Some(Arc::clone(view));
        Ok(Attachments { slab, piece })
    }

    /// Takes back what was [moved](Self::lend) into a message that did not leave.
    ///
    /// # Errors
    /// `Malformed` if it is another object.
    pub fn take_back(&self, hold: Hold) -> Result<()> {
        self.is_here()?;
        let object = PieceObject::open(hold, self.slab().object(), Mode::Exclusive)?;
        if object.mark() != self.id() {
            return Err(crate::Error::Malformed(
                "another piece of device memory came back than was sent".into(),
            ));
        }
        self.held().object = Some(object);
        Ok(())
    }

    /// Takes a piece out of a message that it was attached to in this mode: the one that this process has, if it has it.
    ///
    /// # Errors
    /// `Malformed` if these are other things, or don't fit together.
    pub fn take(arrived: &mut Arrived, attachments: Attachments, mode: Mode) -> Result<Self> {
        let hold = match mode {
            Mode::Exclusive => arrived.take_object_exclusive(attachments.piece),
            Mode::Frozen | Mode::Shared => arrived.take_object(attachments.piece),
        }?;
        let slab = arrived.object(attachments.slab)?;
        // What this process has, or had, it has looked at.
        let hold = match mode {
            Mode::Exclusive => hold,
            Mode::Frozen | Mode::Shared => match Self::again(slab, hold, mode) {
                Ok(piece) => return Ok(piece),
                Err(hold) => hold,
            },
        };
        let (slab, seen) = match here::known(slab, hold.arena().mark(&hold)) {
            Some(known) => known,
            None => (here::slab(SlabObject::open(slab.clone())?), None),
        };
        let object = match seen {
            Some(seen) => PieceObject::again(hold, seen, mode),
            None => {
                PieceObject::open(hold, slab.object(), mode).inspect(|object| here::saw(&slab, object.seen()))
            }
        };
        match object {
            Ok(object) if mode == Mode::Exclusive => Ok(Self::exclusive(slab, object)),
            Ok(object) => Ok(Self::arrived(slab, object)),
            Err(error) => {
                here::forget(slab);
                Err(error)
            }
        }
    }
}

fn moved() -> mp_core::Error {
    mp_core::Error::Unsendable("this tensor was sent already: what is left of it is empty".into())
}

#[cfg(test)]
mod tests {
    use mp_core::message::{Incoming, Outgoing};
    use mp_tensor::parts::nothing;

    use super::*;
    use crate::Uuid;
    use crate::memory::slab::Slab;

    /// A slab as it arrives, of which no driver is asked.
    fn slab() -> Arc<Slab> {
        Arc::new(Slab::arrived(SlabObject::new(Uuid([7; 16]), 1 << 20, 1 << 10).unwrap()))
    }

    fn piece(slab: &Arc<Slab>, unit: u32, bytes: u64) -> Piece {
        Piece::exclusive(Arc::clone(slab), PieceObject::new(slab.object(), unit, bytes).unwrap())
    }

    fn sent(piece: &Piece) -> (Incoming, Attachments) {
        let mut out = Outgoing::default();
        let attachments = piece.attach(out.attached()).unwrap();
        (out.into_incoming(), attachments)
    }

    #[track_caller]
    fn refused(inc: &mut Incoming, attachments: Attachments, mode: Mode, why: &str) {
        let error = Piece::take(inc.arrived(), attachments, mode).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }

    #[test]
    fn a_piece_arrives_as_what_it_was_sent() {
        let (slab, other) = (slab(), slab());
        let one = piece(&slab, 3, 5000);
        assert!(one.open_to_others(Mode::Shared));
        let (mut inc, attachments) = sent(&one);
        let same = Piece::take(inc.arrived(), attachments, Mode::Shared).unwrap();
        assert!(same.is(&one) && same.bytes() == 5000 && same.uuid() == Uuid([7; 16]) && same.is_mine());
        refused(&mut inc, attachments, Mode::Frozen, "has mode 2, and arrived as Frozen");
        refused(&mut inc, attachments, Mode::Exclusive, "was sent as");
        let swapped = Attachments { slab: attachments.piece, piece: attachments.slab };
        refused(&mut inc, swapped, Mode::Shared, "no mp_cuda::Slab");
        let missing = Attachments { slab: 0, piece: 9 };
        refused(&mut inc, missing, Mode::Shared, "does not exist");
        // Of another slab.
        let mut out = Outgoing::default();
        let slab = out.attached().attach_object(other.object().hold()).unwrap();
        let mixed = Attachments { slab, piece: one.attach(out.attached()).unwrap().piece };
        refused(&mut out.into_incoming(), mixed, Mode::Shared, "another slab than its own");
    }

    /// What was seen of a piece is known by its object, of which there are more than places.
    #[test]
    fn no_piece_is_taken_for_another_one_that_came_before() {
        let slab = slab();
        let all: Vec<Piece> = (0..200).map(|unit| piece(&slab, unit, u64::from(unit) + 1)).collect();
        for _ in 0..2 {
            for one in &all {
                assert!(one.open_to_others(Mode::Frozen));
                let (mut inc, attachments) = sent(one);
                let same = Piece::take(inc.arrived(), attachments, Mode::Frozen).unwrap();
                assert!(same.is(one) && same.bytes() == one.bytes());
            }
        }
    }

    /// No process cuts such pieces; what a message names is looked at all the same.
    #[test]
    fn a_piece_that_is_not_in_its_slab_is_refused() {
        let slab = slab();
        let take = |unit, bytes| {
            let object = PieceObject::new(slab.object(), unit, bytes).unwrap();
            assert!(object.open_to_others(Mode::Frozen));
            let mut out = Outgoing::default();
            let [slab, piece] =
                [slab.object().hold(), object.hold()].map(|hold| out.attached().attach_object(hold).unwrap());
            Piece::take(out.into_incoming().arrived(), Attachments { slab, piece }, Mode::Frozen)
        };
        for (unit, bytes) in
            [(1023, 1025), (1024, 1), (u32::MAX, 1), (0, u64::MAX), (0, (1 << 20) + 1), (0, 0)]
        {
            let error = take(unit, bytes).unwrap_err().to_string();
            assert!(error.contains("from byte"), "{error}");
        }
        assert!(take(1023, 1024).is_ok() && take(0, 1 << 20).is_ok(), "up to the last byte");
    }

    #[test]
    fn a_piece_moves_once() {
        let slab = slab();
        let one = piece(&slab, 0, 100);
        let clone = one.clone();
        let mut out = Outgoing::default();
        assert!(one.lend(out.attached(), &nothing()).unwrap_err().to_string().contains("otherwise"));
        drop(clone);
        let attachments = one.lend(out.attached(), &nothing()).unwrap();
        assert!(one.lend(out.attached(), &nothing()).is_err() && one.attach(out.attached()).is_err());
        let mut inc = out.into_incoming();
        let moved = Piece::take(inc.arrived(), attachments, Mode::Exclusive).unwrap();
        // What is left of the first is another piece, and its drop is none of this one's.
        assert!(!moved.is(&one) && moved.id() == one.id());
        drop(one);
        assert!(Piece::take(inc.arrived(), attachments, Mode::Exclusive).is_err(), "it was taken");
        let arena = mp_core::Arena::current().unwrap();
        let id = moved.id();
        assert!(arena.lives(id));
        drop((moved, inc));
        assert!(!arena.lives(id));
    }
}
