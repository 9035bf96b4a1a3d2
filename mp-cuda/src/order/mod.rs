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
//! A device whose streams neither write words nor wait for them takes part by its hosts: a tick waits until the stream has run what it
//! was given, and then the host writes the number itself ([`Order::Host`]).

pub(crate) mod clock;
pub(crate) mod host;
pub(crate) mod table;

use crate::device::Device;
use crate::error::Result;

pub(crate) use clock::StreamClock;

/// How streams of a device are ordered with those of other processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Order {
    /// On the device, by words that streams write and wait for. No host waits.
    Clocks,
    /// By hosts: sending, recording and dropping wait until the stream has run what it was given. So it is on devices without 64-bit
    /// memory operations of streams.
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
/// [`Unsupported`](crate::Error::Unsupported) if the device can't do what it says; what the driver refuses.
pub fn order(device: &Device) -> Result<Order> {
    Ok(if table::base(device)?.is_some() { Order::Clocks } else { Order::Host })
}
