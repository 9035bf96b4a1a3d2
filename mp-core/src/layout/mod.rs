//! Offsets of all tables in an arena.
//!
//! ```text
//! 0          header: magic, versions, sizes, the offset and stride of every table
//! 4 KiB      control words, 128 bytes apart
//! 8 KiB      for each size class, a number above the numbers of its slabs
//! 12 KiB     extents      64 bytes each: named files; then, 64 bytes each, the seats of spinning threads
//! 16 KiB     directories  of extents, 256 bytes each
//! …          compartments 8 bytes each: block that uses this compartment of the locker
//! …          clocks       64 bytes each: progress counts of device streams
//! …          orders       8 bytes for each device: ordering of its streams
//! …          events       512 bytes for each clock: the events of a stream that can't write its clock
//! …          heads        32 bytes for each member: the words that are read for all members
//! …          members      12 KiB each: update record; wait notes, lanes and waits of its threads
//! …          touched      for each member one bit per slab: "may hold something in it"; then one bit per
//!                         group of 64 envelopes: "may own or lease some of it"
//! …          class maps   for each size class one bit per slab: "probably has a free block"
//! …          slabs        64 bytes each: class and base; free hints; blocks that have pages
//! …          blocks       64 bytes each, 64 per slab: state, link, six seats
//! …          envelope map one bit per envelope: "probably free"
//! …          group map    one bit per group of 64 envelopes: "the envelope map may have a bit of it"
//! …          groups       8 bytes for 64 envelopes: whether they have memory
//! …          envelopes    256 bytes each
//! …          data
//! size       32 address slots for named files (see `extent`)
//! ```
//! All tables have their maximum size. The file is sparse, so a table costs no memory until it is used, and
//! no table ever moves. The sizes of the tables follow from the arena's size and its number of envelopes, and
//! are recorded in the header.
//!
//! The last eighth of the envelopes is the *share*, reserved for queues that have few messages (see `idle`).

pub(crate) mod size_class;
pub(crate) mod wait_table;

use crate::error::{Error, Result};
use crate::mem::{Column, Mem, Word};
use crate::steps::clock::ClockAt;
use crate::steps::lock::wait_note::WaitNotesAt;
use crate::steps::{TouchedGroups, UpdateAt};
use crate::words::{GroupState, Member, Tick};

/// First eight bytes of every arena.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"mp-arena");
/// Version of the layout, the words and the protocol.
pub(crate) const VERSION: u64 = 14;

/// Name of the version in errors.
const VERSION_FIELD: &str = "layout version";

/// Oldest version of this library that understands this layout.
const OLDEST_READER: u64 = 14;

/// Number of threads of a member that can run a multi-step operation at once without waiting for each other.
pub(crate) const LANES: u32 = 64;
/// Size of an envelope in bytes.
pub(crate) const ENVELOPE: u64 = 256;
/// Number of blocks in a slab.
pub(crate) const SLAB_BLOCKS: u32 = 64;

const PAGE: u64 = 4096;
/// Number of words in a member's head. Heads are in a table of their own, so a scan of all members reads few
/// pages.
const HEAD_WORDS: u64 = 4;
const HEAD: u64 = 8 * HEAD_WORDS;
const MEMBER_STRIDE: u64 = 12288;
/// Offset in a member's slot of the words for multi-word updates.
const UPDATES_AT: u64 = 128;
/// Offset in a member's slot of its threads' wait notes. The member's settings are words 64 to 98, before the
/// notes.
const WAIT_NOTES_AT: u64 = 2048;
const LANES_AT: u64 = 4096;
const LANE_STRIDE: u64 = 64;
const _: () = assert!(UPDATES_AT + 8 * UpdateAt::OWN_WORDS <= WAIT_NOTES_AT);
const _: () = assert!(WAIT_NOTES_AT + 8 * WaitNotesAt::WORDS * WaitNotesAt::ENTRIES as u64 <= LANES_AT);
const _: () = assert!(LANES_AT + LANE_STRIDE * LANES as u64 <= 8 * wait_table::FIRST);
const _: () = assert!(8 * wait_table::END <= MEMBER_STRIDE);

/// Byte offsets of the control words.
pub(crate) mod control {
    /// Offset of the number of the current multi-word update.
    pub(crate) const UPDATE: u64 = 4096;
    /// Offset of the frontier: the offset of the memory of the next slab.
    pub(crate) const FRONTIER: u64 = 4096 + 256;
    /// Offset of the number of slabs.
    pub(crate) const SLABS: u64 = 4096 + 256 + 8;
    /// Offset of the number of envelopes that have been used at least once, a multiple of 64.
    pub(crate) const ENVELOPES: u64 = 4096 + 384;
    /// Offset of a hint: the number of a group of envelopes (low 32 bits). No group below it is absent. The
    /// high bits count the groups that became absent.
    pub(crate) const ABSENT_FROM: u64 = 4096 + 384 + 8;
    /// Offset of a hint: the number of a group of envelopes. This group and all groups above it are absent
    /// (have no memory).
    pub(crate) const ABSENT_TO: u64 = 4096 + 384 + 16;
    /// Offset of the counts of groups that were free in the last second: see `envelopes::groups`. A hint.
    pub(crate) const IDLE_GROUPS: u64 = 4096 + 384 + 24;
    /// Offset of the number of times that free memory was returned to the kernel.
    pub(crate) const TRIMS: u64 = 4096 + 512;
    /// Offset of an upper bound of the member slots in use: the number of the highest slot that was ever
    /// used, + 1.
    pub(crate) const MEMBERS: u64 = 4096 + 896;
    /// Offset of the highest number of bytes in held blocks at one time, as far as threads have checked it.
    pub(crate) const PEAK_ALLOCATED: u64 = 4096 + 1152;
    /// Offset of the highest number of bytes that had pages at one time.
    pub(crate) const PEAK_RESERVED: u64 = 4096 + 1280;
    /// Offset of the maximum number of bytes of large free blocks that keep their pages.
    pub(crate) const CACHE_LIMIT: u64 = 4096 + 1408;
    /// Offset of the time at which a member last checked for dead members, in ms of the monotonic clock.
    pub(crate) const LOOKED: u64 = 4096 + 1024;
    /// Offset of the number of members that were reclaimed.
    pub(crate) const DEATHS: u64 = 4096 + 640;
    /// Offset of the number of detected deaths. Waiters sleep on the low half of this word: see `parking`.
    pub(crate) const NOTICED: u64 = 4096 + 640 + 8;
    /// Offset of the number of requests by waiters to be notified when a process has released a queue: see
    /// `parking::detach_notice`.
    pub(crate) const ASKED: u64 = 4096 + 640 + 16;
    /// Offset of the arena's budget: the maximum number of bytes that have pages. 0 means no budget.
    pub(crate) const BUDGET: u64 = 4096 + 768;
    /// Offset of a flag: 1 if large blocks should have huge pages, else 0.
    pub(crate) const HUGE: u64 = 4096 + 768 + 8;
    /// Offset of a flag: 1 if the detection of deadlocks is disabled, else 0.
    pub(crate) const NO_DEADLOCKS: u64 = 4096 + 768 + 16;
    /// Offset of the number of failures of processes, followed by rows of the last failures: see
    /// `blocking::reports::failures`.
    pub(crate) const FAILURES: u64 = 4096 + 2048;
    /// Offset of one word for each size class: an exclusive upper bound of the numbers of the class's slabs.
    pub(crate) const CLASS_ENDS: u64 = 8192;
    /// Offset of the table of extents.
    pub(crate) const EXTENTS: u64 = 12288;
    /// Offset of the seats for spinning threads, one for each processor: see `parking::spin`.
    pub(crate) const SPINNING: u64 = EXTENTS + 2048;
    /// Number of bytes that need pages as soon as the arena exists: the header and the control words above.
    pub(crate) const FIRST_BYTES: u64 = 16384;
    /// Offset of the directories of extents. Pages are reserved when a directory is first needed.
    pub(crate) const PATHS: u64 = 16384;
    /// Offset of the number of socket pairs in the locker. The next three words are the lock for adding a
    /// pair. The word after these is a hint: the first compartment that may be free (`fd_store`).
    pub(crate) const LOCKER: u64 = 4096 + 1536;
    /// Offset of the words of the locker's compartments. Pages are reserved when a compartment is first
    /// needed.
    pub(crate) const COMPARTMENTS: u64 = PATHS + 8192;
    /// Offset of an upper bound of the clocks that ever had an owner. The next word is a hint: the first
    /// clock that may be free (`clocks`).
    pub(crate) const CLOCKS_USED: u64 = 4096 + 1664;
    pub(crate) const CLOCKS_HINT: u64 = CLOCKS_USED + 8;
    /// Offset of the number of clocks whose owner ended with unfinished work. A clock may be counted twice.
    pub(crate) const UNFINISHED_ENDS: u64 = CLOCKS_USED + 16;
    /// Offset of the clocks, which are in separate pages that devices access. The pages are reserved when a
    /// clock is first needed, and never returned.
    pub(crate) const CLOCKS: u64 = COMPARTMENTS + 8 * super::COMPARTMENTS;
    /// Offset of a page with one word for each device, which orders the work of the device's streams.
    pub(crate) const ORDERS: u64 = CLOCKS + super::CLOCK * super::CLOCKS as u64;
    /// Offset of the events of each clock, for other processes to open. Pages are reserved when an event is
    /// first needed.
    pub(crate) const EVENTS: u64 = ORDERS + super::PAGE;
    /// Offset of the first table.
    pub(crate) const END: u64 = EVENTS + super::EVENTS * super::CLOCKS as u64;
}

/// Number of compartments of the locker. Each message in flight with descriptors uses one, and each
/// structure that keeps a descriptor uses one.
pub(crate) const COMPARTMENTS: u64 = 1 << 13;
/// Number of clocks of an arena.
pub(crate) const CLOCKS: u32 = 1 << Tick::CLOCK_BITS;
/// Size of a clock in bytes.
pub(crate) const CLOCK: u64 = 8 * ClockAt::WORDS;
const _: () = assert!(control::CLOCKS.is_multiple_of(PAGE));
/// Maximum number of devices that the members of an arena can use.
pub(crate) const ORDERS: u64 = PAGE / 8;
/// Size of the events of a clock, in bytes.
pub(crate) const EVENTS: u64 = 512;
/// Maximum number of named files of an arena.
pub(crate) const EXTENTS: u32 = 32;
/// Size in bytes of a row of the table of extents.
pub(crate) const EXTENT: u64 = 64;
/// Size in bytes of a row of the table of extents' directories.
pub(crate) const EXTENT_PATH: u64 = 256;

/// Sizes and offsets of all tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ArenaLayout {
    pub(crate) size: u64,
    pub(crate) members: u32,
    pub(crate) slabs: u32,
    pub(crate) envelopes: u32,
    pub(crate) heads_at: u64,
    pub(crate) members_at: u64,
    pub(crate) touched_at: u64,
    pub(crate) touched_groups_at: u64,
    /// Distance in bytes from one member's row of touched bits to the next member's.
    pub(crate) touched_stride: u64,
    pub(crate) class_maps_at: u64,
    pub(crate) slabs_at: u64,
    pub(crate) blocks_at: u64,
    pub(crate) envelope_map_at: u64,
    pub(crate) group_map_at: u64,
    pub(crate) groups_at: u64,
    pub(crate) envelopes_at: u64,
    pub(crate) data_at: u64,
}

/// Offsets of the words within an envelope.
pub(crate) mod envelope {
    /// Offset of the owner word.
    pub(crate) const OWNER: u64 = 0;
    /// Offset of the place word.
    pub(crate) const PLACE: u64 = 8;
    /// Offset of the meta word: number of attachments (16 bits), flags (16 bits), number of bytes (32 bits).
    pub(crate) const META: u64 = 16;
    /// Offset of the fingerprint of the message's type.
    pub(crate) const TYPE: u64 = 24;
    /// Offset of the attachment for the bytes that do not fit into the envelope. 0 if all bytes fit.
    pub(crate) const SPILL: u64 = 32;
    /// Offset of the list of attachments, which is followed by the message's bytes.
    pub(crate) const INLINE: u64 = 40;
}

/// Returns the size in bytes of `bits` bits, rounded up to whole pages.
const fn bit_pages(bits: u32) -> u64 {
    (bits as u64).div_ceil(8).next_multiple_of(PAGE)
}

impl ArenaLayout {
    /// Minimum size of an arena in bytes.
    pub(crate) const MIN: u64 = 64 << 20;
    /// Minimum number of envelopes in an arena.
    pub(crate) const LEAST_ENVELOPES: u32 = 1 << 10;
    /// Maximum number of envelopes in an arena. A slot of a queue can't address more envelopes.
    pub(crate) const MOST_ENVELOPES: u32 = 0xf0_0000;

    /// Returns the default number of envelopes for an arena of `size` bytes.
    pub(crate) fn envelopes_for(size: u64) -> u32 {
        (size / (64 << 10)).next_power_of_two().clamp(1 << 12, 1 << 20) as u32
    }

    /// Returns the number of envelopes that any queue may use. The envelopes from this number on are the
    /// share.
    #[inline]
    pub(crate) const fn ordinary(&self) -> u32 {
        self.envelopes - self.envelopes / 8
    }

    /// Computes the layout of an arena of `size` bytes with `classes` size classes and this many envelopes.
    pub(crate) fn new(size: u64, classes: u32, envelopes: u32) -> Self {
        let slabs = (size / (256 << 10)).next_power_of_two().clamp(1 << 10, 1 << 18) as u32;
        let members = if size >= 4 << 30 { 1024 } else { 256 };
        let touched_stride = bit_pages(slabs) + bit_pages(envelopes / GroupState::ENVELOPES);
        let mut at = control::END;
        let mut table = |bytes: u64| {
            let here = at;
            at += bytes.next_multiple_of(PAGE);
            here
        };
        let heads_at = table(u64::from(members) * HEAD);
        let members_at = table(u64::from(members) * MEMBER_STRIDE);
        let touched_at = table(u64::from(members) * touched_stride);
        Self {
            size,
            members,
            slabs,
            envelopes,
            heads_at,
            members_at,
            touched_at,
            touched_groups_at: touched_at + bit_pages(slabs),
            touched_stride,
            class_maps_at: table(u64::from(classes) * u64::from(slabs) / 8),
            slabs_at: table(u64::from(slabs) * 64),
            blocks_at: table(u64::from(slabs) * u64::from(SLAB_BLOCKS) * 64),
            envelope_map_at: table(u64::from(envelopes) / 8),
            group_map_at: table((u64::from(envelopes) / 64).div_ceil(64) * 8),
            groups_at: table(u64::from(envelopes) / 8),
            envelopes_at: table(u64::from(envelopes) * ENVELOPE),
            // Transparent huge pages need 2 MiB of alignment.
            data_at: at.next_multiple_of(2 << 20),
        }
    }

    /// Returns the number of addresses reserved for each named file. These address ranges follow the range of
    /// the arena's own file. 0 if named files are not supported.
    pub(crate) fn slot(&self) -> u64 {
        if !crate::strategy::SharingStrategy::FileSystem.supported() {
            return 0;
        }
        // Huge pages have up to 1 GiB, and a file of huge pages must begin at a multiple of their size.
        let grain = if self.size >= 16 << 30 { 1 << 30 } else { 2 << 20 };
        (2 * self.size / u64::from(EXTENTS)).next_multiple_of(grain)
    }

    /// Returns the number of addresses of the whole arena.
    pub(crate) fn space(&self) -> u64 {
        self.size + self.slot() * u64::from(EXTENTS)
    }

    fn fields(&self) -> [(&'static str, u64); Self::FIELDS] {
        [
            (VERSION_FIELD, VERSION),
            ("byte order mark", u64::from_ne_bytes(*b"12345678")),
            ("page size", PAGE),
            ("size", self.size),
            ("member slots", u64::from(self.members)),
            ("slab slots", u64::from(self.slabs)),
            ("envelope slots", u64::from(self.envelopes)),
            ("heads of members", self.heads_at | HEAD << 48),
            ("member table", self.members_at | MEMBER_STRIDE << 48),
            ("touched slabs and groups", self.touched_at),
            ("class maps", self.class_maps_at),
            ("slab table", self.slabs_at | 64 << 48),
            ("block table", self.blocks_at | 64 << 48),
            ("envelope table", self.envelopes_at | ENVELOPE << 48),
            ("data", self.data_at),
            ("addresses of a file with a name", self.slot()),
            ("groups of envelopes", self.groups_at | 8 << 48),
            ("map of groups", self.group_map_at),
            ("clocks", control::CLOCKS | CLOCK << 48),
            ("events of clocks", control::EVENTS | EVENTS << 48),
        ]
    }

    const HEADER_FIELDS_AT: u64 = 64;
    const FIELDS: usize = 20;
    /// Number of words of the header.
    pub(crate) const HEADER_WORDS: usize = Self::HEADER_FIELDS_AT as usize / 8 + Self::FIELDS;
    /// Index of the number of envelopes in the header.
    const ENVELOPES_AT: usize = Self::HEADER_FIELDS_AT as usize / 8 + 6;

    /// Returns the number of envelopes from the header of an arena.
    pub(crate) fn envelopes_in(header: &[u64; Self::HEADER_WORDS]) -> Result<u32> {
        if header[0] != MAGIC {
            return Err(Error::NotAnArena("it has no header".into()));
        }
        // Another version may have another field there.
        let theirs = header[Self::HEADER_FIELDS_AT as usize / 8];
        if theirs != VERSION {
            return Err(Error::Version { what: VERSION_FIELD, theirs, ours: VERSION });
        }
        let said = header[Self::ENVELOPES_AT];
        let is_possible =
            |n: &u32| (Self::LEAST_ENVELOPES..=Self::MOST_ENVELOPES).contains(n) && n.is_multiple_of(512);
        let why = || Error::NotAnArena(format!("it says that it is for {said} messages in flight"));
        u32::try_from(said).ok().filter(is_possible).ok_or_else(why)
    }

    /// Writes the header of a new arena. The magic is written last: an arena without it is incomplete.
    pub(crate) fn write<M: Mem>(&self, m: &M, arena_id: u64, boot: u64, uid: u32) {
        for (i, v) in [(1, arena_id), (2, boot), (3, u64::from(uid)), (4, OLDEST_READER)] {
            m.store(Word::at(8 * i), v);
        }
        for (i, (_, v)) in self.fields().into_iter().enumerate() {
            m.store(Word::at(Self::HEADER_FIELDS_AT + 8 * i as u64), v);
        }
        m.store(Word::at(0), MAGIC);
    }

    /// Checks that the header matches this build, and returns the arena's ID.
    pub(crate) fn check(&self, load: impl Fn(Word) -> u64, boot: Option<u64>) -> Result<u64> {
        if load(Word::at(0)) != MAGIC {
            return Err(Error::NotAnArena("it has no header".into()));
        }
        for (i, (what, ours)) in self.fields().into_iter().enumerate() {
            let theirs = load(Word::at(Self::HEADER_FIELDS_AT + 8 * i as u64));
            if theirs != ours {
                return Err(Error::Version { what, theirs, ours });
            }
        }
        if boot.is_some_and(|boot| load(Word::at(16)) != boot) {
            return Err(Error::NotAnArena("it is from before the last boot".into()));
        }
        let (theirs, ours) = (load(Word::at(24)), u64::from(crate::sys::memory::user()));
        if theirs != ours {
            return Err(Error::NotAnArena(format!(
                "it is user {theirs}'s, and this process is user {ours}'s"
            )));
        }
        Ok(load(Word::at(8)))
    }

    /// Returns a word of the member in `slot`. Words below [`HEAD_WORDS`] are in the member's head, all other
    /// words in its slot.
    pub(crate) fn member(&self, slot: u32, word: u64) -> Word {
        let (table, stride) =
            if word < HEAD_WORDS { (self.heads_at, HEAD) } else { (self.members_at, MEMBER_STRIDE) };
        Word::at(table + u64::from(slot) * stride).plus(word)
    }

    /// Returns the offset and the length in bytes of the page whose first head is the head of this member.
    /// Returns `None` if the page begins with another member's head.
    pub(crate) fn heads_from(&self, slot: u32) -> Option<(u64, u64)> {
        let at = self.member(slot, 0).offset();
        at.is_multiple_of(PAGE).then_some((at, PAGE))
    }

    /// Returns the positions of the words for multi-word updates.
    pub(crate) fn updates(&self) -> UpdateAt {
        let own = Column { base: Word::at(self.members_at + UPDATES_AT), stride: MEMBER_STRIDE };
        UpdateAt { current: Word::at(control::UPDATE), own }
    }

    /// Returns the position of the wait notes of members' threads.
    pub(crate) fn wait_notes(&self) -> WaitNotesAt {
        let base = Word::at(self.members_at + WAIT_NOTES_AT);
        WaitNotesAt { base, stride: MEMBER_STRIDE, entries: WaitNotesAt::ENTRIES }
    }

    /// Returns the offset and the length in bytes of a member's slot.
    pub(crate) fn member_bytes(&self, slot: u32) -> (u64, u64) {
        (self.members_at + u64::from(slot) * MEMBER_STRIDE, MEMBER_STRIDE)
    }

    /// Returns the word with a member's touched bits for a slab and its neighbours.
    pub(crate) fn touched(&self, slot: u32, slab: u32) -> Word {
        let row = self.touched_at + u64::from(slot) * self.touched_stride;
        Word::at(row).plus(u64::from(slab / 64))
    }

    /// Returns the position of a member's touched bits for groups of envelopes.
    pub(crate) fn touched_groups(&self, slot: u32) -> TouchedGroups {
        TouchedGroups::at(Word::at(self.touched_groups_at + u64::from(slot) * self.touched_stride))
    }

    /// Returns the offset and the length in bytes of a member's touched bits.
    pub(crate) fn touched_bytes(&self, slot: u32) -> (u64, u64) {
        (self.touched(slot, 0).offset(), self.touched_stride)
    }

    /// Returns the intent word of a lane. The lane's counts follow it.
    pub(crate) fn intent(&self, m: Member, lane: u32) -> Word {
        Word::at(
            self.members_at
                + u64::from(m.slot()) * MEMBER_STRIDE
                + LANES_AT
                + u64::from(lane % LANES) * LANE_STRIDE,
        )
    }

    /// Returns the column of one word of all envelopes.
    pub(crate) fn envelope_column(&self, field: u64) -> Column {
        Column { base: Word::at(self.envelopes_at + field), stride: ENVELOPE }
    }
}

/// Returns the number of groups of envelopes that were ever in use.
pub(crate) fn used_groups<M: Mem + ?Sized>(m: &M, layout: &ArenaLayout) -> u32 {
    let used = m.load(Word::at(control::ENVELOPES)).min(layout.envelopes.into());
    used as u32 / GroupState::ENVELOPES
}

/// Returns the number of slabs that an arena has.
pub(crate) fn slab_count<M: Mem + ?Sized>(m: &M) -> u32 {
    m.load(Word::at(control::SLABS)) as u32
}

#[cfg(all(test, not(mp_loom)))]
mod tests {
    use super::*;
    use crate::mem::HeapMem;

    /// Tests headers that are not from this library, from another build, or from another user.
    #[test]
    fn arena_header_of_another_build_or_user_is_refused() {
        let layout = ArenaLayout::new(ArenaLayout::MIN, 8, ArenaLayout::envelopes_for(ArenaLayout::MIN));
        let user = crate::sys::memory::user();
        let said = |word: u64, change: u64| {
            let m = HeapMem::new(64);
            layout.write(&m, 7, 5, user);
            m.store(Word::at(8 * word), m.load(Word::at(8 * word)) ^ change);
            layout.check(|word| m.load(word), Some(5))
        };
        assert_eq!(said(0, 0).unwrap(), 7);
        assert!(matches!(said(0, 1), Err(Error::NotAnArena(_))));
        assert!(matches!(said(2, 1), Err(Error::NotAnArena(why)) if why.contains("boot")));
        assert!(matches!(said(3, 1), Err(Error::NotAnArena(why)) if why.contains("user")));
        for (i, (what, ours)) in (8..).zip(layout.fields()) {
            let refused = said(i, 1);
            let expected = (what, ours ^ 1, ours);
            assert!(
                matches!(&refused, Err(Error::Version { what, theirs, ours })
                    if (*what, *theirs, *ours) == expected),
                "{what}: {refused:?}"
            );
        }
    }

    /// A scan of all members reads one page for 128 members. A joining process reserves each page with the
    /// page's first head.
    #[test]
    fn heads_of_128_members_share_one_page() {
        let layout = ArenaLayout::new(ArenaLayout::MIN, 8, ArenaLayout::envelopes_for(ArenaLayout::MIN));
        let pages: Vec<_> = (0..layout.members).filter_map(|slot| layout.heads_from(slot)).collect();
        assert_eq!(pages.len() as u64, u64::from(layout.members) * HEAD / PAGE);
        for slot in 0..layout.members {
            let (at, len) = pages[slot as usize / 128];
            let words = (0..HEAD_WORDS).map(|word| layout.member(slot, word).offset());
            assert!(words.into_iter().all(|word| (at..at + len).contains(&word)), "slot {slot}");
            assert!(layout.member(slot, HEAD_WORDS).offset() >= layout.members_at);
        }
    }

    #[test]
    fn envelopes_in_refuses_a_header_of_another_version() {
        let mut header = [u64::MAX; ArenaLayout::HEADER_WORDS];
        (header[0], header[8]) = (MAGIC, VERSION + 1);
        let refused = ArenaLayout::envelopes_in(&header);
        assert!(
            matches!(refused, Err(Error::Version { theirs, .. }) if theirs == VERSION + 1),
            "{refused:?}"
        );
    }
}
