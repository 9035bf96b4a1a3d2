//! Base layer of `mp`: memory that a tree of processes shares.
//!
//! ```
//! use mp_core::{Arena, Storage};
//!
//! let arena = Arena::current()?; // one region for this process and all processes that it starts
//! let weights = Storage::new(arena, 12, 4)?; // memory for twelve elements of four bytes
//! let stats = arena.memory_stats();
//! assert!(stats.allocated >= 48 && weights.len() == 48);
//! # Ok::<(), mp_core::Error>(())
//! ```
//!
//! The three main types are [`Arena`], the shared region and its statistics, [`Storage`], a block of the
//! arena held by processes, and [`Error`]. An error names the request, the state found and the remedy.
//!
//! | items | purpose |
//! |---|---|
//! | [`Storage`] | a block of memory that processes hold; the tensors of `mp-tensor` are views of a storage |
//! | [`WeakStorage`], [`SharedCache`], [`storage_from_cache`] | weak references to storages |
//! | [`Structure`], [`RawLock`] | words that several processes change; the locks and values of `mp-sync` consist of them |
//! | [`SharedMemory`] | named memory shared with other programs |
//! | [`Arena`], [`MemoryStats`] | the shared region: one file, one mapping |
//! | [`wait()`], [`select`], [`until`] | waiting for several objects at once, as a blocking call and as a future |
//! | [`Message`], [`message`] | values that can be sent to another process, and the contract of codecs |
//! | [`words`], [`mem`], [`steps`] | the shared words and their algorithms, for verification and for other layers; not covered by semantic versioning |
//!
//! Tensors are in `mp-tensor`, values and locks in `mp-sync`, processes in `mp-spawn`, queues in `mp-queue`.
//! The `mp` crate exports all of them.
//!
//! # When a process dies
//! Each block of memory has seats that name its holders. A process that dies, at any instruction, leaves its
//! tag in its seats. The next member that finds the death releases them. See [`steps`] for the state that
//! each point of death leaves.
//!
//! # When memory runs out
//! Pages are reserved before memory is handed out. If the reservation fails, the call returns an
//! [`Error::OutOfMemory`] with the requested size, the remaining size and the limit that was reached. The
//! kernel's out-of-memory killer is beyond the control of this library.

#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(all(any(test, feature = "fuzz"), not(mp_loom)))]
#[doc(hidden)]
pub mod fuzz;

#[cfg(not(any(feature = "file_descriptor", feature = "file_system")))]
compile_error!(
    "no feature says how processes share memory: one of `file_descriptor` and `file_system` is needed \
    (both are default \
     features of `multiproc` and of its crates). With `default-features = false`, name one as well, as in \
     `features = [\"file_descriptor\", \"spawn\"]`"
);

mod alloc;
mod arena;
#[cfg(feature = "authkey")]
mod authkey;
mod blocking;
mod blocks;
pub mod clocks;
mod envelopes;
mod error;
#[doc(hidden)]
pub mod foreign;
pub mod fork;
mod invitation;
mod layout;
#[cfg(all(feature = "inject", not(mp_loom)))]
mod leaks;
#[doc(hidden)]
pub mod long_lived_fds;
pub mod mem;
mod members;
pub mod message;
mod open;
mod parking;
mod process;
mod recovery;
mod ring_layer;
mod setup;
mod shared_memory;
mod shared_structure;
mod snapshot;
pub mod steps;
mod storage;
mod strategy;
pub mod sync;
mod sys;
mod transport;
mod unsafe_api;
mod wait_times;
mod waitable;
/// Records of waiting threads, and reports of waits that last long or can't end.
pub mod waits {
    /// `true` if the end of a wait calls a subscriber of `tracing`.
    #[doc(hidden)]
    pub const IS_TRACED: bool = cfg!(feature = "tracing");
    #[doc(inline)]
    pub use crate::blocking::reports::failures::record_failure;
    #[doc(inline)]
    pub use crate::blocking::reports::{
        BlockingCall, Place, RING_NAME, Service, SlicedWait, Subject, WaitObject, Watch, add_to_dumps, dump,
        is_stopped, listen, name_object, name_process, object_name, on_report, publish_report,
        report_hangs_after, report_waits_after, reported_after, serves, serves_no_more, this_process,
        wait_at,
    };
}
pub mod words;

pub use alloc::Allocator;
#[doc(hidden)]
pub use alloc::budget::{held_memory_limit, limit_held_memory};
pub use alloc::fd_slots::FdSlots;
pub use alloc::handles::Hold;
pub use alloc::stats::{ClassStats, MemberStats, MemoryStats};
pub use arena::Arena;
#[cfg(feature = "authkey")]
pub use authkey::{AuthKey, authkey, set_authkey};
pub use blocking::block_on::{Blocking, LivenessTimer, block_on};
pub use blocking::deadlock::{Deadlock, DeadlockStep, LockWait};
pub use blocking::lock::{LockError, RawGuard, RawLock};
pub use blocking::wait_limit::Wait;
pub use blocks::Blocks;
pub use bytemuck;
pub use envelopes::Envelopes;
#[doc(hidden)]
pub use error::serde_with;
#[doc(hidden)]
pub use error::{ByteSize, INTERRUPTED, denied_syscall, fmt_debug, is_seccomp_filtered, printable, quantity};
pub use error::{Error, ErrorChain, MessagesInFlight, QueuedMessages, Result};
#[doc(hidden)]
pub use invitation::handshake::{
    Acceptance, accept_by_socket, accept_inherited, invite_by_socket, invite_command,
};
pub use invitation::{Invitation, InvitationState};
pub use members::Members;
pub use members::membership::MemberInfo;
pub use message::Message;
pub use open::children_inherit_settings;
#[doc(hidden)]
pub use parking::detach_notice;
pub use parking::spin::{AdaptiveSpin, Spin};
pub use parking::{Announce, Notices, NotifyAll, NotifyOne, POLL_INTERVAL, Parking};
#[doc(hidden)]
pub use parking::{count_up, withdraw_announcement};
#[doc(hidden)]
pub use process::children;
pub use process::interrupt::{interrupted, take_interrupt};
#[doc(hidden)]
pub use process::interrupt::{record_interrupt, with_interrupts_masked};
pub use process::mutex;
#[doc(hidden)]
pub use process::pauses;
#[doc(hidden)]
pub use process::user_code;
pub use recovery::Recovery;
pub use ring_layer::{InDoubt, RingLayer, RingState, register as register_ring_layer};
pub use setup::configure::ArenaOptions;
pub use setup::files::leftovers;
pub use setup::settings::{
    get_all_sharing_strategies, get_sharing_directory, get_sharing_strategy, set_sharing_directory,
    set_sharing_strategy,
};
pub use shared_memory::SharedMemory;
pub use shared_structure::{Holders, Structure};
pub use snapshot::observer::Observer;
#[doc(hidden)]
pub use snapshot::pools as published_pools;
pub use snapshot::{
    FailureSnapshot, HoldersSnapshot, MemorySnapshot, ObjectSnapshot, OwnerSnapshot, PoolSnapshot,
    PoolWorkerSnapshot, ProcessSnapshot, ProcessState, QueueSnapshot, Snapshot, StorageSnapshot,
    ThreadSnapshot, WaitSnapshot,
};
pub use storage::Storage;
pub use storage::copy_on_write::CopyOnWrite;
pub use storage::weak::{SharedCache, StorageId, WeakStorage, storage_from_cache};
pub use strategy::SharingStrategy;
#[cfg(feature = "inject")]
pub use sys::inject;
#[doc(hidden)]
pub use sys::{advise_huge_pages, set_malloc_thresholds};
#[doc(hidden)]
pub use sys::{gained_privileges, inherited, monotonic, peer, socket, under_valgrind};
pub use transport::Messages;
pub use transport::attachments::AttachRequest;
pub use transport::attachments::Descriptors;
#[doc(hidden)]
pub use transport::between_arenas::{NewBlock, RelayedMessage};
pub use transport::envelope::Envelope;
pub use transport::lease::Leased;
pub use transport::outgoing::broadcast::Repeated;
#[doc(hidden)]
pub use transport::peek::{ArenaBytes, PeekedMessage};
#[doc(hidden)]
pub use transport::promise::{EnvelopeTicket, Promise};
pub use wait_times::WaitTimes;
#[doc(hidden)]
pub use waitable::is_asking_a_runtime;
pub use waitable::{
    Descriptor, ParkingPoint, ReadyFd, SharedWaitable, WaitPoint, Waitable, WakeRegistration, poll_until,
    select, until, wait, wait_async,
};
pub use words::DType;

/// 64-bit FNV-1a hash, for fingerprints of type names. Not suitable for cryptographic purposes.
pub const fn fnv1a(bytes: &[u8]) -> u64 {
    let mut h = 0xcbf2_9ce4_8422_2325_u64;
    let mut i = 0;
    while i < bytes.len() {
        h = (h ^ bytes[i] as u64).wrapping_mul(0x100_0000_01b3);
        i += 1;
    }
    h
}

/// The program of the README, as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
