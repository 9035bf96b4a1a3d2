//! Order between the streams of all processes, by clocks.
//!
//! Each stream has a clock: a row of a table in the arena, which each process registers with the driver once
//! ([`table`]). To *tick*, a stream writes the clock's next number to the clock's word when all earlier work
//! has run. Any process may use a tick that the driver has accepted ([`clock`]). To *wait* for a tick, a
//! stream waits until the word is at least the number of the tick. So
//!
//! - a host can check whether work has run without a driver call, even in a process without a GPU;
//! - a stream waits only for work that was submitted before the wait, so there are no cycles;
//! - a stream that waits for a killed process continues after a recovery has found the death, because the
//!   recovery writes a number above all ticks into the dead process's clocks. The work before the awaited
//!   tick may never have run, so hosts get [`ProducerDied`](crate::Error::ProducerDied).
//!
//! Streams of some devices can't write words or wait for them. They use the driver's events ([`events`],
//! [`Order::IpcEvents`]). Without such events, hosts wait ([`Order::Host`]): to tick, the host waits until
//! the stream has run its work, and then writes the number itself. The first process that uses a device
//! chooses its order ([`choice`]).

mod choice;
pub(crate) mod clock;
pub(crate) mod events;
mod table;
pub(crate) mod tick;

use crate::device::Device;
use crate::error::Result;

pub(crate) use clock::StreamClock;
pub(super) use table::end_probes;

/// Method by which a device's streams wait for streams of other processes. The first process that uses the
/// device chooses the first of these orders that the device supports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
#[repr(u8)]
pub enum Order {
    /// Streams write words of shared memory and wait for words, on the device. No host waits.
    Clocks = 1,
    /// Streams use CUDA's events between processes, on the device. Used if streams have no 64-bit memory
    /// operations, or if the driver doesn't let streams access memory of the process. A host waits only if
    /// the two streams belong to different devices.
    ///
    /// **If a process is killed**, streams that wait for its work wait forever, because CUDA has no call that
    /// releases them. The same applies to all work that waits for these streams. ([`Clocks`](Self::Clocks)
    /// releases the streams.) Hosts get [`ProducerDied`](crate::Error::ProducerDied), also from
    /// [`CudaStream::synchronize`](crate::CudaStream::synchronize). After this error, use a new stream. Each
    /// process reports the end of its own work to hosts. So the work of a stopped process seems pending to
    /// hosts until the process continues, but streams of other processes that wait for the work continue when
    /// it has run.
    IpcEvents = 2,
    /// Hosts wait: sending a tensor, dropping a tensor and recording an event block until the stream has run
    /// its work. Used if the device supports neither of the other orders.
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
/// The first call, or the first use of the device, in a process tests the order, which takes some
/// milliseconds.
///
/// # Errors
/// [`Unsupported`](crate::Error::Unsupported) if the device does not have the abilities that its attributes
/// claim, or if this process does not support the order that the first process has chosen; errors of the
/// driver.
pub fn order(device: &Device) -> Result<Order> {
    choice::order(device)
}

/// Returns `true` if a recovery releases streams of this device that wait for a killed process. Does not call
/// the driver: if this process has not determined the order of the device, none of its streams has waited.
pub(crate) fn releases_here(device: &Device) -> bool {
    !choice::has_events_here(device)
}

/// Returns `true` if a recovery releases streams of this device that wait for a killed process.
pub(crate) fn releases(device: &Device) -> Result<bool> {
    Ok(order(device)? != Order::IpcEvents)
}
