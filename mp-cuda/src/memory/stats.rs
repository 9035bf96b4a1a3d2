//! Amount of device memory of this process, by kind.

use mp_core::Arena;

use super::foreign::owners;
use super::own::pool;
use super::registry;
use crate::device::Device;

/// Amount of device memory of this process. [`memory_stats`] returns it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct DeviceMemoryStats {
    /// Bytes of the process's slabs on the device, which it got from the driver and has not given back.
    #[doc(alias = "reserved_bytes")]
    pub reserved: u64,
    /// Bytes of these slabs in tensors that a process has, or had at the last check, in whole units.
    #[doc(alias = "allocated_bytes")]
    pub allocated: u64,
    /// Bytes of slabs that are not used any more, because a process that could write to them died. They are
    /// given back with their last tensor.
    pub retired: u64,
    /// Number of the process's slabs.
    pub slabs: usize,
    /// Number of tensors of all processes in these slabs, with dropped tensors whose work by several
    /// processes has not run yet.
    pub pieces: usize,
    /// Number of slabs of other processes that are mapped, of all devices.
    pub mapped_slabs: usize,
    /// Bytes of the mapped slabs.
    pub mapped: u64,
    /// Number of owners of [memory of other libraries](crate::ForeignMemory) that are retained for tensors of
    /// some process.
    pub foreign_owners: usize,
    /// Bytes of these tensors.
    pub foreign: u64,
    /// Bytes of tensors whose owners are retained until this process ends, because a process that could write
    /// to them died.
    pub foreign_retired: u64,
}

/// Returns the amount of device memory of this process, which is 0 in a copy of it by `fork`. First checks
/// for returned memory, and drops the owners of other libraries' memory that no process has any more.
///
/// ```no_run
/// use mp_cuda::{Device, memory_stats};
///
/// let stats = memory_stats(&Device::new(0)?);
/// println!("{} of {} bytes are in tensors", stats.allocated, stats.reserved);
/// # Ok::<(), mp_cuda::Error>(())
/// ```
///
/// Does not block, unless another thread makes a slab at the same time.
#[doc(alias = "torch.cuda.memory_stats")]
#[must_use]
pub fn memory_stats(device: &Device) -> DeviceMemoryStats {
    if Arena::get().is_none() {
        return DeviceMemoryStats::default();
    }
    pool::scan();
    owners::reclaim();
    let (figures, foreign) = (pool::figures(device.uuid()), owners::figures(device.uuid()));
    let (mapped_slabs, mapped) = registry::mapped_slabs();
    DeviceMemoryStats {
        reserved: figures.reserved,
        allocated: figures.allocated,
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
