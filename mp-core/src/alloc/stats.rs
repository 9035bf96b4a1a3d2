//! Memory statistics of the arena: blocks, counted one by one, and cheap counts of operations.
//!
//! Each thread counts in the cache line of its own lane, which no other thread writes. So an allocation costs
//! a few stores to a line in this core's cache.
//!
//! Counts remain when a member leaves: they are sums over all members that ever had the lane. A process that
//! is killed while it allocates or frees a block may leave that block uncounted. Nothing depends on the
//! counts.

use std::fmt;

use crate::alloc::Allocator;
use crate::blocks::Blocks;
use crate::envelopes::Envelopes;
use crate::layout::size_class::{CLASSES, blocks_of, commits_alone, size_of, twin_in_arena};
use crate::layout::{SLAB_BLOCKS, control};
use crate::mem::{Mem, Word, raise};
use crate::members::{Members, intents};
use crate::setup::Backing;
use crate::words::{BlockId, BlockLife, BlockState, EnvelopeId, Holder, Member, Owner, Seat};

/// Blocks of one size.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct ClassStats {
    /// Size of a block in bytes.
    pub size: u64,
    /// Number of blocks that have a holder.
    pub live: u64,
    /// Number of blocks without a holder that still have pages, for the next allocation of that size.
    pub cached: u64,
}

/// Memory held by one member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct MemberStats {
    /// Tag of the member.
    pub member: Member,
    /// Process ID, in the PID namespace of the process itself.
    pub pid: u32,
    /// `true` if the member is not known to be dead.
    pub live: bool,
    /// Number of blocks that the member holds, directly or through a message that it is filling or emptying.
    /// A block with several holders counts for each of them.
    pub blocks: u64,
    /// Number of bytes in the blocks that the member holds.
    pub bytes: u64,
}

/// Memory statistics of an arena.
///
/// ```
/// use mp_core::{Arena, Storage};
///
/// let weights = Storage::new(Arena::current()?, 1 << 20, 4)?;
/// let stats = Arena::current()?.memory_stats();
/// assert!(stats.allocated >= 4 << 20 && stats.peak_allocated >= stats.allocated);
/// println!("{stats}"); // a table: totals, sizes, members
/// # drop(weights);
/// # Ok::<(), mp_core::Error>(())
/// ```
///
/// Blocks are counted one by one while other processes continue. So the numbers are exact only if no other
/// process allocates or frees a block during the count.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct MemoryStats {
    /// Bytes of the arena that have pages, as counted by the kernel. Includes the arena's tables.
    pub reserved: u64,
    /// Highest number of bytes that had pages at one time. Checked whenever data gets pages.
    pub peak_reserved: u64,
    /// Bytes in blocks that have a holder.
    pub allocated: u64,
    /// Highest number of bytes in held blocks at one time. Each thread checks after it has allocated 4 MiB,
    /// so up to 4 MiB per thread may be missing. A process that is killed while it allocates or frees a block
    /// may leave that block counted wrongly.
    pub peak_allocated: u64,
    /// Bytes in free blocks that keep their pages.
    pub cached: u64,
    /// Number of blocks that have a holder.
    pub live_blocks: u64,
    /// Number of blocks allocated since the arena was created, including by members that are gone.
    pub allocs: u64,
    /// Number of blocks freed since the arena was created.
    pub frees: u64,
    /// Number of allocations that got memory that already had pages.
    pub recycled: u64,
    /// Number of messages in flight: in queues, or leased by a consumer that has not finished.
    pub queued: u64,
    /// Number of blocks that messages in flight hold.
    pub queued_blocks: u64,
    /// Number of bytes in the blocks that messages in flight hold.
    pub queued_bytes: u64,
    /// Number of envelopes owned by processes: being filled or emptied, or idle.
    pub owned: u64,
    /// Number of members that are not known to be dead.
    pub members: u64,
    /// Number of members reclaimed so far.
    pub deaths: u64,
    /// Statistics of the sizes that have live or cached blocks.
    pub classes: Vec<ClassStats>,
    /// Memory held by each member.
    pub by_member: Vec<MemberStats>,
}

/// Sums of held blocks and bytes, while [`memory_stats`](Allocator::memory_stats) reads blocks one by one.
struct Tally {
    /// For each member slot, the number + 1 of the last block that the member was found to hold. So a block
    /// with several seats of one member counts once.
    last: Vec<u64>,
    held: Vec<(u64, u64)>,
    last_queued: u64,
    queued: (u64, u64),
}

impl Tally {
    fn new(slots: u32) -> Self {
        Self {
            last: vec![0; slots as usize],
            held: vec![(0, 0); slots as usize],
            last_queued: 0,
            queued: (0, 0),
        }
    }

    fn note(&mut self, holder: Holder, block: BlockId, size: u64) {
        let (last, held) = match holder {
            Holder::Free => return,
            Holder::Queued | Holder::Leased(_) | Holder::Returned | Holder::Undeliverable => {
                (&mut self.last_queued, &mut self.queued)
            }
            Holder::Member(m) => {
                match (self.last.get_mut(m.slot() as usize), self.held.get_mut(m.slot() as usize)) {
                    (Some(last), Some(held)) => (last, held),
                    _ => return,
                }
            }
        };
        if std::mem::replace(last, u64::from(block) + 1) != u64::from(block) + 1 {
            held.0 += 1;
            held.1 += size;
        }
    }
}

impl Allocator {
    /// Counts the memory of the arena: see [`Arena::memory_stats`](crate::Arena::memory_stats).
    pub(crate) fn memory_stats(self) -> MemoryStats {
        let counts = self.counts();
        let mut s = MemoryStats {
            reserved: Backing(self.0).committed(),
            allocs: counts.allocs,
            frees: counts.frees,
            recycled: counts.allocs.saturating_sub(counts.fresh),
            deaths: self.map().load(Word::at(control::DEATHS)),
            ..MemoryStats::default()
        };
        for m in Members(self.0).members() {
            s.members += u64::from(m.live);
            let (member, pid, live) = (m.member, m.pid, m.live);
            s.by_member.push(MemberStats { member, pid, live, blocks: 0, bytes: 0 });
        }
        let mut classes = vec![ClassStats::default(); CLASSES as usize];
        let mut tally = Tally::new(self.layout().members);
        for slab in 0..Blocks(self.0).slab_count() {
            let Some((class, _)) = Blocks(self.0).slab(slab) else { continue };
            let committed = Blocks(self.0).slab_committed(slab);
            let stats = &mut classes[twin_in_arena(class) as usize];
            stats.size = size_of(class);
            for i in 0..blocks_of(class) {
                let block = slab * SLAB_BLOCKS + i;
                match BlockState::unpack(self.map().load(Blocks(self.0).block_at(block).state)).life {
                    BlockLife::Free if committed >> i & 1 == 1 || !commits_alone(class) && committed != 0 => {
                        stats.cached += 1;
                    }
                    BlockLife::Free => {}
                    BlockLife::Live | BlockLife::Busy(_) => {
                        stats.live += 1;
                        Blocks(self.0).each_seat(block, |seat| {
                            let seat = self.map().load_relaxed(seat);
                            if seat != 0 {
                                tally.note(self.holder_in(Seat::unpack(seat)), block, stats.size);
                            }
                        });
                    }
                }
            }
        }
        for m in &mut s.by_member {
            (m.blocks, m.bytes) = tally.held[m.member.slot() as usize];
        }
        (s.queued_blocks, s.queued_bytes) = tally.queued;
        for c in &classes {
            s.allocated += c.live * c.size;
            s.cached += c.cached * c.size;
            s.live_blocks += c.live;
        }
        s.classes = classes.into_iter().filter(|c| c.live + c.cached > 0).collect();
        for e in Envelopes(self.0).envelopes_in_use(0) {
            match self.envelope_holder(e) {
                Holder::Free => {}
                Holder::Member(_) => s.owned += 1,
                Holder::Queued | Holder::Leased(_) | Holder::Returned | Holder::Undeliverable => {
                    s.queued += 1
                }
            }
        }
        s.peak_allocated = self.peak(control::PEAK_ALLOCATED, s.allocated);
        s.peak_reserved = self.peak(control::PEAK_RESERVED, s.reserved);
        s
    }

    fn peak(self, at: u64, now: u64) -> u64 {
        // An observer changes nothing.
        if self.0.is_here() {
            raise(self.map(), Word::at(at), now);
        }
        self.map().load(Word::at(at)).max(now)
    }

    fn envelope_holder(self, e: EnvelopeId) -> Holder {
        Owner::unpack(self.map().load(Envelopes(self.0).owner_words().of(e))).holder
    }

    /// Returns the holder for a seat: a member, or a queue.
    fn holder_in(self, seat: Seat) -> Holder {
        match seat {
            Seat::Member(m) => Holder::Member(m),
            Seat::Envelope(e) if Envelopes(self.0).may_be_in_use(e) => self.envelope_holder(e),
            Seat::Free | Seat::Envelope(_) | Seat::Block(_) => Holder::Free,
        }
    }
}

/// Formats a number of bytes for a column.
fn short(bytes: u64) -> String {
    let (mut v, mut units) = (bytes as f64, ["KiB", "MiB", "GiB", "TiB"].into_iter());
    let mut unit = "B";
    while v >= 1024.0
        && let Some(next) = units.next()
    {
        (v, unit) = (v / 1024.0, next);
    }
    let decimals = usize::from(v.fract() != 0.0);
    format!("{v:.decimals$} {unit}")
}

/// Formats the statistics as a table: totals, sizes, members.
impl fmt::Display for MemoryStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<12}{:>12}  peak {}", "reserved", short(self.reserved), short(self.peak_reserved))?;
        writeln!(f, "{:<12}{:>12}  peak {}", "allocated", short(self.allocated), short(self.peak_allocated))?;
        writeln!(f, "{:<12}{:>12}", "cached", short(self.cached))?;
        let Self { live_blocks, allocs, frees, recycled, queued, queued_bytes, members, deaths, .. } = self;
        writeln!(
            f,
            "{:<12}{live_blocks:>12}  {allocs} allocated ({recycled} in warm memory), {frees} freed",
            "blocks"
        )?;
        writeln!(f, "{:<12}{queued:>12}  with {}", "in queues", short(*queued_bytes))?;
        writeln!(f, "{:<12}{members:>12}  {deaths} reclaimed", "members")?;
        writeln!(f, "\n{:<12}{:>12}{:>12}", "size", "live", "cached")?;
        for c in &self.classes {
            writeln!(f, "{:<12}{:>12}{:>12}", short(c.size), c.live, c.cached)?;
        }
        writeln!(f, "\n{:<12}{:>12}{:>12}", "pid", "blocks", "bytes")?;
        for m in &self.by_member {
            let dead = if m.live { "" } else { "  dead" };
            writeln!(f, "{:<12}{:>12}{:>12}{dead}", m.pid, m.blocks, short(m.bytes))?;
        }
        Ok(())
    }
}

/// Position of the word with the number of allocations by a lane's threads, relative to the lane's intent
/// word. The positions below are relative to the intent word, too.
const ALLOCS: u64 = 1;
const FREES: u64 = 2;
const ALLOCATED: u64 = 3;
const FREED: u64 = 4;
const FRESH: u64 = 5;
/// Position of the word with the bytes that were allocated since the peak was last checked.
const UNSEEN: u64 = 6;
/// Position of the word with the bytes of large blocks that were freed since the cache was last checked for
/// an excess of free pages.
const RETURNED: u64 = 7;

/// Number of bytes that a thread allocates before it checks the peak again.
const LOOK_EVERY: u64 = 4 << 20;

/// Counts of allocations and frees, summed over all lanes of all members.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) allocs: u64,
    pub(crate) frees: u64,
    /// Number of allocations whose pages had to be reserved first.
    pub(crate) fresh: u64,
    allocated: u64,
    freed: u64,
}

impl Counts {
    /// Returns the number of bytes in held blocks, according to the counts.
    pub(crate) fn held(&self) -> u64 {
        self.allocated.saturating_sub(self.freed)
    }
}

impl Allocator {
    /// Adds to a word that only this thread writes, and returns the sum.
    #[inline]
    fn bump(self, at: Word, by: u64) -> u64 {
        let sum = self.map().load_relaxed(at).wrapping_add(by);
        self.map().store_relaxed(at, sum);
        sum
    }

    #[inline(always)]
    fn in_lane<R>(self, me: Member, f: impl FnOnce(Word) -> R) -> R {
        intents::with(|lane| Members(self.0).note_lane(me, lane), |lane| f(self.layout().intent(me, lane)))
    }

    /// Counts a block that this process has made live.
    #[inline]
    pub(crate) fn count_alloc(self, me: Member, bytes: u64, fresh: bool) {
        let look = self.in_lane(me, |lane| {
            self.bump(lane.plus(ALLOCS), 1);
            self.bump(lane.plus(ALLOCATED), bytes);
            if fresh {
                self.bump(lane.plus(FRESH), 1);
            }
            let look = self.bump(lane.plus(UNSEEN), bytes) >= LOOK_EVERY;
            if look {
                self.map().store_relaxed(lane.plus(UNSEEN), 0);
            }
            look
        });
        if look {
            raise(self.map(), Word::at(control::PEAK_ALLOCATED), self.counts().held());
        }
    }

    /// Counts a block of `bytes` bytes that this process has freed.
    #[inline]
    pub(crate) fn count_free(self, bytes: u64) {
        let Ok(me) = self.me() else { return };
        let returned = self.in_lane(me, |lane| {
            self.bump(lane.plus(FREES), 1);
            self.bump(lane.plus(FREED), bytes);
            if bytes < crate::alloc::trim::LARGE {
                return 0;
            }
            self.bump(lane.plus(RETURNED), bytes)
        });
        if returned != 0 && self.trim_if_due(me, returned) {
            self.in_lane(me, |lane| self.map().store_relaxed(lane.plus(RETURNED), 0));
        }
    }

    /// Returns the counts, summed over all lanes of all members.
    pub(crate) fn counts(self) -> Counts {
        let mut c = Counts::default();
        for (slot, _) in Members(self.0).used_slots() {
            for lane in Members(self.0).lanes_ever(slot) {
                let read = |word| self.map().load_relaxed(lane.plus(word));
                c.allocs += read(ALLOCS);
                c.frees += read(FREES);
                c.fresh += read(FRESH);
                c.allocated = c.allocated.wrapping_add(read(ALLOCATED));
                c.freed = c.freed.wrapping_add(read(FREED));
            }
        }
        c
    }
}
