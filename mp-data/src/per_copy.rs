//! Values of which each copy of the process has its own.

use mp_core::fork::SetOnce;

/// A value of the process that has made it. A copy (`fork`) of that process begins with a fresh one: a thread
/// of the original may have been in the middle of a change just then, or have held a lock, and the copy has
/// no such thread to wait for.
///
/// What a copy begins anew is never freed. A copy has few: as many as its original had made and it uses as
/// well.
#[derive(Debug)]
pub(crate) struct PerCopy<T: 'static> {
    made_by: u32,
    value: T,
    in_copy: SetOnce<PerCopy<T>>,
}

impl<T> PerCopy<T> {
    /// Returns `true` if this process is a copy of the process that has made it.
    pub(crate) fn is_copy(&self) -> bool {
        self.made_by != std::process::id()
    }

    /// Returns the value of the process that has made it, for reads that wait for no thread.
    pub(crate) fn of_maker(&self) -> &T {
        &self.value
    }
}

impl<T: Default> PerCopy<T> {
    /// Returns the value of this process.
    pub(crate) fn own(&self) -> &T {
        if !self.is_copy() {
            return &self.value;
        }
        // A copy of a copy has another one.
        self.in_copy.get().unwrap_or_else(|| self.in_copy.set(PerCopy::default())).own()
    }
}

impl<T: Default> Default for PerCopy<T> {
    fn default() -> Self {
        PerCopy { made_by: std::process::id(), value: T::default(), in_copy: SetOnce::new() }
    }
}

#[cfg(test)]
impl<T> PerCopy<T> {
    /// Returns it as a copy of the process has it.
    pub(crate) fn copied(mut self) -> Self {
        self.made_by = 0;
        self
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn forked_copy_initializes_its_own_value_once() {
        let value = PerCopy::<Mutex<u32>>::default();
        *value.own().lock().unwrap() = 1;
        let value = value.copied();
        let _held_by_the_original = value.of_maker().lock().unwrap();
        std::thread::scope(|threads| {
            (0..4).for_each(|_| _ = threads.spawn(|| *value.own().lock().unwrap() += 1));
        });
        assert_eq!(*value.own().lock().unwrap(), 4);
        assert!(!PerCopy::<()>::default().is_copy());
    }
}
