//! Conditions of the simulated device that host threads wait for.

use std::rc::Rc;

use crate::engine::streams::Record;

/// Goal for which a host waits.
#[derive(Clone, Debug)]
pub(crate) enum Goal {
    /// For each of these streams, this number of operations is done.
    Streams(Vec<(u64, u64)>),
    Record(Rc<Record>),
    /// A thread of this process must call a function.
    HostCall(u64),
}
