//! Reuse of the addresses of unused slabs for slabs of another size.
//!
//! Addresses are handed out once, from the start of the arena to its end. When the end is reached, or the
//! table of slabs has no free row, the addresses of neighbouring slabs whose blocks are all free are reused.
//! Each of these slabs is *retired*: it then has addresses but no class. The retired slabs are joined
//! into one, surplus addresses are split off, and the joined slab gets the requested class. The addresses
//! beyond the frontier count as a neighbour of the last slab.
//!
//! Each step is one [`Update`](crate::steps::Update), which is checked against the values that were read, and
//! leaves a correct table. A process that is killed between two steps leaves retired slabs, which the next
//! process that runs out of addresses finds. These updates are exclusive, because a slab's words may return
//! to an earlier value. So a process that is stopped during any update blocks processes that need
//! addresses of unused slabs.
//!
//! | slab: class, base; span | meaning | changed by |
//! |---|---|---|
//! | class, base; span, or 0 for the span of the class | in use | a process that has claimed **all** its blocks → retired |
//! | none, base; span | retired | a process that runs out of addresses: → in use, → split, → joined with the next one |
//! | none, 0; 0 | a row without addresses | a process that splits, or takes addresses beyond the frontier → retired |
//!
//! | killed | state left behind | action of the reclaim or the next process |
//! |---|---|---|
//! | while claiming the blocks | blocks `BUSY(dead)` | the reclaim frees the blocks: the slab is unchanged |
//! | after the slab's pages were returned | blocks `BUSY(dead)` without pages | the reclaim frees the blocks |
//! | after the slab was retired | blocks `BUSY(dead)` in a slab without a class | the reclaim frees the blocks: it checks all 64 |
//! | between joining, taking addresses beyond the frontier, splitting, giving a class | retired slabs | the next process uses the slabs |
//! | before the hints of the new class | free blocks without hints | the reclaim sets the hints |
//!
//! **Each address below the frontier belongs to one slab**, retired or in use: addresses skipped before an
//! aligned slab become a retired slab in the same update. Slabs are read one by one while other processes
//! change them, so one may be missed. Therefore two slabs are joined only if, at the time they were read, the
//! second began at the end of the first.
//!
//! **Stale hints are harmless.** A process that takes a hint reads the slab's word, claims the block, and
//! reads the word again ([`ClaimBlock`]). If the word has changed, the process returns the block. While the
//! block is claimed, the word can't change, because retiring needs all blocks. Without the second read,
//! blocks of two sizes would overlap. The model `models::reuse` covers this race.
//!
//! Slabs of pages of seats are never retired, because a process that follows an outdated link must find
//! seats.

use std::time::{Duration, Instant};

use crate::alloc::Allocator;
use crate::blocks::{Blocks, describe, described, retired};
use crate::error::{Error, Result};
use crate::layout::size_class::{SEAT_PAGES, alignment_of, blocks_of, is_in_files, span_of};
use crate::layout::{SLAB_BLOCKS, control};
use crate::mem::{Mem, Word, raise, run};
use crate::members::Members;
use crate::setup::Backing;
use crate::steps::{ClaimBlock, SlabSnapshot, UnclaimBlock, UpdateOutcome, UpdatePlan};
use crate::words::{BlockLife, BlockState, Member};

/// Maximum number of searches for addresses. A search is repeated if other processes change the slabs
/// meanwhile.
const TRIES: u32 = 8;

/// Slab number for the addresses from the frontier to the end of the arena, which belong to no slab.
const BEYOND: u32 = u32::MAX;

/// Number of rows that one allocation may need in addition to the rows of the joined slabs: for addresses
/// beyond the frontier, and for addresses that alignment skips.
const SPARE_ROWS: usize = 2;

/// Maximum time to wait for another process that is in an update (a few dozen instructions).
const TIME_LIMIT: Duration = Duration::from_secs(10);

/// Update that writes words if all words read have their expected values.
#[derive(Clone, Debug)]
struct Change {
    reads: Vec<Word>,
    seen: Vec<u64>,
    /// Words to write: index in `reads`, and new value.
    writes: Vec<(usize, u64)>,
}

/// Change of a word: the word, its old value, and its new value.
type WordChange = (Word, u64, u64);

impl Change {
    fn new(words: &[WordChange]) -> Self {
        Self {
            reads: words.iter().map(|w| w.0).collect(),
            seen: words.iter().map(|w| w.1).collect(),
            writes: words.iter().map(|w| w.2).enumerate().collect(),
        }
    }
}

impl UpdatePlan for Change {
    fn reads(&self) -> &[Word] {
        &self.reads
    }
    fn writes(&self, values: &[u64]) -> Vec<(usize, u64)> {
        if values == self.seen { self.writes.clone() } else { Vec::new() }
    }
    fn exclusive(&self) -> bool {
        true
    }
}

/// Address range of a slab.
#[derive(Clone, Copy, Debug)]
struct Range {
    /// Slab number or [`BEYOND`].
    slab: u32,
    /// Values of the slab's two words when it was read: slab word and span word.
    word: u64,
    span_word: u64,
    base: u64,
    span: u64,
    /// `true` if the slab is retired, or all its blocks seem free.
    idle: bool,
}

impl Range {
    fn end(&self) -> u64 {
        self.base + self.span
    }
}

/// Returns the first run of neighbouring idle ranges that together have room for `need` bytes at a
/// multiple of `align`. The first run is chosen, not the smallest. So the remainder is next to the
/// ranges that the next search uses, and is not lost.
///
/// Two consecutive ranges may be separated by a gap, because a slab between them was split off during the
/// read. They do not count as neighbours.
fn room(extents: &[Range], need: u64, align: u64) -> Option<&[Range]> {
    let neighbours = extents.chunk_by(|a, b| a.idle && b.idle && a.end() == b.base);
    neighbours.filter(|all| all.iter().all(|e| e.idle)).find_map(|idle| {
        let mut last = 0;
        (0..idle.len()).find_map(|i| {
            let end = idle[i].base.next_multiple_of(align) + need;
            while idle.get(last).is_some_and(|e| e.end() < end) {
                last += 1;
            }
            idle.get(i..=last).filter(|run| !run.is_empty())
        })
    })
}

impl Allocator {
    /// Makes a slab of the class out of unused slabs. Returns `false` if there is no room.
    pub(crate) fn reuse(self, class: u32, me: Member) -> Result<bool> {
        // Addresses of named files are not reused: a full file has a successor.
        let tries = if is_in_files(class) { 0 } else { TRIES };
        for _ in 0..tries {
            let ranges = self.ranges();
            let Some(room) = room(&ranges, span_of(class), alignment_of(class)) else { return Ok(false) };
            let rows = self.unused_rows().take(SPARE_ROWS).count();
            if rows < SPARE_ROWS && self.join_idle(&ranges, me)? {
                continue;
            }
            if self.reuse_room(room, class, me)? {
                self.map().add(Word::at(control::TRIMS), 1);
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the ranges of all slabs in the arena's own file, sorted by address, and the range beyond the
    /// frontier.
    fn ranges(self) -> Vec<Range> {
        let extent = |slab| {
            let word = self.map().load(Blocks(self.0).slab_word(slab, 0));
            let span_word = self.map().load(Blocks(self.0).slab_word(slab, 3));
            let (base, class) = match described(word) {
                Some((class, base)) => (base, Some(class)),
                None => (described(word | 1)?.1, None),
            };
            let span = if span_word == 0 { class.map_or(0, span_of) } else { span_word };
            let idle = match class {
                None => true,
                Some(SEAT_PAGES) => false,
                Some(class) => (0..blocks_of(class)).all(|i| {
                    let state = self.map().load(Blocks(self.0).block_at(slab * SLAB_BLOCKS + i).state);
                    BlockState::unpack(state).life == BlockLife::Free
                }),
            };
            (span != 0 && Backing(self.0).extent_of(base).is_none()).then_some(Range {
                slab,
                word,
                span_word,
                base,
                span,
                idle,
            })
        };
        let mut extents: Vec<_> = (0..Blocks(self.0).slab_count()).filter_map(extent).collect();
        extents.sort_unstable_by_key(|e| e.base);
        // A slab that was added meanwhile was missed. Then this range is not a neighbour of the last slab's
        // range.
        let (base, end) = (self.map().load(Word::at(control::FRONTIER)), self.layout().size);
        if base < end {
            let span = end - base;
            extents.push(Range { slab: BEYOND, word: 0, span_word: 0, base, span, idle: true });
        }
        extents
    }

    /// Returns the rows of the table of slabs that have no addresses. The last row is left out: adding a slab
    /// may need a row and the next one.
    fn unused_rows(self) -> impl Iterator<Item = u32> {
        let count = Blocks(self.0).slab_count();
        let is_unused = move |row: &u32| {
            let [word, span] = [0, 3].map(|word| Blocks(self.0).slab_word(*row, word));
            *row >= count || self.map().load(word) == 0 && self.map().load(span) == 0
        };
        (0..self.layout().slabs.saturating_sub(1)).filter(is_unused)
    }

    /// Joins two neighbouring unused slabs, to free the second slab's row. Returns `false` if no two unused
    /// slabs are neighbours, or if the slabs have changed.
    fn join_idle(self, ranges: &[Range], me: Member) -> Result<bool> {
        let is_pair = |pair: &&[Range]| {
            pair.iter().all(|e| e.idle && e.slab != BEYOND) && pair[0].end() == pair[1].base
        };
        let Some([first, second]) = ranges.windows(2).find(is_pair) else { return Ok(false) };
        Ok(self.retire(first, me)?
            && self.retire(second, me)?
            && self.join_extents(first, first.span, second, me)?)
    }

    fn reuse_room(self, room: &[Range], class: u32, me: Member) -> Result<bool> {
        let (beyond, slabs) = match room {
            [slabs @ .., last] if last.slab == BEYOND => (Some(last), slabs),
            slabs => (None, slabs),
        };
        for e in slabs {
            if !self.retire(e, me)? {
                return Ok(false);
            }
        }
        let mut joined = slabs.first().map(|first| (first.slab, first.base, first.span));
        if let ([first, others @ ..], Some((.., span))) = (slabs, &mut joined) {
            for e in others {
                if !self.join_extents(first, *span, e, me)? {
                    return Ok(false);
                }
                *span += e.span;
            }
        }
        if let Some(beyond) = beyond {
            let start = joined.map_or(beyond.base, |(_, base, _)| base);
            let len = start.next_multiple_of(alignment_of(class)) + span_of(class) - beyond.base;
            joined = self.take_beyond(joined, beyond.base, len, me)?;
        }
        let Some((mut slab, mut base, mut span)) = joined else { return Ok(false) };
        let gap = base.next_multiple_of(alignment_of(class)) - base;
        if gap != 0 {
            let Some(behind) = self.split_extent(slab, base, span, gap, me)? else { return Ok(false) };
            (slab, base, span) = (behind, base + gap, span - gap);
        }
        let need = span_of(class);
        // If no row is free, the remainder stays with this slab.
        if span > need && self.split_extent(slab, base, span, need, me)?.is_some() {
            span = need;
        }
        self.give_class(slab, base, span, class, me)
    }

    /// Retires a slab in use, if all its blocks can be claimed. Returns `true` if the slab is retired.
    fn retire(self, e: &Range, me: Member) -> Result<bool> {
        let Some((class, _)) = described(e.word) else { return Ok(true) };
        Members(self.0).touch(me, e.slab);
        let seen = SlabSnapshot { word: Blocks(self.0).slab_word(e.slab, 0), value: e.word };
        let mut claimed = Vec::new();
        for block in (0..blocks_of(class)).map(|i| e.slab * SLAB_BLOCKS + i) {
            match run(ClaimBlock::new(Blocks(self.0).block_at(block), me, seen), self.map()) {
                Some(state) => claimed.push((block, state)),
                None => break,
            }
        }
        let all = claimed.len() == blocks_of(class) as usize;
        let done = if all {
            // No other process has a block in the slab. The bits are cleared first: see `trim`.
            self.map().store(Blocks(self.0).slab_word(e.slab, 2), 0);
            Backing(self.0).punch_at(e.base, span_of(class));
            self.change(&self.row(e.slab, (e.word, retired(e.base)), (e.span_word, e.span)), me)
        } else {
            Ok(false)
        };
        for (block, state) in claimed {
            run(UnclaimBlock::new(Blocks(self.0).block_at(block), state), self.map());
            self.hint_free(block);
        }
        done
    }

    /// Joins two retired neighbours.
    fn join_extents(self, first: &Range, span: u64, next: &Range, me: Member) -> Result<bool> {
        // Addresses between two slabs that are not neighbours belong to another slab.
        if first.base + span != next.base {
            return Ok(false);
        }
        let (word, next_word) = (retired(first.base), retired(next.base));
        let joined = self.row(first.slab, (word, word), (span, span + next.span));
        self.change(&[joined, self.row(next.slab, (next_word, 0), (next.span, 0))].concat(), me)
    }

    /// Moves addresses beyond the frontier to the end of a retired slab, or to a new retired slab. Returns
    /// the slab's number, base and span, or `None` if no row is free or another process has taken some of the
    /// addresses.
    fn take_beyond(
        self,
        behind: Option<(u32, u64, u64)>,
        frontier: u64,
        len: u64,
        me: Member,
    ) -> Result<Option<(u32, u64, u64)>> {
        let taken = [(Word::at(control::FRONTIER), frontier, frontier + len)];
        if let Some((slab, base, span)) = behind {
            let row = self.row(slab, (retired(base), retired(base)), (span, span + len));
            return Ok(self.change(&[&row[..], &taken].concat(), me)?.then_some((slab, base, span + len)));
        }
        let Some((row, count)) = self.new_row()? else { return Ok(None) };
        let new = self.row(row, (0, retired(frontier)), (0, len));
        Ok(self.change(&[&new[..], &taken, &[count]].concat(), me)?.then_some((row, frontier, len)))
    }

    /// Splits a retired slab in two at byte `at`. Returns the second slab, or `None` if no row is free.
    fn split_extent(self, slab: u32, base: u64, span: u64, at: u64, me: Member) -> Result<Option<u32>> {
        let Some((row, count)) = self.new_row()? else { return Ok(None) };
        let first = self.row(slab, (retired(base), retired(base)), (span, at));
        let second = self.row(row, (0, retired(base + at)), (0, span - at));
        Ok(self.change(&[&first[..], &second, &[count]].concat(), me)?.then_some(row))
    }

    /// Returns the changes of a row's slab word and span word. `word` and `span` are pairs of old and new
    /// value.
    fn row(self, slab: u32, word: (u64, u64), span: (u64, u64)) -> [WordChange; 2] {
        let at = |i| Blocks(self.0).slab_word(slab, i);
        [(at(0), word.0, word.1), (at(3), span.0, span.1)]
    }

    /// Returns a row without addresses, and the change of the number of slabs. Returns `None` if no row is
    /// free.
    fn new_row(self) -> Result<Option<(u32, WordChange)>> {
        let count = Blocks(self.0).slab_count();
        let Some(row) = self.unused_rows().next() else { return Ok(None) };
        self.commit_slab_row(row)?;
        Ok(Some((row, (Word::at(control::SLABS), count.into(), count.max(row + 1).into()))))
    }

    /// Gives a retired slab a class: it is then in use. Returns `false` if its words have changed.
    fn give_class(self, slab: u32, base: u64, span: u64, class: u32, me: Member) -> Result<bool> {
        self.commit_class_map(class, slab)?;
        // An upper bound: a value that is too large does no harm.
        raise(self.map(), Word::at(control::CLASS_ENDS + 8 * u64::from(class)), u64::from(slab) + 1);
        // If this process dies before the hints of the slab are set, the reclaim sets them.
        Members(self.0).touch(me, slab);
        let done = self.change(&self.row(slab, (retired(base), describe(class, base)), (span, span)), me)?;
        if done {
            self.hint_new_slab(slab, class);
        }
        Ok(done)
    }

    /// Changes the words in one update. Returns `true` if the words still had their expected values.
    fn change(self, words: &[WordChange], me: Member) -> Result<bool> {
        let (change, start) = (Change::new(words), Instant::now());
        loop {
            match self.update(me, change.clone()) {
                UpdateOutcome::Done(read) => return Ok(read[..change.seen.len()] == change.seen),
                UpdateOutcome::Busy(holder) if start.elapsed() > TIME_LIMIT => {
                    let what = "the table of slabs, in which no addresses are left,";
                    return Err(Error::Held { what, holder, pid: Members(self.0).pid_of(holder) });
                }
                UpdateOutcome::Busy(_) => std::thread::yield_now(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::Arena;

    fn extents(spans: &[(u64, bool)]) -> Vec<Range> {
        let mut base = 0;
        let extent = |(slab, &(span, idle)): (usize, &(u64, bool))| {
            let e = Range { slab: slab as u32, word: 0, span_word: 0, base, span, idle };
            base += span;
            e
        };
        spans.iter().enumerate().map(extent).collect()
    }

    #[test]
    fn slab_reuse_picks_the_first_sufficient_idle_run() {
        let slabs = |spans: &[(u64, bool)], need, align| {
            room(&extents(spans), need, align).map(|run| run.iter().map(|e| e.slab).collect::<Vec<_>>())
        };
        let idle = [false, true, true, false, true, true, true, false, true];
        let spans: Vec<_> = [4, 4, 4, 4, 2, 4, 2, 1, 9].into_iter().zip(idle).collect();
        assert_eq!(slabs(&spans, 4, 1), Some(vec![1]));
        assert_eq!(slabs(&spans, 5, 1), Some(vec![1, 2]));
        assert_eq!(slabs(&spans, 2, 16), Some(vec![4]));
        assert_eq!(slabs(&spans, 4, 16), Some(vec![4, 5]));
        assert_eq!(slabs(&spans, 9, 1), Some(vec![8]));
        assert_eq!(slabs(&spans, 10, 1), None);
        assert_eq!(slabs(&[(8, false)], 1, 1), None);
        assert_eq!(slabs(&[], 1, 1), None);
        // The second range was missed.
        let mut apart = extents(&[(4, true), (4, true), (4, true)]);
        apart.remove(1);
        assert!(room(&apart, 5, 1).is_none() && room(&apart, 4, 1).is_some());
    }

    /// Returns the ranges once two consecutive reads agree: tests in other threads add slabs meanwhile.
    fn settled_ranges(arena: Arena) -> Vec<Range> {
        let until = Instant::now() + Duration::from_secs(30);
        loop {
            let (first, second) = (Allocator(arena).ranges(), Allocator(arena).ranges());
            if format!("{first:?}") == format!("{second:?}") {
                return second;
            }
            assert!(Instant::now() < until, "the ranges change all the time: {second:?}");
        }
    }

    /// Asserts that the ranges cover all addresses up to the end of the last one, without overlap.
    fn assert_whole(ranges: &[Range]) {
        for pair in ranges.windows(2) {
            assert_eq!(pair[0].end(), pair[1].base, "{pair:?}");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "needs a larger arena than Miri's")]
    fn slab_reuse_fails_if_a_slab_between_was_missed() {
        let arena = Arena::current().unwrap();
        let me = arena.me().unwrap();
        // Sizes that no other test here uses. The second one needs a gap before it.
        let [class, page, other] =
            [14 << 20, 5 << 10, 37 << 20].map(|len| crate::layout::size_class::class_of(len).unwrap());
        let until = Instant::now() + Duration::from_secs(30);
        // Tests in other threads may add slabs between these.
        let (first, missed, last) = loop {
            for class in [class, page, class, class, class] {
                Allocator(arena).carve(class, me).unwrap();
            }
            let ranges = settled_ranges(arena);
            assert_whole(&ranges);
            let of_class: Vec<_> =
                ranges.iter().filter(|e| described(e.word).is_some_and(|(c, _)| c == class)).collect();
            if let Some(three) =
                of_class.windows(3).find(|w| w[0].end() == w[1].base && w[1].end() == w[2].base)
            {
                break (*three[0], *three[1], *three[2]);
            }
            assert!(Instant::now() < until, "no three slabs are adjacent: {of_class:?}");
        };
        // Same situation as if `missed` had been split off after its row was read.
        assert!(!Allocator(arena).reuse_room(&[first, last], other, me).unwrap());
        let ranges = settled_ranges(arena);
        assert_whole(&ranges);
        assert!(ranges.iter().any(|e| e.slab == missed.slab && e.word == missed.word));
        // Neighbours become one slab.
        let neighbours: Vec<_> =
            ranges.into_iter().filter(|e| e.base >= first.base && e.base <= last.base).collect();
        assert!(Allocator(arena).reuse_room(&neighbours, other, me).unwrap());
        assert_whole(&settled_ranges(arena));
    }

    /// A slab changes its class only if all its blocks are free. A retired slab has no pages.
    #[test]
    #[cfg_attr(miri, ignore = "needs a larger arena than Miri's")]
    fn retire_of_slab_in_use_is_refused() {
        let arena = Arena::current().unwrap();
        let me = arena.me().unwrap();
        let hold = Allocator(arena).alloc(19 << 20).unwrap();
        let slab = hold.block() / SLAB_BLOCKS;
        let range = Allocator(arena).ranges().into_iter().find(|range| range.slab == slab).unwrap();
        assert!(!Allocator(arena).retire(&range, me).unwrap());
        assert!(Blocks(arena).slab(slab).is_some());
        drop(hold);
        assert!(Allocator(arena).retire(&range, me).unwrap());
        assert_eq!((Blocks(arena).slab(slab), Blocks(arena).slab_committed(slab)), (None, 0));
        // A word with an unexpected value is not changed.
        let word = Blocks(arena).slab_word(slab, 3);
        let now = arena.map().load(word);
        assert!(!Allocator(arena).change(&[(word, now + 4096, 0)], me).unwrap());
        assert_eq!(arena.map().load(word), now);
    }
}
