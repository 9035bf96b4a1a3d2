//! Starting a worker in an empty place, and not too often.

use std::sync::Arc;
use std::time::Instant;

use mp_spawn::{Process, Raise};

use crate::child::work::{Orders, work};
use crate::dispatch::shared::{Exited, Shared};
use crate::error::PoolError;

/// Starts a worker in an empty place.
pub(crate) fn start(shared: &Arc<Shared>, number: usize) -> Result<(), PoolError> {
    let settings = &shared.settings;
    // Code of the user: what a worker is configured by, and what its initializer is sent with.
    let launch = |tasks, watch, first| {
        let orders = Orders {
            worker: number,
            tasks,
            replies: shared.replies.clone(),
            watch,
            most_tasks: settings.most_tasks,
            initializer: settings.initializer.clone(),
            state: settings.state.clone(),
        };
        let builder = Process::builder().name(settings.worker_name(number)).number(number).daemon(true);
        let builder = settings.configured(number, builder);
        // What the one before has written is what tells why it has ended.
        let builder = if first { builder } else { builder.replaces() };
        builder.spawn(work, orders)
    };
    let (tasks, watch, first) = {
        let worker = &shared.state.lock().workers[number];
        (worker.tasks.clone(), worker.watch.clone(), worker.pid == 0)
    };
    let process = Raise::catch(|| launch(tasks, watch, first)).map_err(|raise| {
        let why = raise.message();
        PoolError::Settings(format!("what worker {number} is to be started with panicked: {why}"))
    })??;
    let pid = process.pid();
    let told = Arc::downgrade(shared);
    let mut state = shared.state.lock();
    state.restarts += u64::from(!first);
    let worker = &mut state.workers[number];
    worker.pid = pid;
    worker.starts_since = Some(Instant::now());
    worker.restart_at = None;
    // It may have been over before this is called, and then calls at once: an event, no lock.
    process.on_exit(move || {
        if let Some(shared) = told.upgrade() {
            shared.exited(Exited { worker: number, pid });
        }
    });
    worker.process = Some(process);
    Ok(())
}
