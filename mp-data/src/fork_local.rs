//! Values that are reset in each forked copy of the process.

use mp_core::fork::SetOnce;

/// Value that belongs to the process that made it. A forked copy of that process gets a fresh value. During
/// the fork, a thread of the forking process may have been changing the value or holding a lock, and the copy
/// does not have that thread.
///
/// The fresh values of a copy are never freed. They are few: the copy makes one only for a value that it uses
/// and that existed before the fork.
#[derive(Debug)]
pub(crate) struct ForkLocal<T: 'static> {
    owner: u32,
    value: T,
    in_copy: SetOnce<ForkLocal<T>>,
}

impl<T> ForkLocal<T> {
    /// Returns `true` if this process is a forked copy of the process that made the value.
    pub(crate) fn is_forked(&self) -> bool {
        self.owner != std::process::id()
    }

    /// Returns the value of the process that made it, also in a forked copy. The caller must not wait for a
    /// thread of that process.
    pub(crate) fn original(&self) -> &T {
        &self.value
    }
}

impl<T: Default> ForkLocal<T> {
    /// Returns the value of this process. A forked copy creates a fresh value at its first call.
    pub(crate) fn get(&self) -> &T {
        if !self.is_forked() {
            return &self.value;
        }
        // A copy of a copy has its own value.
        self.in_copy.get().unwrap_or_else(|| self.in_copy.set(ForkLocal::default())).get()
    }
}

impl<T: Default> Default for ForkLocal<T> {
    fn default() -> Self {
        ForkLocal { owner: std::process::id(), value: T::default(), in_copy: SetOnce::new() }
    }
}

#[cfg(test)]
impl<T> ForkLocal<T> {
    /// Converts the value into the state that a forked copy of the process has, for tests.
    pub(crate) fn into_forked(mut self) -> Self {
        self.owner = 0;
        self
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn fork_local_value_of_a_copy_initializes_once() {
        let value = ForkLocal::<Mutex<u32>>::default();
        *value.get().lock().unwrap() = 1;
        let value = value.into_forked();
        let _held_by_the_original = value.original().lock().unwrap();
        std::thread::scope(|threads| {
            (0..4).for_each(|_| _ = threads.spawn(|| *value.get().lock().unwrap() += 1));
        });
        assert_eq!(*value.get().lock().unwrap(), 4);
        assert!(!ForkLocal::<()>::default().is_forked());
    }
}
