//! Waits that let other threads of the interpreter run, and that signals interrupt.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, SendError, sync_channel};
use std::time::{Duration, Instant};

use mp_core::Wait;
use mp_core::mutex::Mutex;
use mp_core::waits::{Place, SlicedWait};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use crate::process::park_if_finalized;

/// Interval at which a waiting thread checks for signals.
const SLICE: Duration = Duration::from_millis(100);

/// Outcome of one attempt of a wait.
pub enum Attempt<T, S> {
    /// The wait has ended with this result.
    Done(T),
    /// The time limit of the attempt has expired. The next attempt gets this state.
    Late(S),
}

/// Returns the limit of a wait for Python's arguments `block` and `timeout`. `None` and a `timeout` too large
/// for a `Duration` mean no limit.
///
/// # Errors
/// `ValueError` for a NaN timeout.
pub fn limit(block: bool, timeout: Option<f64>) -> PyResult<Option<Duration>> {
    match timeout {
        _ if !block => Ok(Some(Duration::ZERO)),
        None => Ok(None),
        Some(seconds) if seconds.is_nan() => Err(PyValueError::new_err("the timeout is not a number")),
        // A time too large for a `Duration` means no limit.
        Some(seconds) => Ok(Duration::try_from_secs_f64(seconds.max(0.0)).ok()),
    }
}

/// Returns the location of the innermost Python frame outside of this package and `multiprocessing`.
fn place_of_caller(py: Python<'_>) -> PyResult<Option<Place>> {
    let mut frame = py.import("sys")?.getattr("_getframe")?.call0()?;
    while !frame.is_none() {
        let module = frame.getattr("f_globals")?.get_item("__name__")?.str()?.to_string();
        if !matches!(module.split('.').next(), Some("multiproc" | "multiprocessing")) {
            let file = frame.getattr("f_code")?.getattr("co_filename")?.extract()?;
            return Ok(Some(Place::new(file, frame.getattr("f_lineno")?.extract()?)));
        }
        frame = frame.getattr("f_back")?;
    }
    Ok(None)
}

/// Repeats `attempt` until it is done or `limit` has expired. Returns `Ok(Err(state))` if `limit` has
/// expired. Each attempt gets a time limit of its own. In reports and for other processes, all attempts are
/// one wait.
///
/// # Errors
/// Exceptions of signal handlers, for example `KeyboardInterrupt`.
pub fn wait<T: Send, S: Send>(
    py: Python<'_>,
    limit: Option<Duration>,
    state: S,
    mut attempt: impl FnMut(S, Duration) -> Attempt<T, S> + Send,
) -> PyResult<Result<T, S>> {
    let mut state = match attempt(state, Duration::ZERO) {
        Attempt::Done(done) => return Ok(Ok(done)),
        Attempt::Late(state) => state,
    };
    let begun = Instant::now();
    let deadline = limit.and_then(|limit| begun.checked_add(limit));
    let mut sliced: Option<SlicedWait> = None;
    loop {
        let left = match deadline {
            Some(deadline) => deadline.saturating_duration_since(Instant::now()),
            None => SLICE,
        };
        if left.is_zero() {
            return Ok(Err(state));
        }
        let attempted = py.detach(|| {
            let slice = || attempt(state, left.min(SLICE));
            let attempted = match &mut sliced {
                Some(sliced) => sliced.run(slice),
                None => slice(),
            };
            park_if_finalized();
            attempted
        });
        match attempted {
            Attempt::Done(done) => return Ok(Ok(done)),
            Attempt::Late(late) => state = late,
        }
        py.check_signals()?;
        // From now on the wait is shown. For shorter waits, no Python frame is read.
        sliced.get_or_insert_with(|| {
            let place = place_of_caller(py).ok().flatten();
            SlicedWait::new(begun, deadline.map_or(Wait::Forever, Wait::Until), place)
        });
    }
}

/// Runs a function, which may block, in another thread. Blocks until the function has ended. If the wait is
/// interrupted, the thread continues, and calls `undo` with the result.
///
/// # Errors
/// Exceptions of signal handlers, for example `KeyboardInterrupt`.
pub fn on_thread<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> T + Send + 'static,
    undo: impl FnOnce(T) + Send + 'static,
) -> PyResult<T> {
    // The channel has no capacity, so a send succeeds only if the result is received.
    let (sender, ended) = sync_channel(0);
    let work = Arc::new(Mutex::new(Some(work)));
    let taken = work.clone();
    let in_thread = move || {
        let Some(work) = taken.lock().take() else { return };
        if let Err(SendError(unwanted)) = sender.send(work()) {
            undo(unwanted);
        }
    };
    let thread = match std::thread::Builder::new().name("mp-blocking".into()).spawn(in_thread) {
        Ok(thread) => thread,
        // If no thread can be started, the work runs here, and its own error names the exceeded limit.
        Err(error) => {
            let work = work.lock().take().ok_or(error)?;
            return Ok(py.detach(work));
        }
    };
    let result = wait(py, None, (), move |(), time| match ended.recv_timeout(time) {
        Err(RecvTimeoutError::Timeout) => Attempt::Late(()),
        result => Attempt::Done(result),
    })?;
    // Joined, so that a fork after this call finds no thread of it.
    _ = thread.join();
    let Ok(Ok(result)) = result else {
        return Err(PyRuntimeError::new_err(
            "a thread has ended without a result: this is a bug of multiproc",
        ));
    };
    Ok(result)
}
