//! Order between the streams of all processes, by clocks.
//!
//! A stream has a clock: a row of the arena's table, which each process registers with the driver once
//! ([`table`]). To *tick* a clock, the stream writes the clock's next number when all earlier work has run.
//! Any process may use a tick that the driver has accepted ([`clock`]). To *wait* for a tick, a stream waits
//! until the word is at least that number. So
//!
//! - a host reads whether work has run, without a driver call, and in processes without a GPU, too;
//! - a stream waits only for work that was submitted before, so there are no cycles;
//! - a stream that waits for a killed process continues when a recovery has found the death, because the host
//!   writes the end of all ticks into the dead process's clocks. The work before such a tick may never have
//!   run: hosts get [`ProducerDied`](crate::Error::ProducerDied).
//!
//! Some devices' streams neither write words nor wait for them. Such streams use the driver's events
//! ([`events`], [`Order::IpcEvents`]), or else their hosts ([`Order::Host`]). With hosts, a tick waits until
//! the stream has run its work, and then the host writes the number itself. The first process that uses a
//! device chooses its order ([`choice`]).

mod choice;
pub(crate) mod clock;
pub(crate) mod events;
mod table;
pub(crate) mod tick;

use crate::device::Device;
use crate::error::Result;

pub(crate) use clock::StreamClock;
pub(super) use table::end_probes;

/// Order between a device's streams and streams of other processes. The first process that uses the device
/// chooses the first of these orders that it supports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
#[repr(u8)]
pub enum Order {
    /// Streams write words and wait for them, on the device. No host waits.
    Clocks = 1,
    /// Streams use CUDA's events between processes, on the device: if streams have no 64-bit memory
    /// operations, or the driver doesn't let them access the memory of processes. A host waits only for
    /// streams of different devices.
    ///
    /// **If a process is killed**, streams that wait for its work are not released, as they are by
    /// [`Clocks`](Self::Clocks). Later work that waits for these streams is not released either, because CUDA
    /// has no call for that. Hosts get [`ProducerDied`](crate::Error::ProducerDied), also from
    /// [`CudaStream::synchronize`](crate::CudaStream::synchronize). Make another stream then. A process
    /// reports the end of its own work, so the work of a stopped process seems pending until it continues.
    /// Streams of other processes run after that work nevertheless.
    IpcEvents = 2,
    /// Hosts wait: sending, recording and dropping block until the stream has run its work. Used by devices
    /// that support neither of the other orders.
    Host = 3,
}

/// Returns the order between a device's streams and streams of other processes. All processes that see a
/// device get the same order.
///
/// ```no_run
/// use mp_cuda::{Device, Order, order};
///
/// assert_eq!(order(&Device::new(0)?)?, Order::Clocks); // no host waits
/// # Ok::<(), mp_cuda::Error>(())
/// ```
///
/// The first call or use of the device in a process tries the order, which takes some milliseconds.
///
/// # Errors
/// [`Unsupported`](crate::Error::Unsupported) if the device does not behave according to its attributes, or
/// if this process does not support the order that the first process has chosen; errors of the driver.
pub fn order(device: &Device) -> Result<Order> {
    choice::order(device)
}

/// Returns `true` if streams of this device that wait for a killed process are released. Does not call the
/// driver: if this process has not determined the device's order, none of its streams has waited.
pub(crate) fn releases_here(device: &Device) -> bool {
    !choice::has_events_here(device)
}

/// Returns `true` if streams of this device that wait for a killed process are released.
pub(crate) fn releases(device: &Device) -> Result<bool> {
    Ok(order(device)? != Order::IpcEvents)
}
