//! A thread that sleeps in `epoll` for tasks of this process that wait for descriptors.
//!
//! Private to the process. It is started when it is first needed, and sleeps for ever when no task waits.
//!
//! | state of an entry | changed by |
//! |---|---|
//! | idle | its owner: leaves its waker, then has the kernel watch the descriptor → watched |
//! | watched | the kernel tells, once, that it is ready, and the thread takes the waker and wakes it → idle; its owner, when it is dropped |
//!
//! The kernel tells of what was ready before it watched, too; so nothing is lost between a look and the sleep.
//! Each entry watches a duplicate of its own: several may wait for one descriptor, and when its owner closes
//! it meanwhile, the number that is watched does not come to mean another file.
//!
//! A `fork` copies no thread, and a copy that used this would change what its parent watches. So what was copied does nothing,
//! by its process id; a copy that is a process of its own ([`PerProcess`]) begins anew.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};
use std::task::Waker;

use crate::process::mutex::Mutex;

use super::many::no_thread;
use crate::arena::POLL_INTERVAL;
use crate::error::{Error, Result};
use crate::kept::kept;
use crate::process::user_code::caught;
use crate::process::{GENERATIONS, PerProcess};
use crate::sys::epoll::{self, Epoll};

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

static POLLER: PerProcess<OnceLock<Arc<Poller>>> = PerProcess::new([const { OnceLock::new() }; GENERATIONS]);
static STARTING: PerProcess<Mutex<()>> = PerProcess::new([const { Mutex::new(()) }; GENERATIONS]);

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
        kept("epoll of waits for descriptors", &poller.epoll);
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
                // The kernel has no memory for it, now.
                std::thread::sleep(POLL_INTERVAL);
                continue;
            };
            for id in ready {
                let waker = self.waiting.lock().wakers.remove(&id);
                // What a waker does is not this library's: its panic ends nothing.
                caught(|| waker.map(Waker::wake));
            }
        }
    }
}

/// A place for a task that waits for a descriptor. Dropping it takes it out.
pub(super) struct DescriptorEntry {
    poller: Arc<Poller>,
    /// A duplicate.
    fd: OwnedFd,
    /// The number of the original.
    of: i32,
    write: bool,
    id: u64,
}

impl DescriptorEntry {
    /// Not watched yet.
    pub(super) fn at(fd: BorrowedFd<'_>, write: bool) -> Result<Self> {
        let poller = Poller::get()?;
        let of = fd.as_raw_fd();
        let fd = epoll::duplicate(fd)?;
        let id = {
            let mut waiting = poller.waiting.lock();
            waiting.next_id += 1;
            waiting.next_id
        };
        Ok(Self { poller, fd, of, write, id })
    }

    /// Whether it is at this descriptor, for this.
    pub(super) fn is_at(&self, fd: BorrowedFd<'_>, write: bool) -> bool {
        self.of == fd.as_raw_fd() && self.write == write
    }

    /// Has the waker woken when it is ready, once.
    pub(super) fn watch(&mut self, waker: &Waker) -> Result<()> {
        if !self.poller.is_ours() {
            return Err(Error::Forked);
        }
        // No waker is cloned or dropped under the lock: that may run code that waits for it.
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
