//! Malformed objects of slabs and pieces in messages. Inconsistent objects are refused when they are
//! received. Objects without memory are refused when they are opened.
#![allow(unsafe_code)]

use mp_core::Structure;
use mp_core::mem::Mem;
use mp_core::message::Outgoing;
use mp_cuda::memory::{Piece, PieceMode};
use mp_cuda::{Device, Error};

use crate::support::{Outcome, nothing_is_left, run, session};

/// Creates a structure of `len` words that begins with `words`. The remaining words are 0.
fn made(name: &'static str, len: u64, words: &[u64]) -> Structure {
    let structure = Structure::new(name, len).unwrap();
    // SAFETY: only words of this structure are changed.
    let arena = unsafe { structure.arena().words() };
    for (i, word) in (0..len).zip(words) {
        arena.store(structure.word(i), *word);
    }
    structure
}

/// Receives a message with a slab and a piece whose objects have these words.
fn taken(slab: &[u64], len: u64, piece: &[u64]) -> mp_cuda::Result<Piece> {
    let (slab, mut piece) = (made("mp_cuda::Slab", len, slab), made("mp_cuda::Piece", 4, piece));
    piece.set_parent(&slab)?;
    let mut out = Outgoing::default();
    let number = out.attached().attach_object(piece.hold())?;
    Piece::take(out.into_incoming().arrived(), number, PieceMode::Frozen)
}

const MIB: u64 = 1 << 20;
/// Kinds of slabs, and numbers of words of objects with 16 or 512 rows.
const OWN: u64 = 0;
const EXPORTED: u64 = 1;
const LEGACY: u64 = 2;
const FOREIGN: u64 = 16 + 2 * 512;

fn forged((): ()) -> Outcome {
    let device = Device::new(0)?;
    let halves = |at: usize| u64::from_le_bytes(device.uuid().0[at..at + 8].try_into().unwrap());
    let (low, high) = (halves(0), halves(8));
    let me = mp_core::Arena::current()?.me()?.raw();
    let slab = |bytes, unit, kind| [low, high, bytes, unit, me, u64::from(std::process::id()), kind];
    let piece = |row, bytes, begins| [row, bytes, 1, begins];
    let own = 8 + 2 * 16;
    // Slabs.
    for (slab, len, why) in [
        (slab(16 * MIB, MIB, OWN), 7, "a slab's object of 7 words"),
        (slab(16 * MIB, 0, OWN), own, "in units of 0"),
        (slab(16 * MIB + 1, MIB, OWN), own, "in units of"),
        (slab(17 * MIB, MIB, OWN), own, "with 16 rows"),
        (slab(0, MIB, OWN), own, "a slab of 0 bytes"),
        (slab(MIB, 1, 3), FOREIGN, "a slab of unknown kind 3"),
        (slab(MIB, 1, u64::MAX), FOREIGN, "a slab of unknown kind"),
        (slab(MIB, 2, EXPORTED), FOREIGN, "in units of 2"),
        (slab(MIB, 1, LEGACY), FOREIGN - 2, "with 511 rows"),
        (slab(MIB, 1, LEGACY), 8, "with 0 rows"),
        (slab(0, 1, EXPORTED), FOREIGN, "a slab of 0 bytes"),
    ] {
        let error = taken(&slab, len, &piece(0, 100, 0)).unwrap_err();
        assert!(matches!(&error, Error::Malformed(text) if text.contains(why)), "{why}: {error}");
    }
    // Pieces of valid slabs.
    let foreign = slab(MIB, 1, LEGACY);
    for (kind, len, piece) in [
        (foreign, FOREIGN, piece(0, MIB + 1, 0)),
        (foreign, FOREIGN, piece(0, 1, MIB)),
        (foreign, FOREIGN, piece(0, 0, 0)),
        (foreign, FOREIGN, piece(0, u64::MAX, 2)),
        (foreign, FOREIGN, piece(512, 1, 0)),
        (foreign, FOREIGN, piece(1 << 32, 1, 0)),
        (slab(16 * MIB, MIB, OWN), own, piece(1, 1, 0)),
        (slab(16 * MIB, MIB, OWN), own, piece(0, 1, MIB)),
        (slab(16 * MIB, MIB, OWN), own, piece(16, 1, 16 * MIB)),
        (slab(16 * MIB, MIB, OWN), own, piece(u64::MAX, 1, 0)),
    ] {
        let error = taken(&kind, len, &piece).unwrap_err();
        assert!(matches!(&error, Error::Malformed(text) if text.contains("from byte")), "{piece:?}: {error}");
    }
    assert!(taken(&foreign, FOREIGN, &piece(511, 1, MIB - 1)).is_ok(), "the last byte, the last row");
    // A slab can't be opened: its descriptor is not stored, its handle is invalid, or its maker does not
    // exist.
    for kind in [OWN, EXPORTED] {
        let (unit, len) = if kind == OWN { (MIB, own) } else { (1, FOREIGN) };
        let lost = taken(&slab(16 * MIB, unit, kind), len, &piece(0, 100, 0))?;
        let error = lost.open(&device).unwrap_err();
        assert!(matches!(error, Error::Gone), "{error}");
    }
    let no_handle = taken(&foreign, FOREIGN, &piece(0, 100, 0))?;
    let error = no_handle.open(&device).unwrap_err();
    assert!(matches!(&error, Error::Driver { call: "cuIpcOpenMemHandle_v2", .. }), "{error}");
    let mut orphan = foreign;
    orphan[4] = u64::MAX;
    let error = taken(&orphan, FOREIGN, &piece(0, 100, 0))?.open(&device).unwrap_err();
    assert!(matches!(error, Error::ProducerDied { .. }), "{error}");
    // A slab of an invalid device.
    let mut elsewhere = foreign;
    elsewhere[0] = 1;
    let error = taken(&elsewhere, FOREIGN, &piece(0, 100, 0))?.open(&device).unwrap_err();
    assert!(matches!(error, Error::UnknownDevice { .. }), "{error}");
    Ok(())
}

#[test]
fn forged_words_of_device_messages_are_refused() {
    let session = session();
    run(&session, forged, ());
    nothing_is_left(&session);
}
