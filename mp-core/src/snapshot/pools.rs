//! Words that pools publish for tools, and functions that read them.
//!
//! | word of a pool | content | changed by |
//! |---|---|---|
//! | 0 | wanted number of workers | the pool's process, under its locks |
//! | 1 | number of tasks without an outcome | the pool's process, under its locks |
//! | 2 – 5 | numbers of tasks that are done, failed, lost, cancelled | the pool's process, under its locks |
//! | 6, 7 | numbers of retries and of replaced workers | the pool's process, under its locks |
//!
//! | word of a worker | content | changed by |
//! |---|---|---|
//! | 2 | note of the running task; 0: none | the worker |
//! | 8 | `number 32, block of the pool + 1 32` | the pool's process, before the worker starts |
//! | 9 | `ready 1, pid 32`; 0: no process | the pool's process |
//! | 10 | number of chunks of tasks that the worker has | the pool's process |
//! | 11 | time when the worker received the first of these chunks or last answered, in ms of the monotonic clock | the pool's process |
//!
//! Each word has one writer, so each change is one store. No step of the pool reads these words. If the
//! pool's process dies, the words keep their values until the pool's blocks are released.

use super::{PoolSnapshot, PoolWorkerSnapshot};
use crate::mem::Mem;
use crate::mem::Word;
use crate::sys::memory;

/// Name of the structure of a pool.
pub const POOL: &str = "mp_pool::Pool";
/// Number of words of a pool.
pub const POOL_WORDS: u64 = 8;
/// Name of the structure of a pool's worker.
pub const WORKER: &str = "mp_pool::Watch";
/// Position in a worker's words of the note of the running task.
pub const NOTE: u64 = 2;
/// Position in a worker's words of the first of four words that the pool's process writes. These words have a
/// separate cache line.
pub const WORKER_STATE: u64 = 8;

/// Reads a pool, without its workers.
pub(super) fn pool(m: &impl Mem, base: Word) -> PoolSnapshot {
    let [workers, pending, done, failed, lost, cancelled, retried, restarts] =
        [0, 1, 2, 3, 4, 5, 6, 7].map(|i| m.load_relaxed(base.plus(i)));
    PoolSnapshot {
        wanted_workers: workers,
        pending,
        done,
        failed,
        lost,
        cancelled,
        retried,
        restarts,
        ..PoolSnapshot::default()
    }
}

/// Reads the words of a worker. Returns the block of the worker's pool, and the state of the worker.
pub(super) fn worker(m: &impl Mem, base: Word) -> Option<(u32, PoolWorkerSnapshot)> {
    let [place, process, chunks, since] = [0, 1, 2, 3].map(|i| m.load_relaxed(base.plus(WORKER_STATE + i)));
    let pool = ((place >> 32) as u32).checked_sub(1)?;
    let note = m.load_relaxed(base.plus(NOTE));
    let busy_ms = memory::monotonic_ms().saturating_sub(since);
    Some((
        pool,
        PoolWorkerSnapshot {
            number: place as u32,
            pid: (process >> 1) as u32,
            ready: process & 1 != 0,
            chunks,
            busy_ms: if chunks > 0 { busy_ms } else { 0 },
            note: (note != 0).then_some(note),
        },
    ))
}
