//! Streams, events, and what waits in them.

pub(in crate::engine) mod work;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Instant;

use crate::engine::races::clock::Clock;
use crate::engine::streams::work::{Progress, Work};

/// One recording of an event: bound where it was asked for, done when the stream comes to it.
#[derive(Debug, Default)]
pub(crate) struct Record {
    /// What had happened, and when, if it is done.
    pub(crate) done: RefCell<Option<(Clock, Instant)>>,
    /// The stream that will do it, and which of its operations it is.
    pub(crate) by: Cell<(u64, u64)>,
    /// Its stream is gone with its process: it is never done.
    pub(crate) lost: Cell<bool>,
}

/// An event, which may have handles in several processes.
#[derive(Debug)]
pub(crate) struct EventCore {
    /// Name by which other processes open it, if one was asked for.
    pub(crate) name: Cell<Option<u64>>,
    pub(crate) flags: u32,
    pub(crate) device: u32,
    /// The last recording.
    pub(crate) record: RefCell<Option<Rc<Record>>>,
    /// The process that made it has destroyed it, or is gone.
    pub(crate) is_over: Cell<bool>,
    /// Of these two, the former.
    pub(crate) is_destroyed: Cell<bool>,
}

/// A process's handle of an event.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) core: Rc<EventCore>,
    pub(crate) context: u64,
    pub(crate) imported: bool,
}

/// A call of a function of the process, which a thread of that makes.
#[derive(Debug)]
pub(crate) struct HostCall {
    pub(crate) function: u64,
    pub(crate) data: u64,
    pub(crate) turn: Cell<Turn>,
}

/// How far it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Turn {
    ToCome,
    /// It is the thread's turn.
    Begun,
    Over,
}

/// What a stream does at its turn.
#[derive(Debug)]
pub(crate) enum Step {
    Work {
        work: Work,
        progress: Progress,
        noted: bool,
        /// Of each access, whether others at the same time are meant, as was declared when the work was asked for.
        meant: Vec<bool>,
    },
    Record(Rc<Record>),
    WaitEvent(Rc<Record>),
    /// Of an imported event whose exporter is over.
    WaitForEver,
    /// A piece of a pool goes.
    Free(u64),
    /// A function of the process's own is called.
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
    /// Operations of other streams that come first, by the default stream's rules.
    pub(crate) after: Vec<(u64, u64)>,
    /// What its context's streams had been asked for at the last call that holds up what comes later. That comes first, but a program
    /// can't rely on it: it orders no accesses.
    pub(crate) behind: Rc<Vec<(u64, u64)>>,
    /// What the host had seen finished when it asked for this.
    pub(crate) host: Rc<Clock>,
    pub(crate) trace: Option<String>,
    pub(crate) since: Instant,
}

/// A capture that has begun.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Capture {
    /// Which calls it doesn't allow, and of which threads: `CUstreamCaptureMode`.
    pub(crate) mode: u32,
    /// The thread that has begun it.
    pub(crate) thread: u64,
    /// A call that it doesn't allow was made.
    pub(crate) is_spoilt: bool,
}

#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) process: u64,
    pub(crate) context: u64,
    pub(crate) device: u32,
    /// It and the default stream wait for each other.
    pub(crate) blocking: bool,
    pub(crate) is_default: bool,
    pub(crate) queue: VecDeque<Operation>,
    /// How many operations were asked for, and how many are done.
    pub(crate) asked: u64,
    pub(crate) done: u64,
    pub(crate) clock: Clock,
    /// Its number in clocks.
    pub(crate) actor: u32,
    /// No handle of it is left; it goes when its work is done.
    pub(crate) destroyed: bool,
    /// What it is given becomes a graph, and isn't run.
    pub(crate) capture: Option<Capture>,
}

/// Whether a wait for a value is over: flags are 0 for `GEQ`, which is cyclic, 1 `EQ`, 2 `AND`, 3 `NOR`.
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
    fn greater_or_equal_is_cyclic() {
        assert!(is_met(5, 5, 0) && is_met(6, 5, 0) && !is_met(4, 5, 0));
        assert!(is_met(i64::MAX.cast_unsigned(), 1 << 40, 0), "the end of all ticks");
        assert!(!is_met(u64::MAX, 1, 0), "-1 is before 1");
        assert!(is_met(0, u64::MAX, 0));
        assert!(is_met(7, 7, 1) && !is_met(8, 7, 1) && is_met(6, 2, 2) && !is_met(4, 2, 2));
        assert!(is_met(1, 2, 3) && !is_met(u64::MAX, 0, 3));
    }
}
