//! Streams, events, and their queued operations.

pub(in crate::engine) mod work;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Instant;

use crate::engine::races::clock::Clock;
use crate::engine::streams::work::{Progress, Work};

/// Recording of an event. A wait for the event refers to the recording that was submitted last. The recording
/// is done when its stream reaches it.
#[derive(Debug, Default)]
pub(crate) struct Record {
    /// Vector clock and time of the completion. `None` before the completion.
    pub(crate) done: RefCell<Option<(Clock, Instant)>>,
    /// Number of the stream that executes the recording, and number of the operation in the stream.
    pub(crate) by: Cell<(u64, u64)>,
}

/// Event, which may have handles in several processes.
#[derive(Debug)]
pub(crate) struct EventCore {
    /// Name by which other processes open the event. `None` before its first export.
    pub(crate) name: Cell<Option<u64>>,
    pub(crate) flags: u32,
    pub(crate) device: u32,
    /// Last recording of the event.
    pub(crate) record: RefCell<Option<Rc<Record>>>,
    /// `true` if the creating process has destroyed the event, or has ended.
    pub(crate) is_over: Cell<bool>,
    /// `true` if the creating process has destroyed the event.
    pub(crate) is_destroyed: Cell<bool>,
}

/// Handle of an event in one process.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) core: Rc<EventCore>,
    pub(crate) context: u64,
    pub(crate) imported: bool,
}

/// Host function that a stream calls. A thread of the client process runs it.
#[derive(Debug)]
pub(crate) struct HostCall {
    pub(crate) function: u64,
    pub(crate) data: u64,
    pub(crate) state: Cell<HostCallState>,
}

/// State of a [`HostCall`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HostCallState {
    Queued,
    /// A thread of the process is running the function.
    Running,
    Done,
}

/// Operation of a stream.
#[derive(Debug)]
pub(crate) enum Step {
    Work {
        work: Work,
        progress: Progress,
        is_recorded: bool,
        /// For each access, `true` if unordered accesses to the same bytes are intended, according to the
        /// declarations when the operation was submitted.
        intended: Vec<bool>,
    },
    Record(Rc<Record>),
    WaitEvent(Rc<Record>),
    /// Wait that never ends, for an imported event whose exporter has ended.
    WaitForEver,
    /// Free the piece of a pool at this address.
    Free(u64),
    /// Call a host function.
    Host(Rc<HostCall>),
    Write {
        address: u64,
        value: u64,
    },
    Wait {
        address: u64,
        value: u64,
        flags: u32,
        since: Option<Instant>,
    },
}

#[derive(Debug)]
pub(crate) struct Operation {
    pub(crate) number: u64,
    pub(crate) call: String,
    pub(crate) step: Step,
    /// Operations of other streams that run before this operation, by the rules of the default stream:
    /// `(stream, number)`.
    pub(crate) after: Vec<(u64, u64)>,
    /// Work of the context's streams that runs before this operation, because a call delayed later work. A
    /// program can't rely on that delay, so it orders no accesses.
    pub(crate) behind: Rc<Vec<(u64, u64)>>,
    /// Vector clock of the host when it submitted the operation.
    pub(crate) host: Rc<Clock>,
    pub(crate) trace: Option<String>,
    pub(crate) since: Instant,
}

/// Capture of a stream into a graph.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Capture {
    /// Mode of the capture (`CUstreamCaptureMode`), which determines the forbidden calls.
    pub(crate) mode: u32,
    /// Thread that began the capture.
    pub(crate) thread: u64,
    /// `true` if a forbidden call was made.
    pub(crate) is_spoilt: bool,
}

#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) process: u64,
    pub(crate) context: u64,
    pub(crate) device: u32,
    /// `true` if the stream and the default stream wait for each other.
    pub(crate) blocking: bool,
    pub(crate) is_default: bool,
    pub(crate) queue: VecDeque<Operation>,
    /// Number of submitted operations.
    pub(crate) submitted: u64,
    pub(crate) done: u64,
    pub(crate) clock: Clock,
    /// Index of the stream in vector clocks.
    pub(crate) actor: u32,
    /// `true` if the handle of the stream was destroyed. The stream ends when its work is done.
    pub(crate) destroyed: bool,
    /// Active capture. While there is one, operations do not run.
    pub(crate) capture: Option<Capture>,
}

/// Returns `true` if the value `found` ends a wait for `value`. `flags` selects the condition: 0 is `GEQ`,
/// which is cyclic, 1 is `EQ`, 2 is `AND`, 3 is `NOR`.
pub(crate) fn is_met(found: u64, value: u64, flags: u32) -> bool {
    match flags {
        0 => found.wrapping_sub(value).cast_signed() >= 0,
        1 => found == value,
        2 => found & value != 0,
        _ => !(found | value) != 0,
    }
}

#[cfg(test)]
mod tests {
    use super::is_met;

    #[test]
    fn stream_values_compare_cyclically() {
        assert!(is_met(5, 5, 0) && is_met(6, 5, 0) && !is_met(4, 5, 0));
        assert!(is_met(i64::MAX.cast_unsigned(), 1 << 40, 0), "the end of all ticks");
        assert!(!is_met(u64::MAX, 1, 0), "-1 is before 1");
        assert!(is_met(0, u64::MAX, 0));
        assert!(is_met(7, 7, 1) && !is_met(8, 7, 1) && is_met(6, 2, 2) && !is_met(4, 2, 2));
        assert!(is_met(1, 2, 3) && !is_met(u64::MAX, 0, 3));
    }
}
