//! # Safety
//! Access to words of the arena: a worker's chunk word and its journal, and the counters of a pool. Unsafe,
//! because the words could belong to another structure; sound, because
//! - a [`WorkerWords`] or [`PoolWords`] is created only from a [`Structure`] with this crate's name and this
//!   length. The words of such a structure have no other use;
//! - the structure lives as long as the handle that holds it.
#![allow(unsafe_code)]

use mp_core::mem::{Mem, Steps, Word, run};
use mp_core::{Error, Result, Structure, published_pools};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::steps::chunk::{
    BeginChunk, ChunkWord, ClaimItem, CondemnWorker, CutChunk, CutShare, FinishItem, Turn,
};
use crate::steps::journal::{self, Journal, JournalResults};

const NAME: &str = published_pools::WORKER;
const CHUNK: u64 = 0;
/// Index of the word with the start of the running item, if the item is timed. The word is written before the
/// item is claimed.
const SINCE: u64 = 1;
/// Index of the word with the note of the running item. A note of 0 means that the item has no note. While
/// the worker lives, only its process writes the note. The task writes any value. The main loop writes 0
/// after it has finished an item, before it claims the next item, and after it has answered the chunk. After
/// a death, the note of the lost item remains. The pool reads the note, and sets it to 0 for the next worker.
const NOTE: u64 = published_pools::NOTE;
/// Index of the head of the journal, on a cache line that the pool does not read together with the other
/// words.
const JOURNAL: u64 = 16;
const WORDS: u64 = JOURNAL + journal::WORDS;

/// Words in shared memory in which a worker publishes the state of its chunk.
#[derive(Clone, Debug)]
pub(crate) struct WorkerWords(Structure);

impl WorkerWords {
    pub(crate) fn new() -> Result<WorkerWords> {
        Structure::new(NAME, WORDS).map(WorkerWords)
    }

    fn words(&self) -> &'static (impl Mem + use<>) {
        // SAFETY: only words of this structure are changed, by the steps that they belong to, see above.
        unsafe { self.0.arena().words() }
    }

    #[inline]
    fn run<S: Steps>(&self, steps: S) -> S::Out {
        run(steps, self.words())
    }

    fn chunk(&self) -> Word {
        self.0.word(CHUNK)
    }

    /// Returns the chunk word.
    pub(crate) fn word(&self) -> ChunkWord {
        ChunkWord(self.words().load(self.chunk()))
    }

    /// Returns the start of the running item, on the system's monotonic clock in nanoseconds.
    pub(crate) fn since(&self) -> u64 {
        self.words().load(self.0.word(SINCE))
    }

    /// Sets the start of the item that the worker claims next, or has claimed.
    pub(crate) fn set_since(&self, since: u64) {
        self.words().store(self.0.word(SINCE), since);
    }

    /// Returns the note of the running item.
    pub(crate) fn note(&self) -> Option<u64> {
        Some(self.words().load(self.0.word(NOTE))).filter(|note| *note != 0)
    }

    /// Sets the note of the running item.
    #[inline]
    pub(crate) fn set_note(&self, note: u64) {
        self.words().store(self.0.word(NOTE), note);
    }

    /// Withdraws unclaimed items of a chunk. Returns the first withdrawn item.
    pub(crate) fn cut(&self, chunk: u64, share: CutShare) -> Option<usize> {
        self.run(CutChunk::new(self.chunk(), chunk, share))
    }

    /// Condemns the worker, unless its chunk word differs from `seen`. Returns `true` on success.
    pub(crate) fn condemn(&self, seen: ChunkWord) -> bool {
        self.run(CondemnWorker::new(self.chunk(), seen))
    }

    /// Resets the words after the worker's death has been handled.
    pub(crate) fn clear(&self) {
        self.words().store(self.chunk(), 0);
        self.words().store(self.0.word(NOTE), 0);
        self.words().store(self.0.word(JOURNAL), 0);
    }

    /// Returns the results in the journal if they belong to this chunk. If the worker died before it
    /// restarted the journal, results that it has already sent are included.
    pub(crate) fn journal_results(&self, chunk: u64) -> Option<JournalResults> {
        self.run(journal::ReadJournal::new(self.0.word(JOURNAL), chunk))
    }
}

/// State of a worker that its pool publishes for tools.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PublishedWorker {
    /// Process ID; 0 means no process.
    pub(crate) pid: u32,
    pub(crate) ready: bool,
    pub(crate) chunks: usize,
}

impl WorkerWords {
    /// Publishes the number of the worker in its pool.
    pub(crate) fn publish_place(&self, pool: &PoolWords, number: usize) {
        let pool = u64::from(pool.0.hold().block()) + 1;
        self.publish(0, pool << 32 | number as u64);
    }

    pub(crate) fn publish_state(&self, worker: PublishedWorker) {
        let PublishedWorker { pid, ready, chunks } = worker;
        self.publish(1, u64::from(pid) << 1 | u64::from(ready));
        self.publish(2, chunks as u64);
    }

    /// Publishes the time since which the worker's first chunk has been unanswered, in milliseconds of the
    /// monotonic clock.
    pub(crate) fn publish_since(&self, monotonic_ms: u64) {
        self.publish(3, monotonic_ms);
    }

    fn publish(&self, word: u64, value: u64) {
        self.words().store_relaxed(self.0.word(published_pools::WORKER_STATE + word), value);
    }
}

/// Counters that a pool publishes for tools.
#[derive(Debug)]
pub(crate) struct PoolWords(Structure);

impl PoolWords {
    pub(crate) fn new(name: Option<&str>) -> Result<PoolWords> {
        let structure = Structure::new(published_pools::POOL, published_pools::POOL_WORDS)?;
        name.into_iter().for_each(|name| mp_core::waits::name_object(structure.hold(), name));
        Ok(PoolWords(structure))
    }

    /// Publishes counters in consecutive words, beginning with the word `first`: see [`published_pools`].
    pub(crate) fn publish<const N: usize>(&self, first: u64, counters: [u64; N]) {
        // SAFETY: only words of this structure are changed, see above.
        let words = unsafe { self.0.arena().words() };
        counters.into_iter().zip(first..published_pools::POOL_WORDS).for_each(|(value, word)| {
            words.store_relaxed(self.0.word(word), value);
        });
    }
}

impl Serialize for WorkerWords {
    fn serialize<S: Serializer>(&self, s: S) -> std::result::Result<S::Ok, S::Error> {
        self.0.send("the words of a worker", s)
    }
}

impl<'de> Deserialize<'de> for WorkerWords {
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        let structure = Structure::receive("the words of a worker", NAME, d)?;
        if structure.len() == WORDS {
            return Ok(WorkerWords(structure));
        }
        let why = format!("words of a worker of length {} arrived", structure.len());
        Err(serde::de::Error::custom(Error::Malformed(why)))
    }
}

/// Access of a worker to its own words. Contains the last values that the worker has written.
#[derive(Debug)]
pub(crate) struct WordsWriter {
    shared_words: WorkerWords,
    word: ChunkWord,
    journal: Journal,
}

impl WordsWriter {
    pub(crate) fn new(shared_words: WorkerWords) -> WordsWriter {
        let journal = Journal::new(shared_words.0.word(JOURNAL));
        WordsWriter { word: shared_words.word(), shared_words, journal }
    }

    #[inline]
    fn apply(&mut self, turn: Turn) -> Turn {
        if let Turn::Go(word) | Turn::End(word) = turn {
            self.word = word;
        }
        turn
    }

    /// Begins a chunk of `count` items, and claims its first item.
    pub(crate) fn begin(&mut self, chunk: u64, count: usize) -> Turn {
        let words = self.shared_words.words();
        self.journal.begin(chunk, 0, |w, v| words.store(w, v));
        let turn = self.shared_words.run(BeginChunk::new(self.shared_words.chunk(), self.word, chunk, count));
        self.apply(turn)
    }

    /// Finishes the running item, and claims the next one.
    #[inline]
    pub(crate) fn claim(&mut self) -> Turn {
        let turn = self.shared_words.run(ClaimItem::new(self.shared_words.chunk(), self.word));
        self.apply(turn)
    }

    /// Returns the note of the running item, or 0 if it has none.
    pub(crate) fn note(&self) -> u64 {
        self.shared_words.words().load(self.shared_words.0.word(NOTE))
    }

    /// Clears the note of the finished item.
    #[inline]
    pub(crate) fn clear_note(&self) {
        let (words, note) = (self.shared_words.words(), self.shared_words.0.word(NOTE));
        if words.load_relaxed(note) != 0 {
            words.store(note, 0);
        }
    }

    /// Finishes the running item without claiming another one.
    pub(crate) fn finish(&mut self) -> Turn {
        if self.word.is_done() {
            return Turn::Go(self.word);
        }
        let turn = self.shared_words.run(FinishItem::new(self.shared_words.chunk(), self.word));
        self.apply(turn)
    }

    /// Stores a result in the journal until it is sent. Returns `false` if the journal has no room.
    #[inline]
    pub(crate) fn append_result(&mut self, result: &[u8]) -> bool {
        let words = self.shared_words.words();
        self.journal.append(result, |w, v| words.store(w, v))
    }

    /// Restarts the journal after all results before item `next` of this chunk were sent.
    pub(crate) fn restart_journal(&mut self, chunk: u64, next: usize) {
        let words = self.shared_words.words();
        self.journal.begin(chunk, next, |w, v| words.store(w, v));
    }
}
