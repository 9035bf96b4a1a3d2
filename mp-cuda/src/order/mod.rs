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

pub(crate) mod clock;
pub(crate) mod table;

pub(crate) use clock::StreamClock;
