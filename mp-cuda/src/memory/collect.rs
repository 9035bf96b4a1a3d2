//! Functions that give unused device memory back to the driver, and memory statistics.

use mp_core::Arena;

use super::foreign::owners;
use super::own::pool;
use super::registry::{self, UnusedSlabs};
use super::stats::DeviceMemoryStats;
use crate::device::Device;
use crate::stream::order::events;

/// Finds memory that other processes have dropped, and unmaps memory of other processes that this process has
/// dropped.
///
/// ```no_run
/// // … tensors of other processes were received and dropped …
/// println!("{} bytes of other processes were unmapped", mp_cuda::ipc_collect());
/// ```
///
/// Returns the number of bytes that were unmapped, which is 0 in a copy of this process by `fork`.
///
/// Most programs need not call it, because each allocation checks for returned memory. Two kinds of processes
/// should call it after their last allocation. The first has mapped memory of other processes, which can't
/// give that memory back to the driver until it is unmapped. The second has shared [memory of another
/// library](crate::ForeignMemory) with other processes: the call drops the owner of that memory if no process
/// has the memory.
///
/// # Blocking
/// The call closes memory that another process has allocated by `cuMemAlloc` and shared. Closing waits for
/// all work of this process on the device. Meanwhile other threads that launch kernels are blocked. (Without
/// this call, the memory is closed when the streams are idle, or after a second during short work.)
///
/// # When a process dies
/// Memory that the dead process held is found like memory that was dropped. Slabs that the process could
/// write to are retired, which means that they are not used for new tensors:
/// [`memory_stats`](crate::memory_stats) returns their bytes.
#[doc(alias = "torch.cuda.ipc_collect")]
#[allow(
    clippy::must_use_candidate,
    reason = "it is called for what it does; the figure is for those that print it"
)]
#[doc(alias = "CudaIPCSentDataLimbo")]
pub fn ipc_collect() -> u64 {
    if Arena::get().is_none() {
        return 0;
    }
    pool::scan();
    let unmapped = registry::release_unused(UnusedSlabs::All);
    events::close_all();
    owners::reclaim();
    unmapped
}

/// Gives all memory without tensors back to the driver. Calls [`ipc_collect`], and also gives back memory
/// that this process retains for later tensors. Returns the total number of bytes.
///
/// ```no_run
/// // … a large model was dropped …
/// println!("{} bytes are free for other programs", mp_cuda::empty_cache());
/// ```
///
/// Memory is given back in units of slabs. A slab stays as long as one of its tensors has a holder, or as
/// long as a stream may access the slab, including by work that was submitted before a tensor was dropped.
///
/// # Blocking
/// See [`ipc_collect`].
#[doc(alias = "torch.cuda.empty_cache")]
#[allow(
    clippy::must_use_candidate,
    reason = "it is called for what it does; the figure is for those that print it"
)]
pub fn empty_cache() -> u64 {
    if Arena::get().is_none() {
        return 0;
    }
    give_back(UnusedSlabs::All)
}

/// Gives unused memory back to the driver, because an allocation has failed. Does not wait for work on the
/// device. However, the drop of an owner of another library's memory may wait.
pub(crate) fn make_room() {
    give_back(UnusedSlabs::ForAllocation);
}

fn give_back(which: UnusedSlabs) -> u64 {
    let given_back = registry::release_unused(which) + pool::release();
    events::close_all();
    owners::reclaim();
    given_back
}

/// Returns the memory statistics of this process for a device. In a forked copy they are 0. First checks for
/// returned memory, and drops the owners of other libraries' memory that no process has.
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
    let (mapped_slabs, mapped) = registry::mapped_slabs();
    let mut stats = DeviceMemoryStats { mapped_slabs, mapped, ..pool::figures(device.uuid()) };
    owners::add_figures(device.uuid(), &mut stats);
    stats
}

/// Gives back the memory in which this process has no tensors, before the process exits. Other processes
/// keep their mappings.
pub(crate) fn leave() {
    if Arena::get().is_none() {
        return;
    }
    registry::release_unused(UnusedSlabs::ForAllocation);
    registry::finish();
    pool::leave();
}
