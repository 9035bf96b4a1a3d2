//! What the tests of the manager share. Each wait here has a deadline, each process ends with its test.
#![allow(dead_code, unused_imports, unreachable_pub, missing_docs)]

#[cfg(feature = "authkey")]
pub mod served;

use mp_core::{Arena, MemoryStats};
pub use mp_harness::{DEADLINE, alive, eventually, signal, threads_are};
use mp_manager::{Manager, ManagerHandle, Proxy};
use mp_queue::Queue;
use mp_reduce::Message;
use mp_spawn::Closure;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

/// An object whose calls have to end.
#[track_caller]
pub fn made<T: 'static>(manager: &ManagerHandle, make: Closure<(), T>) -> Proxy<T> {
    manager.create_closure(make).unwrap().with_timeout(DEADLINE)
}

pub fn manager() -> Manager {
    Manager::start().unwrap()
}

/// The next message, which has to come: also from a process that is still to be started.
#[track_caller]
pub fn take<T: Message>(queue: &Queue<T>) -> T {
    let mut got = None;
    eventually("a message", || {
        got = queue.try_get().ok().flatten();
        got.is_some()
    });
    got.unwrap()
}

pub fn kill(pid: u32) {
    signal(pid, Signal::KILL);
}

/// What a leak would leave in shared memory: blocks, messages, members.
pub fn in_use() -> (u64, u64, u64) {
    let MemoryStats { live_blocks, queued, members, .. } = Arena::current().unwrap().memory_stats();
    (live_blocks, queued, members)
}

/// How many threads a process has.
pub fn threads(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count)
}

/// An object that says when it is dropped, and in which process.
#[derive(Debug)]
pub struct Noisy {
    pub value: u64,
    pub dropped: Queue<u32>,
}

impl Drop for Noisy {
    fn drop(&mut self) {
        _ = self.dropped.put(std::process::id());
    }
}

/// Such an object, and where it says so.
#[track_caller]
pub fn noisy(manager: &ManagerHandle) -> (Proxy<Noisy>, Queue<u32>) {
    let dropped = Queue::unbounded().unwrap();
    let told = dropped.clone();
    let make = mp_spawn::closure!([told] || Noisy { value: 0, dropped: told.clone() });
    (made(manager, make), dropped)
}

/// A place where calls stop: each says that it has begun, and continues when the test lets it.
#[derive(Clone, Serialize, Deserialize)]
pub struct Gate {
    begun: Queue<u32>,
    go: Queue<()>,
}

impl Gate {
    pub fn new() -> Gate {
        Gate { begun: Queue::unbounded().unwrap(), go: Queue::unbounded().unwrap() }
    }

    /// In a call.
    pub fn pass(&self) {
        self.begun.put(std::process::id()).unwrap();
        // If the test is gone, so is this process soon.
        _ = self.go.get_timeout(DEADLINE);
    }

    /// Waits for a call: the process that it runs in.
    #[track_caller]
    pub fn arrived(&self) -> u32 {
        take(&self.begun)
    }

    /// Lets `calls` calls pass, now or later.
    pub fn open(&self, calls: usize) {
        (0..calls).for_each(|_| self.go.put(()).unwrap());
    }
}
