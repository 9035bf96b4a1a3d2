//! Amount of device memory of this process, by kind.

/// Amount of device memory of this process. [`memory_stats`](crate::memory_stats) returns it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct DeviceMemoryStats {
    /// Bytes of the process's slabs on the device, which it got from the driver and has not given back.
    #[doc(alias = "reserved_bytes")]
    pub reserved: u64,
    /// Bytes of these slabs used by tensors of any process, in whole units. Includes tensors that were
    /// dropped since the last check.
    #[doc(alias = "allocated_bytes")]
    pub allocated: u64,
    /// Bytes of slabs that are no longer used, because a process that could write to them died. They are
    /// given back with their last tensor.
    pub retired: u64,
    /// Number of the process's slabs.
    pub slabs: usize,
    /// Number of tensors of all processes in these slabs, with dropped tensors whose work by several
    /// processes has not run yet.
    pub pieces: usize,
    /// Number of mapped slabs of other processes, summed over all devices.
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
