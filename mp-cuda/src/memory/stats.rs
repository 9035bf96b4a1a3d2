//! How much device memory this process has, and of what kind.

use mp_core::Arena;

use super::foreign::kept;
use super::here;
use super::own::pool;
use crate::device::Device;

/// How much device memory this process has. [`memory_stats`] returns it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct MemoryStats {
    /// Bytes of its slabs on the device: what it has asked the driver for, and not given back.
    #[doc(alias = "reserved_bytes")]
    pub reserved: u64,
    /// Bytes of them in tensors that some process has, or had when it was last looked; whole units.
    #[doc(alias = "allocated_bytes")]
    pub allocated: u64,
    /// Bytes of its slabs that are used no more, because a process died that could write to them. They are given back with their last
    /// tensor.
    pub retired: u64,
    /// How many slabs it has.
    pub slabs: usize,
    /// How many tensors, of whichever process, are in them, or were, and work of several processes with them has not run yet.
    pub pieces: usize,
    /// How many slabs of other processes it has mapped, of all devices.
    pub mapped_slabs: usize,
    /// Their bytes.
    pub mapped: u64,
    /// How many owners of [memory of other libraries](crate::ForeignMemory) are kept for tensors that some process has.
    pub foreign_owners: usize,
    /// Bytes of these tensors.
    pub foreign: u64,
    /// Bytes of them whose owners are kept until this process ends, because a process died that could write to them.
    pub foreign_retired: u64,
}

/// How much memory of a device this process has: none in a copy of it by `fork`. What came back from other processes is looked for
/// first, and owners of memory of other libraries that no process has any more are dropped.
///
/// ```no_run
/// use mp_cuda::{Device, memory_stats};
///
/// let stats = memory_stats(&Device::new(0)?);
/// println!("{} of {} bytes are in tensors", stats.allocated, stats.reserved);
/// # Ok::<(), mp_cuda::Error>(())
/// ```
///
/// It doesn't block, unless another thread makes a slab at this moment.
#[doc(alias = "torch.cuda.memory_stats")]
#[must_use]
pub fn memory_stats(device: &Device) -> MemoryStats {
    if Arena::get().is_none() {
        return MemoryStats::default();
    }
    pool::look();
    kept::look();
    let (figures, foreign) = (pool::figures(device.uuid()), kept::figures(device.uuid()));
    let (mapped_slabs, mapped) = here::mapped();
    MemoryStats {
        reserved: figures.reserved,
        allocated: figures.given,
        retired: figures.retired,
        slabs: figures.slabs,
        pieces: figures.pieces,
        mapped_slabs,
        mapped,
        foreign_owners: foreign.owners,
        foreign: foreign.bytes,
        foreign_retired: foreign.retired,
    }
}
