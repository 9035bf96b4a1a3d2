//! Locks that a copy of the process does not wait for.

use mp_core::mutex::{Mutex, MutexGuard};

/// What one thread at a time may use, in the process that has made it. A copy (`fork`) of that process has its lock as it was just then,
/// and if it was held, the thread that would unlock it is not there: so a copy looks, and does not wait.
#[derive(Debug)]
pub(crate) struct OwnLock<T> {
    made_by: u32,
    lock: Mutex<T>,
}

impl<T> OwnLock<T> {
    pub(crate) fn new(value: T) -> Self {
        OwnLock { made_by: std::process::id(), lock: Mutex::new(value) }
    }

    /// Whether this process is a copy of the one that has made it.
    pub(crate) fn is_copy(&self) -> bool {
        self.made_by != std::process::id() && !mp_core::mutant!("loader.copy.waits")
    }

    /// Waits until no other thread holds it. `None` in a copy, if one does or did.
    pub(crate) fn lock(&self) -> Option<MutexGuard<'_, T>> {
        if self.is_copy() { self.lock.try_lock() } else { Some(self.lock.lock()) }
    }
}

impl<T: Default> Default for OwnLock<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

#[cfg(test)]
impl<T> OwnLock<T> {
    /// As it is in a copy of the process.
    pub(crate) fn copied(mut self) -> Self {
        self.made_by = 0;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_does_not_wait_for_a_thread_of_its_original() {
        let lock = OwnLock::new(1).copied();
        assert_eq!(lock.lock().as_deref(), Some(&1));
        let held = lock.lock();
        assert!(lock.lock().is_none());
        drop(held);
        assert!(!OwnLock::new(1).is_copy());
    }
}
