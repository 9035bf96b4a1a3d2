//! Helpers shared by the manager's tests. Each wait has a deadline, and each process ends with its test.
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

/// Creates an object whose calls have a deadline.
#[track_caller]
pub fn made<T: 'static>(manager: &ManagerHandle, make: Closure<(), T>) -> Proxy<T> {
    manager.create_closure(make).unwrap().with_timeout(DEADLINE)
}

pub fn manager() -> Manager {
    Manager::start().unwrap()
}

/// Returns the next message. Panics if none arrives in time. The sender may be a process that is still to
/// start.
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

/// Returns the numbers of blocks, messages and members in shared memory, which a leak would increase.
pub fn in_use() -> (u64, u64, u64) {
    let MemoryStats { live_blocks, queued, members, .. } = Arena::current().unwrap().memory_stats();
    (live_blocks, queued, members)
}

/// Returns the number of threads of a process.
pub fn threads(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count)
}

/// Object that reports its drop, and the process of the drop.
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

/// Creates a `Noisy` object, and the queue of its reports.
#[track_caller]
pub fn noisy(manager: &ManagerHandle) -> (Proxy<Noisy>, Queue<u32>) {
    let dropped = Queue::unbounded().unwrap();
    let reported = dropped.clone();
    let make = mp_spawn::closure!([reported] || Noisy { value: 0, dropped: reported.clone() });
    (made(manager, make), dropped)
}

/// Gate at which calls stop: each reports that it has begun, and continues when the test opens the gate.
#[derive(Clone, Serialize, Deserialize)]
pub struct Gate {
    begun: Queue<u32>,
    go: Queue<()>,
}

impl Gate {
    pub fn new() -> Gate {
        Gate { begun: Queue::unbounded().unwrap(), go: Queue::unbounded().unwrap() }
    }

    /// Waits at the gate. Called within a call of an object.
    pub fn pass(&self) {
        self.begun.put(std::process::id()).unwrap();
        // The result is ignored: if the test has ended, this process will end soon.
        _ = self.go.get_timeout(DEADLINE);
    }

    /// Waits until a call has arrived at the gate. Returns the id of the process that runs the call.
    #[track_caller]
    pub fn arrived(&self) -> u32 {
        take(&self.begun)
    }

    /// Lets `calls` calls pass, now or later.
    pub fn open(&self, calls: usize) {
        (0..calls).for_each(|_| self.go.put(()).unwrap());
    }
}
