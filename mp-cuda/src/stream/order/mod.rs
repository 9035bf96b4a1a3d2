//! Order between the streams of all processes, by clocks.
//!
//! A stream that takes part has a clock: a row of the arena's table, which each process registers with the driver once
//! ([`table`]). To *tick* it is to have the stream write the clock's next number when all that it was given before has run; a
//! tick that the driver has accepted may be told to any process ([`clock`]). To *wait* for a tick is to have a stream wait until the word
//! is at least that number. So
//!
//! - the host sees by a load whether work has run, without a call of the driver, in processes without a GPU, too;
//! - a stream waits only for what was submitted before: whatever is waited for lies earlier, and no circle comes about;
//! - what waits for a process that is killed goes on when a sweep has found its death, since the host writes the end of all
//!   ticks into its clocks. The work before such a tick may never have run: that is told as [`ProducerDied`](crate::Error::ProducerDied) to
//!   hosts that ask.
//!
//! A device whose streams neither write words nor wait for them takes part by the driver's events ([`events`], [`Order::IpcEvents`]), or, if
//! there are none, by its hosts: a tick waits until the stream has run what it was given, and then the host writes the number itself
//! ([`Order::Host`]). Which of these it is, the first process decides that uses the device ([`chosen`]).

mod chosen;
pub(crate) mod clock;
pub(crate) mod events;
pub(crate) mod host;
mod table;

use crate::device::Device;
use crate::error::Result;

pub(crate) use clock::StreamClock;

/// How streams of a device are ordered with those of other processes: the first of these that the first process could take part in which
/// used the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Order {
    /// On the device, by words that streams write and wait for. No host waits.
    Clocks,
    /// On the device, by CUDA's events between processes: where streams have no 64-bit memory operations, or the driver doesn't let them
    /// reach the memory of processes. No host waits, but for streams of different devices, where one does.
    ///
    /// **If a process is killed**, streams that wait for its work are not released, as they are by [`Clocks`](Self::Clocks), and neither
    /// is what waits for these: CUDA has no way to do that. Hosts are told by [`ProducerDied`](crate::Error::ProducerDied), also by
    /// [`Stream::synchronize`](crate::Stream::synchronize); then make another stream. A work's end is told by its process, so a
    /// process that is stopped is asked in vain until it goes on, while other processes' streams go on after its work.
    IpcEvents,
    /// By hosts: sending, recording and dropping wait until the stream has run what it was given. So it is on devices that can do neither.
    Host,
}

/// How streams of a device are ordered with those of other processes. All processes that see a device find the same.
///
/// ```no_run
/// use mp_cuda::{Device, Order, order};
///
/// assert_eq!(order(&Device::new(0)?)?, Order::Clocks); // no host waits
/// # Ok::<(), mp_cuda::Error>(())
/// ```
///
/// The first time that a process asks, or uses the device, it is tried, which takes some milliseconds.
///
/// # Errors
/// [`Unsupported`](crate::Error::Unsupported) if the device can't do what it says, or can't take part here in the order that the first process
/// has chosen; what the driver refuses.
pub fn order(device: &Device) -> Result<Order> {
    chosen::order(device)
}

/// Whether a stream of this device that waits for a killed process goes on, without asking the driver: where this process doesn't know the device's order yet,
/// none of its streams has waited.
pub(crate) fn releases_here(device: &Device) -> bool {
    !chosen::has_events_here(device)
}

/// Whether a stream of this device that waits for a killed process goes on.
pub(crate) fn releases(device: &Device) -> Result<bool> {
    Ok(order(device)? != Order::IpcEvents)
}
