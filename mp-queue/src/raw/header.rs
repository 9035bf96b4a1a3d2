//! Layout of a queue's block.
//!
//! | offset | contents | written by |
//! |---|---|---|
//! | 0 | magic | the creator, last |
//! | 8 | slots of the first segment | the creator |
//! | 16 | fingerprint of the message type | the creator |
//! | 24, 32 | the last process that ended, dropped its last handle, or never received it: tag + 1 and two bits ([`LastDetached`](mp_core::detach_notice::LastDetached)), pid | that process, processes that recover it, or the process that discards its message |
//! | 40 | length of the type's name, followed by the name, cut at 128 bytes | the creator |
//! | 176 | largest number of segments (32 bits), slots of the last one (32 bits) | the creator |
//! | 184 | limit on deliveries of a message; 0 means no limit | the creator |
//! | 192 | bits: 1: a consumer has leased, so messages of dead consumers are redelivered; 2: a consumer has taken a message without a lease | the first consumer that leases or gets |
//! | 200 | hint of returned messages: `noted 32 \| seen 32` (see `ring::lease`). Equal if there are no returned messages | a process that returns a message; a consumer that finds no returned message; a process that recovers a dead member that had the queue |
//! | 208 | spin policy | the creator |
//! | 216, 224 | for a channel: marks of the tokens of senders and of receivers | the creator |
//! | 232 | bound of bytes; 0 means no bound | the creator |
//! | 240 | bits: 1: small messages may be stored in slots; 2: a put never waits, but fails if there is no room; upper 32 bits: number of retained messages. If not 0, pins and counts follow the slots, see `raw::memory::pinned_read` | the creator |
//! | 248 | condition for `Deserted`, see `handles` | the creator |
//! | 256 | head hint | consumers |
//! | 384 | tail hint | producers and closers |
//! | 512 | parking: not empty, followed by the durations of waits for messages ([`mp_core::WaitTimes`]) | waiting consumers |
//! | 640 | parking: not full, followed by the durations of waits for room | waiting producers |
//! | 768 | parking: a message was finished | |
//! | 800 | given name, 32 bytes ([`mp_core::waits::RING_NAME`]); zeros if none | any holder |
//! | 896 | links of the segments, 16 words | producers and closers |
//! | 1024 | slots of the first segment, 16 bytes each | |
//! | 4096 | further segments, if any | |
//!
//! Hot words are 128 bytes apart, because the processor fetches adjacent cache lines together.

use mp_core::mem::{Mem, Word};
use mp_core::words::BlockId;

use crate::raw::options::QueueOptions;
use crate::ring::{ChainAt, Position, RingAt, Slot, SlotState};

const MAGIC: u64 = u64::from_le_bytes(*b"mp-ring5");
/// Byte offset of the type's name in a queue's block.
pub(crate) const NAME: u64 = 48;
/// Number of bytes of a type's name that are stored.
pub(crate) const NAME_MAX: usize = 128;
/// Type name of the queues of pipes.
pub(crate) const PIPE: &str = "anything (a pipe)";

/// Returns the first [`NAME_MAX`] bytes of a type's name as words, each with its index.
pub(crate) fn name_words(name: &str) -> impl Iterator<Item = (u64, u64)> {
    let name = &name.as_bytes()[..name.len().min(NAME_MAX)];
    (0..).zip(name.chunks(8)).map(|(i, part)| {
        let mut bytes = [0; 8];
        bytes[..part.len()].copy_from_slice(part);
        (i, u64::from_le_bytes(bytes))
    })
}
/// Bit in the word at 240: small messages may be stored in slots.
pub(crate) const SMALL_SLOTS: u64 = 1;
/// Bit in the word at 240: the queue has no bound, so a put never waits. It returns an error if memory is
/// exhausted.
pub(crate) const UNBOUNDED: u64 = 2;
const HEAD: u64 = 256;
const TAIL: u64 = 384;
const LINKS: u64 = 896;
const MOST_SEGMENTS: u32 = 16;
const SLOTS: u64 = 1024;
const SECOND: u64 = 4096;

/// Number of slots with which a queue is created.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Size {
    /// Single ring with this number of slots.
    Fixed(u32),
    /// Chain of rings that grows up to this number of slots.
    Growing(u32),
}

/// Number of slots in the first segment of a growing queue, which fill the rest of the block's first page.
const FIRST: u32 = ((SECOND - SLOTS) / RingAt::SLOT) as u32;

/// Parameters with which a queue is created.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CreateParams<'a> {
    pub(crate) size: Size,
    pub(crate) options: QueueOptions,
    /// Fingerprint and name of the message type.
    pub(crate) type_of: (u64, &'a str),
    /// `true` if small messages may be stored in slots. Requires that all messages have the same type.
    pub(crate) small_slots: bool,
    /// Number of retained messages, or 0 for a queue whose messages are taken.
    pub(crate) retain: u32,
}

/// Locations of the words in a queue's block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueHeader {
    base: Word,
}

/// Bits in the word at 192: operations that consumers of the queue have used.
pub(crate) mod consumers {
    /// A consumer has leased a message. From then on, messages of dead consumers are redelivered.
    pub(crate) const LEASE: u64 = 1;
    /// A consumer has taken a message without a lease.
    pub(crate) const GET: u64 = 2;
}

impl QueueHeader {
    pub(crate) const fn at(base: Word) -> Self {
        Self { base }
    }

    /// Returns the location of the word at byte offset `byte` of the block.
    pub(crate) const fn word(self, byte: u64) -> Word {
        self.base.plus(byte / 8)
    }

    /// Returns the location of word `i` of the block.
    #[cfg(test)]
    pub(crate) const fn base_word(self, i: u64) -> Word {
        self.base.plus(i)
    }

    pub(crate) const fn not_empty(self) -> Word {
        self.word(512)
    }
    pub(crate) const fn not_full(self) -> Word {
        self.word(640)
    }
    /// Returns the location of the first word that counts the durations of waits for messages.
    pub(crate) const fn get_waits(self) -> Word {
        self.not_empty().plus(1)
    }
    /// Returns the location of the first word that counts the durations of waits for room.
    pub(crate) const fn put_waits(self) -> Word {
        self.not_full().plus(1)
    }
    pub(crate) const fn finished(self) -> Word {
        self.word(768)
    }
    pub(crate) const fn consumers(self) -> Word {
        self.word(192)
    }
    pub(crate) const fn returned(self) -> Word {
        self.word(200)
    }

    /// Returns the location of the word with the bound of bytes.
    pub(crate) const fn byte_bound(self) -> Word {
        self.word(232)
    }

    pub(crate) const fn flags(self) -> Word {
        self.word(240)
    }

    fn chain_of(self, block: BlockId, slots: u32, segments: u32, most: u32) -> ChainAt {
        let (head, tail, first) = (self.word(HEAD), self.word(TAIL), self.word(SLOTS));
        ChainAt {
            first: RingAt { block, slots, before: 0, head, tail, first, envelopes: 0 },
            links: self.word(LINKS),
            segments,
            most,
            second: self.word(SECOND),
        }
    }

    /// Returns the locations of the segments for a queue with this number of slots.
    pub(crate) fn chain(self, block: BlockId, size: Size) -> ChainAt {
        match size {
            Size::Fixed(slots) => self.chain_of(block, slots, 1, slots),
            Size::Growing(most) if most <= FIRST => self.chain_of(block, most, 1, most),
            Size::Growing(most) => self.chain_of(block, FIRST, ChainAt::segments_for(FIRST, most), most),
        }
    }

    /// Returns the size of the block in bytes.
    pub(crate) fn bytes(chain: &ChainAt) -> u64 {
        match chain.segments {
            0 | 1 => SLOTS + RingAt::SLOT * u64::from(chain.first.slots),
            n => {
                let (from, len) = chain.bytes(n - 1);
                SECOND + from + len
            }
        }
    }

    /// Returns the byte offset in the block and the length in bytes of segment `i`, which is not the first
    /// segment.
    pub(crate) fn segment_bytes(chain: &ChainAt, i: u32) -> (u64, u64) {
        let (from, len) = chain.bytes(i);
        (SECOND + from, len)
    }

    /// Initializes an empty queue in new memory. Segments after the first one stay zero, which is the state
    /// of an empty ring. The magic is written last.
    pub(crate) fn write<M: Mem>(self, m: &M, chain: &ChainAt, params: CreateParams<'_>) {
        for i in 1..SLOTS / 8 {
            m.store_relaxed(self.base.plus(i), 0);
        }
        let (options, (fingerprint, type_name)) = (params.options, params.type_of);
        m.store_relaxed(self.word(8), u64::from(chain.first.slots));
        m.store_relaxed(self.word(16), fingerprint);
        m.store_relaxed(self.word(176), u64::from(chain.segments) | u64::from(chain.most) << 32);
        m.store_relaxed(self.word(184), u64::from(options.deliveries));
        m.store_relaxed(self.word(208), options.spin.pack());
        m.store_relaxed(self.byte_bound(), options.bytes);
        m.store_relaxed(self.word(248), options.deserted.pack());
        m.store_relaxed(
            self.flags(),
            (u64::from(params.small_slots && m.has_pairs()) * SMALL_SLOTS)
                | (u64::from(options.capacity.is_none()) * UNBOUNDED)
                | u64::from(params.retain) << 32,
        );
        m.store_relaxed(self.word(40), type_name.len().min(NAME_MAX) as u64);
        name_words(type_name).for_each(|(i, word)| m.store_relaxed(self.word(NAME).plus(i), word));
        let ring = chain.first;
        let empty = Slot { lap: 1, state: SlotState::Empty }.pack();
        for slot in (0..ring.slots).map(|i| ring.slot(i)) {
            m.store_relaxed(slot, empty);
            m.store_relaxed(slot.plus(1), 0);
        }
        let first = Position { lap: 1, index: 0 }.pack();
        m.store_relaxed(ring.head, first);
        m.store_relaxed(ring.tail, first);
        m.store(self.base, MAGIC);
    }

    /// Reads the locations of the segments from a queue's block of `len` bytes. Returns `None` if the block
    /// contains no queue.
    pub(crate) fn read<M: Mem>(self, m: &M, block: BlockId, len: u64) -> Option<ChainAt> {
        if len < SLOTS || m.load(self.base) != MAGIC {
            return None;
        }
        let slots = u32::try_from(m.load_relaxed(self.word(8))).ok()?;
        let size = m.load_relaxed(self.word(176));
        let (segments, most) = (size as u32, (size >> 32) as u32);
        let possible = slots > 0
            && slots.max(most) <= RingAt::MAX_SLOTS
            && (segments == 1 || segments == ChainAt::segments_for(slots, most) && segments <= MOST_SEGMENTS);
        let possible = possible && (m.load_relaxed(self.flags()) & SMALL_SLOTS == 0 || m.has_pairs());
        let chain = self.chain_of(block, slots, segments, most);
        (possible && Self::bytes(&chain) <= len).then_some(chain)
    }
}
