//! The memory that all processes of a program share: its size and use, storages, and files of other programs.
//!
//! ```
//! use mp::{Arena, Tensor};
//!
//! let arena = Arena::current()?;
//! let before = arena.memory_stats().allocated;
//! let tensor = Tensor::<u8>::zeros(&[1 << 20])?;
//! assert!(arena.memory_stats().allocated >= before + (1 << 20));
//!
//! let weak = tensor.storage().downgrade(); // knows the memory, and doesn't keep it
//! drop(tensor);
//! assert!(weak.expired());
//! # Ok::<(), mp::Error>(())
//! ```
//!
//! The three types to know: [`Arena`], the one region behind everything, which [`Arena::configure`] makes larger;
//! [`MemoryStats`], what is in use; [`Storage`], the bytes that tensors are views of.
//!
//! | | |
//! |---|---|
//! | which process has how much | [`MemberStats`], [`MemberInfo`], [`Member`] |
//! | a storage found again, without keeping it | [`WeakStorage`], [`SharedCache`], [`StorageId`], [`storage_from_cache`] |
//! | with a name, for any program of the user | [`SharedMemory`] |
//! | files of other programs | [`MappedFile`], where they are; [`Tensor::from_fd`](crate::Tensor::from_fd), copied |
//! | which kind of file tensors are put into | [`SharingStrategy`], [`set_sharing_strategy`], [`set_sharing_directory`] |

#[doc(no_inline)]
pub use crate::{Arena, SharedMemory};
pub use mp_core::words::Member;
pub use mp_core::{
    ArenaOptions, ClassStats, MemberInfo, MemberStats, MemoryStats, MessagesInFlight, QueuedMessages,
    SharedCache, SharingStrategy, Storage, StorageId, WeakStorage, get_all_sharing_strategies,
    get_sharing_directory, get_sharing_strategy, set_sharing_directory, set_sharing_strategy,
    storage_from_cache,
};
#[cfg(feature = "tensor")]
pub use mp_tensor::MappedFile;
