//! A robust mutex of the C library, shared between processes.
//!
//! # Safety
//! The mutex lies in a mapping that lives as long as it is used, is initialised before any other process uses
//! it, and never moves. The counts after it are atomics.

use std::sync::atomic::Ordering;

use crate::Result;
use crate::shm::Region;
use crate::work::lock::{Counts, Section};

/// Length in bytes of the shared region for a mutex and its data.
pub(crate) const LEN: usize = 4096;
/// Offset of the counts in the region, on the cache line after the mutex.
const COUNTS: usize = 64;
/// Offset of the flag that asks the other process to end.
const STOP: usize = 1024;

/// Mutex, and the counts that it protects.
#[derive(Debug)]
pub(crate) struct Mutex {
    region: Region,
}

fn check(what: &str, status: i32) -> Result<()> {
    if status == 0 {
        return Ok(());
    }
    Err(format!("{what}: {}", std::io::Error::from_raw_os_error(status)).into())
}

impl Mutex {
    /// Initializes the mutex in a region.
    ///
    /// # Errors
    /// Returns the error of the C library, which does not occur in practice.
    pub(crate) fn parent(region: Region) -> Result<Self> {
        let this = Self { region };
        // SAFETY: all-zero bytes are a valid place to initialise.
        let mut attributes: libc::pthread_mutexattr_t = unsafe { std::mem::zeroed() };
        let of = &raw mut attributes;
        // SAFETY: a valid place.
        check("pthread_mutexattr_init", unsafe { libc::pthread_mutexattr_init(of) })?;
        let shared = libc::PTHREAD_PROCESS_SHARED;
        // SAFETY: initialised above.
        check("setpshared", unsafe { libc::pthread_mutexattr_setpshared(of, shared) })?;
        let robust = libc::PTHREAD_MUTEX_ROBUST;
        // SAFETY: initialised above.
        check("setrobust", unsafe { libc::pthread_mutexattr_setrobust(of, robust) })?;
        // SAFETY: room for a mutex that no other thread uses yet, in a mapping that lives as long as `this`.
        check("pthread_mutex_init", unsafe { libc::pthread_mutex_init(this.mutex(), of) })?;
        Ok(this)
    }

    /// Creates the child's handle of the mutex.
    pub(crate) fn child(region: Region) -> Self {
        Self { region }
    }

    fn mutex(&self) -> *mut libc::pthread_mutex_t {
        const { assert!(size_of::<libc::pthread_mutex_t>() <= COUNTS) }
        self.region.words(0, COUNTS / 8).as_ptr().cast_mut().cast()
    }

    /// Asks the other process to end.
    pub(crate) fn stop(&self) {
        self.region.word(STOP).store(1, Ordering::Release);
    }

    /// Returns `true` if the other process has asked this process to end.
    pub(crate) fn is_over(&self) -> bool {
        self.region.word(STOP).load(Ordering::Acquire) != 0
    }
}

impl Section for Mutex {
    #[inline]
    fn enter(&mut self, who: usize) -> Result<Counts> {
        // SAFETY: initialised, see `parent`.
        check("pthread_mutex_lock", unsafe { libc::pthread_mutex_lock(self.mutex()) })?;
        let count = |i: usize| self.region.word(COUNTS + 8 * i);
        count(who).store(count(who).load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        let counts = [count(0).load(Ordering::Relaxed), count(1).load(Ordering::Relaxed)];
        // SAFETY: locked above, by this thread.
        check("pthread_mutex_unlock", unsafe { libc::pthread_mutex_unlock(self.mutex()) })?;
        Ok(counts)
    }
}
