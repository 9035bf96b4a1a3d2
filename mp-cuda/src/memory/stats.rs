//! Statistics of the device memory of this process.

/// Statistics of the device memory of this process, returned by [`memory_stats`](crate::memory_stats).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct DeviceMemoryStats {
    /// Bytes that this process has allocated from the driver on this device, in slabs.
    #[doc(alias = "reserved_bytes")]
    pub reserved: u64,
    /// Bytes of the slabs that tensors of any process use, in whole units. Includes tensors that were dropped
    /// since the last check.
    #[doc(alias = "allocated_bytes")]
    pub allocated: u64,
    /// Bytes of retired slabs. A retired slab gets no new tensors, because a process that could write to the
    /// slab died. The slab is given back to the driver when its last tensor is dropped.
    pub retired: u64,
    /// Number of slabs that this process has allocated on this device.
    pub slabs: usize,
    /// Number of tensors of all processes in this process's slabs. Includes dropped tensors whose work by
    /// several processes has not run yet.
    pub pieces: usize,
    /// Number of mapped slabs of other processes, summed over all devices.
    pub mapped_slabs: usize,
    /// Bytes of the mapped slabs of other processes.
    pub mapped: u64,
    /// Number of owners of [memory of other libraries](crate::ForeignMemory) that are retained for tensors of
    /// some process.
    pub foreign_owners: usize,
    /// Bytes of the tensors in memory of other libraries whose owners are retained.
    pub foreign: u64,
    /// Bytes of tensors in memory of other libraries whose owners are retained until this process ends,
    /// because a process that could write to the memory died.
    pub foreign_retired: u64,
}
