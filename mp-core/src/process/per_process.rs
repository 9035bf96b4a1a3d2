//! Variables of the program that are reset in a copy of the process, and variables that are set once.
//!
//! # Safety
//! The code is `unsafe` because [`SetOnce`] keeps its value behind a pointer. It is sound because the value
//! is a static, or was leaked.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr;

use crate::sync::shared::{AtomicPtr, AtomicU32, Ordering};

/// Maximum number of generations: the executed process, and each copy of a copy.
pub const GENERATIONS: usize = 16;

/// Number of copies by [`Fork`](crate::fork::Fork) between this process and the executed process.
// fork: this variable distinguishes the copies; each copy increments it once.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Returns the number of copies between this process and the executed process.
#[inline]
pub(crate) fn generation() -> usize {
    GENERATION.load(Ordering::Relaxed) as usize
}

/// Begins the next generation in a copy.
pub(crate) fn begin_generation() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// Variable of the program with a separate value in each process: a copy made by [`Fork`](crate::fork::Fork)
/// begins with a fresh value.
///
/// A lock that another thread held when the process was copied stays locked in the copy forever. So the copy
/// never uses the lock of the original.
///
/// ```
/// use mp_core::fork::PerProcess;
/// use mp_core::per_process;
/// use std::sync::OnceLock;
///
/// static NAME: PerProcess<OnceLock<String>> = per_process!(OnceLock::new());
/// assert_eq!(NAME.get_or_init(|| "first".to_string()), "first");
/// ```
#[derive(Debug)]
pub struct PerProcess<T>([T; GENERATIONS]);

/// Creates a [`PerProcess`] whose value begins with this expression in each process.
#[macro_export]
macro_rules! per_process {
    ($value:expr) => {
        $crate::fork::PerProcess::new([const { $value }; $crate::fork::GENERATIONS])
    };
}

impl<T> PerProcess<T> {
    /// Creates a variable with its initial value in each generation.
    pub const fn new(each: [T; GENERATIONS]) -> Self {
        Self(each)
    }
}

impl<T> Deref for PerProcess<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.0[generation() % GENERATIONS]
    }
}

/// Value that is set once in the life of a process, and never freed.
///
/// An unset value consists of zero bytes, unlike an unset [`OnceLock`](std::sync::OnceLock). So the linker
/// puts the variable into memory that is not read from the program's file, and a process starts faster.
///
/// ```
/// use mp_core::fork::SetOnce;
///
/// static NAME: SetOnce<String> = SetOnce::new();
/// assert_eq!(NAME.get(), None);
/// assert_eq!(NAME.set("first".to_string()), "first");
/// assert_eq!(NAME.set("second".to_string()), "first");
/// assert_eq!(NAME.get().map(String::as_str), Some("first"));
/// ```
#[derive(Debug)]
pub struct SetOnce<T: 'static>(AtomicPtr<T>, PhantomData<T>);

// SAFETY: it hands out shared references to all threads (`T: Sync`), and a thread other than the creator of
// the value may drop it (`T: Send`) only when it is not set.
unsafe impl<T: Send + Sync> Sync for SetOnce<T> {}

impl<T> SetOnce<T> {
    /// Creates an unset value.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()), PhantomData)
    }

    /// Returns the value, if it is set.
    #[inline]
    pub fn get(&self) -> Option<&'static T> {
        // SAFETY: null, or a static of the program, or a value leaked before the pointer to it was published,
        // which this load sees.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    /// Sets the value like [`set`](Self::set), to a static of the program. Allocates nothing, so it can be
    /// called before `main`.
    pub fn set_static(&self, value: &'static T) {
        let new = ptr::from_ref(value).cast_mut();
        if self.get().is_some() {
            return;
        }
        _ = self.0.compare_exchange(ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Sets the value if it is unset. Returns the value that is set.
    #[inline]
    pub fn set(&self, value: T) -> &'static T {
        let new = Box::into_raw(Box::new(value));
        match self.0.compare_exchange(ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: leaked just now, and a published value is never freed.
            Ok(_) => unsafe { &*new },
            Err(old) => {
                // SAFETY: allocated just now, and not published.
                drop(unsafe { Box::from_raw(new) });
                // SAFETY: a static of the program, or leaked before it was published, which the failed
                // exchange has seen.
                unsafe { &*old }
            }
        }
    }
}

impl<T> Default for SetOnce<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_once_keeps_the_first_of_concurrent_values() {
        static SET: SetOnce<u32> = SetOnce::new();
        let all = std::thread::scope(|threads| {
            let set = (1..=8).map(|n| threads.spawn(move || *SET.set(n))).collect::<Vec<_>>();
            set.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        });
        let first = *SET.get().unwrap();
        assert!((1..=8).contains(&first) && all.iter().all(|seen| *seen == first));
    }

    #[test]
    fn set_once_keeps_the_first_of_two_static_values() {
        static VALUES: [u32; 2] = [7, 8];
        static SET: SetOnce<u32> = SetOnce::new();
        SET.set_static(&VALUES[0]);
        SET.set_static(&VALUES[1]);
        assert_eq!((SET.get(), SET.set(9)), (Some(&7), &7));
    }

    #[test]
    fn per_process_variable_keeps_its_changes() {
        static COUNT: PerProcess<AtomicU32> = per_process!(AtomicU32::new(5));
        COUNT.fetch_add(1, Ordering::Relaxed);
        assert_eq!(COUNT.load(Ordering::Relaxed), 6);
    }
}
