//! Giving device memory back that no process uses.

use mp_core::Arena;

use super::foreign::kept;
use super::here::{self, Which};
use super::own::pool;
use crate::stream::order::events;

/// Finds memory again that other processes have dropped, and unmaps memory of others that this process has dropped.
///
/// ```no_run
/// // … tensors of other processes came, and were dropped …
/// println!("{} bytes of other processes were unmapped", mp_cuda::ipc_collect());
/// ```
///
/// A program needn't call it: each allocation looks for what came back. It is for a process that allocates no more and that keeps
/// memory of others mapped, so that they can't give it back to the driver; and for one that [shared memory of another
/// library](crate::ForeignMemory), whose owner is dropped then if no process has it any more. It returns how many bytes were unmapped; in a copy of this
/// process by `fork` none.
///
/// # Blocking
/// Memory of `cuMemAlloc` that another process shared is closed, which waits for all that runs on the device for this process; other threads that launch
/// kernels wait with it. (Without this call it is closed when the streams are at rest, or after a second beside short work.)
///
/// # When a process dies
/// What it held is found, as what others have dropped. Slabs in which it could write are used no more:
/// [`memory_stats`](crate::memory_stats) says how much that is.
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
    pool::look();
    let unmapped = here::give_up(Which::All);
    events::give_up();
    kept::look();
    unmapped
}

/// Gives memory back to the driver in which no process has a tensor. It does what [`ipc_collect`] does, and gives back what this
/// process keeps for tensors to come; how many bytes both were.
///
/// ```no_run
/// // … a large model was dropped …
/// println!("{} bytes are free for other programs", mp_cuda::empty_cache());
/// ```
///
/// A slab stays as long as one tensor in it has a holder, or a stream may reach it: work that was given to streams before the tensor was
/// dropped keeps it, too.
///
/// # Blocking
/// As [`ipc_collect`].
#[doc(alias = "torch.cuda.empty_cache")]
#[allow(
    clippy::must_use_candidate,
    reason = "it is called for what it does; the figure is for those that print it"
)]
pub fn empty_cache() -> u64 {
    if Arena::get().is_none() {
        return 0;
    }
    give_back(Which::All)
}

/// Gives back what is unused, for a caller that needs memory: it doesn't wait for what the device runs, unless an owner of another
/// library's memory, which it drops, does.
pub(crate) fn make_room() {
    give_back(Which::Short);
}

fn give_back(which: Which) -> u64 {
    let given_back = here::give_up(which) + pool::release();
    events::give_up();
    kept::look();
    given_back
}

/// The process ends: gives back what none of its tensors uses. Other processes have mappings of their own.
pub(crate) fn leave() {
    if Arena::get().is_none() {
        return;
    }
    here::give_up(Which::Short);
    here::finish();
    pool::leave();
}
