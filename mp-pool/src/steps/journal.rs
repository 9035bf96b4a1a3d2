//! Journal of a worker: results of its chunk that were not sent yet, preserved if the worker dies.
//!
//! A worker sends results when its chunk is finished, or some time after it last sent results. Until then
//! each result is in its journal, where it is written before the next item is claimed. After sending the
//! results, the worker restarts the journal with the next item.
//!
//! # The words and their transitions
//! | word | meaning | changed by |
//! |---|---|---|
//! | head: `chunk 30, first 16, bytes 18` | the first `bytes` bytes contain results of `chunk` from item `first` on | the worker, after writing a result → more bytes; after sending results, or beginning a chunk → another item, 0 bytes |
//! | data | results, each beginning at a word: one byte with the length, followed by the bytes; from length 255 on, a word with 255 and the length, followed by the bytes | the worker |
//!
//! # Effects of a death
//! | the worker is killed | journal | pool |
//! |---|---|---|
//! | while it writes a result | the head does not include that result | reads the results before it |
//! | after it has updated the head, before it claims the next item | the head includes the result | treats the item as finished, although it runs according to the chunk word |
//! | after it has sent the results | still contains them | skips results that were reported |
//!
//! The pool also reads the journal of a live worker that runs a long item: head, data, head again. If the
//! head contains the same chunk and the same first item, no byte before `bytes` has changed between the two
//! reads of the head, because a restart changes the head first. The contents are untrusted: the pool checks
//! lengths, and treats results that it can't read as lost.

use mp_core::mem::{Mem, Steps, Word};

/// Size of a journal in bytes: a multiple of the word size.
pub const BYTES: usize = 64 << 10;
/// Size of a journal in words, including the head.
pub const WORDS: u64 = 1 + BYTES as u64 / 8;

const CHUNK: u64 = (1 << 30) - 1;
const FIRST: u64 = u16::MAX as u64;
const LEN: u64 = (1 << 18) - 1;
/// First byte of a long result. The other bytes of this word contain the length.
const LONG: u8 = u8::MAX;
/// Number of result bytes in the first word of a result.
const BESIDE: usize = 7;

/// State of a journal in its worker.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Journal {
    head: Word,
    chunk: u64,
    first: usize,
    /// Number of used bytes.
    bytes: usize,
}

impl Journal {
    /// Creates a journal whose head is at `head`.
    pub fn new(head: Word) -> Self {
        Self { head, chunk: 0, first: 0, bytes: 0 }
    }

    /// Restarts the journal with item `first` of a chunk. `store` stores a word, ordered after all earlier
    /// stores.
    pub fn begin(&mut self, chunk: u64, first: usize, mut store: impl FnMut(Word, u64)) {
        (self.chunk, self.first, self.bytes) = (chunk & CHUNK, first, 0);
        store(self.head, self.head_word());
    }

    fn head_word(&self) -> u64 {
        self.chunk << 34 | (self.first as u64 & FIRST) << 18 | self.bytes as u64
    }

    /// Writes the next result, word by word. Returns `false` if the journal has no room for it.
    #[inline(always)]
    pub fn append(&mut self, result: &[u8], mut store: impl FnMut(Word, u64)) -> bool {
        let len = result.len();
        let (beside, behind) = match len {
            0..=BESIDE => (low(result), &[][..]),
            _ if len < usize::from(LONG) => match result.first_chunk() {
                Some(first) => (u64::from_le_bytes(*first), &result[BESIDE..]),
                None => (0, result),
            },
            _ => (len as u64, result),
        };
        let bytes = self.bytes + 8 * (1 + behind.len().div_ceil(8));
        if bytes > BYTES {
            return false;
        }
        let mut at = self.head.plus(1 + self.bytes as u64 / 8);
        let mut next = |word| {
            store(at, word);
            at = at.plus(1);
        };
        next(beside << 8 | (len as u64).min(LONG.into()));
        let (words, rest) = behind.as_chunks();
        words.iter().for_each(|word| next(u64::from_le_bytes(*word)));
        if !rest.is_empty() {
            // The rest is at the end of a result of eight bytes or more.
            next(match result.last_chunk() {
                Some(last) => u64::from_le_bytes(*last) >> (8 * (8 - rest.len())),
                None => low(rest),
            });
        }
        self.bytes = bytes;
        store(self.head, self.head_word());
        true
    }
}

/// Returns fewer than eight bytes as the low bytes of a word. (Copying them would cost a function call.)
#[inline]
fn low(bytes: &[u8]) -> u64 {
    match (bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
        (Some(first), Some(last)) => {
            let (first, last) = (u32::from_le_bytes(*first), u32::from_le_bytes(*last));
            // Overlapping bytes are equal in both.
            u64::from(first) | u64::from(last) << (8 * (bytes.len() - 4))
        }
        _ => bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)),
    }
}

/// Results read from a journal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JournalResults {
    /// Item of the first result.
    pub first: usize,
    /// End of each result in `bytes`.
    pub ends: Vec<u32>,
    /// Bytes of all results.
    pub bytes: Vec<u8>,
}

/// Steps that read the results of a chunk from a journal. Returns `None` if the journal is for another chunk,
/// or was restarted during the steps.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ReadJournal {
    head: Word,
    chunk: u64,
    /// Value of the head that the first step has read.
    begun: Option<u64>,
    data: Vec<u8>,
}

impl ReadJournal {
    /// Creates the steps for the journal whose head is at `head`.
    pub fn new(head: Word, chunk: u64) -> Self {
        Self { head, chunk, begun: None, data: Vec::new() }
    }
}

impl Steps for ReadJournal {
    type Out = Option<JournalResults>;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<Option<JournalResults>> {
        let Some(begun) = self.begun else {
            let begun = m.load(self.head);
            if begun >> 34 != self.chunk & CHUNK || (begun & LEN) as usize > BYTES {
                return Some(None);
            }
            self.begun = Some(begun);
            return None;
        };
        let len = (begun & LEN) as usize;
        if self.data.len() < len {
            let word = m.load(self.head.plus(1 + self.data.len() as u64 / 8));
            self.data.extend_from_slice(&word.to_le_bytes());
            return None;
        }
        if begun >> 18 != m.load(self.head) >> 18 {
            return Some(None);
        }
        self.data.truncate(len);
        let mut finished =
            JournalResults { first: (begun >> 18 & FIRST) as usize, ends: Vec::new(), bytes: Vec::new() };
        let mut rest = &self.data[..];
        while let Some((result, behind)) = split(rest) {
            finished.bytes.extend_from_slice(result);
            finished.ends.push(finished.bytes.len() as u32);
            rest = behind;
        }
        Some(Some(finished))
    }
}

/// Splits off the first result.
fn split(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let (first, _) = data.split_first_chunk::<8>()?;
    let (begin, len) = match first[0] {
        LONG => (8_usize, usize::try_from(u64::from_le_bytes(*first) >> 8).ok()?),
        len => (1, usize::from(len)),
    };
    let end = begin.checked_add(len)?;
    Some((data.get(begin..end)?, data.get(end.checked_next_multiple_of(8)?..)?))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use mp_core::mem::{HeapMem, run};

    use super::*;

    const HEAD: Word = Word::at(8);

    fn read<M: Mem + ?Sized>(m: &M, head: Word, chunk: u64) -> Option<JournalResults> {
        run(ReadJournal::new(head, chunk), m)
    }

    fn finished(first: usize, results: &[Vec<u8>]) -> JournalResults {
        let mut found = JournalResults { first, ends: Vec::new(), bytes: Vec::new() };
        for result in results {
            found.bytes.extend(result);
            found.ends.push(found.bytes.len() as u32);
        }
        found
    }

    #[test]
    fn journal_results_of_all_lengths_round_trip() {
        let m = HeapMem::new(2 + WORDS as usize);
        let mut journal = Journal::new(HEAD);
        for round in 0..3_u64 {
            let first = 100 * round as usize;
            journal.begin(7, first, |w, v| m.store(w, v));
            let mut results: Vec<Vec<u8>> = Vec::new();
            for len in (0..40).chain([253, 254, 255, 256, 257, 263, 264, 1000, 3, 0, 0, 8, 16]) {
                let result: Vec<u8> = (0..len).map(|i| (i + len) as u8 ^ round as u8).collect();
                assert!(journal.append(&result, |w, v| m.store(w, v)));
                results.push(result);
                assert_eq!(read(&m, HEAD, 7), Some(finished(first, &results)));
                assert_eq!(read(&m, HEAD, 8), None);
            }
        }
    }

    /// The pool reads the journal before each store of the worker, and must find all results that were
    /// complete before that store.
    #[test]
    fn journal_reader_finds_all_results_so_far_or_none() {
        let m = HeapMem::new(2 + WORDS as usize);
        let mut journal = Journal::new(HEAD);
        let mut before = None;
        for first in [0, 6, 12] {
            journal.begin(7, first, |w, v| {
                assert!(before.is_none() || read(&m, HEAD, 7) == before);
                m.store(w, v);
            });
            let mut results: Vec<Vec<u8>> = Vec::new();
            for len in [3, 8, 20, 300, 1, 5] {
                let now = Some(finished(first, &results));
                journal.append(&vec![first as u8 + len as u8; len], |w, v| {
                    assert_eq!(read(&m, HEAD, 7), now);
                    m.store(w, v);
                });
                results.push(vec![first as u8 + len as u8; len]);
            }
            before = Some(finished(first, &results));
            assert_eq!(read(&m, HEAD, 7), before);
        }
    }

    /// Before each load of the pool, the worker restarts its journal and writes results.
    #[test]
    fn journal_restart_during_a_read_mixes_no_results() {
        let results = |first: usize| (0..6).map(|i| vec![(first + i) as u8; 10 + first]).collect::<Vec<_>>();
        for reads in 0..20_u32 {
            let m = HeapMem::new(2 + WORDS as usize);
            let mut journal = Journal::new(HEAD);
            let write = |journal: &mut Journal, first: usize| {
                journal.begin(7, first, |w, v| m.store(w, v));
                results(first).iter().for_each(|result| _ = journal.append(result, |w, v| m.store(w, v)));
            };
            write(&mut journal, 0);
            let left = Cell::new(reads);
            let during = Meanwhile(&m, || {
                if left.replace(left.get().wrapping_sub(1)) == 0 {
                    write(&mut journal.clone(), 6);
                }
            });
            match read(&during, HEAD, 7) {
                None => assert!(reads > 0),
                Some(found) => assert_eq!(found, finished(found.first, &results(found.first)), "{reads}"),
            }
        }
    }

    /// Memory that calls a function before each load.
    struct Meanwhile<'a, F>(&'a HeapMem, F);

    impl<F: Fn()> Mem for Meanwhile<'_, F> {
        fn load(&self, w: Word) -> u64 {
            (self.1)();
            self.0.load(w)
        }
        fn load_relaxed(&self, w: Word) -> u64 {
            self.load(w)
        }
        fn store(&self, w: Word, v: u64) {
            self.0.store(w, v);
        }
        fn store_relaxed(&self, w: Word, v: u64) {
            self.0.store_relaxed(w, v);
        }
        fn cas(&self, w: Word, old: u64, new: u64) -> Result<(), u64> {
            self.0.cas(w, old, new)
        }
        fn add(&self, w: Word, v: u64) -> u64 {
            self.0.add(w, v)
        }
        fn or(&self, w: Word, v: u64) -> u64 {
            self.0.or(w, v)
        }
        fn and(&self, w: Word, v: u64) -> u64 {
            self.0.and(w, v)
        }
        fn fence_after_rmw(&self) {
            self.0.fence_after_rmw();
        }
    }

    #[test]
    fn result_larger_than_journal_room_is_not_written() {
        let m = HeapMem::new(2 + WORDS as usize);
        let mut journal = Journal::new(HEAD);
        journal.begin(1, 0, |w, v| m.store(w, v));
        let mut count = 0;
        while journal.append(&[7; 100], |w, v| m.store(w, v)) {
            count += 1;
        }
        // Each result takes a word in addition to its bytes.
        assert_eq!(count, BYTES / 104);
        assert!(!journal.append(&vec![1; BYTES], |w, v| m.store(w, v)));
        assert_eq!(read(&m, HEAD, 1).unwrap().ends.len(), count);
        assert_eq!(m.load(HEAD.plus(WORDS)), 0, "the word after the journal");
    }

    /// For any amount of room left, the last result is complete or missing, and nothing is written after the
    /// journal.
    #[test]
    fn journal_is_filled_exactly_to_its_end() {
        for left in 0..5 {
            let m = HeapMem::new(3 + WORDS as usize);
            let mut journal = Journal::new(HEAD);
            journal.begin(1, 0, |w, v| m.store(w, v));
            let most = vec![u8::MAX; BYTES - 8 * (1 + left)];
            assert!(journal.append(&most, |w, v| m.store(w, v)));
            let mut results = vec![most];
            for len in (0..8 * left + 2).rev() {
                if journal.append(&vec![u8::MAX; len], |w, v| m.store(w, v)) {
                    results.push(vec![u8::MAX; len]);
                }
            }
            assert_eq!(results.len() > 1, left > 0, "{left} words were left");
            assert_eq!(m.load(HEAD.plus(WORDS)), 0, "{left} words were left");
            assert_eq!(read(&m, HEAD, 1), Some(finished(0, &results)), "{left} words were left");
        }
    }

    /// Reading arbitrary words does not panic, and returns only complete results.
    #[test]
    fn garbage_in_a_journal_yields_only_complete_results() {
        let m = HeapMem::new(2 + WORDS as usize);
        let mut x = 88172645463325252_u64;
        for _ in 0..2000 {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            m.store(HEAD, 5 << 34 | x & (LEN | FIRST << 18));
            m.store(HEAD.plus(1 + x % 64), x);
            if let Some(found) = read(&m, HEAD, 5) {
                assert!(
                    found.ends.is_sorted()
                        && found.ends.last().is_none_or(|end| *end as usize == found.bytes.len())
                );
            }
        }
    }
}
