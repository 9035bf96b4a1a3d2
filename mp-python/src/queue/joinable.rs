//! Class `JoinableQueue`.

use std::collections::VecDeque;
use std::thread::ThreadId;

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

/// Queue of tasks, and the number of calls of `task_done` by processes that had no task.
///
/// Such a call stands for a task that a process takes later, or that another process has. The next process
/// that has a task, finishes it and decrements the number.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Tasks {
    pub(super) queue: mp::JoinableQueue<Object>,
    ahead: SharedTensor<u64>,
}

impl Tasks {
    fn create(options: QueueOptions) -> PyResult<Self> {
        let queue = mp::JoinableQueue::with_options(options).map_err(runtime)?;
        Ok(Self { queue, ahead: Tensor::zeros([1]).map_err(runtime)?.share() })
    }

    fn ahead(&self) -> usize {
        let ahead = self.ahead.load(0);
        // After `join`, what was written before `task_done` is visible.
        fence(Ordering::Acquire);
        ahead as usize
    }

    /// Returns the number of tasks that are not finished, if those done ahead count.
    fn left(&self) -> usize {
        let mut ahead = self.ahead();
        loop {
            // In this order, a task that is lost meanwhile counts twice.
            let unfinished = self.queue.unfinished();
            let all = unfinished + self.queue.lost();
            // Only numbers of the same time have a difference.
            match self.ahead() {
                now if now == ahead => return all.saturating_sub(ahead),
                now => ahead = now,
            }
        }
    }

    /// Decrements the number of tasks done ahead, and returns `true`, unless all of them may be lost ones.
    pub(super) fn take_ahead(&self) -> bool {
        self.change_ahead(|ahead| (ahead > 0 && ahead > self.queue.lost() as u64).then(|| ahead - 1))
    }

    /// Increments the number of tasks done ahead. Returns `false` if all tasks are finished.
    fn add_ahead(&self) -> bool {
        let is_added = self.change_ahead(|ahead| (self.left() > 0).then_some(ahead + 1));
        // Its task may have been finished since it was counted.
        is_added && !self.drop_surplus()
    }

    /// Decrements the number of tasks done ahead, and returns `true`, if there are fewer tasks.
    fn drop_surplus(&self) -> bool {
        let all = || self.queue.unfinished() + self.queue.lost();
        self.change_ahead(|ahead| (ahead > all() as u64).then(|| ahead - 1))
    }

    fn change_ahead(&self, change: impl Fn(u64) -> Option<u64>) -> bool {
        let mut old = self.ahead.load(0);
        while let Some(new) = change(old) {
            // See `ahead`.
            fence(Ordering::Release);
            match self.ahead.compare_exchange(0, old, new) {
                Ok(_) => return true,
                Err(now) => old = now,
            }
        }
        false
    }

    /// Returns a lost task.
    pub(super) fn dead_letter(&self) -> Result<Option<Object>, GetError> {
        let letter = self.queue.dead_letter();
        // It may be one that was done ahead.
        self.drop_surplus();
        letter
    }
}

/// Tasks, and those that this process has taken and not finished.
pub(crate) struct Joinable {
    pub(crate) tasks: Tasks,
    taken: Mutex<VecDeque<(ThreadId, MessageLease<()>)>>,
}

impl Joinable {
    pub(crate) fn new(tasks: Tasks) -> Self {
        Self { tasks, taken: Mutex::default() }
    }

    /// Stores a task that the calling thread has taken.
    pub(crate) fn add(&self, lease: MessageLease<()>) {
        self.taken.lock().push_back((std::thread::current().id(), lease));
        self.finish_done_ahead();
    }

    /// Finishes taken tasks that were done ahead.
    fn finish_done_ahead(&self) {
        while self.tasks.ahead() > 0 {
            let mut taken = self.taken.lock();
            // The number first: if the process is killed here, a task too many is lost, not too few.
            if taken.is_empty() || !self.tasks.take_ahead() {
                break;
            }
            let first = taken.pop_front();
            drop(taken);
            if let Some((_, lease)) = first {
                lease.ack();
            }
        }
    }

    /// Finishes a task. Returns `false` if all are finished.
    fn finish(&self) -> bool {
        self.finish_done_ahead();
        let me = std::thread::current().id();
        let task = {
            let mut taken = self.taken.lock();
            let own = taken.iter().position(|(thread, _)| *thread == me).unwrap_or(0);
            taken.remove(own)
        };
        match task {
            Some((_, lease)) => {
                lease.ack();
                true
            }
            None => self.tasks.add_ahead(),
        }
    }
}

/// Queue that can wait until all its tasks are done.
///
/// ``task_done`` finishes the oldest task that the calling thread took by ``get``, or else the oldest one
/// of this process, or else one of another process or one that no process has taken. A task whose consumer
/// dies before is not waited for: see ``join``.
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
    /// Returns ``False`` if the time is over. Raises ``PeerLost`` if no task is left to wait for, but some
    /// were lost with their consumers, which died before ``task_done``. ``dead_letter`` returns these.
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
