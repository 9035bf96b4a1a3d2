//! Class `JoinableQueue`.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use mp::GetError;
use mp::queue::{JoinableQueueError, Lease as MessageLease, QueueOptions};
use mp_core::mutex::Mutex;
use mp_core::sync::shared::{Ordering, fence};
use mp_tensor::{SharedTensor, Tensor};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use serde::{Deserialize, Serialize};

use super::base::{Queue, byte_limit};
use super::shared::options;
use crate::error::{PeerLost, runtime};
use crate::object::Object;
use crate::wait::{Attempt, limit, wait};

/// Queue of tasks, and its counters.
///
/// A process without a task may call `task_done` for a task that it takes later, or that another process has.
/// Such calls are counted as tasks *done ahead*. The next process that has a task finishes this task, and
/// decrements the count.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Tasks {
    pub(super) queue: mp::JoinableQueue<Object>,
    counters: SharedTensor<u64>,
}

/// Index of the counter of tasks done ahead.
const AHEAD: usize = 0;
/// Index of the counter of tasks that were put. It is incremented after each put.
const PUT: usize = 1;
/// Index of the counter of tasks that have left the queue. It is incremented before a task leaves. For a task
/// that can't be decoded, it is incremented afterwards.
const GONE: usize = 2;

impl Tasks {
    fn create(options: QueueOptions) -> PyResult<Self> {
        let queue = mp::JoinableQueue::with_options(options).map_err(runtime)?;
        Ok(Self { queue, counters: Tensor::zeros([3]).map_err(runtime)?.share() })
    }

    fn ahead(&self) -> usize {
        let ahead = self.counters.load(AHEAD);
        // After `join`, writes before `task_done` are visible.
        fence(Ordering::Acquire);
        ahead as usize
    }

    /// Counts tasks that were put.
    pub(super) fn add_put(&self, tasks: usize) {
        self.counters.fetch_add(PUT, tasks as u64);
    }

    /// Counts a task that is about to leave the queue.
    pub(super) fn add_gone(&self) {
        self.counters.fetch_add(GONE, 1);
        fence(Ordering::Release);
    }

    /// Counts a task that has left the queue because it can't be decoded.
    pub(super) fn add_undecodable(&self) {
        self.add_gone();
        // Before this count, one task too many could be counted as done ahead.
        self.drop_surplus();
    }

    /// Counts a task as gone, and removes it from the queue by acknowledging its lease.
    pub(super) fn remove(&self, lease: MessageLease<()>) {
        self.add_gone();
        lease.ack();
    }

    /// Returns a lower bound of the number of unfinished and lost tasks, without a scan of the queue. The
    /// bound is lower if a process was killed between putting or removing a task and counting it.
    fn at_least(&self) -> u64 {
        let put = self.counters.load(PUT);
        fence(Ordering::Acquire);
        put.saturating_sub(self.counters.load(GONE))
    }

    /// Returns the number of unfinished and lost tasks.
    fn all(&self) -> usize {
        // In this order, a task that is lost between the two reads counts twice, not zero times.
        self.queue.unfinished() + self.queue.lost()
    }

    /// Returns the number of unfinished tasks, minus the tasks done ahead.
    fn left(&self) -> usize {
        let mut ahead = self.ahead();
        loop {
            let all = self.all();
            // The difference is valid only if `ahead` has not changed meanwhile.
            match self.ahead() {
                now if now == ahead => return all.saturating_sub(ahead),
                now => ahead = now,
            }
        }
    }

    /// Decrements the number of tasks done ahead if it exceeds the number of lost tasks, which `lost`
    /// returns. Otherwise, all tasks done ahead may be lost. Returns `true` if the number was decremented.
    fn take_ahead(&self, lost: impl Fn() -> u64) -> bool {
        self.change_ahead(|ahead| (ahead > 0 && ahead > lost()).then(|| ahead - 1))
    }

    /// Increments the number of tasks done ahead. Returns `false` if all tasks are finished.
    fn add_ahead(&self) -> bool {
        let has_more = |ahead| ahead < self.at_least() || self.left() > 0;
        let is_added = self.change_ahead(|ahead| has_more(ahead).then_some(ahead + 1));
        // The task may have been finished since the check.
        is_added && !self.drop_surplus()
    }

    /// Decrements the number of tasks done ahead if it exceeds the number of tasks. Returns `true` if the
    /// number was decremented.
    fn drop_surplus(&self) -> bool {
        let is_surplus = |ahead| ahead > self.at_least() && ahead > self.all() as u64;
        self.change_ahead(|ahead| is_surplus(ahead).then(|| ahead - 1))
    }

    fn change_ahead(&self, change: impl Fn(u64) -> Option<u64>) -> bool {
        let mut old = self.counters.load(AHEAD);
        while let Some(new) = change(old) {
            // See `ahead`.
            fence(Ordering::Release);
            match self.counters.compare_exchange(AHEAD, old, new) {
                Ok(_) => return true,
                Err(now) => old = now,
            }
        }
        false
    }

    /// Removes a lost task from the queue and returns it, or `None` if no task is lost.
    pub(super) fn dead_letter(&self) -> Result<Option<Object>, GetError> {
        self.add_gone();
        let letter = self.queue.dead_letter();
        if matches!(letter, Ok(None)) {
            self.counters.fetch_sub(GONE, 1);
        }
        // The lost task may be a task that was done ahead.
        self.drop_surplus();
        letter
    }
}

/// Queue of tasks, and the tasks that this process has taken and not finished.
pub(crate) struct Joinable {
    pub(crate) tasks: Tasks,
    taken: Mutex<TakenTasks>,
    lost: Mutex<RecentCount>,
}

/// Tasks that this process has taken, by their age and by the thread that took them.
#[derive(Default)]
struct TakenTasks {
    next: u64,
    by_age: BTreeMap<u64, (ThreadId, MessageLease<()>)>,
    /// Ages of the tasks of each thread that has some, oldest first.
    by_thread: HashMap<ThreadId, VecDeque<u64>>,
}

impl TakenTasks {
    fn add(&mut self, thread: ThreadId, lease: MessageLease<()>) {
        self.by_age.insert(self.next, (thread, lease));
        self.by_thread.entry(thread).or_default().push_back(self.next);
        self.next += 1;
    }

    /// Removes the oldest task of the thread, or the oldest task of all threads if the thread has none.
    fn take(&mut self, thread: Option<ThreadId>) -> Option<MessageLease<()>> {
        let own = thread.and_then(|thread| self.by_thread.get(&thread)?.front().copied());
        let age = own.or_else(|| self.by_age.first_key_value().map(|(age, _)| *age))?;
        let (thread, lease) = self.by_age.remove(&age)?;
        // The oldest task of all is also the oldest one of its thread.
        if let Some(ages) = self.by_thread.get_mut(&thread) {
            ages.pop_front();
            if ages.is_empty() {
                self.by_thread.remove(&thread);
            }
        }
        Some(lease)
    }
}

/// Number of lost tasks that the last scan of the queue found, and the time until which it is reused.
struct RecentCount {
    lost: u64,
    until: Option<Instant>,
}

/// Minimum duration of a scan of the queue whose result is reused.
const LONG_SCAN: Duration = Duration::from_micros(10);
/// Time for which the result of a scan is reused, as a multiple of the scan's duration. Reuse hardly delays
/// the detection of a death, which takes some milliseconds in any case.
const USES_OF_A_SCAN: u32 = 10;

impl Joinable {
    pub(crate) fn new(tasks: Tasks) -> Self {
        let lost = Mutex::new(RecentCount { lost: 0, until: None });
        Self { tasks, taken: Mutex::default(), lost }
    }

    /// Stores a task that the calling thread has taken.
    pub(crate) fn add(&self, lease: MessageLease<()>) {
        self.taken.lock().add(std::thread::current().id(), lease);
        self.finish_done_ahead();
    }

    /// Returns the number of lost tasks. Repeated calls spend at most a tenth of their time in scans.
    fn lost(&self) -> u64 {
        let mut known = self.lost.lock();
        let now = Instant::now();
        if known.until.is_none_or(|until| until <= now) {
            known.lost = self.tasks.queue.lost() as u64;
            let took = now.elapsed();
            known.until = (took >= LONG_SCAN).then(|| now + took * USES_OF_A_SCAN);
        }
        known.lost
    }

    /// Decrements the number of tasks done ahead if it exceeds the number of lost tasks. Returns `true` if it
    /// was decremented.
    pub(super) fn take_ahead(&self) -> bool {
        self.tasks.take_ahead(|| self.lost())
    }

    /// Finishes taken tasks that were done ahead.
    fn finish_done_ahead(&self) {
        while self.tasks.ahead() > 0 {
            let mut taken = self.taken.lock();
            // The number is decremented first: if the process is killed here, a task too many is lost, not
            // too few.
            if taken.by_age.is_empty() || !self.take_ahead() {
                break;
            }
            let first = taken.take(None);
            drop(taken);
            if let Some(lease) = first {
                self.tasks.remove(lease);
            }
        }
    }

    /// Finishes the oldest task of the calling thread, or else of this process. If this process has no tasks,
    /// counts a task as done ahead. Returns `false` if all tasks are finished.
    fn finish(&self) -> bool {
        self.finish_done_ahead();
        let task = self.taken.lock().take(Some(std::thread::current().id()));
        match task {
            Some(lease) => {
                self.tasks.remove(lease);
                true
            }
            None => self.tasks.add_ahead(),
        }
    }
}

/// Queue that can wait until all its tasks are done.
///
/// ``task_done`` finishes the oldest task that the calling thread took by ``get``. If there is none, it
/// finishes the oldest task of this process, or else a task of another process, or a task that no process has
/// taken yet. ``join`` does not wait for tasks whose consumers died.
#[pyclass(frozen, module = "multiproc._multiproc", extends = Queue, subclass)]
pub struct JoinableQueue;

impl JoinableQueue {
    /// Returns the Python object of a queue.
    pub(crate) fn of(tasks: Tasks) -> PyClassInitializer<Self> {
        PyClassInitializer::from(Queue::of_tasks(tasks)).add_subclass(Self)
    }
}

#[pymethods]
impl JoinableQueue {
    #[new]
    #[pyo3(signature = (*_args, **_kwargs), text_signature = "(maxsize=0, *, bytes=None, ctx=None)")]
    fn new(_args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) -> PyClassInitializer<Self> {
        PyClassInitializer::from(Queue::unset()).add_subclass(Self)
    }

    #[pyo3(signature = (maxsize = 0, *, bytes = None, ctx = None))]
    fn __init__(
        slf: PyRef<'_, Self>,
        maxsize: i64,
        bytes: Option<i128>,
        ctx: Option<Py<PyAny>>,
    ) -> PyResult<()> {
        let _ = ctx;
        let tasks = Tasks::create(options(maxsize, byte_limit(bytes)?, 1))?;
        slf.as_super().init_with(&Queue::of_tasks(tasks));
        Ok(())
    }

    /// Finishes a task. Raises ``ValueError`` if all are finished.
    fn task_done(slf: PyRef<'_, Self>) -> PyResult<()> {
        let open = slf.as_super().open()?;
        match &open.joinable {
            Some(joinable) if !joinable.finish() => {
                Err(PyValueError::new_err("task_done() called too many times"))
            }
            _ => Ok(()),
        }
    }

    /// Waits until all tasks are done.
    ///
    /// Returns ``False`` if the time limit has expired. Raises ``PeerLost`` if all remaining tasks were lost,
    /// because their consumers died before ``task_done``. ``dead_letter`` returns lost tasks.
    #[pyo3(signature = (timeout = None))]
    fn join(slf: PyRef<'_, Self>, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let open = slf.as_super().open()?;
        let Some(joinable) = &open.joinable else { return Ok(true) };
        let tasks = &joinable.tasks;
        let joined = wait(py, limit(true, timeout)?, (), |(), time| {
            use JoinableQueueError::{Lost, Unfinished};
            match (tasks.queue.join_timeout(time), tasks.left()) {
                (Err(Unfinished { .. } | Lost(_)), 0) => Attempt::Done(Ok(())),
                // Nothing wakes this wait when a task is done ahead: the next attempt finds it.
                (Err(Unfinished { .. }), _) => Attempt::Late(()),
                (Err(Lost(_)), left) => Attempt::Done(Err(Lost(left))),
                (result, _) => Attempt::Done(result),
            }
        })?;
        match joined {
            Ok(Ok(())) => Ok(true),
            Ok(Err(error @ JoinableQueueError::Lost(_))) => Err(PeerLost::new_err(error.to_string())),
            Ok(Err(error)) => Err(runtime(error)),
            Err(()) => Ok(false),
        }
    }
}
