//! Where the atomics of the library come from.
//!
//! All its code uses these names (`cargo xtask tidy` refuses others; tests and benchmarks may use the standard library's),
//! so that `--cfg mp_loom` swaps the whole crate to [loom](https://docs.rs/loom)'s types, and so that one file shows which
//! primitives are in use.
//!
//! Words in the arena are not values of these types: they are reached through [`Mem`](crate::mem::Mem), and
//! [`HeapMem`](crate::mem::HeapMem) is the implementation of it over a plain `Vec` of these atomics. Loom models and
//! single-process explorations run on it.

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

/// The types for memory that other processes map as well, and for what is private to a process but never modelled:
/// always the real ones, since loom's can't be mapped.
pub mod shared {
    pub use std::sync::atomic::{
        AtomicBool, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
    };
}
