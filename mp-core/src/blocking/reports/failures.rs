//! Last failures of processes, in shared memory: for tools that read the program from outside.
//!
//! | word | content | changed by |
//! |---|---|---|
//! | `FAILURES` | the number of failures | a process that records a failure of its child adds 1: the sum selects the row to write |
//! | row, word 0 | zero while the row is written, else the number of the failure, from 1 | the recording process: zero first, the number last |
//! | row, word 1 | the time in ms since 1970 | the recording process |
//! | row, words 2 – 15 | the beginning of the error's text | the recording process |
//!
//! A process that is killed while it writes leaves a row with zero, which readers skip. Two processes write
//! the same row only if one of them is delayed for [`ROWS`] failures. The row then may mix both texts.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::arena::Arena;
use crate::blocking::reports::table;
use crate::layout::control;
use crate::mem::{Mem, Word};
use crate::members::Members;
use crate::sync::{Ordering, fence};

/// Number of rows for failures, a power of two.
const ROWS: u64 = 8;
const ROW_WORDS: u64 = 16;
/// Maximum length of a text in bytes.
const TEXT_BYTES: usize = 8 * (ROW_WORDS as usize - 2);
const _: () = assert!(control::FAILURES + 8 * (1 + ROWS * ROW_WORDS) <= control::CLASS_ENDS);

fn row(number: u64) -> Word {
    Word::at(control::FAILURES).plus(1 + number.wrapping_sub(1) % ROWS * ROW_WORDS)
}

/// Records the failure of a child of this process, if this process is a member of an arena.
#[doc(hidden)]
pub fn record_failure(text: &str) {
    if let Some(arena) = table::arena() {
        record_in(arena, text);
    }
}

fn record_in(arena: Arena, text: &str) {
    let map = arena.map();
    let number = map.add(Word::at(control::FAILURES), 1).wrapping_add(1);
    let row = row(number);
    map.store(row, 0);
    fence(Ordering::Release);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    map.store(row.plus(1), now.as_millis() as u64);
    let line = text.lines().next().unwrap_or_default();
    let mut bytes = [0; TEXT_BYTES];
    let line = table::cut(line, TEXT_BYTES);
    bytes[..line.len()].copy_from_slice(line.as_bytes());
    table::write_bytes(arena, row.plus(2), bytes);
    map.store(row, number);
}

/// Returns the last failures in order: their times in milliseconds since 1970, and the beginnings of the
/// errors' texts.
pub(crate) fn last(arena: Arena) -> Vec<(u64, String)> {
    let map = arena.map();
    let end = map.load(Word::at(control::FAILURES));
    let numbers = end.saturating_sub(ROWS)..end;
    let read = |number: u64| {
        let row = row(number);
        let is_written = || map.load(row) == number;
        let before = is_written();
        let at_ms = map.load(row.plus(1));
        let text = Members(arena).read_text::<TEXT_BYTES>(row.plus(2));
        fence(Ordering::Acquire);
        (before && is_written()).then_some((at_ms, text))
    };
    numbers.filter_map(|before| read(before + 1)).collect()
}

#[cfg(all(test, not(mp_loom)))]
mod tests {
    use super::*;

    /// Checks the rows of this arena. No other test records a failure.
    #[test]
    fn arena_returns_the_last_recorded_failures_in_order() {
        let arena = Arena::current().unwrap();
        for i in 0..ROWS + 3 {
            record_in(arena, &format!("test-{i} failed: {}\nits output", "é".repeat(100)));
        }
        let texts: Vec<_> = last(arena).into_iter().map(|(_, text)| text).collect();
        assert_eq!(texts.len() as u64, ROWS);
        for (text, i) in texts.iter().zip(3..) {
            assert!(text.starts_with(&format!("test-{i} failed: é")), "{text}");
            assert!(text.len() <= TEXT_BYTES && text.ends_with('é'), "{text}");
        }
        // A row that is being written is skipped.
        let number = arena.map().load(Word::at(control::FAILURES));
        arena.map().store(row(number), 0);
        assert_eq!(last(arena).len() as u64, ROWS - 1);
        arena.map().store(row(number), number);
        assert_eq!(last(arena).len() as u64, ROWS);
    }
}
