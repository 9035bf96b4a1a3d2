//! Waits of threads, for reports and for the proof that a wait can't end.
//!
//! A blocking call has a [`Watch`]. While the wait is short, the watch is only a point in time. A wait that
//! has lasted for [`SHOWN_AFTER`] is *shown*. A shown wait has an entry in the registry of this process, and
//! a row in shared memory ([`table`]) if its thread has its own lane. The waiting thread itself reports its
//! wait: at each check that finds nothing, it tests whether a report is due, and writes it ([`report`]).
//!
//! By default, waits that provably can't end by themselves ([`proof`]) are reported after [`HANGS_AFTER`]. If
//! `MP_STALL` is set, all waits that last for this number of seconds are reported as well.

pub(crate) mod call;
mod dump;
pub(crate) mod failures;
mod own_hang;
mod place;
mod report;
mod settings;
mod slices;
pub(crate) mod table;
#[cfg(feature = "tracing")]
mod trace;

use std::panic::Location;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::arena::Arena;
use crate::blocking::wait_limit::Wait;
use crate::blocks::Blocks;
use crate::process::mutex::{Condvar, Mutex, MutexGuard};
use crate::process::{PerProcess, per_process};
use crate::sync::Ordering;
use crate::sync::shared::AtomicU32;
use crate::sys::identity;
use crate::words::{BlockId, Member, Seat};

pub use crate::layout::wait_table::RING_NAME;
pub use call::BlockingCall;
pub use dump::{add_to_dumps, dump, listen};
pub use place::Place;
pub use report::{is_stopped, publish_report};
pub use settings::{on_report, report_hangs_after, report_waits_after, reported_after};
pub use slices::SlicedWait;
use slices::Slices;
pub(crate) use table::{Row, publish};
pub use table::{Service, name_object, name_process, object_name, serves, serves_no_more, this_process};

/// Duration after which a wait is shown in the registry and in shared memory.
const SHOWN_AFTER: Duration = Duration::from_millis(100);
/// Minimum time between two checks of a shown wait. It limits the checks of waits that spin and never sleep.
const LOOKED_AFTER: Duration = Duration::from_millis(50);
/// Default time after which a wait that can't end is reported.
const HANGS_AFTER: Duration = Duration::from_secs(10);
/// Maximum time to confirm or refute a suspicion of a hang. After that, the suspicion is dropped.
const UNDECIDED: Duration = Duration::from_secs(3);

/// Object of a wait.
#[derive(Clone, Debug)]
pub enum WaitObject {
    /// An object in shared memory: only processes that hold its block can end the wait.
    Block(Arena, BlockId),
    /// The end of these processes, which this process has started.
    Processes(Vec<u32>),
    /// An object of any other kind.
    Other,
}

/// Description of a thread's wait, for reports.
#[derive(Clone, Debug)]
pub struct Subject {
    /// The blocking call.
    pub call: BlockingCall,
    /// Type parameter of the call, if known.
    pub type_name: String,
    /// Object of the wait.
    pub on: WaitObject,
    /// Present state of the object, such as `0 of 64 messages`.
    pub state: String,
    /// Place of the call in the source, if known. Set by the [`Watch`].
    pub(crate) place: Option<Place>,
}

impl Subject {
    /// Creates the description of a call on an object in shared memory.
    pub fn block(call: BlockingCall, arena: Arena, block: BlockId) -> Self {
        Self::other(call, WaitObject::Block(arena, block), String::new())
    }

    /// Creates the description of a call on an object that need not be in shared memory. `state` is the
    /// present state of the object.
    pub fn other(call: BlockingCall, on: WaitObject, state: String) -> Self {
        Self { call, type_name: String::new(), on, state, place: None }
    }
}

/// Entry of a shown wait in the registry of this process.
#[derive(Debug)]
struct ActiveWait {
    thread: u32,
    thread_name: String,
    since: Instant,
    /// Number of the last dump that the thread has answered, and the text of the answer.
    said: Mutex<(u32, String)>,
}

static ENTRIES: PerProcess<Mutex<Vec<Arc<ActiveWait>>>> = per_process!(Mutex::new(Vec::new()));
/// Number of dumps that this process has requested.
static DUMPS: PerProcess<AtomicU32> = per_process!(AtomicU32::new(0));

/// Watch over one wait: shows and reports the wait if it lasts long.
#[derive(Debug)]
pub struct Watch {
    since: Instant,
    /// Time at which the watch next checks the wait.
    due: Instant,
    forever: bool,
    place: &'static Location<'static>,
    /// `true` if the thread has slept.
    #[cfg(feature = "tracing")]
    slept: bool,
    shown: Option<Box<WatchState>>,
    /// Sliced wait that this wait is a part of.
    sliced: Option<Box<Slices>>,
}

#[derive(Debug)]
struct WatchState {
    entry: Arc<ActiveWait>,
    row: Option<Row>,
    /// Time of the next report, if all waits are reported.
    next_report: Option<Instant>,
    /// Time of the next test whether the wait can end.
    next_check: Option<Instant>,
    suspicion: Option<(own_hang::Suspicion, Instant)>,
    settings: u32,
}

impl Watch {
    /// Creates the watch over a wait that began at `since`, in a call at `place`. Within
    /// [`SlicedWait::run`], continues the watch over the sliced wait.
    pub fn new(since: Instant, wait: Wait, place: &'static Location<'static>) -> Self {
        let due = since + SHOWN_AFTER;
        let mut watch = Self {
            since,
            due,
            forever: wait == Wait::Forever,
            place,
            #[cfg(feature = "tracing")]
            slept: false,
            shown: None,
            sliced: Slices::take(),
        };
        if let Some(sliced) = &mut watch.sliced {
            (watch.since, watch.due, watch.forever) = (sliced.since, sliced.due, sliced.forever);
            watch.shown = sliced.shown.take();
        }
        watch
    }

    /// Returns the beginning of the wait.
    pub(crate) fn since(&self) -> Instant {
        self.since
    }

    /// Returns `true` if a check is due.
    #[inline]
    pub fn is_due(&self, now: Instant) -> bool {
        now >= self.due
    }

    /// Called by the waiting thread after each check that found nothing. May print a report.
    #[inline]
    pub fn record_poll(&mut self, now: Instant, subject: impl Fn() -> Subject) {
        if self.is_due(now) {
            self.look(now, &subject);
        }
    }

    /// Records that the thread sleeps.
    #[cfg(feature = "tracing")]
    pub(crate) fn record_sleep(&mut self) {
        self.slept = true;
    }

    /// Ends the watch, and then emits the event of a wait that slept. A part of a sliced wait has no event.
    #[cfg(feature = "tracing")]
    pub(crate) fn end_traced(self, timed_out: bool, subject: impl FnOnce() -> Subject) {
        let since = (self.slept && self.sliced.is_none()).then_some(self.since);
        drop(self);
        if let Some(since) = since.filter(|_| tracing::level_enabled!(tracing::Level::TRACE)) {
            trace::wait_ended(since, timed_out, subject);
        }
    }

    /// Returns how long the thread may sleep before it calls [`record_poll`](Self::record_poll) again, if
    /// nothing else wakes it.
    pub fn pause(&self) -> Duration {
        match &self.shown {
            None => SHOWN_AFTER,
            Some(_) => settings::pause(),
        }
    }

    #[cold]
    fn look(&mut self, now: Instant, subject: &dyn Fn() -> Subject) {
        let (since, forever) = (self.since, self.forever);
        self.due = now + LOOKED_AFTER;
        let place = match &self.sliced {
            Some(sliced) => sliced.place.clone(),
            None => Place::of(self.place),
        };
        let subject = || Subject { place: place.clone(), ..subject() };
        // The parts of a sliced wait may wait for different objects.
        if self.sliced.is_some()
            && let Some(shown) = self.shown.take_if(|shown| !shown.is_of(&subject(), forever))
        {
            shown.end();
        }
        let Some(shown) = &mut self.shown else {
            self.shown = Some(Box::new(WatchState::new(since, forever, &subject())));
            return;
        };
        if let Some(row) = &shown.row {
            row.record_poll();
        }
        if shown.settings != settings::version() {
            shown.schedule(since);
        }
        let asked = DUMPS.load(Ordering::Acquire);
        let due = |at: Option<Instant>| at.is_some_and(|at| now >= at);
        let (report, check) = (due(shown.next_report), due(shown.next_check));
        if shown.entry.said.lock().0 == asked && !report && !check && shown.suspicion.is_none() {
            return;
        }
        let subject = subject();
        shown.answer(asked, now, &subject);
        shown.decide(now, forever, (report, check), &subject);
    }
}

/// Waits at a condition variable of this process until `so` returns `true` for the guarded value, under a
/// watch. Returns `false` if the time has expired.
#[track_caller]
pub fn wait_at<T>(
    changed: &Condvar,
    guard: &mut MutexGuard<'_, T>,
    until: Option<Instant>,
    so: impl Fn(&T) -> bool,
    subject: impl Fn() -> Subject,
) -> bool {
    let (mut watch, place) = (None, Location::caller());
    while !so(guard) {
        let now = Instant::now();
        if until.is_some_and(|until| now >= until) {
            return false;
        }
        let limit = until.map_or(Wait::Forever, Wait::Until);
        let watch = watch.get_or_insert_with(|| Watch::new(now, limit, place));
        if watch.is_due(now) {
            // A report runs user code: a logger.
            MutexGuard::unlocked(guard, || watch.record_poll(now, &subject));
            if so(guard) {
                break;
            }
        }
        let next = now + watch.pause();
        changed.wait_until(guard, until.map_or(next, |until| until.min(next)));
    }
    true
}

impl Drop for Watch {
    #[inline]
    fn drop(&mut self) {
        let shown = self.shown.take();
        if let Some(mut sliced) = self.sliced.take() {
            (sliced.due, sliced.shown) = (self.due, shown);
            sliced.leave();
        } else if let Some(shown) = shown {
            shown.end();
        }
    }
}

impl WatchState {
    fn new(since: Instant, forever: bool, subject: &Subject) -> Self {
        listen();
        let entry = Arc::new(ActiveWait {
            thread: identity::thread(),
            thread_name: std::thread::current().name().unwrap_or_default().to_owned(),
            since,
            said: Mutex::new((DUMPS.load(Ordering::Acquire), String::new())),
        });
        ENTRIES.lock().push(entry.clone());
        let row = Row::take(subject, forever);
        let mut shown =
            Self { entry, row, next_report: None, next_check: None, suspicion: None, settings: 0 };
        shown.schedule(since);
        shown
    }

    /// Returns `true` if the wait's row, if any, shows a wait for this subject.
    fn is_of(&self, subject: &Subject, forever: bool) -> bool {
        self.row.as_ref().is_none_or(|row| row.is_of(subject, forever))
    }

    /// Sets the times of the next report and the next test, according to the settings.
    fn schedule(&mut self, since: Instant) {
        self.settings = settings::version();
        self.next_report = settings::waits_after().and_then(|after| since.checked_add(after));
        self.next_check = settings::reported_after().and_then(|after| since.checked_add(after));
    }

    /// Answers a dump, if one was requested.
    fn answer(&self, asked: u32, now: Instant, subject: &Subject) {
        let said = self.entry.said.lock().0;
        if said != asked {
            let text = report::text(&self.entry, now, subject, None);
            *self.entry.said.lock() = (asked, text);
        }
    }

    fn decide(&mut self, now: Instant, forever: bool, (report, check): (bool, bool), subject: &Subject) {
        let waited = now.saturating_duration_since(self.entry.since);
        let later = |times: u32| self.entry.since.checked_add(waited * times);
        let mut hang = None;
        match self.suspicion.take() {
            None if check && forever => {
                self.suspicion = own_hang::suspect(subject).map(|suspicion| (suspicion, now));
            }
            Some((suspicion, begun)) => match suspicion.is_confirmed(subject) {
                None if now.saturating_duration_since(begun) < UNDECIDED => {
                    self.suspicion = Some((suspicion, begun));
                }
                Some(true) => hang = Some(suspicion),
                _ => {}
            },
            None => {}
        }
        if self.suspicion.is_some() {
            return;
        }
        let again = settings::reported_after();
        if hang.is_some() || report {
            // Growing intervals: after 10 s, 20 s, 40 s.
            let twice = later(2);
            if report {
                self.next_report = twice;
            }
            self.next_check =
                if hang.is_some() { twice } else { again.and_then(|after| now.checked_add(after)) };
            let text = report::text(&self.entry, now, subject, hang.as_ref());
            report::publish(&text, hang.is_some());
        } else if check {
            self.next_check = again.and_then(|after| now.checked_add(after));
        }
    }

    fn end(&self) {
        ENTRIES.lock().retain(|entry| !Arc::ptr_eq(entry, &self.entry));
        if let Some(row) = &self.row {
            row.give_back();
        }
    }
}

/// Returns the members that hold a block, and the number of messages and blocks that hold it. The seat of
/// a dead member counts until its recovery is complete.
fn holders_of(arena: Arena, block: BlockId) -> (Vec<Member>, usize) {
    let (mut members, mut others) = (Vec::new(), 0);
    Blocks(arena).each_holder(block, |holder| match holder {
        Seat::Member(member) if members.contains(&member) => {}
        Seat::Member(member) => members.push(member),
        Seat::Free | Seat::Envelope(_) | Seat::Block(_) => others += 1,
    });
    (members, others)
}
