//! Atomics of the library.
//!
//! All code of the library uses these names (`cargo xtask tidy` rejects others; tests and benchmarks may use
//! the standard library's). So `--cfg mp_loom` switches the whole crate to [loom](https://docs.rs/loom)'s
//! types, and this file lists all primitives in use.
//!
//! Words in the arena are not values of these types: they are accessed through [`Mem`](crate::mem::Mem).
//! [`HeapMem`](crate::mem::HeapMem) implements `Mem` over a plain `Vec` of these atomics, for loom models and
//! single-process explorations.

#[cfg(not(mp_loom))]
pub use std::sync::atomic::{
    AtomicBool, AtomicI8, AtomicI16, AtomicI32, AtomicI64, AtomicU8, AtomicU16, AtomicU32, AtomicU64,
    AtomicUsize, Ordering, compiler_fence, fence,
};

#[cfg(mp_loom)]
pub(crate) use loom::sync::Mutex;
#[cfg(mp_loom)]
pub use loom::sync::atomic::{
    AtomicBool, AtomicI8, AtomicI16, AtomicI32, AtomicI64, AtomicU8, AtomicU16, AtomicU32, AtomicU64,
    AtomicUsize, Ordering, fence,
};
#[cfg(not(mp_loom))]
pub(crate) use std::sync::Mutex;
#[cfg(mp_loom)]
pub use std::sync::atomic::compiler_fence;

/// The standard library's atomics, under loom too: for memory that other processes map, and for data outside
/// of loom's models.
pub mod shared {
    pub use std::sync::atomic::{
        AtomicBool, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
    };
}
