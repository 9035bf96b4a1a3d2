//! Packing: moves a message's bytes and seats into an envelope. Also conversions between messages that are
//! written and messages that are read.

use crate::alloc::Allocator;
use crate::alloc::handles::Hold;
use crate::blocks::Blocks;
use crate::envelopes::idle::Share;
use crate::envelopes::{Envelopes, INLINE, Meta, OBJECT, TAIL};
use crate::error::{Error, Result};
use crate::layout::envelope as field;
use crate::mem::{Mem, Word, run_straight};
use crate::steps::{AttachRecord, TakeOutcome, TakeSeat};
use crate::transport::Messages;
use crate::transport::attachments::AttachRequest;
use crate::transport::bytes::write_own;
use crate::transport::envelope::{AHEAD, Envelope, MAX_ATTACHMENTS};
use crate::transport::incoming::{Incoming, ReceivedAttachments};
use crate::transport::outgoing::{Attached, Outgoing};
use crate::words::{Access, Attachment, BlockId, BlockKind, EnvelopeId, Seat};

impl Messages {
    /// Writes bytes into an envelope, beginning at byte `from` of its inline bytes.
    ///
    /// The last bytes ([`TAIL`]) are only accessed as words, because another process may read them. In a
    /// queue that is bounded by bytes, a producer reads these words of an envelope, which a consumer may just
    /// have taken out of the queue. The words are stored with release, so a producer that reads them also
    /// finds that the earlier message was taken.
    #[inline]
    pub(crate) fn write_inline(self, id: EnvelopeId, from: usize, bytes: &[u8]) {
        let at = Envelopes(self.0).envelope_word(id, field::INLINE);
        let (bytes, tail) = bytes.split_at(bytes.len().min((INLINE - TAIL).saturating_sub(from)));
        write_own(self.map(), at.offset() + from as u64, bytes);
        if !tail.is_empty() {
            let first = at.plus((from + bytes.len()) as u64 / 8);
            let (words, rest) = tail.as_chunks();
            for (i, word) in words.iter().enumerate() {
                self.map().store(first.plus(i as u64), u64::from_ne_bytes(*word));
            }
            if !rest.is_empty() {
                // Byte by byte, which is faster than `memcpy` for so few.
                let word = rest.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
                self.map().store(first.plus(words.len() as u64), word.to_le());
            }
        }
    }

    /// Returns an envelope for a message that belongs to no queue. The envelope may be taken from the share.
    pub(crate) fn spare_envelope(self) -> Result<Envelope> {
        self.idle_envelope(Share::Any)
    }

    /// Returns an envelope for a message. If memory is exhausted, first frees unused memory of other sizes,
    /// like an allocation.
    #[inline]
    fn idle_envelope(self, share: Share) -> Result<Envelope> {
        Envelopes(self.0).idle_envelope(share, || Allocator(self.0).empty_cache()).map(Envelope::from)
    }

    /// Returns `true` if memory is available for the next message that this thread packs for this queue. The
    /// thread then keeps an envelope for that message. If only the queue's share has envelopes, the thread
    /// keeps none, and another thread may take them first.
    pub fn keeps_envelope(self, queue: BlockId) -> bool {
        match self.idle_envelope(Share::Nothing) {
            Err(e) if e.is_out_of_envelopes() => Envelopes(self.0).has_envelopes(queue),
            // The dropped envelope is retained. Other errors are returned when the message is packed.
            _ => true,
        }
    }

    /// Packs a message into an envelope. The attachments move to the envelope. After an error, they are still
    /// in the message.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::ArenaFull`] or [`Error::LimitExceeded`] (too many attachments).
    pub fn pack(self, message: &mut Outgoing, fingerprint: u64) -> Result<Envelope> {
        let envelope = self.spare_envelope()?;
        self.pack_into(envelope, message, fingerprint)
    }

    /// Packs a message like [`pack`](Self::pack), for a queue. While too many messages are in flight, uses
    /// the share of `queue`, or returns an error if `queue` is `None`.
    ///
    /// # Errors
    /// Same as for [`pack`](Self::pack).
    #[inline]
    pub fn pack_for_queue(
        self,
        message: &mut Outgoing,
        fingerprint: u64,
        queue: Option<BlockId>,
    ) -> Result<Envelope> {
        let envelope = self.idle_envelope(queue.map_or(Share::Nothing, Share::OfQueue))?;
        self.pack_into(envelope, message, fingerprint)
    }

    #[inline]
    fn pack_into(self, envelope: Envelope, message: &mut Outgoing, fingerprint: u64) -> Result<Envelope> {
        let (bytes, attachments) = message.parts();
        let map = self.map();
        map.store_relaxed(Envelopes(self.0).envelope_word(envelope.id(), field::TYPE), fingerprint);
        match attachments {
            None if bytes.len() <= INLINE => {
                let meta = Meta { attachments: 0, spilled: false, bytes: bytes.len() };
                map.store(Envelopes(self.0).envelope_word(envelope.id(), field::META), meta.pack());
                self.write_inline(envelope.id(), 0, bytes);
            }
            None => self.fill(&envelope, bytes, &mut Vec::new())?,
            Some(attachments) => self.fill(&envelope, bytes, attachments)?,
        }
        Ok(envelope)
    }

    /// Packs a message with attachments, or with bytes for a spill block.
    pub(crate) fn fill(
        self,
        envelope: &Envelope,
        bytes: &[u8],
        attachments: &mut Vec<AttachRequest>,
    ) -> Result<()> {
        let n = attachments.len();
        if n > MAX_ATTACHMENTS || bytes.len() > u32::MAX as usize {
            let what = format!("{n} attachments, {} bytes", bytes.len());
            return Err(Error::LimitExceeded(format!(
                "{what}: a message has at most 65535 attachments and 4 GiB of bytes"
            )));
        }
        let (id, map) = (envelope.id(), self.map());
        let head = 8 * n;
        let meta_word = Envelopes(self.0).envelope_word(id, field::META);
        let mut meta = Meta { attachments: n, spilled: false, bytes: bytes.len() };
        let mut entries = Envelopes(self.0).envelope_word(id, field::INLINE);
        let mut data = None;
        if head + bytes.len() > INLINE {
            // The last words of an envelope with a spill block are free for its queue.
            meta.spilled = head > INLINE - TAIL;
            let spill_head = if meta.spilled { head } else { 0 };
            let hold = Allocator(self.0).alloc_kind((spill_head + bytes.len()) as u64, BlockKind::Spill)?;
            let at = Blocks(self.0).data_of(hold.block()).0;
            data = Some(at + spill_head as u64);
            if meta.spilled {
                entries = Word::at(at);
            }
            let mut spill = AttachRequest { hold, grant: OBJECT };
            self.move_seat(id, Envelopes(self.0).envelope_word(id, field::SPILL), &mut spill);
        }
        for k in 0..n as u64 {
            map.store_relaxed(entries.plus(k), 0);
        }
        map.store(meta_word, meta.pack());
        match data {
            Some(at) => write_own(map, at, bytes),
            None => self.write_inline(id, head, bytes),
        }
        for k in 0..n {
            if let Some(ahead) = attachments.get(k + AHEAD) {
                map.will_write(Blocks(self.0).block_at(ahead.hold.block()).state);
            }
            let (a, entry) = (&mut attachments[k], entries.plus(k as u64));
            // The seat of this process moves with an exclusive tensor, unless another handle here keeps the
            // storage (without access to its elements) and needs the seat. Then the envelope takes a separate
            // seat, as for all other attachments.
            if a.grant.access() == Access::Exclusive && self.move_seat(id, entry, a) {
                continue;
            }
            let note = AttachRecord { entry, count: meta_word, counted: meta.pack(), grant: a.grant };
            if let Err(error) = self.share_seat(id, note, &a.hold) {
                self.take_seats_back(id, entries, &mut attachments[..k]);
                // The sender has all the handles: none of them is lost with the envelope.
                Allocator(self.0).empty_envelope(id);
                return Err(error);
            }
        }
        attachments.clear();
        Ok(())
    }

    /// Takes back the seats that were already moved to an envelope, after the attempt to attach a later block
    /// has failed.
    #[cold]
    fn take_seats_back(self, id: EnvelopeId, entries: Word, attachments: &mut [AttachRequest]) {
        let map = self.map();
        for (k, a) in attachments.iter_mut().enumerate().filter(|(_, a)| a.hold.is_nowhere()) {
            let entry = entries.plus(k as u64);
            let back =
                Attachment::unpack(map.load_relaxed(entry)).map(|attach| Allocator(self.0).adopt(id, attach));
            // The seat belongs to this envelope, which this process owns: taking it back can't fail.
            if let Some(Ok(hold)) = back {
                a.hold = hold;
                map.store(entry, 0);
            }
        }
    }

    /// Moves an envelope's bytes into a spill block if they extend into the envelope's last two words.
    /// Attachments stay in the envelope.
    pub(crate) fn spill(self, envelope: &Envelope) -> Result<()> {
        let (id, map) = (envelope.id(), self.map());
        let spill_word = Envelopes(self.0).envelope_word(id, field::SPILL);
        let meta = Meta::unpack(map.load_relaxed(Envelopes(self.0).envelope_word(id, field::META)))?;
        let listed = 8 * meta.attachments;
        if map.load_relaxed(spill_word) != 0 || listed + meta.bytes <= INLINE - TAIL {
            return Ok(());
        }
        let mut bytes = Vec::new();
        self.read_inline(id, listed, meta.bytes, &mut bytes);
        let hold = Allocator(self.0).alloc_kind(meta.bytes as u64, BlockKind::Spill)?;
        write_own(map, Blocks(self.0).data_of(hold.block()).0, &bytes);
        let mut spill = AttachRequest { hold, grant: OBJECT };
        self.move_seat(id, spill_word, &mut spill);
        Ok(())
    }

    /// Moves this process's seat of a block to an envelope, if the request has the only handle to the block
    /// in this process. Returns `false` if there are other handles.
    pub(crate) fn move_seat(self, e: EnvelopeId, entry: Word, request: &mut AttachRequest) -> bool {
        let (Ok(me), block) = (self.me(), request.hold.block()) else { return false };
        let Some(seat) = Allocator(self.0).take_seat(&mut request.hold) else { return false };
        self.map().store(entry, Attachment { block, seat, grant: request.grant }.pack());
        if let Some(word) = Blocks(self.0).seat_word(block, seat) {
            _ = self.map().cas(word, Seat::Member(me).pack(), Seat::Envelope(e).pack());
        }
        true
    }

    /// Takes one more seat of a held block, for an envelope.
    pub(crate) fn share_seat(self, e: EnvelopeId, note: AttachRecord, hold: &Hold) -> Result<()> {
        self.share_block_seat(Seat::Envelope(e), note, hold.block())
    }

    /// Takes one more seat of a block, for `who`. A process, message or child that already holds the block
    /// must keep it until this function returns.
    pub(crate) fn share_block_seat(self, who: Seat, note: AttachRecord, block: BlockId) -> Result<()> {
        let m = *self.map();
        loop {
            let take = TakeSeat::new(Blocks(self.0).block_at(block), Blocks(self.0).pages(), who, note);
            match run_straight(take, &m) {
                TakeOutcome::Seat(_) => return Ok(()),
                TakeOutcome::NoSeat => Allocator(self.0).add_seat_page(block)?,
            }
        }
    }
}

impl Incoming {
    /// Converts the message to an outgoing message, with the unread bytes and all attachments. Returns `None`
    /// if an exclusive value was taken out of the message.
    pub fn into_outgoing(self) -> Option<Outgoing> {
        let (bytes, list) = self.into_parts()?;
        Some(Outgoing::again(bytes, list))
    }
}

impl Outgoing {
    /// Converts the message to a message that this process can read. So the sender gets back a message that
    /// could not be packed or put.
    pub fn into_incoming(self) -> Incoming {
        let (bytes, list) = self.into_parts();
        Incoming::returned(bytes, list)
    }
}

impl Attached {
    /// Returns the attachments as the receiver would get them, to test if the message can be read. Excludes
    /// the memory of exclusive tensors, which has one owner.
    pub(crate) fn as_arrived(&self) -> ReceivedAttachments {
        let arrived: ReceivedAttachments =
            self.list.iter().map(AttachRequest::again).collect::<Vec<_>>().into();
        arrived.without_exclusive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::Arena;
    use crate::transport::Incoming;

    /// Returns a message of `bytes` bytes, none of them 0, with this many attachments.
    fn message(arena: Arena, bytes: usize, attachments: usize) -> (Outgoing, Vec<Hold>) {
        let mut out = Outgoing::default();
        out.bytes().extend((0..bytes).map(|i| i as u8 | 1));
        let holds: Vec<Hold> = (0..attachments).map(|_| Allocator(arena).alloc(64).unwrap()).collect();
        for hold in &holds {
            out.attached().attach_object(hold).unwrap();
        }
        (out, holds)
    }

    /// Packs several messages of this form, overwrites the words that are reserved for queues, and reads all
    /// messages.
    fn arrive_whole(bytes: usize, attachments: usize) {
        let arena = Arena::current().unwrap();
        let what = format!("{bytes} bytes, {attachments} attachments");
        let mut sent: Vec<_> = (0..8)
            .map(|_| {
                let (mut out, holds) = message(arena, bytes, attachments);
                (Messages(arena).pack(&mut out, 7).unwrap(), holds)
            })
            .collect();
        for (envelope, _) in &sent {
            envelope.free_tail().unwrap();
            let tail = Envelopes(arena).tail_words().of(envelope.id());
            for word in [tail, tail.plus(1)] {
                arena.map().store(word, u64::MAX);
            }
        }
        // Data written into one envelope has not reached the next.
        for (envelope, _) in &sent {
            let owner = arena.map().load(Envelopes(arena).owner_words().of(envelope.id()));
            assert_eq!(owner, envelope.owner().pack(), "{what}");
        }
        for (mut envelope, holds) in sent.drain(..) {
            let mut inc = Incoming::default();
            envelope.open(&mut inc).unwrap();
            assert!(inc.rest().iter().copied().eq((0..bytes).map(|i| i as u8 | 1)), "{what}");
            assert!(inc.blocks().eq(holds.iter().map(Hold::block)), "{what}");
        }
    }

    #[test]
    fn messages_near_the_envelope_size_arrive_whole() {
        for bytes in INLINE - TAIL - 2..INLINE + 10 {
            arrive_whole(bytes, 0);
            arrive_whole(bytes - 8, 1);
        }
        for attachments in (INLINE - TAIL) / 8 - 1..INLINE / 8 + 2 {
            // Each attached handle is encoded in at least one byte.
            for more in [0, 1, 15, 16, 17] {
                arrive_whole(attachments + more, attachments);
            }
        }
    }

    /// While this process has another handle to the block, its seat is not moved to the envelope.
    #[test]
    fn seat_of_a_cloned_handle_is_not_moved_to_a_message() {
        let arena = Arena::current().unwrap();
        let mut hold = Allocator(arena).alloc(64).unwrap();
        let (other, block) = (hold.clone(), hold.block());
        assert!(Allocator(arena).take_seat(&mut hold).is_none() && !hold.is_nowhere());
        drop(hold);
        assert!(Allocator(arena).is_held(block, Blocks(arena).generation(block)) && other.was_never_opened());
        Blocks(arena).share_as(block, BlockKind::Frozen);
        assert!(!other.was_never_opened(), "others may have handles in other processes");
    }
}
