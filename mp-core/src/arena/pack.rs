//! Packing a message: its bytes and seats go into an envelope.

use super::envelope::{Envelope, INLINE, MAX_ATTACHMENTS, Meta};
use super::layout::envelope as field;
use super::{Arena, Hold};
use crate::error::{Error, Result};
use crate::mem::{Mem, Word, run};
use crate::steps::{Note, Take, Taken};
use crate::words::{Access, Attach, EnvelopeId, Kind, Seat};

/// Something to attach to a message. Only handles make one of themselves, so that what a receiver may do with
/// a block follows from the type of the sender's handle.
#[derive(Debug)]
pub struct AttachRequest {
    /// The handle; an exclusive one must be the only one of this process.
    pub(crate) hold: Hold,
    /// How the receiver may use it. [`Access::Exclusive`] moves it, everything else adds a holder.
    pub(crate) access: Access,
    /// The element type, where it matters to who may access what.
    pub(crate) tag: u8,
}

/// A message to be packed: bytes, attachments, and the fingerprint of its type.
#[derive(Debug)]
pub struct Shipment<'a> {
    /// The encoded value.
    pub(crate) bytes: &'a [u8],
    /// What travels beside it.
    pub(crate) attachments: Vec<AttachRequest>,
    /// Fingerprint of its type.
    pub(crate) fingerprint: u64,
}

impl Shipment<'_> {
    /// What was to travel, without the bytes: to read the message back on this side.
    pub fn into_attachments(self) -> Vec<AttachRequest> {
        self.attachments
    }
}

impl Arena {
    /// Packs a message.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::ArenaFull`] or [`Error::Malformed`] (too many attachments); the attachments come
    /// back with it.
    pub fn pack(&self, shipment: Shipment<'_>) -> std::result::Result<Envelope, (Error, Vec<AttachRequest>)> {
        let n = shipment.attachments.len();
        if n > MAX_ATTACHMENTS || shipment.bytes.len() > u32::MAX as usize {
            let what = format!("{n} attachments, {} bytes", shipment.bytes.len());
            let e = Error::Malformed(format!(
                "{what}: a message has at most 65535 attachments and 4 GiB of bytes"
            ));
            return Err((e, shipment.attachments));
        }
        if shipment.attachments.iter().any(|a| a.access == Access::Exclusive && !a.hold.is_exclusive()) {
            return Err((crate::message::not_exclusive(), shipment.attachments));
        }
        let envelope = match self.idle_envelope() {
            Ok(e) => e,
            Err(e) => return Err((e, shipment.attachments)),
        };
        match self.fill(&envelope, shipment) {
            Ok(()) => Ok(envelope),
            Err(back) => Err(back),
        }
    }

    pub(super) fn fill(
        &self,
        envelope: &Envelope,
        shipment: Shipment<'_>,
    ) -> std::result::Result<(), (Error, Vec<AttachRequest>)> {
        let (id, map) = (envelope.id, self.map());
        let Shipment { bytes, attachments, fingerprint } = shipment;
        let head = 8 * attachments.len();
        let meta_word = self.envelope_word(id, field::META);
        map.store_relaxed(self.envelope_word(id, field::TYPE), fingerprint);
        let mut meta = Meta { attachments: attachments.len(), spilled: false, bytes: bytes.len() };
        let mut entries = self.envelope_word(id, field::INLINE);
        let mut data = entries.offset() + head as u64;
        if head + bytes.len() > INLINE {
            meta.spilled = head > INLINE;
            let spill_head = if meta.spilled { head } else { 0 };
            let hold = match self.alloc_kind((spill_head + bytes.len()) as u64, Kind::Spill) {
                Ok(hold) => hold,
                Err(e) => return Err((e, attachments)),
            };
            let at = self.data_of(hold.block()).0;
            data = at + spill_head as u64;
            if meta.spilled {
                entries = Word::at(at);
            }
            let spill = AttachRequest { hold, access: Access::Object, tag: 0 };
            self.move_seat(id, self.envelope_word(id, field::SPILL), spill);
        }
        for k in 0..attachments.len() as u64 {
            map.store_relaxed(entries.plus(k), 0);
        }
        map.store(meta_word, meta.pack());
        super::bytes::write_own(map, data, bytes);
        // First everything that can fail; moving can't.
        for (k, a) in attachments.iter().enumerate() {
            if a.access != Access::Exclusive {
                let note = Note {
                    entry: entries.plus(k as u64),
                    count: meta_word,
                    counted: meta.pack(),
                    access: a.access,
                    tag: a.tag,
                };
                if let Err(e) = self.share_seat(id, note, &a.hold) {
                    return Err((e, attachments));
                }
            }
        }
        for (k, a) in attachments.into_iter().enumerate() {
            if a.access == Access::Exclusive {
                self.move_seat(id, entries.plus(k as u64), a);
            }
        }
        Ok(())
    }

    /// Gives the seat of the only handle to an envelope.
    pub(super) fn move_seat(&self, e: EnvelopeId, entry: Word, request: AttachRequest) {
        let Ok(me) = self.me() else { return };
        let AttachRequest { hold, access, tag } = request;
        let block = hold.block();
        match self.take_seat(hold) {
            Ok(seat) => {
                self.map().store(entry, Attach { block, seat, access, tag }.pack());
                if let Some(word) = self.seat_word(block, seat) {
                    _ = self.map().cas(word, Seat::Member(me).pack(), Seat::Envelope(e).pack());
                }
            }
            // Somebody made another handle since `pack` looked (by unpacking a message in another thread that carries the
            // storage itself). Then the tensor stays here, and the receiver is told that it is missing.
            Err(_others) => {}
        }
    }

    /// Takes another seat for an envelope.
    pub(super) fn share_seat(&self, e: EnvelopeId, note: Note, hold: &Hold) -> Result<()> {
        loop {
            let take = Take::new(self.block_at(hold.block()), self.pages(), Seat::Envelope(e), note);
            match run(take, self.map()) {
                Taken::Seat(_) => return Ok(()),
                Taken::NoneFree => self.add_seat_page(hold.block())?,
            }
        }
    }
}
