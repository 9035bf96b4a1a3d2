//! Streams, events, and their queued operations.

pub(in crate::engine) mod work;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Instant;

use crate::engine::races::clock::Clock;
use crate::engine::streams::work::{Progress, Work};

/// Recording of an event. It is bound when it is submitted, and done when the stream reaches it.
#[derive(Debug, Default)]
pub(crate) struct Record {
    /// Clock and time of the completion. `None` before.
    pub(crate) done: RefCell<Option<(Clock, Instant)>>,
    /// Stream that executes the recording, and number of the operation in that stream.
    pub(crate) by: Cell<(u64, u64)>,
    /// `true` if the stream ended with its process, so the recording never completes.
    pub(crate) lost: Cell<bool>,
}

/// Event, which may have handles in several processes.
#[derive(Debug)]
pub(crate) struct EventCore {
    /// Name by which other processes open the event, if there is one.
    pub(crate) name: Cell<Option<u64>>,
    pub(crate) flags: u32,
    pub(crate) device: u32,
    /// Last recording.
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

/// Call of a function of the process, made by one of its threads.
#[derive(Debug)]
pub(crate) struct HostCall {
    pub(crate) function: u64,
    pub(crate) data: u64,
    pub(crate) state: Cell<HostCallState>,
}

/// State of the call.
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
    /// Wait for an imported event whose exporter has ended.
    WaitForEver,
    /// A piece of a pool is freed.
    Free(u64),
    /// A function of the process is called.
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
    /// Operations of other streams that run before this one, by the default stream's rules.
    pub(crate) after: Vec<(u64, u64)>,
    /// Work of the context's streams at the last call that delays later work. This work runs first, but a
    /// program can't rely on that, so it orders no accesses.
    pub(crate) behind: Rc<Vec<(u64, u64)>>,
    /// Clock of the host when it submitted the operation.
    pub(crate) host: Rc<Clock>,
    pub(crate) trace: Option<String>,
    pub(crate) since: Instant,
}

/// Active capture.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Capture {
    /// Calls that the capture forbids, and the threads concerned: `CUstreamCaptureMode`.
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
    /// Index of the stream in clocks.
    pub(crate) actor: u32,
    /// `true` if the stream has no handle. It ends when its work is done.
    pub(crate) destroyed: bool,
    /// Active capture: operations are added to a graph, and don't run.
    pub(crate) capture: Option<Capture>,
}

/// Returns `true` if a wait for a value has ended. Flags are 0 for `GEQ`, which is cyclic, 1 `EQ`, 2 `AND`, 3
/// `NOR`.
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
