//! Journal and chunk word of a worker under loom: what the memory model allows, for the worker and the pool
//! that reads concurrently.
//!
//! A worker dies by making no further step; the pool then reads the remaining state. Here the pool reads at
//! any moment, which includes that case.
//!
//! `RUSTFLAGS="--cfg mp_loom" cargo test --release -p mp-pool --test loom_journal`
#![cfg(mp_loom)]

use loom::sync::Arc;
use loom::thread;
use mp_core::mem::HeapMem;
use mp_core::mem::{Mem, Word, run};
use mp_pool::steps::chunk::{BeginChunk, ChunkWord, ClaimItem, CutChunk, CutShare, Turn};
use mp_pool::steps::journal::{Journal, JournalResults, ReadJournal};

const CHUNK: Word = Word::at(0);
const JOURNAL: Word = Word::at(8);
const WORDS: usize = 8;
const ID: u64 = 5;

/// Returns a value whose length makes results span two words.
fn value(item: usize) -> [u8; 9] {
    [item as u8 + 1; 9]
}

fn keep(m: &HeapMem, journal: &mut Journal, item: usize) {
    assert!(journal.append(&value(item), |w, v| m.store(w, v)));
}

/// Checks that results are complete and consecutive. Returns the index of the item after them.
fn check(found: &JournalResults) -> usize {
    let mut begin = 0;
    for (item, &end) in (found.first..).zip(&found.ends) {
        assert_eq!(found.bytes[begin..end as usize], value(item), "item {item}");
        begin = end as usize;
    }
    found.first + found.ends.len()
}

#[test]
fn results_are_whole_while_the_journal_changes() {
    loom::model(|| {
        let m = Arc::new(HeapMem::new(WORDS));
        let mut journal = Journal::new(JOURNAL);
        journal.begin(ID, 0, |w, v| m.store(w, v));
        keep(&m, &mut journal, 0);
        let worker = {
            let m = Arc::clone(&m);
            thread::spawn(move || {
                keep(&m, &mut journal, 1);
                journal.begin(ID, 2, |w, v| m.store(w, v));
                keep(&m, &mut journal, 2);
            })
        };
        if let Some(found) = run(ReadJournal::new(JOURNAL, ID), &*m) {
            check(&found);
        }
        worker.join().unwrap();
        let left = run(ReadJournal::new(JOURNAL, ID), &*m).expect("no other writes");
        assert_eq!((left.first, check(&left)), (2, 3));
    });
}

#[test]
fn journal_contains_all_items_finished_in_the_word() {
    loom::model(|| {
        let m = Arc::new(HeapMem::new(WORDS));
        let worker = {
            let m = Arc::clone(&m);
            thread::spawn(move || {
                let mut journal = Journal::new(JOURNAL);
                journal.begin(ID, 0, |w, v| m.store(w, v));
                let mut turn = run(BeginChunk::new(CHUNK, ChunkWord::default(), ID, 3), &*m);
                while let Turn::Go(word) = turn {
                    keep(&m, &mut journal, word.next() - 1);
                    turn = run(ClaimItem::new(CHUNK, word), &*m);
                }
            })
        };
        let cut = run(CutChunk::new(CHUNK, ID, CutShare::Half), &*m);
        let word = ChunkWord(m.load(CHUNK));
        if word.is_of(ID) {
            assert!(cut.is_none_or(|from| word.next() <= from), "an item that was taken back is claimed");
            let found = run(ReadJournal::new(JOURNAL, ID), &*m).expect("the journal is not restarted");
            assert!(check(&found) + 1 >= word.next(), "a result is missing");
        }
        worker.join().unwrap();
    });
}
