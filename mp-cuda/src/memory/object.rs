//! What the processes know of memory on devices: an object for each slab, one for each piece of it, and rows of a slab.
//!
//! | object of a slab: words | what | written by |
//! |---|---|---|
//! | 0, 1 | the identity of the device | its maker, before any other process knows it |
//! | 2, 3 | bytes of the slab, and of a unit; of memory of another library its bytes and 1 | its maker |
//! | 4, 5 | the process that made it: member, process id | its maker |
//! | 6 | its [kind](Kind) | its maker |
//! | 7 | 0 | its maker |
//! | 8 to 15 | of memory of another library alone: its legacy handle, if it has one | its maker |
//! | first + 2*r* | *last use* of the piece that has row *r*: a tick, or 0 | its holders, one swap each; its maker, before it is sent |
//! | first + 2*r* + 1 | *uses* of that piece with write access: begun (32 bits), *mixed* (1 bit, see `mp_core::steps::row`), ended (31 bits) | its holders, one change each; its maker, before |
//!
//! The first row begins at word 8, of memory of another library at word 16. A slab that is cut up has a row for each unit, the row of a piece
//! is that of its first one. Pieces of memory of another library may begin anywhere, and overlap: each has a row that is free.
//!
//! | object of a piece: words | what | written by |
//! |---|---|---|
//! | 0 | its row | its maker, before any other process knows it |
//! | 1 | its bytes | its maker |
//! | 2 | its mode: 0 exclusive, 1 frozen, 2 shared | the process that has it exclusively, once, from 0 |
//! | 3 | where it begins in the slab, in bytes | its maker |
//!
//! The seats of a piece's object are the holders of the piece. The object is a [part](Structure::part_of) of its slab's: so a message with a
//! piece keeps both, and a process that gets a piece finds the slab by it, also if all that had it are dead. What its maker has to know
//! afterwards is in the row: the maker holds the slab's object, so it can read that when the piece's object is long something else.
//!
//! # Safety
//! Unsafe, because the words could be of another structure; sound, because the structures here are opened by names of this crate, whose
//! words are used for nothing else, and live as long as the handles in these values: a slab that arrived as long as its pieces here, until
//! it is opened and has a handle of its own. Its rows are used by pieces alone, while these are held.
#![allow(unsafe_code)]

use std::sync::OnceLock;

use mp_core::mem::{Mem, Word, run};
use mp_core::words::Member;
use mp_core::{Arena, Hold, Structure, mutant};
use std::os::fd::OwnedFd;

use crate::driver::api::IpcHandle;
use crate::error::{Error, Result};
use crate::uuid::Uuid;
use mp_core::steps::row::{self, BeginPiece, EndUse, LookAtReturned, Returned, RowAt};

const SLAB: &str = "mp_cuda::Slab";
const PIECE: &str = "mp_cuda::Piece";

/// The words before all rows, those of a legacy handle, and those of a row.
const HEAD: u64 = 8;
const HANDLE: u64 = 8;
const ROW: u64 = 2;
/// The words of a piece's object.
const PIECE_WORDS: u64 = 4;
/// How many pieces of one memory of another library can be out at a time.
pub(crate) const FOREIGN_ROWS: u32 = 512;

/// All words of the arena.
fn words(arena: Arena) -> &'static (impl Mem + use<>) {
    // SAFETY: only words of this module's structures are changed, as the tables above say.
    unsafe { arena.words() }
}

/// Whose memory a slab is, and how other processes open it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub(crate) enum Kind {
    /// Its maker's, which cuts it up: by its descriptor.
    Own = 0,
    /// Another library's: by a descriptor.
    Exported = 1,
    /// Another library's: by its legacy handle, as long as its maker lives.
    Legacy = 2,
}

impl Kind {
    fn from_word(word: u64) -> Option<Self> {
        [Self::Own, Self::Exported, Self::Legacy].into_iter().find(|kind| *kind as u64 == word)
    }

    /// The first row's first word.
    fn first_row(self) -> u64 {
        if self == Self::Own { HEAD } else { HEAD + HANDLE }
    }
}

/// A slab: memory of a device of which one process gives pieces away.
#[derive(Clone, Debug)]
pub(crate) struct SlabObject {
    structure: Structure,
    /// What holds it, of one that arrived and that this process has opened: before, its pieces do.
    hold: OnceLock<Hold>,
    mark: u64,
    uuid: Uuid,
    bytes: u64,
    unit: u64,
    maker: (Member, u32),
    kind: Kind,
}

impl SlabObject {
    /// Of a slab that this process is about to make. A unit divides the bytes.
    pub(crate) fn new(uuid: Uuid, bytes: u64, unit: u64) -> Result<Self> {
        Self::of(uuid, bytes, unit, Kind::Own, bytes / unit)
    }

    /// Of memory of another library, which other processes open by this handle, or by the descriptor that is [kept](Self::keep).
    pub(crate) fn foreign(uuid: Uuid, bytes: u64, handle: Option<IpcHandle>) -> Result<Self> {
        let kind = if handle.is_some() { Kind::Legacy } else { Kind::Exported };
        let object = Self::of(uuid, bytes, 1, kind, u64::from(FOREIGN_ROWS))?;
        for (i, word) in (HEAD..).zip(handle.iter().flat_map(|handle| handle.0.chunks_exact(8))) {
            let word = word.iter().rev().fold(0, |all, byte| all << 8 | u64::from(*byte));
            words(object.structure.arena()).store_relaxed(object.structure.word(i), word);
        }
        Ok(object)
    }

    fn of(uuid: Uuid, bytes: u64, unit: u64, kind: Kind, rows: u64) -> Result<Self> {
        let structure = Structure::new(SLAB, kind.first_row() + ROW * rows)?;
        let arena = structure.arena();
        let maker = (arena.me()?, std::process::id());
        let [low, high] = halves(uuid);
        let said = [low, high, bytes, unit, maker.0.raw(), u64::from(maker.1), kind as u64];
        for (i, word) in (0..).zip(said) {
            words(arena).store_relaxed(structure.word(i), word);
        }
        let mark = arena.mark(structure.hold());
        Ok(Self { structure, hold: OnceLock::new(), mark, uuid, bytes, unit, maker, kind })
    }

    /// Of the slab of a piece that arrived: what it says is looked at once, and kept. The piece holds it.
    pub(crate) fn of_piece(piece: &Hold) -> Result<Self> {
        let structure = Structure::whole_of(piece, SLAB)?;
        if structure.len() < HEAD {
            return Err(Error::Malformed(format!("a slab's object of {} words arrived", structure.len())));
        }
        let arena = structure.arena();
        let [low, high, bytes, unit, member, pid, kind] =
            [0, 1, 2, 3, 4, 5, 6].map(|i| words(arena).load(structure.word(i)));
        let Some(kind) = Kind::from_word(kind) else {
            return Err(Error::Malformed(format!("a slab of kind {kind} arrived, and there is none")));
        };
        let rows = structure.len().saturating_sub(kind.first_row()) / ROW;
        let fits = match kind {
            Kind::Own => unit > 0 && bytes.is_multiple_of(unit) && bytes / unit <= rows,
            Kind::Exported | Kind::Legacy => unit == 1 && rows >= u64::from(FOREIGN_ROWS),
        };
        if bytes == 0 || !fits {
            return Err(Error::Malformed(format!(
                "a slab of {bytes} bytes arrived, in units of {unit}, with {rows} rows"
            )));
        }
        let maker = (Member::from_raw(member), u32::try_from(pid).unwrap_or(0));
        let (mark, uuid, hold) = (arena.whole_mark(piece)?, whole([low, high]), OnceLock::new());
        Ok(Self { structure, hold, mark, uuid, bytes, unit, maker, kind })
    }

    /// The legacy handle, of memory that has one.
    pub(crate) fn handle(&self) -> Option<IpcHandle> {
        if self.kind != Kind::Legacy {
            return None;
        }
        let arena = self.structure.arena();
        let mut handle = [0; 64];
        for (i, to) in (HEAD..).zip(handle.chunks_exact_mut(8)) {
            to.copy_from_slice(&words(arena).load(self.structure.word(i)).to_le_bytes());
        }
        Some(IpcHandle(handle))
    }

    /// Returns `true` if no other process holds the slab. If no piece of it has a holder, that is final: messages
    /// hold slabs through pieces only.
    pub(crate) fn is_only_mine(&self) -> bool {
        let me = self.structure.arena().me().ok();
        self.structure.holders().processes.iter().all(|(member, _)| Some(*member) == me)
    }

    /// Whether it is memory of another library.
    pub(crate) fn is_foreign(&self) -> bool {
        self.kind != Kind::Own
    }

    #[cfg(test)]
    pub(crate) fn structure(&self) -> &Structure {
        &self.structure
    }

    /// Whether this process holds it, whatever becomes of its pieces.
    pub(crate) fn is_held(&self) -> bool {
        !self.structure.hold().is_nowhere() || self.hold.get().is_some()
    }

    /// Holds it from now on: it is to be mapped, and its maker is to see by whom. This is one of its pieces.
    pub(crate) fn hold_by(&self, piece: &Hold) -> Result<()> {
        if !self.is_held() && !mutant!("cuda.slab.opened-not-held") {
            let hold = piece.arena().whole(piece)?;
            _ = self.hold.set(hold);
        }
        Ok(())
    }

    #[cfg(feature = "inject")]
    pub(crate) fn arena(&self) -> Arena {
        self.structure.arena()
    }

    /// Which object it is, among all that there ever were.
    pub(crate) fn mark(&self) -> u64 {
        self.mark
    }

    /// Keeps a descriptor, by which other processes open the slab, for as long as a process has this object, or a message a piece of it.
    pub(crate) fn keep(&self, file: OwnedFd) -> Result<()> {
        Ok(self.structure.keep_descriptor(file)?)
    }

    /// A copy of the descriptor that it keeps.
    pub(crate) fn kept(&self) -> Result<Option<OwnedFd>> {
        Ok(self.structure.arena().kept_descriptor(self.mark())?)
    }

    /// The device that it is on.
    pub(crate) fn uuid(&self) -> Uuid {
        self.uuid
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of a unit.
    pub(crate) fn unit(&self) -> u64 {
        self.unit
    }

    pub(crate) fn units(&self) -> u32 {
        u32::try_from(self.bytes / self.unit).unwrap_or(u32::MAX)
    }

    /// How many units this many bytes take.
    pub(crate) fn units_of(&self, bytes: u64) -> u32 {
        u32::try_from(bytes.div_ceil(self.unit).max(1)).unwrap_or(u32::MAX)
    }

    /// The process that made it.
    pub(crate) fn maker(&self) -> (Member, u32) {
        self.maker
    }

    /// Whether this process has it, and is no copy of the one that has.
    pub(crate) fn is_here(&self) -> bool {
        self.structure.arena().me().is_ok()
    }

    /// Whether this process made it.
    pub(crate) fn is_mine(&self) -> bool {
        self.structure.arena().me().is_ok_and(|me| me == self.maker.0) && std::process::id() == self.maker.1
    }

    /// The row of this number, which is there if a piece has it.
    pub(crate) fn row(&self, row: u32) -> Row {
        let first = self.structure.word(self.kind.first_row() + ROW * u64::from(row));
        Row { arena: self.structure.arena(), first }
    }

    /// How many pieces it can have at a time.
    fn rows(&self) -> u32 {
        if self.is_foreign() { FOREIGN_ROWS } else { self.units() }
    }
}

/// The words of a piece that outlive its object. Its holders have a slab's object, or its pieces, alive meanwhile.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    arena: Arena,
    first: Word,
}

impl Row {
    /// The last use of the piece, by whichever process.
    pub fn last_use(&self) -> u64 {
        if self.is_here() { words(self.arena).load(self.at().last_use()) } else { 0 }
    }

    /// Makes `new` the last use, if it still is `old`; what it is otherwise.
    pub fn join_last_use(&self, old: u64, new: u64) -> Result<(), u64> {
        if self.is_here() { words(self.arena).cas(self.at().last_use(), old, new) } else { Ok(()) }
    }

    /// Says that this process may write to the piece from now on: before anything of it does.
    pub fn begin_use(&self) {
        if self.is_here() {
            row::begin_use(self.at(), words(self.arena));
        }
    }

    /// Says that all that this process has written is behind the last use: after that was joined.
    pub fn end_use(&self) {
        if self.is_here() && !mutant!("cuda.row.use-not-ended") {
            run(EndUse::new(self.at()), words(self.arena));
        }
    }

    /// Says that the last use is about to be behind work of several processes.
    pub(crate) fn mix(&self) {
        if self.is_here() {
            row::mix(self.at(), words(self.arena));
        }
    }

    /// Of a piece without holders: what they have left.
    pub(crate) fn returned(&self) -> Returned {
        run(LookAtReturned::new(self.at()), words(self.arena))
    }

    /// For a piece that begins here now, and that no other process knows.
    pub(crate) fn begin(&self) {
        run(BeginPiece::new(self.at()), words(self.arena));
    }

    fn at(&self) -> RowAt {
        RowAt(self.first)
    }

    /// In a copy of the process there is no row.
    fn is_here(&self) -> bool {
        self.arena.me().is_ok()
    }
}

/// What holders of a piece may do with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub enum Mode {
    /// One owner, which moves it.
    Exclusive = 0,
    /// All may read it, and none writes it.
    Frozen = 1,
    /// All may read and write it.
    Shared = 2,
}

/// A piece of a slab.
#[derive(Debug)]
pub(crate) struct PieceObject {
    /// The one handle that a process has.
    pub(super) hold: Hold,
    pub(super) seen: Seen,
}

/// What was found in a piece's object, which stays what it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    mark: u64,
    mode: Word,
    row: u32,
    begins: u64,
    bytes: u64,
}

impl Seen {
    /// Which object's it is.
    pub(crate) fn mark(self) -> u64 {
        self.mark
    }

    /// Looks whether the object came as what its mode says.
    #[inline]
    pub(crate) fn came_as(self, arena: Arena, mode: Mode) -> Result<()> {
        came_as(words(arena).load(self.mode), mode)
    }

    /// The number of its row in the slab.
    pub(crate) fn row(self) -> u32 {
        self.row
    }

    /// How many bytes behind its slab's beginning it begins.
    pub(crate) fn begins(self) -> u64 {
        self.begins
    }

    pub(crate) fn bytes(self) -> u64 {
        self.bytes
    }

    /// Whether it was opened to others that may write it.
    #[cfg(feature = "inject")]
    pub(crate) fn is_shared(self, arena: Arena) -> bool {
        words(arena).load(self.mode) == Mode::Shared as u64
    }

    /// Opens it to others, for good: whether it was exclusive before, or had that mode.
    pub(crate) fn open_to_others(self, arena: Arena, mode: Mode) -> bool {
        let set = words(arena).cas(self.mode, Mode::Exclusive as u64, mode as u64);
        set.map_or_else(|found| found == mode as u64, |()| true)
    }

    /// Whether it is that of the object with this mark.
    pub(crate) fn is_of(self, mark: u64) -> bool {
        self.mark == mark
    }
}

impl PieceObject {
    /// Of a piece that this process has just cut, from this unit on.
    pub(crate) fn new(slab: &SlabObject, unit: u32, bytes: u64) -> Result<Self> {
        Self::at(slab, unit, u64::from(unit) * slab.unit, bytes)
    }

    /// Of a piece that has this row, and begins at this byte of the slab.
    pub(crate) fn at(slab: &SlabObject, row: u32, begins: u64, bytes: u64) -> Result<Self> {
        let mut structure = Structure::new(PIECE, PIECE_WORDS)?;
        for (i, word) in (0..).zip([u64::from(row), bytes, Mode::Exclusive as u64, begins]) {
            words(structure.arena()).store_relaxed(structure.word(i), word);
        }
        structure.part_of(&slab.structure)?;
        Ok(Self::of(structure, row, begins, bytes))
    }

    /// Of a piece that arrived, of this slab: it lies within that, and has this mode.
    pub(crate) fn open(hold: Hold, slab: &SlabObject, mode: Mode) -> Result<Self> {
        let structure = Structure::open(hold, PIECE)?;
        if structure.len() != PIECE_WORDS {
            return Err(Error::Malformed(format!("a piece's object of {} words arrived", structure.len())));
        }
        let arena = structure.arena();
        let word = |i| words(arena).load(structure.word(i));
        let (row, bytes, found, begins) = (word(0), word(1), word(2), word(3));
        let end = begins.checked_add(bytes);
        let inside = end.is_some_and(|end| bytes > 0 && end <= slab.bytes)
            && (slab.is_foreign() || row.checked_mul(slab.unit) == Some(begins))
            || mutant!("cuda.piece.range-not-compared");
        let row = u32::try_from(row)
            .ok()
            .filter(|row| *row < slab.rows() || mutant!("cuda.piece.row-not-compared"));
        let (true, Some(row)) = (inside, row) else {
            return Err(Error::Malformed(format!(
                "{bytes} bytes of device memory arrived, from byte {begins} of a slab that has {}",
                slab.bytes
            )));
        };
        came_as(found, mode)?;
        Ok(Self::of(structure, row, begins, bytes))
    }

    /// Of a piece that arrived, of whose object this was [seen](Self::seen) before: it has this mode.
    #[inline(always)]
    pub(crate) fn again(hold: Hold, seen: Seen, mode: Mode) -> Result<Self> {
        seen.came_as(hold.arena(), mode)?;
        Ok(Self::of_seen(hold, seen))
    }

    /// As [`again`](Self::again), with a mode that was looked at.
    #[inline(always)]
    pub(crate) fn of_seen(hold: Hold, seen: Seen) -> Self {
        Self { hold, seen }
    }

    /// What was found in it.
    pub(crate) fn seen(&self) -> Seen {
        self.seen
    }

    fn of(structure: Structure, row: u32, begins: u64, bytes: u64) -> Self {
        let (mark, mode) = (structure.arena().mark(structure.hold()), structure.word(2));
        Self { hold: structure.into_hold(), seen: Seen { mark, mode, row, begins, bytes } }
    }

    /// Which object it is, among all that there ever were.
    pub(crate) fn mark(&self) -> u64 {
        self.seen.mark
    }
}

/// Looks whether a piece came as what its mode says.
#[inline]
fn came_as(found: u64, mode: Mode) -> Result<()> {
    if found != mode as u64 && !mutant!("cuda.piece.mode-not-compared") {
        let why = format!("a piece of device memory has mode {found}, and arrived as {mode:?}");
        return Err(Error::Malformed(why));
    }
    Ok(())
}

fn halves(uuid: Uuid) -> [u64; 2] {
    let (low, high) = uuid.0.split_at(8);
    [low, high].map(|half| half.iter().rev().fold(0, |all, byte| all << 8 | u64::from(*byte)))
}

fn whole(halves: [u64; 2]) -> Uuid {
    let mut uuid = [0; 16];
    let bytes = halves.into_iter().flat_map(u64::to_le_bytes);
    uuid.iter_mut().zip(bytes).for_each(|(to, byte)| *to = byte);
    Uuid(uuid)
}
