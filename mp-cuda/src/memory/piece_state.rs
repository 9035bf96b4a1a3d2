//! State of a piece in this process. All clones of the piece share one state.

use std::sync::Arc;

use mp_core::Hold;
use mp_core::mutex::Mutex;
use mp_tensor::parts::View;

use super::object::{PieceInfo, PieceObject, PieceRow};
use super::slab::Slab;
use super::stream_uses::PieceUses;

/// State of a piece, which all its clones share.
pub(crate) struct PieceInner {
    /// Slab of the piece. `None` while the state is being dropped.
    slab: Option<Arc<Slab>>,
    /// Contents of the piece's object.
    pub(super) info: PieceInfo,
    /// Handle of a piece that was received as frozen or shared. Sending the piece takes no lock.
    pub(super) shared: Option<Hold>,
    /// Handle of a piece that was exclusive when this process received or allocated it.
    pub(super) exclusive: Mutex<ExclusiveHandle>,
    /// Uses of the piece by streams of this process.
    pub(super) uses: PieceUses,
    /// Function that is called with the slab when the piece is dropped.
    release: fn(Arc<Slab>),
}

/// Handle of a piece that was exclusive when this process received or allocated it.
pub(super) struct ExclusiveHandle {
    /// Handle to the object of the piece. `None` if the piece was moved into a message.
    pub(super) object: Option<Hold>,
    /// View of the tensor whose piece was moved into a message.
    pub(super) view: Option<Arc<View>>,
    /// `true` if the piece was converted to another mode, and added to this process's registry.
    pub(super) is_listed: bool,
}

impl PieceInner {
    /// Creates the state of a piece. `release` is called with the slab when the piece is dropped. If
    /// `is_exclusive` is set, only this process has the piece.
    #[inline(always)]
    pub(super) fn new(
        slab: Arc<Slab>,
        PieceObject { hold, info }: PieceObject,
        is_exclusive: bool,
        release: fn(Arc<Slab>),
    ) -> Arc<Self> {
        let (shared, object) = if is_exclusive { (None, Some(hold)) } else { (Some(hold), None) };
        let exclusive = Mutex::new(ExclusiveHandle { object, view: None, is_listed: false });
        Arc::new(Self { slab: Some(slab), info, shared, exclusive, uses: PieceUses::default(), release })
    }

    pub(super) fn slab(&self) -> &Arc<Slab> {
        self.slab.as_ref().expect("it is taken by its drop")
    }

    pub(super) fn row(&self) -> PieceRow {
        self.slab().object().row(self.info.row)
    }

    /// Joins all uses by this process into the row's last use, and records the uses for the slab.
    #[inline]
    pub(super) fn leave(&self, slab: &Slab) {
        slab.note_uses(&self.uses.leave(|| slab.object().row(self.info.row)));
    }

    /// Returns `true` in the process that has the piece, and `false` in its forked copies.
    pub(super) fn is_here(&self) -> bool {
        self.slab.as_ref().is_some_and(|slab| slab.object().is_owner_process())
    }

    /// Returns `true` if the piece was moved into a message.
    pub(super) fn is_moved(&self) -> bool {
        self.shared.is_none() && self.exclusive.lock().object.is_none()
    }
}

impl Drop for PieceInner {
    fn drop(&mut self) {
        // A forked copy has no seat to release.
        let is_here = self.is_here();
        let Some(slab) = self.slab.take().filter(|_| is_here) else { return };
        let object = self.shared.take().or_else(|| self.exclusive.get_mut().object.take());
        if object.is_some() {
            self.leave(&slab);
        }
        // Dropped after the row was written: a process that finds no holder reads the row.
        drop(object);
        (self.release)(slab);
    }
}
