//! # Safety
//! Where this crate touches words of the arena: a worker's chunk word, and its journal. Unsafe, because the words could be of
//! another structure; sound, because
//! - a [`Watch`] is made only of a [`Structure`] under this crate's name and of this length, whose words are used for nothing
//!   else,
//! - and which lives as long as the handle that holds it.
#![allow(unsafe_code)]

use mp_core::mem::{Mem, Steps, Word, run};
use mp_core::{Error, Result, Structure};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::steps::chunk::{Begin, ChunkWord, Claim, Condemn, Cut, Finish, Share, Turn};
use crate::steps::journal::{self, Finished, Journal};

const NAME: &str = "mp_pool::Watch";
const CHUNK: u64 = 0;
/// Since when the item runs, if it is timed: written before it is claimed.
const SINCE: u64 = 1;
/// What the item that runs has noted; 0 is nothing. Changed by the worker alone: by the item, to anything; to 0 once it is finished,
/// before the next one is claimed and when its chunk is answered. A death leaves the note of the item that is lost; the pool reads
/// it, and makes it 0 for the next worker.
const NOTE: u64 = 2;
/// The head of the journal; on a cache line that the pool does not read when it looks at the others.
const JOURNAL: u64 = 16;
const WORDS: u64 = JOURNAL + journal::WORDS;

/// What a worker says in shared memory about the chunk that it is at.
#[derive(Clone, Debug)]
pub(crate) struct Watch(Structure);

impl Watch {
    pub(crate) fn new() -> Result<Watch> {
        Structure::new(NAME, WORDS).map(Watch)
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

    /// At what the worker is.
    pub(crate) fn word(&self) -> ChunkWord {
        ChunkWord(self.words().load(self.chunk()))
    }

    /// Since when its item runs, by the clock that all processes read alike.
    pub(crate) fn since(&self) -> u64 {
        self.words().load(self.0.word(SINCE))
    }

    /// The item that the worker claims next, or has claimed, runs since then.
    pub(crate) fn runs_since(&self, since: u64) {
        self.words().store(self.0.word(SINCE), since);
    }

    /// What the item that runs has noted.
    pub(crate) fn note(&self) -> Option<u64> {
        Some(self.words().load(self.0.word(NOTE))).filter(|note| *note != 0)
    }

    /// The item that runs notes something.
    #[inline]
    pub(crate) fn set_note(&self, note: u64) {
        self.words().store(self.0.word(NOTE), note);
    }

    /// Takes back what it has not claimed of a chunk: from which item on.
    pub(crate) fn cut(&self, chunk: u64, share: Share) -> Option<usize> {
        self.run(Cut::new(self.chunk(), chunk, share))
    }

    /// Condemns it, unless the word has changed.
    pub(crate) fn condemn(&self, seen: ChunkWord) -> bool {
        self.run(Condemn::new(self.chunk(), seen))
    }

    /// It is dead, and all is known that there was to know.
    pub(crate) fn clear(&self) {
        self.words().store(self.chunk(), 0);
        self.words().store(self.0.word(NOTE), 0);
        self.words().store(self.0.word(JOURNAL), 0);
    }

    /// The results of a chunk that it has not sent, or had not when it sent others.
    pub(crate) fn finished(&self, chunk: u64) -> Option<Finished> {
        self.run(journal::Read::new(self.0.word(JOURNAL), chunk))
    }
}

impl Serialize for Watch {
    fn serialize<S: Serializer>(&self, s: S) -> std::result::Result<S::Ok, S::Error> {
        self.0.send("a pool's watch", s)
    }
}

impl<'de> Deserialize<'de> for Watch {
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        let structure = Structure::receive("a pool's watch", NAME, d)?;
        if structure.len() == WORDS {
            return Ok(Watch(structure));
        }
        let why = format!("a pool's watch of {} words arrived", structure.len());
        Err(serde::de::Error::custom(Error::Malformed(why)))
    }
}

/// The words of this process, which is a worker.
#[derive(Debug)]
pub(crate) struct Own {
    watch: Watch,
    word: ChunkWord,
    journal: Journal,
}

impl Own {
    pub(crate) fn new(watch: Watch) -> Own {
        let journal = Journal::new(watch.0.word(JOURNAL));
        Own { word: watch.word(), watch, journal }
    }

    #[inline]
    fn turned(&mut self, turn: Turn) -> Turn {
        if let Turn::Go(word) | Turn::End(word) = turn {
            self.word = word;
        }
        turn
    }

    /// Begins a chunk.
    pub(crate) fn begin(&mut self, chunk: u64, count: usize) -> Turn {
        let words = self.watch.words();
        self.journal.begin(chunk, 0, |w, v| words.store(w, v));
        let turn = self.watch.run(Begin::new(self.watch.chunk(), self.word, chunk, count));
        self.turned(turn)
    }

    /// The item is finished: claims the next one.
    #[inline]
    pub(crate) fn claim(&mut self) -> Turn {
        let turn = self.watch.run(Claim::new(self.watch.chunk(), self.word));
        self.turned(turn)
    }

    /// What the item has noted, or 0.
    pub(crate) fn note(&self) -> u64 {
        self.watch.words().load(self.watch.0.word(NOTE))
    }

    /// The item is finished, and so is what it has noted.
    #[inline]
    pub(crate) fn clear_note(&self) {
        let (words, note) = (self.watch.words(), self.watch.0.word(NOTE));
        if words.load_relaxed(note) != 0 {
            words.store(note, 0);
        }
    }

    /// The item is finished.
    pub(crate) fn finish(&mut self) -> Turn {
        if self.word.is_done() {
            return Turn::Go(self.word);
        }
        let turn = self.watch.run(Finish::new(self.watch.chunk(), self.word));
        self.turned(turn)
    }

    /// Keeps a result until it is sent; false if there is no room.
    #[inline]
    pub(crate) fn keep(&mut self, result: &[u8]) -> bool {
        let words = self.watch.words();
        self.journal.append(result, |w, v| words.store(w, v))
    }

    /// All results before item `next` of this chunk are sent.
    pub(crate) fn sent(&mut self, chunk: u64, next: usize) {
        let words = self.watch.words();
        self.journal.begin(chunk, next, |w, v| words.store(w, v));
    }
}
