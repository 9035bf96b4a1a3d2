//! Conditions of the simulated device that host threads wait for.

use std::rc::Rc;

use crate::engine::streams::Record;

/// Condition for which a host thread waits. The goal is *reached* when the condition is fulfilled.
#[derive(Clone, Debug)]
pub(crate) enum Goal {
    /// Each of these streams has done the operations up to this number. Elements are `(stream, number)`.
    Streams(Vec<(u64, u64)>),
    Record(Rc<Record>),
    /// The process with this number has a host function to call.
    HostCall(u64),
}
