//! Shared state of device memory: an object for each slab, an object for each piece, and the rows of a slab.
//!
//! | object of a slab: words | contents | written by |
//! |---|---|---|
//! | 0, 1 | identity of the device | its maker, before any other process knows the object |
//! | 2, 3 | bytes of the slab, and of a unit; for memory of another library its bytes and 1 | its maker |
//! | 4, 5 | process that made the slab: member, process id | its maker |
//! | 6 | [kind](SlabKind) of the slab | its maker |
//! | 7 | 0 | its maker |
//! | 8 to 15 | only for memory of another library: its legacy handle, if it has one | its maker |
//! | first + 2*r* | *last use* of the piece that has row *r*: a tick, or 0 | holders of the piece, by one swap each; its maker, before the piece is sent |
//! | first + 2*r* + 1 | *uses* of that piece with write access: begun (32 bits), *mixed* (1 bit, see `mp_core::steps::device::use_record`), ended (31 bits) | holders of the piece, by one atomic change each; its maker, before the piece is sent |
//!
//! The first row begins at word 8, and for memory of another library at word 16. A slab that is cut up has a
//! row for each unit, and a piece has the row of its first unit. Pieces of another library's memory may begin
//! anywhere, and overlap, so a new piece gets any free row.
//!
//! | object of a piece: words | contents | written by |
//! |---|---|---|
//! | 0 | row of the piece | its maker, before any other process knows the object |
//! | 1 | bytes of the piece | its maker |
//! | 2 | mode of the piece: 0 exclusive, 1 frozen, 2 shared | the exclusive owner of the piece, once, from 0 |
//! | 3 | offset of the piece in the slab, in bytes | its maker |
//!
//! The seats of a piece's object are the holders of the piece. The object is a [child](Structure::set_parent)
//! of the slab's object. So a message with a piece holds both, and a process that receives a piece finds the
//! slab, even if all other holders of the slab are dead. The maker of the slab reads the row after the piece
//! has no holder. The row is in the slab's object, which the maker holds, so it is valid even if the block of
//! the piece's object has another use.
//!
//! # Safety
//! Unsafe, because the words could belong to another structure. Sound, because
//! - the structures are opened by names of this crate, whose words have no other use;
//! - the structures live as long as the handles in the types below: a received slab lives as long as one of
//!   its pieces, or its own handle after it is opened;
//! - only pieces use the rows of a slab, while they are held.
#![allow(unsafe_code)]

use std::os::fd::OwnedFd;
use std::sync::OnceLock;

use mp_core::mem::{Mem, Word, run};
use mp_core::steps::device::use_record::{
    self, EndUse, ReadUseRecord, ResetUseRecord, UseRecord, UseRecordAt,
};
use mp_core::words::Member;
use mp_core::{Allocator, Arena, Descriptors, Hold, Messages, Structure};

use crate::driver::api::IpcHandle;
use crate::error::{Error, Result};
use crate::uuid::Uuid;

const SLAB: &str = "mp_cuda::Slab";
const PIECE: &str = "mp_cuda::Piece";

/// Number of words before the legacy handle, or before the rows if there is no handle. `HANDLE` and `ROW` are
/// the numbers of words of a legacy handle and of a row.
const HEAD: u64 = 8;
const HANDLE: u64 = 8;
const ROW: u64 = 2;
/// Number of words of a piece's object.
const PIECE_WORDS: u64 = 4;
/// Largest number of pieces that one allocation of another library has at the same time.
pub(crate) const FOREIGN_ROWS: u32 = 512;

/// Returns access to the words of the arena.
fn words(arena: Arena) -> &'static (impl Mem + use<>) {
    // SAFETY: only words of this module's structures are changed, as the tables above show.
    unsafe { arena.words() }
}

/// Origin of a slab's memory, which determines how other processes open it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub(crate) enum SlabKind {
    /// Memory that the maker allocated, and cuts pieces out of. Other processes open it by a descriptor.
    Own = 0,
    /// Memory of another library. Other processes open it by a descriptor.
    Exported = 1,
    /// Memory of another library. Other processes open it by a legacy handle, as long as its maker lives.
    Legacy = 2,
}

impl SlabKind {
    fn from_word(word: u64) -> Option<Self> {
        [Self::Own, Self::Exported, Self::Legacy].into_iter().find(|kind| *kind as u64 == word)
    }

    /// Returns the index of the first row's first word.
    fn first_row(self) -> u64 {
        if self == Self::Own { HEAD } else { HEAD + HANDLE }
    }
}

/// Slab: memory of a device that one process divides into pieces.
#[derive(Clone, Debug)]
pub(crate) struct SlabObject {
    structure: Structure,
    /// Handle of a received slab, set when this process opens the slab. Before that, the pieces hold the
    /// slab.
    hold: OnceLock<Hold>,
    /// Mark of the object, which no other object ever has.
    pub(super) mark: u64,
    /// Device of the memory.
    pub(super) uuid: Uuid,
    pub(super) bytes: u64,
    /// Number of bytes of a unit.
    pub(super) unit: u64,
    /// Process that made the slab.
    pub(super) maker: (Member, u32),
    kind: SlabKind,
}

impl SlabObject {
    /// Creates the object of a slab that this process is about to make. `bytes` is a multiple of `unit`.
    pub(crate) fn new(uuid: Uuid, bytes: u64, unit: u64) -> Result<Self> {
        Self::of(uuid, bytes, unit, SlabKind::Own, bytes / unit)
    }

    /// Creates the object of another library's memory. Other processes open the memory by the legacy handle
    /// `handle`, or if it is `None` by the [long-lived descriptor](Self::keep_descriptor).
    pub(crate) fn foreign(uuid: Uuid, bytes: u64, handle: Option<IpcHandle>) -> Result<Self> {
        let kind = if handle.is_some() { SlabKind::Legacy } else { SlabKind::Exported };
        let object = Self::of(uuid, bytes, 1, kind, u64::from(FOREIGN_ROWS))?;
        for (i, word) in (HEAD..).zip(handle.iter().flat_map(|handle| handle.0.as_chunks().0)) {
            words(object.structure.arena())
                .store_relaxed(object.structure.word(i), u64::from_le_bytes(*word));
        }
        Ok(object)
    }

    fn of(uuid: Uuid, bytes: u64, unit: u64, kind: SlabKind, rows: u64) -> Result<Self> {
        let structure = Structure::new(SLAB, kind.first_row() + ROW * rows)?;
        let arena = structure.arena();
        let maker = (arena.me()?, std::process::id());
        let [low, high] = halves(uuid);
        let said = [low, high, bytes, unit, maker.0.raw(), u64::from(maker.1), kind as u64];
        for (i, word) in (0..).zip(said) {
            words(arena).store_relaxed(structure.word(i), word);
        }
        let mark = structure.hold().mark();
        Ok(Self { structure, hold: OnceLock::new(), mark, uuid, bytes, unit, maker, kind })
    }

    /// Reads and checks the object of the slab to which a received piece belongs. The piece holds the slab.
    pub(crate) fn of_piece(piece: &Hold) -> Result<Self> {
        let structure = Structure::parent_of(piece, SLAB)?;
        if structure.len() < HEAD {
            return Err(Error::Malformed(format!("a slab's object of {} words arrived", structure.len())));
        }
        let arena = structure.arena();
        let [low, high, bytes, unit, member, pid, kind] =
            [0, 1, 2, 3, 4, 5, 6].map(|i| words(arena).load(structure.word(i)));
        let Some(kind) = SlabKind::from_word(kind) else {
            return Err(Error::Malformed(format!("a slab of unknown kind {kind} arrived")));
        };
        let rows = structure.len().saturating_sub(kind.first_row()) / ROW;
        let fits = match kind {
            SlabKind::Own => unit > 0 && bytes.is_multiple_of(unit) && bytes / unit <= rows,
            SlabKind::Exported | SlabKind::Legacy => unit == 1 && rows >= u64::from(FOREIGN_ROWS),
        };
        if bytes == 0 || !fits {
            return Err(Error::Malformed(format!(
                "a slab of {bytes} bytes arrived, in units of {unit}, with {rows} rows"
            )));
        }
        let maker = (Member::from_raw(member), u32::try_from(pid).unwrap_or(0));
        let (mark, uuid, hold) = (Allocator(arena).parent_mark(piece)?, whole([low, high]), OnceLock::new());
        Ok(Self { structure, hold, mark, uuid, bytes, unit, maker, kind })
    }

    /// Returns the legacy handle, if the memory has one.
    pub(crate) fn handle(&self) -> Option<IpcHandle> {
        if self.kind != SlabKind::Legacy {
            return None;
        }
        let arena = self.structure.arena();
        let mut handle = [0; 64];
        for (i, to) in (HEAD..).zip(handle.chunks_exact_mut(8)) {
            to.copy_from_slice(&words(arena).load(self.structure.word(i)).to_le_bytes());
        }
        Some(IpcHandle(handle))
    }

    /// Returns `true` if no other process holds the slab. The result is final if no piece of the slab has a
    /// holder, because messages hold slabs through pieces only.
    pub(crate) fn is_only_mine(&self) -> bool {
        let me = self.structure.arena().me().ok();
        self.structure.holders().processes.iter().all(|(member, _)| Some(*member) == me)
    }

    /// Returns `true` if another library allocated the memory.
    pub(crate) fn is_foreign(&self) -> bool {
        self.kind != SlabKind::Own
    }

    #[cfg(test)]
    pub(crate) fn structure(&self) -> &Structure {
        &self.structure
    }

    /// Returns `true` if this process holds the slab independently of its pieces.
    pub(crate) fn is_held(&self) -> bool {
        !self.structure.hold().is_nowhere() || self.hold.get().is_some()
    }

    /// Holds the slab independently of its pieces, before this process maps it. So the maker sees which
    /// processes have the slab mapped. `piece` is a piece of the slab.
    pub(crate) fn hold_by(&self, piece: &Hold) -> Result<()> {
        if !self.is_held() {
            let hold = Messages(piece.arena()).parent(piece)?;
            _ = self.hold.set(hold);
        }
        Ok(())
    }

    #[cfg(feature = "inject")]
    pub(crate) fn arena(&self) -> Arena {
        self.structure.arena()
    }

    /// Stores a long-lived descriptor by which other processes open the slab. The descriptor exists as long
    /// as a process has this object, or a message has a piece of the slab.
    pub(crate) fn keep_descriptor(&self, file: OwnedFd) -> Result<()> {
        Ok(self.structure.keep_descriptor(file)?)
    }

    /// Returns a copy of the long-lived descriptor.
    pub(crate) fn kept_descriptor(&self) -> Result<Option<OwnedFd>> {
        Ok(Descriptors(self.structure.arena()).kept_descriptor(self.mark)?)
    }

    pub(crate) fn units(&self) -> u32 {
        u32::try_from(self.bytes / self.unit).unwrap_or(u32::MAX)
    }

    /// Returns the number of units that a piece of this many bytes occupies, at least one.
    pub(crate) fn units_of(&self, bytes: u64) -> u32 {
        u32::try_from(bytes.div_ceil(self.unit).max(1)).unwrap_or(u32::MAX)
    }

    /// Returns `false` in a forked copy of the process that has the slab.
    pub(crate) fn is_owner_process(&self) -> bool {
        self.structure.arena().me().is_ok()
    }

    /// Returns `true` if this process made the slab.
    pub(crate) fn is_mine(&self) -> bool {
        self.structure.arena().me().is_ok_and(|me| me == self.maker.0) && std::process::id() == self.maker.1
    }

    /// Returns the row with this number. The caller has a piece with this row, or is about to create one.
    pub(crate) fn row(&self, row: u32) -> PieceRow {
        let first = self.structure.word(self.kind.first_row() + ROW * u64::from(row));
        PieceRow { arena: self.structure.arena(), first }
    }

    /// Returns the largest number of pieces that the slab can have at a time.
    fn rows(&self) -> u32 {
        if self.is_foreign() { FOREIGN_ROWS } else { self.units() }
    }
}

/// Row of a piece in its slab's object: words that outlive the object of the piece. The holders of the piece
/// keep the slab's object alive.
#[derive(Clone, Copy, Debug)]
pub struct PieceRow {
    arena: Arena,
    first: Word,
}

impl PieceRow {
    /// Returns the last use of the piece by any process: a tick, or 0.
    pub fn last_use(&self) -> u64 {
        if self.is_owner_process() { words(self.arena).load(self.at().last_use()) } else { 0 }
    }

    /// Replaces the last use `old` by `new`. Returns the current last use as an error if it differs from
    /// `old`.
    pub fn join_last_use(&self, old: u64, new: u64) -> Result<(), u64> {
        if self.is_owner_process() { words(self.arena).cas(self.at().last_use(), old, new) } else { Ok(()) }
    }

    /// Records that this process may write to the piece, before its first write.
    pub fn begin_use(&self) {
        if self.is_owner_process() {
            use_record::begin_use(self.at(), words(self.arena));
        }
    }

    /// Records that the last use follows all writes of this process. The caller has joined these writes into
    /// the last use before.
    pub fn end_use(&self) {
        if self.is_owner_process() {
            run(EndUse::new(self.at()), words(self.arena));
        }
    }

    /// Records that the last use is about to cover work of several processes.
    pub(crate) fn mix(&self) {
        if self.is_owner_process() {
            use_record::mark_mixed(self.at(), words(self.arena));
        }
    }

    /// Returns the uses of a piece that has no holder.
    pub(crate) fn returned(&self) -> UseRecord {
        run(ReadUseRecord::new(self.at()), words(self.arena))
    }

    /// Resets the row for a new piece, which no other process has.
    pub(crate) fn begin(&self) {
        run(ResetUseRecord::new(self.at()), words(self.arena));
    }

    fn at(&self) -> UseRecordAt {
        UseRecordAt(self.first)
    }

    /// Returns `false` in a forked copy of the process, which must not access rows.
    fn is_owner_process(&self) -> bool {
        self.arena.me().is_ok()
    }
}

/// Access of a piece's holders.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub enum PieceMode {
    /// The piece has one owner, which moves it.
    Exclusive = 0,
    /// All holders may read the piece, and no holder may write to it.
    Frozen = 1,
    /// All holders may read and write the piece.
    Shared = 2,
}

/// Piece of a slab.
#[derive(Debug)]
pub(crate) struct PieceObject {
    /// Handle to the object: the only handle in this process.
    pub(super) hold: Hold,
    pub(super) info: PieceInfo,
}

/// Contents of a piece's object, which never change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PieceInfo {
    /// Mark of the object, which no other object ever has.
    pub(super) mark: u64,
    mode: Word,
    /// Number of the piece's row in the slab.
    pub(super) row: u32,
    /// Offset of the piece in the slab, in bytes.
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

impl PieceInfo {
    /// Returns an error if the mode in the piece's object is not `mode`, the mode of the message.
    #[inline]
    pub(crate) fn check_mode(self, arena: Arena, mode: PieceMode) -> Result<()> {
        check_mode(words(arena).load(self.mode), mode)
    }

    /// Returns `true` if other processes may write to the piece.
    #[cfg(feature = "inject")]
    pub(crate) fn is_shared(self, arena: Arena) -> bool {
        words(arena).load(self.mode) == PieceMode::Shared as u64
    }

    /// Converts an exclusive piece to this mode, forever. Returns `true` if the piece was exclusive, or
    /// already had this mode.
    pub(crate) fn share_as(self, arena: Arena, mode: PieceMode) -> bool {
        let set = words(arena).cas(self.mode, PieceMode::Exclusive as u64, mode as u64);
        set.map_or_else(|found| found == mode as u64, |()| true)
    }
}

impl PieceObject {
    /// Creates the object of a piece that this process has just cut. The piece begins at unit `unit` of the
    /// slab.
    pub(crate) fn new(slab: &SlabObject, unit: u32, bytes: u64) -> Result<Self> {
        Self::at(slab, unit, u64::from(unit) * slab.unit, bytes)
    }

    /// Creates the object of a piece with this row, which begins at byte `offset` of the slab.
    pub(crate) fn at(slab: &SlabObject, row: u32, offset: u64, bytes: u64) -> Result<Self> {
        let mut structure = Structure::new(PIECE, PIECE_WORDS)?;
        for (i, word) in (0..).zip([u64::from(row), bytes, PieceMode::Exclusive as u64, offset]) {
            words(structure.arena()).store_relaxed(structure.word(i), word);
        }
        structure.set_parent(&slab.structure)?;
        Ok(Self::of(structure, row, offset, bytes))
    }

    /// Reads the object of a received piece. Returns an error unless the piece lies within the slab and has
    /// this mode.
    pub(crate) fn open(hold: Hold, slab: &SlabObject, mode: PieceMode) -> Result<Self> {
        let structure = Structure::open(hold, PIECE)?;
        if structure.len() != PIECE_WORDS {
            return Err(Error::Malformed(format!("a piece's object of {} words arrived", structure.len())));
        }
        let arena = structure.arena();
        let word = |i| words(arena).load(structure.word(i));
        let (row, bytes, found, offset) = (word(0), word(1), word(2), word(3));
        let end = offset.checked_add(bytes);
        let inside = end.is_some_and(|end| bytes > 0 && end <= slab.bytes)
            && (slab.is_foreign() || row.checked_mul(slab.unit) == Some(offset));
        let row = u32::try_from(row).ok().filter(|row| *row < slab.rows());
        let (true, Some(row)) = (inside, row) else {
            return Err(Error::Malformed(format!(
                "{bytes} bytes of device memory arrived, from byte {offset} of a slab that has {}",
                slab.bytes
            )));
        };
        check_mode(found, mode)?;
        Ok(Self::of(structure, row, offset, bytes))
    }

    /// Returns the object of a received piece, given its contents from [recorded](Self::info) earlier reads.
    /// Returns an error if the piece has another mode.
    #[inline(always)]
    pub(crate) fn with_info(hold: Hold, info: PieceInfo, mode: PieceMode) -> Result<Self> {
        info.check_mode(hold.arena(), mode)?;
        Ok(Self { hold, info })
    }

    fn of(structure: Structure, row: u32, offset: u64, bytes: u64) -> Self {
        let (mark, mode) = (structure.hold().mark(), structure.word(2));
        Self { hold: structure.into_hold(), info: PieceInfo { mark, mode, row, offset, bytes } }
    }
}

/// Returns an error if `found`, the mode of a piece, is not `mode`, the mode of the message.
#[inline]
fn check_mode(found: u64, mode: PieceMode) -> Result<()> {
    if found != mode as u64 {
        let why = format!("a piece of device memory has mode {found}, and arrived as {mode:?}");
        return Err(Error::Malformed(why));
    }
    Ok(())
}

fn halves(uuid: Uuid) -> [u64; 2] {
    let number = u128::from_le_bytes(uuid.0);
    [number as u64, (number >> 64) as u64]
}

fn whole([low, high]: [u64; 2]) -> Uuid {
    Uuid((u128::from(low) | u128::from(high) << 64).to_le_bytes())
}
