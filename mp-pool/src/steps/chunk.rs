//! Chunk word of a worker: its chunk and its position in that chunk.
//!
//! A chunk consists of consecutive items of one call, which a worker receives in one message. Its items are
//! numbered from 0. The worker claims each item before it begins it. The pool can withdraw items that are not
//! claimed.
//!
//! # The word and its transitions
//! `[63 CONDEMNED][62 DONE][61..32 chunk][31..16 next][15..0 end]`
//!
//! | word | meaning | changed by |
//! |---|---|---|
//! | `chunk, next, end` | item `next - 1` runs, and `next..end` may be claimed | the worker → `next + 1` ([`ClaimItem`]), which also finishes item `next - 1`; → DONE ([`FinishItem`]); the pool → a smaller `end`, not below `next` ([`CutChunk`]); → CONDEMNED ([`CondemnWorker`]) |
//! | `chunk, next, end`, DONE | item `next - 1` is finished, and no item runs | the worker → `next + 1` without DONE ([`ClaimItem`]); → the next chunk with `next` = 1 ([`BeginChunk`]), when `next` = `end` or the worker ends; the pool as above |
//! | … CONDEMNED | the running item, or the next one, exceeded its time limit: the worker will be killed, and does nothing more | the pool, when the worker is dead → 0 |
//!
//! Each change is one compare-and-swap. So an item is either claimed by the worker or withdrawn by the pool,
//! and an item whose time has expired is either finished or condemned, never both.
//!
//! A chunk of one item without a time-out does not use the word: nothing can be withdrawn, and if its worker
//! dies, the item is lost.
//!
//! # Effects of a death
//! | the worker is killed | word | pool |
//! |---|---|---|
//! | before [`BeginChunk`], after taking the chunk | names another chunk | the first item is lost, because a message that kills its reader would otherwise kill one worker after the other; the other items go to another worker |
//! | while item `next - 1` runs | `next`, not DONE | that item is lost; `next..end` go to another worker |
//! | between two items | as above, or DONE | unsent results are in the [journal](super::journal); `next..end` go to another worker |
//!
//! 30 bits identify the chunk. Chunk numbers repeat after 2^30 chunks, when no worker has a chunk with the
//! same number.

use mp_core::mem::{Mem, Steps, Word};

/// Maximum number of items of a chunk.
pub const MOST_ITEMS: usize = u16::MAX as usize;

const CONDEMNED: u64 = 1 << 63;
const DONE: u64 = 1 << 62;
const CHUNK: u64 = (1 << 30) - 1;
const ITEM: u64 = u16::MAX as u64;

/// Value of the chunk word.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct ChunkWord(pub u64);

impl ChunkWord {
    /// Returns the word for a chunk of `count` items whose first item runs.
    pub const fn begun(chunk: u64, count: usize) -> Self {
        Self((chunk & CHUNK) << 32 | 1 << 16 | (count as u64 & ITEM))
    }

    /// Returns `true` if the word names this chunk.
    pub const fn is_of(self, chunk: u64) -> bool {
        self.0 >> 32 & CHUNK == chunk & CHUNK && self.next() > 0
    }

    /// Returns the first item that is not claimed.
    pub const fn next(self) -> usize {
        (self.0 >> 16 & ITEM) as usize
    }

    /// Returns the end of the items that the worker may claim (exclusive).
    pub const fn end(self) -> usize {
        (self.0 & ITEM) as usize
    }

    /// Returns `true` if the last claimed item is finished.
    pub const fn is_done(self) -> bool {
        self.0 & DONE != 0
    }

    /// Returns `true` if the worker is condemned to be killed for exceeding a time limit.
    pub const fn is_condemned(self) -> bool {
        self.0 & CONDEMNED != 0
    }

    /// Returns the position of the worker in a chunk whose items before `reported` have outcomes.
    pub const fn place(self, chunk: u64, reported: usize) -> ItemPosition {
        match self.is_of(chunk) {
            false => ItemPosition::Next(0),
            true if self.is_done() || self.next() <= reported => ItemPosition::Next(self.next()),
            true => ItemPosition::Running(self.next() - 1),
        }
    }

    /// Returns the number of items of a chunk that its dead worker has claimed. Claimed items without an
    /// outcome are lost. `over` is the item for whose time limit the worker was condemned, if any. Items
    /// before `reported` have outcomes, and `end` is the number of items.
    pub fn claimed_before_death(self, chunk: u64, over: Option<usize>, reported: usize, end: usize) -> usize {
        // If a chunk was taken and not begun, its first item is lost: a message that kills its reader would
        // otherwise kill one worker after the other.
        let claimed = if self.is_of(chunk) { self.next() } else { 1 };
        // Items with outcomes were claimed, and so was a condemned item.
        claimed.max(over.map_or(0, |item| item + 1)).clamp(reported, end)
    }

    /// Returns the word with the next item claimed, or `None` if no item is left.
    const fn claimed(self) -> Option<Self> {
        if self.next() < self.end() { Some(Self((self.0 & !DONE) + (1 << 16))) } else { None }
    }

    const fn ending_at(self, end: usize) -> Self {
        Self(self.0 & !ITEM | end as u64)
    }
}

/// Position of a worker in a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ItemPosition {
    /// This item runs.
    Running(usize),
    /// No item runs. The worker claims this item next, if it exists.
    Next(usize),
}

/// Result of a change of the word by its worker.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Turn {
    /// The word was changed to this value, and the worker continues.
    Go(ChunkWord),
    /// No item is left. The word is unchanged.
    End(ChunkWord),
    /// The worker was condemned.
    Condemned,
}

/// Steps of a worker that begins a chunk, and claims its first item.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct BeginChunk {
    at: Word,
    seen: ChunkWord,
    to: ChunkWord,
}

impl BeginChunk {
    /// Creates the steps for the word at `at`, whose last value written by the worker was `seen`.
    pub fn new(at: Word, seen: ChunkWord, chunk: u64, count: usize) -> Self {
        Self { at, seen, to: ChunkWord::begun(chunk, count) }
    }
}

impl Steps for BeginChunk {
    type Out = Turn;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<Turn> {
        change(m, self.at, &mut self.seen, self.to)
    }
}

/// Steps of a worker that finishes the current item and claims the next one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ClaimItem {
    at: Word,
    seen: ChunkWord,
}

impl ClaimItem {
    /// Creates the steps for the word at `at`, whose last value written by the worker was `seen`.
    pub fn new(at: Word, seen: ChunkWord) -> Self {
        Self { at, seen }
    }
}

impl Steps for ClaimItem {
    type Out = Turn;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<Turn> {
        match self.seen.claimed() {
            None => Some(Turn::End(self.seen)),
            Some(to) => change(m, self.at, &mut self.seen, to),
        }
    }
}

/// Steps of a worker that finishes the current item, and claims none.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FinishItem {
    at: Word,
    seen: ChunkWord,
}

impl FinishItem {
    /// Creates the steps for the word at `at`, whose last value written by the worker was `seen`.
    pub fn new(at: Word, seen: ChunkWord) -> Self {
        Self { at, seen }
    }
}

impl Steps for FinishItem {
    type Out = Turn;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<Turn> {
        let to = ChunkWord(self.seen.0 | DONE);
        change(m, self.at, &mut self.seen, to)
    }
}

/// Changes the word on behalf of its worker. The pool may have changed the word since it was read.
fn change<M: Mem + ?Sized>(m: &M, at: Word, seen: &mut ChunkWord, to: ChunkWord) -> Option<Turn> {
    match m.cas(at, seen.0, to.0) {
        Ok(()) => Some(Turn::Go(to)),
        Err(now) if ChunkWord(now).is_condemned() => Some(Turn::Condemned),
        Err(now) => {
            *seen = ChunkWord(now);
            None
        }
    }
}

/// Share of the unclaimed items that are withdrawn.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CutShare {
    /// All items.
    All,
    /// Half of the items. The worker keeps the smaller half.
    Half,
}

/// Steps of the pool that withdraw items of a chunk that was begun. Returns the first withdrawn item, if any.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CutChunk {
    at: Word,
    chunk: u64,
    share: CutShare,
    seen: Option<ChunkWord>,
}

impl CutChunk {
    /// Creates the steps for the worker whose word is at `at`.
    pub fn new(at: Word, chunk: u64, share: CutShare) -> Self {
        Self { at, chunk, share, seen: None }
    }
}

impl Steps for CutChunk {
    type Out = Option<usize>;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<Option<usize>> {
        let Some(seen) = self.seen else {
            self.seen = Some(ChunkWord(m.load(self.at)));
            return None;
        };
        let rest = seen.end().saturating_sub(seen.next());
        let is_condemned = seen.is_condemned();
        if !seen.is_of(self.chunk) || is_condemned || rest == 0 {
            return Some(None);
        }
        let kept = match self.share {
            CutShare::All => 0,
            CutShare::Half => rest / 2,
        };
        let end = seen.next() + kept;
        match m.cas(self.at, seen.0, seen.ending_at(end).0) {
            Ok(()) => Some(Some(end)),
            Err(now) => {
                self.seen = Some(ChunkWord(now));
                None
            }
        }
    }
}

/// Steps of the pool that condemn a worker, unless its word has changed. Returns `true` on success.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CondemnWorker {
    at: Word,
    seen: ChunkWord,
}

impl CondemnWorker {
    /// Creates the steps for the worker whose word is at `at` and had the value `seen`.
    pub fn new(at: Word, seen: ChunkWord) -> Self {
        Self { at, seen }
    }
}

impl Steps for CondemnWorker {
    type Out = bool;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<bool> {
        Some(m.cas(self.at, self.seen.0, self.seen.0 | CONDEMNED).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use mp_core::mem::{HeapMem, run};

    use super::*;

    /// The test covers each order in which a worker and the pool can change the word.
    #[test]
    fn each_chunk_item_is_either_claimed_or_taken_back() {
        const AT: Word = Word::at(8);
        const COUNT: usize = 4;
        for (order, share) in
            (0..1_u32 << 14).flat_map(|order| [(order, CutShare::All), (order, CutShare::Half)])
        {
            let m = HeapMem::new(2);
            let mut seen = ChunkWord::begun(5, COUNT);
            m.store(AT, seen.0);
            let (mut claimed, mut kept, mut ended) = (1, COUNT, false);
            let (mut claim, mut cut) = (ClaimItem::new(AT, seen), CutChunk::new(AT, 5, share));
            for step in 0..14 {
                if order >> step & 1 == 0 {
                    match claim.step(&m) {
                        Some(Turn::Go(now)) if !ended => {
                            (seen, claimed) = (now, claimed + 1);
                            claim = ClaimItem::new(AT, seen);
                        }
                        Some(Turn::End(_)) => ended = true,
                        _ => {}
                    }
                } else if let Some(from) = cut.step(&m) {
                    kept = from.unwrap_or(kept);
                    cut = CutChunk::new(AT, 5, share);
                }
            }
            assert!(claimed <= kept && (!ended || claimed == kept), "{order:b} {share:?}: {claimed} {kept}");
            assert_eq!((ChunkWord(m.load(AT)).next(), ChunkWord(m.load(AT)).end()), (claimed, kept));
        }
    }

    /// A single remaining item is withdrawn, too, because an idle worker runs it earlier than a worker with a
    /// long item.
    #[test]
    fn cut_of_half_a_chunk_leaves_the_smaller_half() {
        const AT: Word = Word::at(8);
        for (left, kept) in [(1, 0), (2, 1), (3, 1), (4, 2)] {
            let m = HeapMem::new(2);
            m.store(AT, ChunkWord::begun(5, 1 + left).0);
            assert_eq!(run(CutChunk::new(AT, 5, CutShare::Half), &m), Some(1 + kept), "{left}");
            assert_eq!(ChunkWord(m.load(AT)).end(), 1 + kept);
        }
    }

    /// Items of a condemned worker are handled after its death, so none is assigned twice.
    #[test]
    fn chunk_cut_ignores_condemned_worker_and_other_chunk() {
        const AT: Word = Word::at(8);
        let m = HeapMem::new(2);
        for word in [ChunkWord(ChunkWord::begun(5, 4).0 | CONDEMNED), ChunkWord::begun(6, 4)] {
            m.store(AT, word.0);
            for share in [CutShare::All, CutShare::Half] {
                assert_eq!(run(CutChunk::new(AT, 5, share), &m), None, "{share:?}");
                assert_eq!(m.load(AT), word.0);
            }
        }
    }

    #[test]
    fn chunk_word_fields_are_independent() {
        for chunk in [0, 1, CHUNK, CHUNK + 2, u64::MAX] {
            for count in [1, 2, MOST_ITEMS] {
                let word = ChunkWord::begun(chunk, count);
                assert!(word.is_of(chunk) && !word.is_of(chunk.wrapping_add(1)));
                assert_eq!((word.next(), word.end()), (1, count));
                let done = ChunkWord(word.0 | DONE | CONDEMNED);
                assert!(done.is_done() && done.is_condemned() && done.is_of(chunk) && done.end() == count);
                assert!(!word.is_done() && !word.is_condemned());
                assert_eq!(
                    word.claimed().map(|next| (next.next(), next.end())),
                    (count > 1).then_some((2, count))
                );
            }
        }
        assert!(!ChunkWord::default().is_of(0), "a worker that has begun none");
    }
}
