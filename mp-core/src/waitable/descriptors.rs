//! Thread that sleeps in `epoll` for tasks of this process that wait for descriptors.
//!
//! Private to the process. The thread is started when it is first needed, and sleeps forever when no task
//! waits.
//!
//! | state of an entry | changed by |
//! |---|---|
//! | idle | its owner: stores its waker, then adds the descriptor to `epoll` → watched |
//! | watched | the kernel reports once that the descriptor is ready: the thread takes the waker and wakes it → idle; its owner, on drop: removes the entry |
//!
//! The kernel also reports descriptors that were ready before they were added, so no event between a check
//! and the sleep is lost. Each entry watches its own duplicate of a descriptor. So several entries may wait
//! for one descriptor, and if the descriptor is closed meanwhile, the number of the duplicate is not reused
//! for another file.
//!
//! A `fork` copies no thread, and a copy that used the `epoll` descriptor of its parent would change the set
//! of descriptors that the parent watches. So an entry compares process ids, and does nothing in a copy. A
//! copy that is a process of its own ([`PerProcess`]) begins with a new `epoll` descriptor and a new thread.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};
use std::task::Waker;

use super::no_thread;
use crate::error::{Error, Result};
use crate::long_lived_fds;
use crate::parking::POLL_INTERVAL;
use crate::process::mutex::Mutex;
use crate::process::user_code::catch_panic;
use crate::process::{PerProcess, per_process};
use crate::sys::readiness::{self, Epoll};

struct Poller {
    epoll: Epoll,
    process: u32,
    waiting: Mutex<DescriptorWaiter>,
}

#[derive(Default)]
struct DescriptorWaiter {
    wakers: HashMap<u64, Waker>,
    next_id: u64,
}

static POLLER: PerProcess<OnceLock<Arc<Poller>>> = per_process!(OnceLock::new());
static STARTING: PerProcess<Mutex<()>> = per_process!(Mutex::new(()));

impl Poller {
    fn get() -> Result<Arc<Self>> {
        if let Some(poller) = POLLER.get() {
            return if poller.is_ours() { Ok(poller.clone()) } else { Err(Error::Forked) };
        }
        let _one = STARTING.lock();
        if let Some(poller) = POLLER.get() {
            return Ok(poller.clone());
        }
        let process = std::process::id();
        let poller = Arc::new(Self { epoll: Epoll::new()?, process, waiting: Mutex::default() });
        long_lived_fds::register("epoll of waits for descriptors", &poller.epoll);
        let thread = std::thread::Builder::new().name("mp-descriptors".into());
        let works = poller.clone();
        thread.spawn(move || works.work()).map_err(no_thread)?;
        Ok(POLLER.get_or_init(|| poller).clone())
    }

    fn is_ours(&self) -> bool {
        self.process == std::process::id()
    }

    fn work(&self) {
        loop {
            let Ok(ready) = self.epoll.wait() else {
                // The kernel is temporarily out of memory.
                std::thread::sleep(POLL_INTERVAL);
                continue;
            };
            for id in ready {
                let waker = self.waiting.lock().wakers.remove(&id);
                // The waker is user code: its panic must not end this thread.
                catch_panic(|| waker.map(Waker::wake));
            }
        }
    }
}

/// Entry of a task that waits for a descriptor. Dropping this value removes the entry.
pub(super) struct DescriptorEntry {
    poller: Arc<Poller>,
    /// Duplicate of the descriptor.
    fd: OwnedFd,
    /// Number of the descriptor that `fd` duplicates.
    of: i32,
    write: bool,
    id: u64,
}

impl DescriptorEntry {
    /// Creates an entry that is not watched yet.
    pub(super) fn at(fd: BorrowedFd<'_>, write: bool) -> Result<Self> {
        let poller = Poller::get()?;
        let of = fd.as_raw_fd();
        let fd = readiness::duplicate(fd)?;
        let id = {
            let mut waiting = poller.waiting.lock();
            waiting.next_id += 1;
            waiting.next_id
        };
        Ok(Self { poller, fd, of, write, id })
    }

    /// Returns `true` if the entry is for this descriptor and this direction.
    pub(super) fn is_at(&self, fd: BorrowedFd<'_>, write: bool) -> bool {
        self.of == fd.as_raw_fd() && self.write == write
    }

    /// Registers the waker to be woken once, when the descriptor is ready.
    pub(super) fn watch(&mut self, waker: &Waker) -> Result<()> {
        if !self.poller.is_ours() {
            return Err(Error::Forked);
        }
        // No waker is cloned or dropped under the lock: that may run code that waits for the lock.
        let waker = waker.clone();
        let before = self.poller.waiting.lock().wakers.insert(self.id, waker);
        drop(before);
        self.poller.epoll.watch(&self.fd, self.id, self.write)
    }
}

impl Drop for DescriptorEntry {
    fn drop(&mut self) {
        if self.poller.is_ours() {
            self.poller.epoll.forget(&self.fd);
            let waker = self.poller.waiting.lock().wakers.remove(&self.id);
            drop(waker);
        }
    }
}
