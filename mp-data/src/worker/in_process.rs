//! Worker of a loader without worker processes, which makes batches in the thread that calls `next`.

use std::cell::RefCell;

use mp_core::mutex::Mutex;
use mp_core::user_code::drop_caught;
use mp_spawn::{CallFailure, record_panics, with_panics_recorded};

use crate::error::failure::{BatchFailure, panic_error};
use crate::error::text::CLOSED;
use crate::worker::batch_maker::{BatchMaker, InitOf, WorkerReply};

/// Worker of a loader without worker processes. If several threads iterate over the loader, the lock lets
/// only one thread make a batch at a time.
pub(crate) struct InProcessWorker<W>(Mutex<InProcessState<W>>);

struct InProcessState<W> {
    /// Worker with its dataset. `None` before the first batch, and after a panic.
    worker: Option<W>,
    closed: bool,
}

thread_local! {
    /// Addresses of the in-process workers that are making a batch in this thread. If the dataset itself
    /// reads from another loader, the list has a second address.
    static MAKING: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Guard that marks this thread as making a batch until it is dropped.
struct MakingGuard;

impl MakingGuard {
    /// Marks this thread as making a batch with the worker. Returns `None` if the thread is already marked:
    /// locking the worker again would be a deadlock.
    fn with<W>(here: &InProcessWorker<W>) -> Option<Self> {
        let address = std::ptr::from_ref(here).addr();
        MAKING.with_borrow_mut(|making| {
            if making.contains(&address) {
                return None;
            }
            making.push(address);
            Some(MakingGuard)
        })
    }
}

impl Drop for MakingGuard {
    fn drop(&mut self) {
        MAKING.with_borrow_mut(|making| _ = making.pop());
    }
}

impl<W: BatchMaker> InProcessWorker<W> {
    pub(crate) fn new() -> Self {
        InProcessWorker(Mutex::new(InProcessState { worker: None, closed: false }))
    }

    pub(crate) fn make(
        &self,
        init: impl FnOnce() -> InitOf<W>,
        task: &W::Task,
    ) -> Result<WorkerReply<W::Batch, W::Progress>, BatchFailure> {
        let Some(_making) = MakingGuard::with(self) else {
            return Err(BatchFailure::new(
                "the dataset asks for a batch of the loader that is making one with it: a loader without \
                workers makes one at \
                 a time (num_workers above 0, or a loader of its own for what the dataset reads)",
            ));
        };
        let state = &mut *self.0.lock();
        if state.closed {
            return Err(BatchFailure::fatal(CLOSED));
        }
        make_in_process(&mut state.worker, init, task)
    }

    /// Drops the dataset and rejects further batches. Waits for a batch that another thread is making. Does
    /// nothing if the dataset itself calls this function.
    pub(crate) fn close(&self) {
        let Some(_making) = MakingGuard::with(self) else { return };
        let worker = {
            let state = &mut *self.0.lock();
            state.closed = true;
            state.worker.take()
        };
        drop_caught(worker);
    }
}

/// Makes a batch in the training process, with a copy of the dataset as a worker process would receive it.
pub(crate) fn make_in_process<W: BatchMaker>(
    worker: &mut Option<W>,
    init: impl FnOnce() -> InitOf<W>,
    task: &W::Task,
) -> Result<WorkerReply<W::Batch, W::Progress>, BatchFailure> {
    record_panics();
    let mut mine = match worker.take() {
        Some(mine) => mine,
        None => match CallFailure::catch(|| with_panics_recorded(|| W::begin(init()))) {
            Ok(Ok(mine)) => mine,
            Ok(Err(error)) => return Err(BatchFailure::fatal(error)),
            Err(panic) => return Err(BatchFailure::fatal(panic_error(*panic))),
        },
    };
    let mut cx = mine.context(task);
    match CallFailure::catch(|| with_panics_recorded(|| mine.make(task, &mut cx))) {
        Ok(made) => {
            *worker = Some(mine);
            made.map_err(|error| BatchFailure::new(error).with_note(cx.last_note()))
        }
        Err(panic) => {
            // The dataset may be inconsistent after the panic, so it is not used again.
            drop_caught(mine);
            Err(BatchFailure::new(panic_error(*panic)).with_note(cx.last_note()))
        }
    }
}
