//! Shared memory of a program's processes: its size and use, storages, and files of other programs.
//!
//! ```
//! use mp::{Arena, Tensor};
//!
//! let arena = Arena::current()?;
//! let before = arena.memory_stats().allocated;
//! let tensor = Tensor::<u8>::zeros(&[1 << 20])?;
//! assert!(arena.memory_stats().allocated >= before + (1 << 20));
//!
//! let weak = tensor.storage().downgrade(); // refers to the memory without holding it
//! drop(tensor);
//! assert!(weak.expired());
//! # Ok::<(), mp::Error>(())
//! ```
//!
//! Start with three types: [`Arena`] is the memory region of the program, whose size [`Arena::configure`]
//! sets. [`MemoryStats`] reports its use. [`Storage`] holds the bytes that tensors are views of.
//!
//! | task | items |
//! |---|---|
//! | use by process | [`MemberStats`], [`MemberInfo`], [`Member`] |
//! | weak references to storages, and caches of them | [`WeakStorage`], [`SharedCache`], [`StorageId`], [`storage_from_cache`] |
//! | named memory, for any program of the user | [`SharedMemory`] |
//! | files of other programs | mapped: [`MappedFile`]; copied: [`Tensor::from_fd`](crate::Tensor::from_fd) |
//! | kind of file that contains the memory | [`SharingStrategy`], [`set_sharing_strategy`], [`set_sharing_directory`] |

#[doc(no_inline)]
pub use crate::{Arena, SharedMemory};
#[doc(hidden)]
pub use mp_core::FdSlots;
pub use mp_core::words::Member;
pub use mp_core::{
    ArenaOptions, ClassStats, MemberInfo, MemberStats, MemoryStats, MessagesInFlight, QueuedMessages,
    SharedCache, SharingStrategy, Storage, StorageId, WeakStorage, get_all_sharing_strategies,
    get_sharing_directory, get_sharing_strategy, leftovers, set_sharing_directory, set_sharing_strategy,
    storage_from_cache,
};
#[cfg(feature = "tensor")]
pub use mp_tensor::MappedFile;
