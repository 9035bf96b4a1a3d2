//! Pieces of device memory in messages. A message holds the object of a piece. This object is a child of the
//! slab's object, so the message holds both. No driver is called, so a process without a device can forward
//! the message.

use std::sync::Arc;

use mp_core::message::{Attached, ReceivedAttachments};
use mp_core::{Allocator, Hold};
use mp_tensor::parts::View;

use super::object::{PieceMode, PieceObject, SlabObject};
use super::piece::moved;
use super::{Piece, registry};
use crate::error::Result;

impl Piece {
    /// Attaches a frozen or shared piece to a message. Returns the number of the attachment.
    ///
    /// # Errors
    /// Errors of [`Attached::attach_object`]; `Unsendable` if the piece was moved into a message.
    pub fn attach(&self, out: &mut Attached) -> Result<u32> {
        self.with_hold(|hold| Ok(out.attach_object(hold)?))
    }

    /// Moves an exclusive piece into a message, and returns the number of the attachment. Afterwards, this
    /// value holds only the view of the tensor, and dropping it does not affect the memory.
    ///
    /// # Errors
    /// Errors of [`Attached::attach_object_exclusive`]; `Unsendable` if the piece has clones, or was moved
    /// before. After an error the piece is not moved.
    ///
    /// The call takes a lock, so a forked copy of the process must not make it: see
    /// [`is_here`](Self::is_here).
    pub fn lend(&self, out: &mut Attached, view: &Arc<View>) -> Result<u32> {
        if !self.is_only() {
            let why = "an exclusive tensor of device memory that is used in this process otherwise can't be \
                       sent: share or freeze it";
            return Err(mp_core::Error::Unsendable(why.into()).into());
        }
        let mut handle = self.lock_handle();
        let piece = out.attach_object_exclusive(handle.object.as_mut().ok_or_else(moved)?)?;
        handle.object = None;
        handle.view = Some(Arc::clone(view));
        Ok(piece)
    }

    /// Restores a piece that was [moved](Self::lend) into a message which was not sent.
    ///
    /// # Errors
    /// `Malformed` if the handle belongs to another object.
    pub fn take_back(&self, hold: Hold) -> Result<()> {
        self.is_here()?;
        let object = PieceObject::open(hold, self.slab().object(), PieceMode::Exclusive)?;
        if object.info.mark != self.id() {
            return Err(crate::Error::Malformed(
                "another piece of device memory came back than was sent".into(),
            ));
        }
        self.lock_handle().object = Some(object.hold);
        Ok(())
    }

    /// Takes the piece with attachment number `piece` out of a message. Returns the existing piece if this
    /// process already has the piece.
    ///
    /// # Errors
    /// `Malformed` if the attachment is not a piece of this mode; errors of the arena.
    pub fn take(arrived: &mut ReceivedAttachments, piece: u32, mode: PieceMode) -> Result<Self> {
        let hold = match mode {
            PieceMode::Exclusive => arrived.take_object_exclusive(piece),
            PieceMode::Frozen | PieceMode::Shared => arrived.take_object(piece),
        }?;
        let slab = Allocator(hold.arena()).parent_mark(&hold)?;
        // A piece that this process has, or had, was checked at its first arrival.
        let hold = match mode {
            PieceMode::Exclusive => hold,
            PieceMode::Frozen | PieceMode::Shared => match Self::registered(slab, hold, mode) {
                Ok(piece) => return Ok(piece),
                Err(hold) => hold,
            },
        };
        let (slab, info) = match registry::find(slab, hold.mark()) {
            Some(known) => known,
            None => (registry::slab(SlabObject::of_piece(&hold)?), None),
        };
        let object = match info {
            Some(info) => PieceObject::with_info(hold, info, mode),
            None => PieceObject::open(hold, slab.object(), mode)
                .inspect(|object| registry::record_info(&slab, object.info)),
        };
        match object {
            Ok(object) if mode == PieceMode::Exclusive => Ok(Self::exclusive(slab, object)),
            Ok(object) => Ok(Self::received(slab, object)),
            Err(error) => {
                registry::release(slab);
                Err(error)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use mp_core::Blocks;
    use mp_core::message::{Incoming, Outgoing};
    use mp_tensor::parts::nothing;

    use mp_core::Structure;

    use super::*;
    use crate::Uuid;
    use crate::memory::slab::Slab;

    /// Returns a slab as if it was received. The slab has no device memory.
    fn slab() -> Arc<Slab> {
        Arc::new(Slab::received(SlabObject::new(Uuid([7; 16]), 1 << 20, 1 << 10).unwrap()))
    }

    fn piece(slab: &Arc<Slab>, unit: u32, bytes: u64) -> Piece {
        Piece::exclusive(Arc::clone(slab), PieceObject::new(slab.object(), unit, bytes).unwrap())
    }

    fn sent(piece: &Piece) -> (Incoming, u32) {
        let mut out = Outgoing::default();
        let number = piece.attach(out.attached()).unwrap();
        (out.into_incoming(), number)
    }

    #[track_caller]
    fn refused(inc: &mut Incoming, number: u32, mode: PieceMode, why: &str) {
        let error = Piece::take(inc.arrived(), number, mode).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }

    #[test]
    fn device_piece_arrives_with_its_access_mode() {
        let slab = slab();
        let one = piece(&slab, 3, 5000);
        assert!(one.share_as(PieceMode::Shared));
        let (mut inc, number) = sent(&one);
        let same = Piece::take(inc.arrived(), number, PieceMode::Shared).unwrap();
        assert!(same.is(&one) && same.bytes() == 5000 && same.uuid() == Uuid([7; 16]) && same.is_mine());
        refused(&mut inc, number, PieceMode::Frozen, "has mode 2, and arrived as Frozen");
        refused(&mut inc, number, PieceMode::Exclusive, "was sent as");
        refused(&mut inc, 9, PieceMode::Shared, "does not exist");
    }

    /// Attachments that are not pieces, or that describe impossible pieces, are refused.
    #[test]
    fn attachments_that_are_no_device_piece_are_refused() {
        let refused = |hold: &Hold, why: &str| {
            let mut out = Outgoing::default();
            let number = out.attached().attach_object(hold).unwrap();
            refused(&mut out.into_incoming(), number, PieceMode::Shared, why);
        };
        refused(slab().object().structure().hold(), "has no parent");
        let other = Structure::new("mp_cuda::tests::Other", 4).unwrap();
        let part = |name| {
            let mut part = Structure::new(name, 4).unwrap();
            part.set_parent(&other).unwrap();
            part
        };
        refused(part("mp_cuda::Piece").hold(), "not a mp_cuda::Slab");
        let mut part = Structure::new("mp_cuda::tests::Other", 4).unwrap();
        let slab = SlabObject::new(Uuid([7; 16]), 1 << 20, 1 << 10).unwrap();
        part.set_parent(slab.structure()).unwrap();
        refused(part.hold(), "not a mp_cuda::Piece");
    }

    /// A receiver of a piece finds the slab, even if no process holds the slab itself.
    #[test]
    fn device_piece_keeps_its_slab_alive() {
        let (arena, slab) = (mp_core::Arena::current().unwrap(), slab());
        let one = piece(&slab, 3, 5000);
        assert!(one.share_as(PieceMode::Frozen));
        let (mut inc, number) = sent(&one);
        let (mark, id) = (slab.object().mark, one.id());
        drop((one, slab));
        assert!(Blocks(arena).lives(mark) && Blocks(arena).lives(id), "the message holds both objects");
        let one = Piece::take(inc.arrived(), number, PieceMode::Frozen).unwrap();
        assert!(one.slab().object().mark == mark && one.bytes() == 5000);
        assert!(!one.slab().object().is_held(), "the slab is held from its opening on");
        drop(inc);
        assert!(Blocks(arena).lives(mark) && Blocks(arena).lives(id), "the piece holds its slab");
        drop(one);
        assert!(!Blocks(arena).lives(mark) && !Blocks(arena).lives(id));
    }

    /// The registry records the contents of fewer pieces than the test sends. Nevertheless each received
    /// piece is the sent piece.
    #[test]
    fn received_device_pieces_keep_their_identity() {
        let slab = slab();
        let all: Vec<Piece> = (0..200).map(|unit| piece(&slab, unit, u64::from(unit) + 1)).collect();
        for _ in 0..2 {
            for one in &all {
                assert!(one.share_as(PieceMode::Frozen));
                let (mut inc, number) = sent(one);
                let same = Piece::take(inc.arrived(), number, PieceMode::Frozen).unwrap();
                assert!(same.is(one) && same.bytes() == one.bytes());
            }
        }
    }

    /// No process cuts pieces that exceed their slab, but receivers check for them.
    #[test]
    fn device_piece_outside_its_slab_is_refused() {
        let slab = slab();
        let take = |unit, bytes| {
            let object = PieceObject::new(slab.object(), unit, bytes).unwrap();
            assert!(object.info.share_as(object.hold.arena(), PieceMode::Frozen));
            let mut out = Outgoing::default();
            let number = out.attached().attach_object(&object.hold).unwrap();
            Piece::take(out.into_incoming().arrived(), number, PieceMode::Frozen)
        };
        for (unit, bytes) in
            [(1023, 1025), (1024, 1), (u32::MAX, 1), (0, u64::MAX), (0, (1 << 20) + 1), (0, 0)]
        {
            let error = take(unit, bytes).unwrap_err().to_string();
            assert!(error.contains("from byte"), "{error}");
        }
        assert!(take(1023, 1024).is_ok() && take(0, 1 << 20).is_ok(), "the last unit, and the whole slab");
    }

    #[test]
    fn exclusive_device_piece_moves_only_once() {
        let slab = slab();
        let one = piece(&slab, 0, 100);
        let clone = one.clone();
        let mut out = Outgoing::default();
        assert!(one.lend(out.attached(), &nothing()).unwrap_err().to_string().contains("otherwise"));
        drop(clone);
        let number = one.lend(out.attached(), &nothing()).unwrap();
        assert!(one.lend(out.attached(), &nothing()).is_err() && one.attach(out.attached()).is_err());
        let mut inc = out.into_incoming();
        let moved = Piece::take(inc.arrived(), number, PieceMode::Exclusive).unwrap();
        // The rest of the first piece is another piece, and its drop does not affect this one.
        assert!(!moved.is(&one) && moved.id() == one.id());
        drop(one);
        assert!(Piece::take(inc.arrived(), number, PieceMode::Exclusive).is_err(), "the piece was taken");
        let arena = mp_core::Arena::current().unwrap();
        let id = moved.id();
        assert!(Blocks(arena).lives(id));
        drop((moved, inc));
        assert!(!Blocks(arena).lives(id));
    }
}
