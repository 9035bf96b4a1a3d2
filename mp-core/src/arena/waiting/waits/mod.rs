//! What threads wait for: seen by reports, and by the proof that a wait can't end.
//!
//! A call that blocks has a [`Watch`]. While the wait is short it is a point in time and nothing else. A wait that has lasted for
//! [`SHOWN_AFTER`] is *shown*: it has an entry in the registry of this process, and, where its thread has a lane of its own, a row
//! in shared memory ([`table`]). At each look that finds nothing, the waiting thread itself asks whether a report is due, and
//! writes it ([`report`]); no other thread does that for it.
//!
//! Two kinds of waits are reported. All that last for `MP_STALL` seconds, if that is set; and, unasked, those that provably can't
//! end by themselves ([`proof`]), after [`HANGS_AFTER`].

mod call;
mod dump;
mod held;
mod proof;
mod report;
mod settings;
pub(crate) mod table;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::arena::Arena;
use crate::arena::waiting::block_on::Wait;
use crate::process::mutex::{Condvar, Mutex, MutexGuard};
use crate::process::{GENERATIONS, PerProcess};
use crate::sync::Ordering;
use crate::sync::shared::AtomicU32;
use crate::sys::identity;
use crate::words::{BlockId, Member, Seat};

pub use call::Call;
pub use dump::{dump, listen};
pub use held::add_to_dumps;
pub use report::{is_stopped, tell};
pub use settings::{on_report, report_hangs_after, report_waits_after, reported_after};
pub use table::{
    RING_NAME, Service, name_object, name_process, object_name, serves, serves_no_more, this_process,
};
pub(crate) use table::{Row, publish};

/// How long a wait lasts before it is shown.
const SHOWN_AFTER: Duration = Duration::from_millis(100);
/// How often a wait that is shown is looked at, at most: some never sleep.
const LOOKED_AFTER: Duration = Duration::from_millis(50);
/// When a wait that can't end is reported, unless the program says otherwise.
const HANGS_AFTER: Duration = Duration::from_secs(10);
/// For how long a suspicion may be neither confirmed nor refuted.
const UNDECIDED: Duration = Duration::from_secs(3);

/// What a wait is on.
#[derive(Clone, Debug)]
pub enum On {
    /// Something in shared memory: only processes that hold its block can end the wait.
    Block(Arena, BlockId),
    /// The ends of these processes, which this process has started.
    Processes(Vec<u32>),
    /// Anything else.
    Other,
}

/// What a thread waits for, for readers.
#[derive(Clone, Debug)]
pub struct Subject {
    /// The call that waits.
    pub call: Call,
    /// Its type parameter, if it is known.
    pub type_name: String,
    /// Where.
    pub on: On,
    /// What is known of it now: `0 of 64 messages`.
    pub state: String,
}

impl Subject {
    /// A call on something in shared memory.
    pub fn block(call: Call, arena: Arena, block: BlockId) -> Self {
        Self { call, type_name: String::new(), on: On::Block(arena, block), state: String::new() }
    }

    /// Any other call; `state` says what is known of it.
    pub fn other(call: Call, on: On, state: String) -> Self {
        Self { call, type_name: String::new(), on, state }
    }
}

/// A wait that is shown.
#[derive(Debug)]
struct Entry {
    thread: u32,
    thread_name: String,
    since: Instant,
    /// What was last said about it, when a dump asked, and which dump that was.
    said: Mutex<(u32, String)>,
}

static ENTRIES: PerProcess<Mutex<Vec<Arc<Entry>>>> =
    PerProcess::new([const { Mutex::new(Vec::new()) }; GENERATIONS]);
/// How many dumps were asked for.
static DUMPS: PerProcess<AtomicU32> = PerProcess::new([const { AtomicU32::new(0) }; GENERATIONS]);

/// The watch over one wait.
#[derive(Debug)]
pub struct Watch {
    since: Instant,
    /// When it is looked at next.
    due: Instant,
    forever: bool,
    shown: Option<Box<Shown>>,
}

#[derive(Debug)]
struct Shown {
    entry: Arc<Entry>,
    row: Option<Row>,
    /// When it is reported because all waits are.
    next_report: Option<Instant>,
    /// When it is next asked whether it can end.
    next_check: Option<Instant>,
    suspicion: Option<(proof::Suspicion, Instant)>,
    settings: u32,
}

impl Watch {
    /// Over a wait that began at `since`.
    pub fn new(since: Instant, wait: Wait) -> Self {
        Self { since, due: since + SHOWN_AFTER, forever: wait == Wait::Forever, shown: None }
    }

    /// Whether it is time to look at it.
    #[inline]
    pub fn is_due(&self, now: Instant) -> bool {
        now >= self.due
    }

    /// To be called after each look that found nothing, by the thread that waits. It may print a report.
    #[inline]
    pub fn looked(&mut self, now: Instant, subject: impl Fn() -> Subject) {
        if self.is_due(now) {
            self.look(now, &subject);
        }
    }

    /// How long the thread may sleep before it calls [`looked`](Self::looked) again, where nothing else wakes it.
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
        let Some(shown) = &mut self.shown else {
            self.shown = Some(Box::new(Shown::new(since, forever, &subject())));
            return;
        };
        if let Some(row) = &shown.row {
            row.looked();
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

/// Waits at a condition variable of this process until what it guards is `so`, under the watch over calls that wait; `false` when
/// the time is over.
pub fn wait_at<T>(
    changed: &Condvar,
    guard: &mut MutexGuard<'_, T>,
    until: Option<Instant>,
    so: impl Fn(&T) -> bool,
    subject: impl Fn() -> Subject,
) -> bool {
    let mut watch: Option<Watch> = None;
    while !so(guard) {
        let now = Instant::now();
        if until.is_some_and(|until| now >= until) {
            return false;
        }
        let watch = watch.get_or_insert_with(|| Watch::new(now, until.map_or(Wait::Forever, Wait::Until)));
        if watch.is_due(now) {
            // A report runs code of users: a logger.
            MutexGuard::unlocked(guard, || watch.looked(now, &subject));
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
        if let Some(shown) = self.shown.take() {
            shown.end();
        }
    }
}

impl Shown {
    fn new(since: Instant, forever: bool, subject: &Subject) -> Self {
        listen();
        let entry = Arc::new(Entry {
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

    /// When it is reported and asked about, by the settings.
    fn schedule(&mut self, since: Instant) {
        self.settings = settings::version();
        let (waits, hangs) = (settings::waits_after(), settings::hangs_after());
        self.next_report = waits.and_then(|after| since.checked_add(after));
        self.next_check = hangs.into_iter().chain(waits).min().and_then(|after| since.checked_add(after));
    }

    /// Says what it waits for, if a dump has asked.
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
                self.suspicion = proof::suspect(subject).map(|suspicion| (suspicion, now));
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
        let again = settings::hangs_after().into_iter().chain(settings::waits_after()).min();
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

impl Arena {
    /// The members that hold a block, and how many messages and blocks do. The seat of a dead member counts until what others
    /// wait for was recovered.
    fn holders_of(&self, block: BlockId) -> (Vec<Member>, usize) {
        let (mut members, mut others) = (Vec::new(), 0);
        self.each_holder(block, |holder| match holder {
            Seat::Member(member) if members.contains(&member) => {}
            Seat::Member(member) => members.push(member),
            Seat::Free | Seat::Envelope(_) | Seat::Block(_) => others += 1,
        });
        (members, others)
    }
}
