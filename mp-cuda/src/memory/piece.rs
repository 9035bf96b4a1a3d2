//! Pieces of device memory in this process.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, Weak};

use mp_core::Hold;
use mp_core::clocks::Tick;
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

/// Piece of device memory, of which a tensor is a view. A clone is the same piece, and so is a piece that
/// arrives again.
///
/// This process holds the piece until the last clone is dropped, or [moved](Self::lend) into a message.
#[derive(Clone)]
pub struct Piece(Arc<Inner>);

/// Weak reference to a piece of this process.
#[derive(Clone)]
pub(crate) struct WeakPiece(Weak<Inner>);

impl WeakPiece {
    /// Returns the piece, if this process still has it, and has not moved it into a message.
    pub(crate) fn upgrade(&self) -> Option<Piece> {
        self.0.upgrade().filter(|inner| inner.is_here() && !inner.is_lent()).map(Piece)
    }
}

/// State that the clones of a piece share.
pub(crate) struct Inner {
    /// `None` during the drop.
    slab: Option<Arc<Slab>>,
    /// Contents of the piece's object.
    seen: Seen,
    /// Handle of a piece that arrived in a shared mode. A message with the piece takes no lock.
    shared: Option<Hold>,
    /// Handle of a piece that was exclusive in this process.
    held: Mutex<Held>,
    /// Uses of the piece by streams of this process.
    uses: Uses,
}

/// Handle of a piece that was exclusive in this process.
pub(super) struct Held {
    /// `None` if the piece was moved into a message.
    pub(super) object: Option<Hold>,
    /// View of the tensor whose piece was moved into a message.
    pub(super) view: Option<Arc<View>>,
    /// `true` if the piece was [opened to others](Piece::share_as), and is in the process's table (see
    /// [`here`]).
    is_listed: bool,
}

impl Piece {
    /// Allocates this many bytes on a device. The contents are unspecified. Work that the stream is given
    /// from now on runs after earlier work of other processes and streams with the same memory.
    ///
    /// If a slab has to be made, this calls the driver, which may wait for the device.
    ///
    /// # Errors
    /// [`OutOfDeviceMemory`](Error::OutOfDeviceMemory); errors of the driver and of the arena.
    pub fn allocate(device: &Device, bytes: u64, stream: &Stream) -> Result<Self> {
        exit::watch(Part::Memory, collect::leave);
        loop {
            let cut = pool::cut(device, bytes)?;
            let piece = Self::exclusive(cut.slab, cut.object);
            // Another stream may be the first to use the piece.
            piece.uses().begins_behind(&cut.ticks);
            match cut.ticks.into_iter().try_for_each(|tick| stream.wait_for_room(tick).map(drop)) {
                Ok(()) => return Ok(piece),
                // The process of the last use died meanwhile: the slab is retired, and no more pieces are cut
                // out of it.
                Err(Error::ProducerDied { .. }) => drop(piece),
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns a piece of a new slab for tests of messages: the driver has no memory for it.
    #[cfg(any(test, feature = "fuzz"))]
    pub(crate) fn without_driver(uuid: Uuid, bytes: u64) -> Result<Self> {
        let slab = Arc::new(Slab::arrived(super::object::SlabObject::new(uuid, bytes, bytes)?));
        let object = PieceObject::new(slab.object(), 0, bytes)?;
        Ok(Self::exclusive(slab, object))
    }

    /// Returns a piece that arrived: the table's piece, if this process has it already.
    pub(super) fn arrived(slab: Arc<Slab>, object: PieceObject) -> Self {
        Self(here::piece(object.mark(), || Inner::shared(slab, object)))
    }

    /// Returns a piece as [`arrived`](Self::arrived) does, if the contents of its object were
    /// [noted](here::saw), and have this mode. Otherwise the handle is returned.
    #[inline]
    pub(super) fn again(slab: u64, hold: Hold, mode: Mode) -> std::result::Result<Self, Hold> {
        here::again(slab, hold, mode).map(Self)
    }

    /// Returns a piece that arrived as exclusive. This process has no other piece of the same memory, and
    /// gets none until this piece is [opened](Self::share_as). So the table is not searched.
    #[inline(always)]
    pub(super) fn exclusive(slab: Arc<Slab>, object: PieceObject) -> Self {
        Self(Inner::exclusive(slab, object))
    }

    /// Returns the device of the memory, which this process may not see.
    pub fn uuid(&self) -> Uuid {
        self.0.slab().object().uuid()
    }

    /// Returns the number of bytes that were asked for.
    pub fn bytes(&self) -> u64 {
        self.0.seen.bytes()
    }

    /// Returns the number of the memory, which is the same in all processes. Two pieces that are alive have
    /// different numbers.
    pub fn id(&self) -> u64 {
        self.0.seen.mark()
    }

    /// Returns `true` if this process has made the piece.
    pub fn is_mine(&self) -> bool {
        self.0.slab().object().is_mine()
    }

    /// Returns the id of the process that has made the piece.
    pub fn maker(&self) -> u32 {
        self.0.slab().maker().1
    }

    /// Returns a weak reference to the piece.
    pub(crate) fn downgrade(&self) -> WeakPiece {
        WeakPiece(Arc::downgrade(&self.0))
    }

    /// Returns `true` if both are the same piece.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns the address of the piece for work of this device. The first time for each slab, this calls the
    /// driver, which may wait for the device.
    ///
    /// # Errors
    /// [`UnknownDevice`](Error::UnknownDevice) if this process doesn't see the device of the memory;
    /// [`PeerAccess`](Error::PeerAccess) if `device` is another device that can't access the memory;
    /// [`Gone`](Error::Gone); [`OutOfDeviceMemory`](Error::OutOfDeviceMemory) if unused memory was given back
    /// in vain; errors of the driver; [`Forked`](Error::Forked) in a copy of the process.
    pub fn open(&self, device: &Device) -> Result<u64> {
        // A copy of the process has the address, and no mapping.
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

    /// Declares the piece to a simulated driver.
    #[cfg(feature = "inject")]
    fn declare(&self, address: u64) -> Result<()> {
        let shared = self.0.seen.is_shared(self.0.slab().object().arena());
        crate::driver::Driver::get()?.declare(address, self.0.seen.bytes(), shared);
        Ok(())
    }

    /// Returns an error in a copy of this process by `fork`. A copy takes no lock of a piece, which a thread
    /// of the original process may have held.
    ///
    /// # Errors
    /// [`Forked`](Error::Forked).
    pub(crate) fn is_here(&self) -> Result<()> {
        if self.0.is_here() { Ok(()) } else { Err(Error::Forked) }
    }

    /// Opens the piece to others for good. Returns `true` if the piece was exclusive, or was opened in the
    /// same mode before.
    pub fn share_as(&self, mode: Mode) -> bool {
        if !self.0.is_here() {
            return false;
        }
        let opens = |hold: &Hold| self.0.seen.share_as(hold.arena(), mode);
        if let Some(hold) = &self.0.shared {
            return opens(hold);
        }
        let mut held = self.0.held.lock();
        let opened = held.object.as_ref().is_some_and(opens);
        // The piece is listed before a message has it, which may bring it back.
        if opened && !held.is_listed {
            held.is_listed = true;
            drop(held);
            here::list(self.id(), &self.0);
        }
        opened
    }

    /// Returns the words of the piece that outlive its last holder.
    pub fn row(&self) -> Row {
        self.0.row()
    }

    /// Returns the uses of the piece by streams of this process.
    pub(crate) fn uses(&self) -> &Uses {
        &self.0.uses
    }

    /// Notes the last ticks of streams of this process that used the piece, after it was moved into a
    /// message. The slab stays mapped until these ticks are complete.
    #[inline]
    pub(crate) fn note_uses(&self, ticks: &[Tick]) {
        self.0.slab().note_uses(ticks);
    }

    pub(super) fn slab(&self) -> &Arc<Slab> {
        self.0.slab()
    }

    /// Returns `true` if the piece has no clone.
    pub(crate) fn is_only(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    /// Calls a function with the piece's handle, for a message.
    ///
    /// # Errors
    /// `Unsendable` if the piece was moved into a message.
    #[inline]
    pub(super) fn with_hold<R>(&self, f: impl FnOnce(&Hold) -> Result<R>) -> Result<R> {
        match &self.0.shared {
            Some(hold) => f(hold),
            None => f(self.held().object.as_ref().ok_or_else(moved)?),
        }
    }

    /// Locks the handle of a piece that was exclusive.
    pub(super) fn held(&self) -> MutexGuard<'_, Held> {
        self.0.held.lock()
    }

    /// Returns the state of a piece that was moved into a message, which restores the piece if the message is
    /// not sent.
    pub(crate) fn into_lent(self) -> Arc<dyn Any + Send + Sync> {
        self.0
    }

    /// Restores a piece from [`into_lent`](Self::into_lent), with the view of its tensor from
    /// [`lend`](Self::lend).
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
    /// Returns a piece that other processes may have, too.
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

    /// Returns `true` in the process that has the piece, and `false` in its forked copies.
    fn is_here(&self) -> bool {
        self.slab.as_ref().is_some_and(|slab| slab.object().is_here())
    }

    /// Returns `true` if the piece was moved into a message.
    pub(super) fn is_lent(&self) -> bool {
        self.shared.is_none() && self.held.lock().object.is_none()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // A forked copy has no seat to give up.
        let is_here = self.is_here();
        let Some(slab) = self.slab.take().filter(|_| is_here) else { return };
        let object = self.shared.take().or_else(|| self.held.get_mut().object.take());
        if object.is_some() {
            let used = self.uses.leave(|| slab.object().row(self.seen.row()));
            slab.note_uses(&used);
        }
        // Dropped after the row was written: a process that finds no holder reads the row.
        drop(object);
        let foreign = slab.object().is_foreign().then(|| slab.object().mark());
        here::forget(slab);
        if let Some(slab) = foreign {
            kept::dropped(slab);
        }
    }
}
