//! Hostile bytes in the words of envelopes, and in the packet that carries the arena's file.

use std::os::fd::{AsFd, BorrowedFd};

use crate::arena::Arena;
use crate::envelopes::Envelopes;
use crate::envelopes::{INLINE, Meta};
use crate::error::Error;
use crate::layout::envelope as field;
use crate::mem::Mem;
use crate::setup::fd_store::{PARCEL, Parcel};
use crate::sys::packets;
use crate::transport::envelope::Envelope;
use crate::transport::{Incoming, Messages, Outgoing};
use crate::words::{Access, Attachment, Grant, SeatAt};

/// Fingerprint of the messages.
const TYPE: u64 = 7;
/// Size in bytes of a message that is too long for its envelope.
const SPILLED: usize = INLINE + 40;

/// Flag in the first byte: the bytes of the message are in a spill block.
const APART: u8 = 1;
/// Flag in the first byte: the list of attachments is hostile, too.
const LIST: u8 = 2;

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(8 * at..).and_then(<[u8]>::first_chunk).map(|word| u64::from_le_bytes(*word))
}

/// Fuzzes one envelope. The first byte has the flags. The meta word follows, then bytes or the list of
/// attachments.
pub(crate) fn envelopes(bytes: &[u8]) {
    let Some((flags, bytes)) = bytes.split_first() else { return };
    let Some(meta) = word(bytes, 0) else { return };
    let bytes = &bytes[8..bytes.len().min(2000)];
    for room in [None, Some(0), Some(64), Some(600), Some(u64::from(u32::MAX))] {
        lengths(meta, room);
    }
    for attach in
        (0..).map_while(|at| word(bytes, at)).filter_map(|word| Some((word, Attachment::unpack(word)?)))
    {
        assert_eq!(attach.1.pack(), attach.0, "{attach:?}");
    }
    let arena = Arena::current().unwrap();
    let mut envelope = packed(arena, if flags & APART == 0 { 0 } else { SPILLED.max(bytes.len()) }, bytes);
    let id = envelope.id();
    arena.map().store(Envelopes(arena).envelope_word(id, field::META), meta);
    if flags & LIST != 0 {
        (0..INLINE / 8).map_while(|at| word(bytes, at)).zip(0..).for_each(|(word, at)| {
            arena.map().store(Envelopes(arena).envelope_word(id, field::INLINE).plus(at), word);
        });
    }
    // A queue calls this before it takes a message. No list of attachments exceeds its space.
    _ = envelope.weight();
    let mut incoming = Incoming::default();
    match envelope.open(&mut incoming) {
        Ok(()) => {
            let meta = Meta::of_any_version(meta);
            assert_eq!((incoming.whole().len(), incoming.fingerprint()), (meta.bytes, TYPE), "{meta:?}");
            // The message had no attachments: no process can hand over a forged one.
            assert_eq!((incoming.blocks().count(), meta.attachments), (0, 0), "{meta:?}");
        }
        Err(Error::Malformed(_) | Error::Version { .. } | Error::Stale(_)) => {}
        Err(other) => panic!("hostile bytes caused another kind of error: {other:?}"),
    }
}

/// Packs a message of at least `len` bytes, which begins with `bytes`.
fn packed(arena: Arena, len: usize, bytes: &[u8]) -> Envelope {
    let mut out = Outgoing::default();
    out.bytes().extend_from_slice(bytes);
    let len = len.max(bytes.len().min(INLINE));
    out.bytes().resize(len, 0);
    Messages(arena).pack(&mut out, TYPE).unwrap()
}

/// Checks that a meta word describes parts within the envelope, or is refused.
fn lengths(word: u64, spill: Option<u64>) {
    let Ok(meta) = Meta::unpack(word) else { return };
    // The number of deliveries (seven bits) belongs to the queue.
    assert_eq!(meta.pack(), word & !(0x7f << 17), "{meta:?}");
    let Ok(from) = meta.bytes_at(spill) else { return };
    let room = spill.unwrap_or(INLINE as u64);
    assert!((from + meta.bytes) as u64 <= room, "{meta:?} in {room}");
    let listed = 8 * meta.attachments as u64;
    assert!(listed <= if meta.spilled { room } else { INLINE as u64 }, "{meta:?} in {room}");
}

pub(crate) fn envelope_samples() -> Vec<(&'static str, Vec<u8>)> {
    let arena = Arena::current().unwrap();
    let words = |envelope: &Envelope, fields: &[u64]| {
        let word = |field: &u64| {
            arena.map().load(Envelopes(arena).envelope_word(envelope.id(), *field)).to_le_bytes()
        };
        fields.iter().flat_map(word).collect()
    };
    let short = packed(arena, 0, &[1, 2, 3, 4, 5, 6, 7, 8]);
    let long = packed(arena, SPILLED, &[1]);
    let attach = |access, tag| {
        let seat = SeatAt::inline(3);
        Attachment { block: 0x12_3456, seat, grant: Grant::new(access, tag) }.pack().to_le_bytes().to_vec()
    };
    let full = Meta { attachments: 300, spilled: true, bytes: 70_000 };
    vec![
        (
            "meta word and type of 8 bytes, and these",
            words(&short, &[field::META, field::TYPE, field::INLINE]),
        ),
        ("meta word and type of 256 bytes", words(&long, &[field::META, field::TYPE])),
        ("meta word of 300 attachments", full.pack().to_le_bytes().to_vec()),
        ("exclusive attachment", attach(Access::Exclusive, 11)),
        ("frozen attachment", attach(Access::Frozen, 0)),
        ("shared attachment", attach(Access::Shared, 31)),
        ("object", attach(Access::Object, 0)),
        ("descriptors", attach(Access::Object, 1)),
    ]
}

pub(crate) fn envelope_seeds() -> Vec<Vec<u8>> {
    let of = |flags: u8, meta: Meta, bytes: &[u8]| [&[flags], &meta.pack().to_le_bytes()[..], bytes].concat();
    let none = Meta { attachments: 0, spilled: false, bytes: 40 };
    let attach = Attachment { block: 1, seat: SeatAt::inline(0), grant: Grant::new(Access::Frozen, 0) };
    let list = attach.pack().to_le_bytes().repeat(4);
    vec![
        of(0, none, &[7; 40]),
        of(APART, Meta { bytes: SPILLED, ..none }, &[7; 40]),
        of(LIST, Meta { attachments: 4, bytes: 8, ..none }, &list),
        of(APART, Meta { attachments: 4, spilled: true, bytes: 100 }, &list),
        of(APART | LIST, Meta { attachments: 2, ..none }, &list),
    ]
}

/// Fuzzes a packet: its number, then a byte with the number of files in it.
pub(crate) fn parcels(bytes: &[u8]) {
    let (Some(number), Some(files)) = (word(bytes, 0), bytes.get(8)) else { return };
    let (into, out) = packets::pair().unwrap();
    let files: Vec<BorrowedFd<'_>> = (0..files % 4).map(|_| into.as_fd()).collect();
    // May fail without a file. The result is checked only if the packet is accepted.
    let sent = packets::send(&into, number, &files);
    match Parcel::open(out) {
        Ok((_, parcel)) => {
            assert!(sent.is_ok() && parcel.is_some() && files.len() >= 2 && number == PARCEL, "{parcel:?}");
        }
        Err(Error::NotAnArena(_) | Error::Os { .. }) => {}
        Err(other) => panic!("hostile bytes caused another kind of error: {other:?}"),
    }
}

pub(crate) fn parcel_samples() -> Vec<(&'static str, Vec<u8>)> {
    vec![("parcel", PARCEL.to_ne_bytes().to_vec())]
}

pub(crate) fn parcel_seeds() -> Vec<Vec<u8>> {
    (0..4).map(|files| [&PARCEL.to_ne_bytes()[..], &[files]].concat()).collect()
}
