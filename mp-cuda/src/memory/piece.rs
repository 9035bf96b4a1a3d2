//! Pieces of device memory, each for one tensor, in this process.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, Weak};

use mp_core::Hold;
use mp_core::mutex::MutexGuard;
use mp_tensor::parts::View;

use super::foreign::owners::{self, ForeignRange};
use super::object::{PieceMode, PieceObject, PieceRow};
use super::own::pool;
use super::piece_state::{ExclusiveHandle, PieceInner};
use super::slab::Slab;
use super::stream_uses::PieceUses;
use super::virtual_memory::DeviceMemory;
use super::{collect, registry};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::exit::{self, ExitPhase};
use crate::stream::CudaStream;
use crate::stream::work::StreamWaitPurpose;
use crate::uuid::Uuid;

/// Piece of device memory. A tensor is a view of a piece. Clones refer to the same piece. A piece that is
/// received twice is one piece, too.
///
/// This process holds the piece until the last clone is dropped, or [moved](Self::lend) into a message.
#[derive(Clone)]
pub struct Piece(Arc<PieceInner>);

/// Weak reference to a piece of this process.
#[derive(Clone)]
pub(crate) struct WeakPiece(Weak<PieceInner>);

impl WeakPiece {
    /// Returns the piece, or `None` if this process dropped it or moved it into a message.
    pub(crate) fn upgrade(&self) -> Option<Piece> {
        self.0.upgrade().filter(|inner| inner.is_here() && !inner.is_moved()).map(Piece)
    }
}

impl Piece {
    /// Allocates this many bytes on a device. The contents are unspecified. Work that is submitted to the
    /// stream after this call runs after all earlier work with the same memory, of any process.
    ///
    /// If no slab has enough room, the call makes a slab, for which the driver may wait for the device.
    ///
    /// # Errors
    /// [`OutOfDeviceMemory`](Error::OutOfDeviceMemory); errors of the driver and of the arena.
    pub fn allocate(device: &Device, bytes: u64, stream: &CudaStream) -> Result<Self> {
        exit::register(ExitPhase::Memory, collect::leave);
        loop {
            let cut = pool::cut(device, bytes)?;
            let piece = Self::exclusive(cut.slab, cut.object);
            // Another stream may be the first to use the piece.
            piece.uses().record_earlier_uses(&cut.ticks);
            match cut.ticks.into_iter().try_for_each(|tick| stream.wait_for(tick, StreamWaitPurpose::Memory))
            {
                Ok(()) => return Ok(piece),
                // The process of the last use died meanwhile: the slab is retired, and no more pieces are cut
                // out of it.
                Err(Error::ProducerDied { .. }) => drop(piece),
                Err(error) => return Err(error),
            }
        }
    }

    /// Creates a piece of another library's memory, which other processes open without a copy. The piece has
    /// no [owner](Self::set_owner) yet.
    pub(crate) fn foreign(device: &Device, range: ForeignRange, begins: u64, bytes: u64) -> Result<Self> {
        exit::register(ExitPhase::Memory, collect::leave);
        let (slab, object) = owners::share(device.uuid(), range, begins, bytes, |slab| {
            if range.handle.is_none() {
                slab.keep_descriptor(DeviceMemory::mapped_at(device, range.base, range.bytes)?.export()?)?;
            }
            Ok(())
        })?;
        Ok(Self::exclusive(slab, object))
    }

    /// Sets the owner of another library's memory, which is dropped when no process has the piece.
    pub(crate) fn set_owner(&self, owner: impl std::any::Any + Send) {
        owners::set_owner(self.id(), owner);
    }

    /// Returns a piece of a new slab for tests of messages: the driver has no memory for it.
    #[cfg(any(test, feature = "fuzz"))]
    pub(crate) fn without_driver(uuid: Uuid, bytes: u64) -> Result<Self> {
        let slab = Arc::new(Slab::received(super::object::SlabObject::new(uuid, bytes, bytes)?));
        let object = PieceObject::new(slab.object(), 0, bytes)?;
        Ok(Self::exclusive(slab, object))
    }

    /// Returns a received piece. If this process already has the piece, returns the existing piece.
    pub(super) fn received(slab: Arc<Slab>, object: PieceObject) -> Self {
        Self(registry::piece(object.info.mark, || PieceInner::new(slab, object, false, release)))
    }

    /// Returns a received piece, like [`received`](Self::received), if the contents of its object were
    /// [recorded](registry::record_info) and show this mode. Otherwise returns the handle.
    #[inline]
    pub(super) fn registered(slab: u64, hold: Hold, mode: PieceMode) -> std::result::Result<Self, Hold> {
        let make = |slab, object| PieceInner::new(slab, object, false, release);
        registry::find_piece(slab, hold, mode, make).map(Self)
    }

    /// Returns a received exclusive piece. This process has no other handle to the piece until the piece is
    /// [converted](Self::share_as) to another mode, so the registry is not searched.
    #[inline(always)]
    pub(super) fn exclusive(slab: Arc<Slab>, object: PieceObject) -> Self {
        Self(PieceInner::new(slab, object, true, release))
    }

    /// Returns the device of the memory, even if this process does not see the device.
    pub fn uuid(&self) -> Uuid {
        self.0.slab().object().uuid
    }

    /// Returns the requested number of bytes.
    pub fn bytes(&self) -> u64 {
        self.0.info.bytes
    }

    /// Returns the number of the piece, which is the same in all processes. Two pieces that exist at the same
    /// time have different numbers.
    pub fn id(&self) -> u64 {
        self.0.info.mark
    }

    /// Returns `true` if this process has made the piece.
    pub fn is_mine(&self) -> bool {
        self.0.slab().object().is_mine()
    }

    /// Returns the id of the process that has made the piece.
    pub fn maker(&self) -> u32 {
        self.0.slab().object().maker.1
    }

    /// Returns a weak reference to the piece.
    pub(crate) fn downgrade(&self) -> WeakPiece {
        WeakPiece(Arc::downgrade(&self.0))
    }

    /// Returns `true` if both values refer to the same piece.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns the address of the piece for work of this device. For the first piece of a slab of another
    /// process, calls the driver, which may wait for the device.
    ///
    /// # Errors
    /// [`UnknownDevice`](Error::UnknownDevice) if this process doesn't see the device of the memory;
    /// [`PeerAccess`](Error::PeerAccess) if `device` is another device that can't access the memory;
    /// [`Gone`](Error::Gone); [`OutOfDeviceMemory`](Error::OutOfDeviceMemory) if giving back unused memory
    /// did not help; errors of the driver; [`Forked`](Error::Forked) in a copy of the process.
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
                slab.open(device).map_err(|error| pool::with_figures(error, device, slab.object().bytes))?
            }
            opened => opened?,
        };
        if is_new {
            exit::register(ExitPhase::Memory, collect::leave);
            registry::record_opening(slab);
        }
        let address = base + self.0.info.offset;
        #[cfg(feature = "inject")]
        self.declare(address)?;
        Ok(address)
    }

    /// Declares the piece to the CUDA simulator.
    #[cfg(feature = "inject")]
    fn declare(&self, address: u64) -> Result<()> {
        let shared = self.0.info.is_shared(self.0.slab().object().arena());
        crate::driver::Driver::get()?.declare(address, self.0.info.bytes, shared);
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

    /// Converts an exclusive piece to this mode, forever. Returns `true` if the piece was exclusive, or
    /// already had this mode.
    pub fn share_as(&self, mode: PieceMode) -> bool {
        if !self.0.is_here() {
            return false;
        }
        let opens = |hold: &Hold| self.0.info.share_as(hold.arena(), mode);
        if let Some(hold) = &self.0.shared {
            return opens(hold);
        }
        let mut handle = self.0.exclusive.lock();
        let opened = handle.object.as_ref().is_some_and(opens);
        // The piece is registered before a message has it, because the message may arrive in this process.
        if opened && !handle.is_listed {
            handle.is_listed = true;
            drop(handle);
            registry::insert_piece(self.id(), &self.0);
        }
        opened
    }

    /// Returns the row of the piece in its slab's object.
    pub fn row(&self) -> PieceRow {
        self.0.row()
    }

    /// Returns the uses of the piece by streams of this process.
    pub(crate) fn uses(&self) -> &PieceUses {
        &self.0.uses
    }

    /// Joins all uses by this process into the row's last use. Called before the piece is moved into a
    /// message.
    #[inline]
    pub(crate) fn leave(&self) {
        self.0.leave(self.0.slab());
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
            None => f(self.lock_handle().object.as_ref().ok_or_else(moved)?),
        }
    }

    /// Locks the handle of a piece that was exclusive.
    pub(super) fn lock_handle(&self) -> MutexGuard<'_, ExclusiveHandle> {
        self.0.exclusive.lock()
    }

    /// Returns the state of a piece that was moved into a message. The state restores the piece if the
    /// message is not sent.
    pub(crate) fn into_moved(self) -> Arc<dyn Any + Send + Sync> {
        self.0
    }

    /// Returns a piece from the state that [`into_moved`](Self::into_moved) returned, and the view that was
    /// passed to [`lend`](Self::lend).
    pub(crate) fn from_moved(lent: &Arc<dyn Any + Send + Sync>) -> Option<(Self, Arc<View>)> {
        let inner = Arc::clone(lent).downcast::<PieceInner>().ok()?;
        let view = inner.exclusive.lock().view.take()?;
        Some((Self(inner), view))
    }
}

/// Releases the slab of a dropped piece. Drops the owners of another library's memory if the memory is
/// unused.
fn release(slab: Arc<Slab>) {
    let foreign = slab.object().is_foreign().then(|| slab.object().mark);
    registry::release(slab);
    if let Some(slab) = foreign {
        owners::on_piece_dropped(slab);
    }
}

pub(super) fn moved() -> mp_core::Error {
    mp_core::Error::Unsendable("this tensor was sent already: what is left of it is empty".into())
}

impl fmt::Debug for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slab = self.0.slab();
        f.debug_struct("Piece")
            .field("device", &slab.object().uuid)
            .field("bytes", &self.0.info.bytes)
            .field("maker", &slab.object().maker.1)
            .field("mapped", &(self.0.is_here() && slab.is_mapped()))
            .finish_non_exhaustive()
    }
}
