//! A piece of device memory, as this process has it.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, Weak};

use mp_core::Hold;
use mp_core::clocks::Tick;
use mp_core::mutant;
use mp_core::mutex::{Mutex, MutexGuard};
use mp_tensor::parts::View;

use super::foreign::kept;
use super::object::{Mode, PieceObject, Row, Seen};
use super::own::pool;
use super::slab::Slab;
use super::uses::Uses;
use super::{collect, here};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::exit::{self, Part};
use crate::stream::Stream;
use crate::uuid::Uuid;

/// A piece of device memory: what a tensor is a view of. A clone is the same piece, and so is one that arrives again.
///
/// It is held by this process until the last clone is dropped, or [moved](Self::lend) into a message.
#[derive(Clone)]
pub struct Piece(Arc<Inner>);

/// A piece that may have no holder in this process any more.
#[derive(Clone)]
pub(crate) struct WeakPiece(Weak<Inner>);

impl WeakPiece {
    /// The piece, if this process has it still, and has not moved it into a message.
    pub(crate) fn upgrade(&self) -> Option<Piece> {
        self.0.upgrade().filter(|inner| inner.is_here() && !inner.is_lent()).map(Piece)
    }
}

/// What the clones of a piece have in common.
pub(crate) struct Inner {
    /// `None` while it is dropped.
    slab: Option<Arc<Slab>>,
    /// What is in its object.
    seen: Seen,
    /// What holds it, if it came as one that others may have as well: a message that takes it along takes no lock.
    shared: Option<Hold>,
    /// What holds it otherwise.
    held: Mutex<Held>,
    /// What streams of this process did with it.
    uses: Uses,
}

/// What holds a piece that was exclusive in this process.
pub(super) struct Held {
    /// `None` if it was moved into a message.
    pub(super) object: Option<Hold>,
    /// Of what the tensor was a view, whose piece was moved into a message.
    pub(super) view: Option<Arc<View>>,
    /// Whether it was [opened to others](Piece::open_to_others), and the process's table has it: see [`here`].
    is_listed: bool,
}

impl Piece {
    /// Memory for this many bytes on a device; what is in it is not said. Work that is given to the stream from now on runs after what
    /// other processes, and other streams, did with it before.
    ///
    /// It calls the driver if a slab has to be made, which may wait for the device.
    ///
    /// # Errors
    /// [`OutOfDeviceMemory`](Error::OutOfDeviceMemory); what the driver refuses; those of the arena.
    pub fn allocate(device: &Device, bytes: u64, stream: &Stream) -> Result<Self> {
        exit::watch(Part::Memory, collect::leave);
        loop {
            let cut = pool::cut(device, bytes)?;
            let piece = Self::exclusive(cut.slab, cut.object);
            // Whichever stream is the first to use it.
            piece.uses().begins_behind(&cut.ticks);
            match cut.ticks.into_iter().try_for_each(|tick| stream.wait_for_room(tick).map(drop)) {
                Ok(()) => return Ok(piece),
                // Its process died in this moment: the slab is retired, and nothing more is cut out of it.
                Err(Error::ProducerDied { .. }) => drop(piece),
                Err(error) => return Err(error),
            }
        }
    }

    /// One of a slab of its own, in messages alone: no driver was asked for the memory, and none can be.
    #[cfg(any(test, feature = "fuzz"))]
    pub(crate) fn without_driver(uuid: Uuid, bytes: u64) -> Result<Self> {
        let slab = Arc::new(Slab::arrived(super::object::SlabObject::new(uuid, bytes, bytes)?));
        let object = PieceObject::new(slab.object(), 0, bytes)?;
        Ok(Self::exclusive(slab, object))
    }

    /// One that this process has now, if it has not another one of the same memory already.
    pub(super) fn arrived(slab: Arc<Slab>, object: PieceObject) -> Self {
        Self(here::piece(object.mark(), || Inner::shared(slab, object)))
    }

    /// As [`arrived`](Self::arrived), if what is in the piece's object was [seen](here::saw) before, and fits to this mode; else its
    /// handle comes back.
    #[inline]
    pub(super) fn again(slab: u64, hold: Hold, mode: Mode) -> std::result::Result<Self, Hold> {
        here::again(slab, hold, mode).map(Self)
    }

    /// One that was exclusive where it came from: this process has no other one of the same memory, and gets none as long as this is
    /// not [opened](Self::open_to_others). So the table is not asked.
    #[inline(always)]
    pub(super) fn exclusive(slab: Arc<Slab>, object: PieceObject) -> Self {
        Self(Inner::exclusive(slab, object))
    }

    /// The device that it is on, whether this process sees that or not.
    pub fn uuid(&self) -> Uuid {
        self.0.slab().object().uuid()
    }

    /// How many bytes were asked for.
    pub fn bytes(&self) -> u64 {
        self.0.seen.bytes()
    }

    /// Which memory it is, in all processes: no two that are alive have the same number.
    pub fn id(&self) -> u64 {
        self.0.seen.mark()
    }

    /// Whether this process has made it.
    pub fn is_mine(&self) -> bool {
        self.0.slab().object().is_mine()
    }

    /// The process that has made it.
    pub fn maker(&self) -> u32 {
        self.0.slab().maker().1
    }

    /// The piece, without holding it.
    pub(crate) fn downgrade(&self) -> WeakPiece {
        WeakPiece(Arc::downgrade(&self.0))
    }

    /// Whether it is the same memory.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Where it begins, for work of this device. The first time for each slab, the driver is called, which may wait for the device.
    ///
    /// # Errors
    /// [`UnknownDevice`](Error::UnknownDevice) if this process doesn't see the device that it is on; [`PeerAccess`](Error::PeerAccess)
    /// if that is another one, whose memory this device can't reach; [`Gone`](Error::Gone);
    /// [`OutOfDeviceMemory`](Error::OutOfDeviceMemory), also after all was given back that is unused; what the driver refuses;
    /// [`Forked`](Error::Forked) in a copy of the process.
    pub fn open(&self, device: &Device) -> Result<u64> {
        // A copy of the process has the address, and nothing there.
        self.is_here()?;
        let slab = self.0.slab();
        if !slab.object().is_held() {
            self.with_hold(|hold| slab.object().hold_by(hold))?;
        }
        let (base, is_new) = match slab.open(device) {
            Err(error) if pool::is_out_of_memory(&error) => {
                collect::make_room();
                slab.open(device).map_err(|error| pool::with_figures(error, device, slab.object().bytes()))?
            }
            opened => opened?,
        };
        if is_new {
            exit::watch(Part::Memory, collect::leave);
            here::opened(slab);
        }
        let address = base + self.0.seen.begins();
        #[cfg(feature = "inject")]
        self.declare(address)?;
        Ok(address)
    }

    /// Tells a simulated driver, if it is one, where the piece is.
    #[cfg(feature = "inject")]
    fn declare(&self, address: u64) -> Result<()> {
        let shared = self.0.seen.is_shared(self.0.slab().object().arena());
        crate::driver::Driver::get()?.declare(address, self.0.seen.bytes(), shared);
        Ok(())
    }

    /// Whether this process has it, and is no copy, by `fork`, of the one that has. In a copy no lock of a piece is taken: a thread of
    /// the original may have had it, which isn't there.
    ///
    /// # Errors
    /// [`Forked`](Error::Forked).
    pub(crate) fn is_here(&self) -> Result<()> {
        if self.0.is_here() { Ok(()) } else { Err(Error::Forked) }
    }

    /// Opens it to others, for good; whether it was exclusive before, or was opened like this.
    pub fn open_to_others(&self, mode: Mode) -> bool {
        if !self.0.is_here() {
            return false;
        }
        let opens = |hold: &Hold| self.0.seen.open_to_others(hold.arena(), mode);
        if let Some(hold) = &self.0.shared {
            return opens(hold);
        }
        let mut held = self.0.held.lock();
        let opened = held.object.as_ref().is_some_and(opens);
        // Before any message has it, which may bring it back.
        if opened && !held.is_listed && !mutant!("cuda.piece.opened-not-listed") {
            held.is_listed = true;
            drop(held);
            here::list(self.id(), &self.0);
        }
        opened
    }

    /// Words of it that outlive its last holder.
    pub fn row(&self) -> Row {
        self.0.row()
    }

    /// What streams of this process did with it.
    pub(crate) fn uses(&self) -> &Uses {
        &self.0.uses
    }

    /// Notes the last ticks of streams of this process that used it, when it was moved into a message: until they have come, its
    /// slab stays mapped.
    #[inline]
    pub(crate) fn note_uses(&self, ticks: &[Tick]) {
        self.0.slab().note_uses(ticks);
    }

    pub(super) fn slab(&self) -> &Arc<Slab> {
        self.0.slab()
    }

    /// Whether there is no clone of it.
    pub(crate) fn is_only(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    /// What holds it, for a message.
    ///
    /// # Errors
    /// `Unsendable` if it was moved into one.
    #[inline]
    pub(super) fn with_hold<R>(&self, f: impl FnOnce(&Hold) -> Result<R>) -> Result<R> {
        match &self.0.shared {
            Some(hold) => f(hold),
            None => f(self.held().object.as_ref().ok_or_else(moved)?),
        }
    }

    /// What holds one that was exclusive.
    pub(super) fn held(&self) -> MutexGuard<'_, Held> {
        self.0.held.lock()
    }

    /// What was moved into a message, and is to be as it was if that stays.
    pub(crate) fn into_lent(self) -> Arc<dyn Any + Send + Sync> {
        self.0
    }

    /// What [`into_lent`](Self::into_lent) made, and of what it was [lent](Self::lend) as a view.
    pub(crate) fn of_lent(lent: &Arc<dyn Any + Send + Sync>) -> Option<(Self, Arc<View>)> {
        let inner = Arc::clone(lent).downcast::<Inner>().ok()?;
        let view = inner.held.lock().view.take()?;
        Some((Self(inner), view))
    }
}

pub(super) fn moved() -> mp_core::Error {
    mp_core::Error::Unsendable("this tensor was sent already: what is left of it is empty".into())
}

impl fmt::Debug for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slab = self.0.slab();
        f.debug_struct("Piece")
            .field("device", &slab.object().uuid())
            .field("bytes", &self.0.seen.bytes())
            .field("maker", &slab.maker().1)
            .field("mapped", &(self.0.is_here() && slab.is_mapped()))
            .finish_non_exhaustive()
    }
}

impl Inner {
    /// One that others may have as well.
    #[inline(always)]
    pub(super) fn shared(slab: Arc<Slab>, PieceObject { hold, seen }: PieceObject) -> Arc<Self> {
        Self::new(slab, seen, Some(hold), None)
    }

    #[inline(always)]
    fn exclusive(slab: Arc<Slab>, PieceObject { hold, seen }: PieceObject) -> Arc<Self> {
        Self::new(slab, seen, None, Some(hold))
    }

    #[inline(always)]
    fn new(slab: Arc<Slab>, seen: Seen, shared: Option<Hold>, object: Option<Hold>) -> Arc<Self> {
        let held = Mutex::new(Held { object, view: None, is_listed: false });
        Arc::new(Self { slab: Some(slab), seen, shared, held, uses: Uses::default() })
    }

    fn slab(&self) -> &Arc<Slab> {
        self.slab.as_ref().expect("it is taken by its drop")
    }

    fn row(&self) -> Row {
        self.slab().object().row(self.seen.row())
    }

    /// Whether this is the process that has it.
    fn is_here(&self) -> bool {
        self.slab.as_ref().is_some_and(|slab| slab.object().is_here())
            || mutant!("cuda.piece.copy-takes-locks")
    }

    /// Whether it was moved into a message.
    pub(super) fn is_lent(&self) -> bool {
        self.shared.is_none() && self.held.lock().object.is_none()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // A copy of the process has no seat to give up.
        let is_here = self.is_here();
        let Some(slab) = self.slab.take().filter(|_| is_here) else { return };
        let mut object = self.shared.take().or_else(|| self.held.get_mut().object.take());
        if object.is_some() {
            if mutant!("cuda.piece.seat-first") {
                object = None;
            }
            let used = self.uses.leave(|| slab.object().row(self.seen.row()));
            slab.note_uses(&used);
        }
        // After its words: who finds it gone reads them.
        drop(object);
        let foreign = slab.object().is_foreign().then(|| slab.object().mark());
        here::forget(slab);
        if let Some(slab) = foreign {
            kept::dropped(slab);
        }
    }
}
