//! Packing a message: its bytes and seats go into an envelope.

use super::envelope::{AHEAD, Envelope, INLINE, MAX_ATTACHMENTS, Meta, TAIL};
use super::layout::envelope as field;
use super::{Arena, Hold};
use crate::error::{Error, Result};
use crate::mem::{Mem, Word, run_straight};
use crate::message::Outgoing;
use crate::steps::{Note, Take, Taken};
use crate::words::{Access, Attach, BlockId, EnvelopeId, Grant, Kind, Seat};

/// Something to attach to a message. Only handles make one of themselves, so that what a receiver may do with
/// a block follows from the type of the sender's handle.
#[derive(Debug)]
pub struct AttachRequest {
    /// The handle; an exclusive one must be the only one of this process.
    pub(crate) hold: Hold,
    /// What the receiver gets. [`Access::Exclusive`] moves it, everything else adds a holder.
    pub(crate) grant: Grant,
}

impl AttachRequest {
    /// Another handle of the same kind.
    pub(super) fn again(&self) -> Self {
        Self { hold: self.hold.clone(), grant: self.grant }
    }
}

impl Arena {
    /// Packs a message. What is attached goes over to the envelope; on an error it stays.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::ArenaFull`] or [`Error::Malformed`] (too many attachments).
    #[inline]
    pub fn pack(&self, message: &mut Outgoing, fingerprint: u64) -> Result<Envelope> {
        let (bytes, attachments) = message.parts();
        let envelope = self.idle_envelope()?;
        let map = self.map();
        map.store_relaxed(self.envelope_word(envelope.id, field::TYPE), fingerprint);
        match attachments {
            None if bytes.len() <= INLINE + usize::from(mutant!("arena.pack.one-byte-too-many")) => {
                let meta = Meta { attachments: 0, spilled: false, bytes: bytes.len() };
                map.store(self.envelope_word(envelope.id, field::META), meta.pack());
                self.write_inline(envelope.id, 0, bytes);
            }
            None => self.fill(&envelope, bytes, &mut Vec::new())?,
            Some(attachments) => self.fill(&envelope, bytes, attachments)?,
        }
        Ok(envelope)
    }

    /// As [`pack`](Self::pack), with attachments or a spill block.
    pub(super) fn fill(
        &self,
        envelope: &Envelope,
        bytes: &[u8],
        attachments: &mut Vec<AttachRequest>,
    ) -> Result<()> {
        let n = attachments.len();
        if n > MAX_ATTACHMENTS || bytes.len() > u32::MAX as usize {
            let what = format!("{n} attachments, {} bytes", bytes.len());
            return Err(Error::Malformed(format!(
                "{what}: a message has at most 65535 attachments and 4 GiB of bytes"
            )));
        }
        if attachments.iter().any(|a| a.grant.access() == Access::Exclusive && !a.hold.is_exclusive())
            && !mutant!("arena.pack.exclusive-not-checked")
        {
            return Err(crate::message::not_exclusive());
        }
        let (id, map) = (envelope.id, self.map());
        let head = 8 * n;
        let meta_word = self.envelope_word(id, field::META);
        let mut meta = Meta { attachments: n, spilled: false, bytes: bytes.len() };
        let mut entries = self.envelope_word(id, field::INLINE);
        let mut data = None;
        if head + bytes.len() > INLINE + usize::from(mutant!("arena.pack.one-byte-too-many-attached")) {
            // The last words of an envelope that spills are free for its queue.
            meta.spilled = head > INLINE - if mutant!("arena.pack.list-in-the-tail") { 0 } else { TAIL };
            let spill_head = if meta.spilled { head } else { 0 };
            let hold = self.alloc_kind((spill_head + bytes.len()) as u64, Kind::Spill)?;
            let at = self.data_of(hold.block()).0;
            data = Some(at + spill_head as u64);
            if meta.spilled {
                entries = Word::at(at);
            }
            let spill = AttachRequest { hold, grant: Grant::new(Access::Object, 0) };
            self.move_seat(id, self.envelope_word(id, field::SPILL), spill);
        }
        for k in 0..n as u64 {
            if !mutant!("arena.pack.list-not-cleared") {
                map.store_relaxed(entries.plus(k), 0);
            }
        }
        map.store(meta_word, meta.pack());
        match data {
            Some(at) => super::bytes::write_own(map, at, bytes),
            None => self.write_inline(id, head, bytes),
        }
        // First everything that can fail; moving can't.
        for (k, a) in attachments.iter().enumerate() {
            if let Some(ahead) = attachments.get(k + AHEAD) {
                map.will_write(self.block_at(ahead.hold.block()).state);
            }
            if a.grant.access() != Access::Exclusive {
                let note = Note {
                    entry: entries.plus(k as u64),
                    count: meta_word,
                    counted: meta.pack(),
                    grant: a.grant,
                };
                self.share_seat(id, note, &a.hold)?;
            }
        }
        for (k, a) in attachments.drain(..).enumerate() {
            if a.grant.access() == Access::Exclusive {
                self.move_seat(id, entries.plus(k as u64), a);
            }
        }
        Ok(())
    }

    /// Moves an envelope's bytes into a block if they reach into its last two words. What was attached stays.
    pub(super) fn spill(&self, envelope: &Envelope) -> Result<()> {
        let (id, map) = (envelope.id, self.map());
        let spill_word = self.envelope_word(id, field::SPILL);
        let meta = Meta::unpack(map.load_relaxed(self.envelope_word(id, field::META)))?;
        let listed = 8 * meta.attachments;
        if map.load_relaxed(spill_word) != 0
            || listed + meta.bytes <= INLINE - TAIL + usize::from(mutant!("arena.spill.one-byte-too-many"))
        {
            return Ok(());
        }
        let mut bytes = vec![0; meta.bytes];
        self.read_inline(id, listed, &mut bytes);
        let hold = self.alloc_kind(meta.bytes as u64, Kind::Spill)?;
        super::bytes::write_own(map, self.data_of(hold.block()).0, &bytes);
        self.move_seat(id, spill_word, AttachRequest { hold, grant: Grant::new(Access::Object, 0) });
        Ok(())
    }

    /// Gives the seat of the only handle to an envelope.
    pub(super) fn move_seat(&self, e: EnvelopeId, entry: Word, request: AttachRequest) {
        let Ok(me) = self.me() else { return };
        let AttachRequest { hold, grant } = request;
        let block = hold.block();
        match self.take_seat(hold) {
            Ok(seat) => {
                if !mutant!("arena.move.not-noted") {
                    self.map().store(entry, Attach { block, seat, grant }.pack());
                }
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
        self.share_block_seat(e, note, hold.block())
    }

    /// As [`share_seat`](Self::share_seat), of a block that somebody holds until this returns.
    pub(super) fn share_block_seat(&self, e: EnvelopeId, note: Note, block: BlockId) -> Result<()> {
        let m = *self.map();
        loop {
            let take = Take::new(self.block_at(block), self.pages(), Seat::Envelope(e), note);
            match run_straight(take, &m) {
                Taken::Seat(_) => return Ok(()),
                Taken::NoneFree => self.add_seat_page(block)?,
            }
        }
    }
}
