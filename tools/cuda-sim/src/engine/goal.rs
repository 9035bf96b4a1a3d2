//! Goals of waiting hosts.

use std::rc::Rc;

use crate::engine::streams::Record;

/// Goal of a waiting host.
#[derive(Clone, Debug)]
pub(crate) enum Goal {
    /// This many operations of each of these streams are done.
    Streams(Vec<(u64, u64)>),
    Record(Rc<Record>),
    /// A thread of this process must call a function.
    HostCall(u64),
}
