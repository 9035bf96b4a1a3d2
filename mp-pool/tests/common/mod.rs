//! Helpers shared by the pool's tests. Each wait has a deadline, and each worker ends with its test.
#![allow(dead_code, unused_imports, unreachable_pub, missing_docs)]

#[cfg(feature = "net")]
pub mod hosts;

use std::fmt::Debug;

use mp_core::{Arena, MemoryStats};
pub use mp_harness::{DEADLINE, alive, eventually, signal, threads_are};
use mp_pool::{AsyncResult, Pool, ResultKind, TaskError, WorkerLost};
use mp_queue::Queue;
use mp_reduce::Message;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

/// Waits for a result. Panics if it does not arrive in time.
#[track_caller]
pub fn got<T, S: ResultKind<T>>(result: AsyncResult<T, S>) -> Result<S::Value, TaskError> {
    match result.get_timeout(DEADLINE) {
        Ok(value) => value,
        Err(result) => panic!("not within {DEADLINE:?}: {result:?}"),
    }
}

/// Joins the pool. Panics if it does not end in time.
#[track_caller]
pub fn join(pool: &Pool) {
    assert!(pool.join_timeout(DEADLINE).unwrap(), "not over within {DEADLINE:?}: {pool:?}");
}

/// Waits for the next message, even from a process that is not started yet. Panics if none arrives in time.
#[track_caller]
pub fn take<T: Message>(queue: &Queue<T>) -> T {
    let mut got = None;
    eventually("a message", || {
        got = queue.try_get().ok().flatten();
        got.is_some()
    });
    got.unwrap()
}

/// Returns the error of a lost task. Panics for any other result.
#[track_caller]
pub fn lost<T: Debug>(result: Result<T, TaskError>) -> WorkerLost {
    match result {
        Err(TaskError::WorkerLost(lost)) => *lost,
        other => panic!("a lost worker was expected: {other:?}"),
    }
}

pub fn kill(pid: u32) {
    signal(pid, Signal::KILL);
}

/// Returns `true` if a process is stopped.
pub fn stopped(pid: u32) -> bool {
    threads_are(pid, 'T')
}

/// Returns the numbers of blocks, messages and members in shared memory, which a leak would increase.
pub fn in_use() -> (u64, u64, u64) {
    let MemoryStats { live_blocks, queued, members, .. } = Arena::current().unwrap().memory_stats();
    (live_blocks, queued, members)
}

/// Gate at which tasks stop: each reports that it has begun, with its number and its process, and continues
/// when the test opens the gate.
#[derive(Clone, Serialize, Deserialize)]
pub struct Gate {
    begun: Queue<(u32, u32)>,
    go: Queue<()>,
}

impl Gate {
    pub fn new() -> Gate {
        Gate { begun: Queue::unbounded().unwrap(), go: Queue::unbounded().unwrap() }
    }

    /// Stops at the gate; used in a task.
    pub fn pass(&self, number: u32) {
        self.begun.put((number, std::process::id())).unwrap();
        // If the test has ended, this process will end soon.
        _ = self.go.get_timeout(DEADLINE);
    }

    /// Waits for a task. Returns its number and its process.
    #[track_caller]
    pub fn arrived(&self) -> (u32, u32) {
        take(&self.begun)
    }

    /// Lets `tasks` tasks pass, now or later.
    pub fn open(&self, tasks: usize) {
        (0..tasks).for_each(|_| self.go.put(()).unwrap());
    }
}

/// Stops at the gate, and returns the number of the task.
pub fn stop_at((gate, number): (Gate, u32)) -> u32 {
    gate.pass(number);
    number
}

/// Deterministic random numbers: splitmix64.
#[derive(Debug)]
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) % limit
    }
}
