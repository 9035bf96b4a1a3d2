//! Envelopes: what a message is while it belongs to no process.
//!
//! An envelope has an owner word, up to 216 bytes of its own (attachments first, then the message's bytes), and, when
//! that is too little, a spill block with the rest. Each attachment is a seat that the envelope holds in some block.
//!
//! | word | written by | when |
//! |---|---|---|
//! | owner | whoever claims it; its owner; a ring's producer and consumer; a sweeper | see [`Owner`] |
//! | place | its owner | before it is queued |
//! | meta, type | its owner | while it fills or empties it |
//! | spill | its owner | before the spill block's seat goes over to the envelope (write-ahead) |
//! | attachments | its owner | before the seat is taken (write-ahead) |
//!
//! Killed while filling or emptying it: the owner word names the dead, and the sweep gives up exactly those seats that
//! name the envelope. Each process keeps a few idle envelopes; they are its own in the owner word, too.

use std::cell::RefCell;

use super::layout::{ENVELOPE, control, envelope as field};
use super::{Arena, Hold};
use crate::error::{Error, Result};
use crate::mem::{Mem, Word, run};
use crate::steps::{Note, Release, Released, Take, Taken};
use crate::sys::memory;
use crate::words::{Access, Attach, EnvelopeId, Holder, Kind, Owner, Seat};

/// Bytes of an envelope's own.
const INLINE: usize = (ENVELOPE - field::INLINE) as usize;
/// Version of the bytes in an envelope, and of what they mean.
const WIRE_VERSION: u64 = 1;
/// The most attachments a message may have.
pub(crate) const MAX_ATTACHMENTS: usize = u16::MAX as usize;
/// How many idle envelopes a thread keeps, at most.
const IDLE: usize = 64;

/// The meta word: attachments 16 bits, "attachments are in the spill block" 1, wire version 8 (at 24), bytes 32.
#[derive(Clone, Copy, Debug, Default)]
struct Meta {
    attachments: usize,
    spilled: bool,
    bytes: usize,
}

impl Meta {
    fn pack(self) -> u64 {
        self.attachments as u64
            | u64::from(self.spilled) << 16
            | WIRE_VERSION << 24
            | (self.bytes as u64) << 32
    }
    fn unpack(w: u64) -> Result<Self> {
        let version = w >> 24 & 0xff;
        if version != WIRE_VERSION {
            return Err(Error::Version {
                what: "the wire version of a message",
                theirs: version,
                ours: WIRE_VERSION,
            });
        }
        Ok(Self { attachments: (w & 0xffff) as usize, spilled: w >> 16 & 1 == 1, bytes: (w >> 32) as usize })
    }
}

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
    pub bytes: &'a [u8],
    /// What travels beside it.
    pub attachments: Vec<AttachRequest>,
    /// Fingerprint of its type.
    pub fingerprint: u64,
}

/// A message taken out of its envelope.
#[derive(Debug)]
pub struct Received {
    /// The encoded value, if it was in the envelope.
    pub(crate) bytes: Vec<u8>,
    /// Otherwise where it is.
    pub(crate) spill: Option<Spill>,
    /// What came beside it.
    pub(crate) attachments: Vec<AttachRequest>,
    fingerprint: u64,
}

impl Received {
    /// Fingerprint of its type, as the sender said.
    #[inline]
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }
}

/// The bytes of a message that did not fit into its envelope.
#[derive(Debug)]
pub(crate) struct Spill {
    hold: Hold,
    from: usize,
    len: usize,
}

impl Spill {
    pub(crate) fn bytes(&self) -> &[u8] {
        super::bytes::spilled(&self.hold, self.from, self.len)
    }
}

/// A packed message that belongs to this process; dropping it releases everything in it.
#[derive(Debug)]
pub struct Envelope {
    pub(super) arena: Arena,
    pub(super) id: EnvelopeId,
    pub(super) owner: Owner,
}

impl Envelope {
    /// Its index.
    #[inline]
    pub fn id(&self) -> EnvelopeId {
        self.id
    }

    /// The present value of its owner word.
    #[inline]
    pub fn owner(&self) -> Owner {
        self.owner
    }

    /// Gives it away: to a ring, or to another process. Whoever gets it makes it one again with
    /// [`Arena::envelope_from_raw`].
    #[inline]
    pub fn into_raw(self) -> (EnvelopeId, Owner) {
        let this = std::mem::ManuallyDrop::new(self);
        (this.id, this.owner)
    }

    /// Fingerprint of the type of the message in it.
    pub fn fingerprint(&self) -> u64 {
        self.arena.map().load(self.arena.envelope_word(self.id, field::TYPE))
    }

    /// Takes the message out; its bytes into `buffer`, if they are in the envelope. Its attachments become handles of this
    /// process.
    ///
    /// # Errors
    /// [`Error::Version`] or [`Error::Malformed`] when its words make no sense; then everything in it is released.
    pub fn open(self, mut buffer: Vec<u8>) -> Result<Received> {
        let (arena, id) = (self.arena, self.id);
        let map = arena.map();
        let meta = Meta::unpack(map.load_relaxed(arena.envelope_word(id, field::META)))?;
        let fingerprint = map.load_relaxed(arena.envelope_word(id, field::TYPE));
        let spill_word = arena.envelope_word(id, field::SPILL);
        let spill = match Attach::unpack(map.load_relaxed(spill_word)) {
            None => None,
            Some(attach) => {
                let hold = arena.adopt(id, attach)?;
                map.store(spill_word, 0);
                Some(hold)
            }
        };
        let inline_attachments = if meta.spilled { 0 } else { 8 * meta.attachments };
        let room = match &spill {
            Some(hold) => arena.data_of(hold.block()).1 as usize,
            None => INLINE,
        };
        let head = if spill.is_some() && !meta.spilled { 0 } else { 8 * meta.attachments };
        if inline_attachments > INLINE || meta.bytes > room || head > room - meta.bytes {
            return Err(Error::Malformed("the lengths of a message exceed its envelope".into()));
        }
        let mut attachments = Vec::with_capacity(meta.attachments);
        for k in 0..meta.attachments {
            let word = match &spill {
                Some(hold) if meta.spilled => Word::at(arena.data_of(hold.block()).0).plus(k as u64),
                _ => arena.envelope_word(id, field::INLINE).plus(k as u64),
            };
            let attach = Attach::unpack(map.load_relaxed(word))
                .ok_or_else(|| Error::Malformed("an attachment of a message is missing".into()))?;
            let hold = arena.adopt(id, attach)?;
            attachments.push(AttachRequest { hold, access: attach.access, tag: attach.tag });
        }
        let spill = match spill {
            Some(hold) => Some(Spill { hold, from: head, len: meta.bytes }),
            None => {
                buffer.resize(meta.bytes, 0);
                let at = arena.envelope_word(id, field::INLINE).offset() + inline_attachments as u64;
                super::bytes::read_own(map, at, &mut buffer);
                None
            }
        };
        if meta.attachments != 0 {
            map.store(arena.envelope_word(id, field::META), Meta::default().pack());
        }
        let emptied = std::mem::ManuallyDrop::new(self);
        arena.keep(id, emptied.owner);
        Ok(Received { bytes: buffer, spill, attachments, fingerprint })
    }
}

impl Drop for Envelope {
    #[inline]
    fn drop(&mut self) {
        if self.arena.me().is_err() {
            return;
        }
        self.arena.empty_envelope(self.id);
        self.arena.keep(self.id, self.owner);
    }
}

/// Idle envelopes of a thread.
struct Idle(Vec<(Arena, EnvelopeId, Owner)>);

impl Drop for Idle {
    fn drop(&mut self) {
        for (arena, id, owner) in self.0.drain(..) {
            if arena.me().is_ok() {
                arena.free_envelope(id, owner);
            }
        }
    }
}

thread_local! {
    static IDLE_ENVELOPES: RefCell<Idle> = const { RefCell::new(Idle(Vec::new())) };
}

impl Arena {
    pub(super) fn envelope_word(&self, e: EnvelopeId, field: u64) -> Word {
        Word::at(self.layout().envelopes_at + ENVELOPE * u64::from(e) + field)
    }

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
        if shipment.attachments.iter().any(|a| a.access == Access::Exclusive && a.hold.count() != 1) {
            let why = "an exclusive tensor can't be sent while other handles to it exist in this process";
            return Err((Error::Malformed(why.into()), shipment.attachments));
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

    fn fill(
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
    fn move_seat(&self, e: EnvelopeId, entry: Word, request: AttachRequest) {
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
            // Not the only handle, which the types of exclusive handles exclude; the message arrives without it.
            Err(_others) => debug_assert!(false, "an exclusive block has several handles"),
        }
    }

    /// Takes another seat for an envelope.
    fn share_seat(&self, e: EnvelopeId, note: Note, hold: &Hold) -> Result<()> {
        loop {
            let take = Take::new(self.block_at(hold.block()), self.pages(), Seat::Envelope(e), note);
            match run(take, self.map()) {
                Taken::Seat(_) => return Ok(()),
                Taken::NoneFree => self.add_seat_page(hold.block())?,
            }
        }
    }

    /// Gives up every seat that an envelope of this process holds.
    pub(crate) fn empty_envelope(&self, id: EnvelopeId) {
        let map = self.map();
        let meta_word = self.envelope_word(id, field::META);
        let meta = Meta::unpack(map.load_relaxed(meta_word)).unwrap_or_default();
        let spill_word = self.envelope_word(id, field::SPILL);
        let spill = Attach::unpack(map.load_relaxed(spill_word));
        let entries = match spill {
            Some(attach) if meta.spilled => Word::at(self.data_of(attach.block).0),
            _ => self.envelope_word(id, field::INLINE),
        };
        for k in 0..meta.attachments as u64 {
            if let Some(attach) = Attach::unpack(map.load_relaxed(entries.plus(k))) {
                self.release_attachment(id, attach);
            }
        }
        if meta.attachments != 0 || meta.spilled {
            map.store(meta_word, Meta::default().pack());
        }
        // After the attachments that were in it, whose number is 0 now.
        if let Some(attach) = spill {
            self.release_attachment(id, attach);
            map.store(spill_word, 0);
        }
    }

    fn release_attachment(&self, e: EnvelopeId, attach: Attach) {
        let Ok(me) = self.me() else { return };
        if !self.block_exists(attach.block) {
            return;
        }
        let Some(word) = self.seat_word(attach.block, attach.seat) else { return };
        let at = self.block_at(attach.block);
        let release = Release::new(at, self.pages(), me, word, Seat::Envelope(e));
        if let Released::ToFree(state) = run(release, self.map()) {
            self.finish_free(attach.block, state);
        }
    }

    /// Makes an envelope of this process anybody's.
    pub(crate) fn free_envelope(&self, id: EnvelopeId, owner: Owner) {
        self.map().store(self.owner_words().of(id), owner.then(Holder::Free).pack());
        self.hint_envelope(id);
    }

    pub(crate) fn hint_envelope(&self, id: EnvelopeId) {
        let at = Word::at(self.layout().envelope_map_at + u64::from(id / 64) * 8);
        let bit = 1 << (id % 64);
        if self.map().load(at) & bit == 0 {
            self.map().or(at, bit);
        }
    }

    /// Keeps an emptied envelope for this thread's next message.
    #[inline]
    fn keep(&self, id: EnvelopeId, owner: Owner) {
        let kept = IDLE_ENVELOPES.try_with(|idle| {
            let mut idle = idle.borrow_mut();
            if idle.0.len() >= IDLE {
                // One batch, oldest first: the latest are warm in this core's cache.
                for (arena, id, owner) in idle.0.drain(..IDLE / 2) {
                    arena.free_envelope(id, owner);
                }
            }
            idle.0.push((*self, id, owner));
        });
        if kept.is_err() {
            self.free_envelope(id, owner);
        }
    }

    #[inline]
    fn idle_envelope(&self) -> Result<Envelope> {
        self.me()?;
        let idle = IDLE_ENVELOPES.try_with(|idle| idle.borrow_mut().0.pop());
        match idle {
            Ok(Some((arena, id, owner))) => Ok(Envelope { arena, id, owner }),
            Ok(None) | Err(_) => self.new_envelopes(idle.is_ok()),
        }
    }

    /// Claims free envelopes: one to return, and a batch to keep.
    #[cold]
    fn new_envelopes(&self, keep: bool) -> Result<Envelope> {
        let me = self.me()?;
        let want = if keep { IDLE / 2 } else { 1 };
        let mut got = Vec::with_capacity(want);
        loop {
            let groups = self.map().load(Word::at(control::ENVELOPES)) as u32 / 64;
            // Different processes start at different places.
            for i in 0..groups {
                let group = (me.slot().wrapping_mul(7) + i) % groups;
                let at = Word::at(self.layout().envelope_map_at + u64::from(group) * 8);
                let mut bits = self.map().load(at);
                while bits != 0 && got.len() < want {
                    let bit = bits & bits.wrapping_neg();
                    bits &= !bit;
                    if self.map().and(at, !bit) & bit == 0 {
                        continue;
                    }
                    let id = group * 64 + bit.trailing_zeros();
                    let word = self.owner_words().of(id);
                    let old = self.map().load(word);
                    if Owner::unpack(old).holder != Holder::Free {
                        continue;
                    }
                    let owner = Owner::unpack(old).then(Holder::Member(me));
                    if self.map().cas(word, old, owner.pack()).is_ok() {
                        got.push((id, owner));
                    }
                }
                if got.len() == want {
                    break;
                }
            }
            match got.pop() {
                Some((id, owner)) => {
                    for (id, owner) in got {
                        self.keep(id, owner);
                    }
                    return Ok(Envelope { arena: *self, id, owner });
                }
                None => self.more_envelopes()?,
            }
        }
    }

    /// Puts 64 more envelopes into use.
    fn more_envelopes(&self) -> Result<()> {
        let used = self.map().load(Word::at(control::ENVELOPES));
        let limit = u64::from(self.layout().envelopes);
        if used + 64 > limit {
            return Err(Error::ArenaFull { what: "messages in flight", asked: used + 1, limit });
        }
        let map_at = (self.layout().envelope_map_at + used / 8) & !4095;
        let at = self.layout().envelopes_at + used * ENVELOPE;
        for (at, len) in [(map_at, 4096), (at, 64 * ENVELOPE)] {
            memory::commit(self.fd(), at, len).map_err(|e| self.no_memory(len, e))?;
        }
        if self.map().cas(Word::at(control::ENVELOPES), used, used + 64).is_ok() {
            let word = Word::at(self.layout().envelope_map_at + used / 8);
            self.map().or(word, u64::MAX);
        }
        Ok(())
    }
}
