//! Service of a pool that runs tasks of pools of other members.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use mp_core::message::Outgoing;
use mp_core::mutex::Mutex;
use mp_core::sync::Ordering;
use mp_core::sync::shared::AtomicUsize;
use mp_net::service::{HeldReplying, HeldValue, NetService, Replying, blocking, spawn_blocking};

use crate::child::message::{FunctionMessage, SingleValue};
use crate::child::values::{EndPositions, TaskArgs};
use crate::dispatcher::forwarders::{ArrivedChunk, ChunkKey, ForwarderTable, HeldForwarder, StoredOutcomes};
use crate::dispatcher::shared::PoolShared;
use crate::error::TaskError;
use crate::forward::messages::{ForwardReply, ForwardRequest, ForwardedOutcome, ForwarderId};
use crate::tasks::call_outcomes::{CallOutcomes, ResultOrder};
use crate::tasks::call_state::{CallOptions, CallState, TaskFunction};
use crate::tasks::outcome_run::{OutcomeData, OutcomeRun};
use crate::tasks::source::{ArgsPiece, LaneFilter, SavedArgs, TaskSource, UnneededValues};
use crate::tasks::transit::TransitCounter;

/// Maximum number of functions that are kept for pools of other members. If there are more, the oldest
/// function is dropped, and its pool sends it again when it is needed.
const MOST_FUNCTIONS: usize = 256;
/// Time for which functions without calls are kept. Their forwarders may have been lost.
const LONGEST_IDLE: Duration = Duration::from_secs(600);
/// Time for which a chunk waits for its preferred worker while other workers have tasks.
const PREFERENCE_TIME: Duration = Duration::from_millis(50);
/// Size of an error in a reply in bytes, without the text of the error.
const ERROR_BYTES: usize = 64;
/// Maximum time in which a forwarder sends a function, while other forwarders wait for it.
const LONGEST_LEARN: Duration = Duration::from_secs(10);

/// Function of another member's pool, stored in a served pool.
struct StoredFunction {
    /// Numbers of the pool, and of the function in it.
    key: (u64, u64),
    code: Arc<TaskFunction>,
    used: Instant,
}

/// Stored functions, the oldest first, and functions that a forwarder is sending.
#[derive(Default)]
struct StoredFunctions {
    known: VecDeque<StoredFunction>,
    awaited: HashMap<(u64, u64), Instant>,
}

/// Service through which pools of other members run tasks in a served pool.
pub(crate) struct PoolService {
    shared: Arc<PoolShared>,
    /// Text that names the pool and its member in errors of tasks, such as `resize of rank 1`.
    place: Arc<str>,
    functions: Mutex<StoredFunctions>,
    forwarders: Arc<ForwarderTable>,
}

/// Tasks of a forwarded chunk. A forwarder represents one worker, so the tasks of each forwarder are treated
/// like a lane: they prefer one worker of this pool.
struct ForwardedTasks {
    /// Remaining arguments, and the item index of the first.
    left: Mutex<(Option<TaskArgs>, usize)>,
    /// Number of the preferred worker.
    worker: Arc<AtomicUsize>,
    arrived: Instant,
}

impl ForwardedTasks {
    /// Returns `true` for the preferred worker and for workers without other tasks. After
    /// [`PREFERENCE_TIME`], returns `true` for every worker.
    fn may_take(&self, filter: Option<&LaneFilter>) -> bool {
        filter.is_none_or(|filter| filter.allows(Some(self.worker.load(Ordering::Relaxed))))
            || self.arrived.elapsed() > PREFERENCE_TIME
    }
}

impl TaskSource for ForwardedTasks {
    fn take(&self, most: usize, filter: Option<&LaneFilter>, transit: &TransitCounter) -> Vec<ArgsPiece> {
        if !self.may_take(filter) {
            return Vec::new();
        }
        let mut left = self.left.lock();
        let first = left.1;
        let piece = match left.0.take() {
            Some(TaskArgs::Packed(all)) => {
                let count = most.min(all.len());
                if count < all.len() {
                    left.0 = Some(TaskArgs::Packed(all.part(count, all.len())));
                }
                let taken = all.part(0, count);
                let saved = SavedArgs::Packed(taken.clone());
                ArgsPiece { first, args: Ok(TaskArgs::Packed(taken)), saved }
            }
            Some(single) => ArgsPiece { first, args: Ok(single), saved: SavedArgs::None },
            None => return Vec::new(),
        };
        let count = piece.args.as_ref().map_or(1, TaskArgs::len);
        left.1 += count;
        transit.add(count);
        vec![piece]
    }

    fn remaining(&self) -> usize {
        self.left.lock().0.as_ref().map_or(0, TaskArgs::len)
    }

    fn clear(&self) -> (Vec<Range<usize>>, UnneededValues) {
        let mut left = self.left.lock();
        let args = left.0.take();
        let first = left.1;
        left.1 += args.as_ref().map_or(0, TaskArgs::len);
        (std::iter::once(first..left.1).collect(), Box::new(args))
    }

    fn has_lanes(&self) -> bool {
        true
    }

    fn has_task_for(&self, filter: &LaneFilter) -> bool {
        self.remaining() > 0 && self.may_take(Some(filter))
    }

    fn record_worker(&self, _: usize, worker: usize) {
        self.worker.store(worker, Ordering::Relaxed);
    }
}

/// Request that waits for the outcomes of a chunk. Dropping the last such request cancels the call.
struct OutcomeWait {
    shared: Arc<PoolShared>,
    chunk: Arc<ArrivedChunk>,
    is_done: bool,
}

impl OutcomeWait {
    fn new(service: &PoolService, chunk: &Arc<ArrivedChunk>) -> Self {
        chunk.waiting.fetch_add(1, Ordering::Relaxed);
        Self { shared: service.shared.clone(), chunk: chunk.clone(), is_done: false }
    }
}

impl Drop for OutcomeWait {
    fn drop(&mut self) {
        let is_last = self.chunk.waiting.fetch_sub(1, Ordering::Relaxed) == 1;
        if is_last
            && !self.is_done
            && let Some(job) = self.chunk.job()
        {
            let shared = self.shared.clone();
            // Cancelling assigns and encodes other tasks, which is user code.
            spawn_blocking(move || _ = shared.cancel(&job));
        }
    }
}

impl PoolService {
    /// Creates the service of a pool. `place` is its name and member, for errors of tasks.
    pub(crate) fn new(shared: Arc<PoolShared>, place: Arc<str>) -> Self {
        Self { shared, place, functions: Mutex::default(), forwarders: Arc::default() }
    }

    fn is_open(&self) -> bool {
        self.shared.check_owner().is_ok() && self.shared.state.lock().is_open()
    }

    fn function(&self, key: (u64, u64)) -> Option<Arc<TaskFunction>> {
        let mut functions = self.functions.lock();
        let found = functions.known.iter_mut().find(|function| function.key == key)?;
        found.used = Instant::now();
        Some(found.code.clone())
    }

    /// Returns `Done` if the function is stored, `Later` if a forwarder is sending it, and `UnknownFunction`
    /// if the caller has to send it.
    fn knows(&self, key: (u64, u64)) -> ForwardReply {
        let mut functions = self.functions.lock();
        let (known, idle) = std::mem::take(&mut functions.known)
            .into_iter()
            .partition(|function| function.used.elapsed() < LONGEST_IDLE);
        functions.known = known;
        functions.awaited.retain(|_, since| since.elapsed() < LONGEST_LEARN);
        let reply = if functions.known.iter().any(|function| function.key == key) {
            ForwardReply::Done
        } else {
            match functions.awaited.entry(key) {
                Entry::Occupied(_) => ForwardReply::Later,
                Entry::Vacant(free) => {
                    free.insert(Instant::now());
                    ForwardReply::UnknownFunction(None)
                }
            }
        };
        drop(functions);
        let idle: VecDeque<StoredFunction> = idle;
        if !idle.is_empty() {
            spawn_blocking(move || drop(idle));
        }
        reply
    }

    /// Stores a function. Calls user code: decodes and drops captures.
    fn learn(&self, key: (u64, u64), runner: FunctionMessage) -> ForwardReply {
        if self.function(key).is_some() {
            return ForwardReply::Done;
        }
        self.functions.lock().awaited.remove(&key);
        let runner = match runner.read() {
            Ok(runner) => runner,
            Err(why) => return ForwardReply::Unreadable(why),
        };
        let code = self.shared.code(runner);
        let mut functions = self.functions.lock();
        let mut dropped = None;
        if functions.known.iter().all(|function| function.key != key) {
            functions.known.push_back(StoredFunction { key, code, used: Instant::now() });
            if functions.known.len() > MOST_FUNCTIONS {
                dropped = functions.known.pop_front();
            }
        }
        drop(functions);
        drop(dropped);
        ForwardReply::Done
    }

    /// Forgets a function. Calls user code: drops captures.
    fn forget(&self, key: (u64, u64)) -> ForwardReply {
        let mut functions = self.functions.lock();
        functions.awaited.remove(&key);
        let at = functions.known.iter().position(|function| function.key == key);
        let forgotten = at.and_then(|at| functions.known.remove(at));
        drop(functions);
        drop(forgotten);
        ForwardReply::Done
    }

    /// Cancels the tasks of these chunks that have not begun. A chunk that has not arrived is cancelled on
    /// arrival: chunk and cancellation use different connections, and can arrive in any order.
    fn cancel(&self, keys: impl Iterator<Item = ChunkKey>) {
        for key in keys {
            if let Some(job) = self.forwarders.find_or_cancel(key).and_then(|chunk| chunk.job()) {
                self.shared.cancel_all(&job);
            }
        }
    }

    async fn run(
        self: Arc<Self>,
        (from, chunk, most): (ForwarderId, u64, u64),
        code: u64,
        timeout: Option<Duration>,
        args: TaskArgs,
    ) -> ForwardReply {
        let count = args.len();
        let args = match args.into_unsent() {
            Ok(args) => args,
            Err(error) => {
                let error = TaskError::arguments(mp_reduce::Error::from(error).into());
                let failed = |item| (item, ForwardedOutcome::Failed(Box::new(error.clone())));
                let outcomes = (0..count).map(failed).collect();
                return ForwardReply::Outcomes { outcomes, single: None, more: false };
            }
        };
        let Some(code) = self.function((from.pool, code)) else {
            let back = match args {
                TaskArgs::Single(alone) => Some(SingleValue::ToSend(alone)),
                _ => None,
            };
            return ForwardReply::UnknownFunction(back);
        };
        let has_attachments = matches!(args, TaskArgs::Single(_));
        let source = Arc::new(ForwardedTasks {
            left: Mutex::new((None, 0)),
            worker: self.forwarders.worker(from),
            arrived: Instant::now(),
        });
        let options = CallOptions { chunk: count, timeout, ..CallOptions::default() };
        let job = CallState::new(code, options, source.clone(), ResultOrder::Submission);
        let chunk = ArrivedChunk::new(chunk, (count, has_attachments), job);
        if !self.forwarders.begin(from, &chunk) {
            let outcomes = vec![(0, ForwardedOutcome::Cancelled { count })];
            return ForwardReply::Outcomes { outcomes, single: None, more: false };
        }
        let wait = OutcomeWait::new(&self, &chunk);
        let (shared, submitted) = (self.shared.clone(), chunk.job());
        // Submitting encodes functions and the tasks of other calls, which is user code.
        let submit = move || {
            let Some(job) = submitted else { return };
            shared.submit(&job, count, || source.left.lock().0 = Some(args));
            // A cancellation may have arrived before the arguments were there.
            if job.is_cancelled() {
                shared.cancel(&job);
            }
        };
        if blocking(submit).await.is_none() {
            // The submission panicked, so no outcomes will arrive.
            chunk.drop_job();
            return ForwardReply::Ended;
        }
        self.outcomes(wait, 0, most).await
    }

    /// Waits for the outcomes of a chunk, and returns a reply with the outcomes of the tasks from `item` on.
    async fn outcomes(&self, mut wait: OutcomeWait, item: usize, most: u64) -> ForwardReply {
        let OutcomeWait { chunk, is_done, .. } = &mut wait;
        let all_done = |outcomes: &CallOutcomes| outcomes.progress.done == chunk.count;
        std::future::poll_fn(|cx| match &chunk.outcomes.lock().job {
            Some(job) if job.register_waker(cx.waker(), all_done) => Poll::Pending,
            _ => Poll::Ready(()),
        })
        .await;
        *is_done = true;
        self.reply(chunk, item, most)
    }

    /// Returns a reply with as many outcomes of the tasks from `item` on as fit into it. The forwarder has
    /// received the outcomes of earlier tasks. `most` is the size of the largest reply in bytes.
    fn reply(&self, chunk: &ArrivedChunk, item: usize, most: u64) -> ForwardReply {
        // A quarter is reserved for the head of the reply.
        let most = usize::try_from(most / 4 * 3).unwrap_or(usize::MAX);
        let (mut outcomes, mut single, mut size, mut more) = (Vec::new(), None, 0_usize, false);
        let StoredOutcomes { job, runs } = &mut *chunk.outcomes.lock();
        if let Some(job) = job.take() {
            runs.extend(std::iter::from_fn(|| job.outcomes().next()));
            spawn_blocking(move || drop(job));
        }
        while runs.front().is_some_and(|run| run.end() <= item) {
            runs.pop_front();
        }
        for OutcomeRun { first, count, data, run_time } in runs {
            more = single.is_some();
            if more {
                break;
            }
            let skipped = item.saturating_sub(*first);
            let (first, count) = (*first + skipped, *count - skipped);
            match data {
                OutcomeData::Values(many, from) => {
                    let from = *from + skipped;
                    let fits = |i: &usize| {
                        let len = many.get(from + i).map_or(0, <[u8]>::len);
                        let fits = size.saturating_add(len + 8) <= most;
                        size = if fits { size + len + 8 } else { size };
                        fits
                    };
                    let mut taken = (0..count).take_while(fits).count();
                    if taken > 0 {
                        let nanos = run_time.unwrap_or_default().as_nanos() as u64 * taken as u64;
                        let bytes = packed((from..from + taken).map_while(|i| many.get(i)));
                        outcomes.push((first, ForwardedOutcome::Values { count: taken, nanos, bytes }));
                    } else if outcomes.is_empty() {
                        outcomes.push((first, ForwardedOutcome::Failed(Box::new(too_large()))));
                        taken = 1;
                    }
                    more = taken < count;
                    if more {
                        break;
                    }
                }
                OutcomeData::Single(received) => {
                    let outcome = match leaving(std::mem::take(&mut **received)) {
                        Ok((_, len)) if len > most => Err(too_large()),
                        Ok((value, len)) if len > most.saturating_sub(size) => {
                            // This result begins the next reply.
                            *data = OutcomeData::Single(Box::new(value.into_incoming()));
                            more = true;
                            break;
                        }
                        Ok((value, _)) => Ok(value),
                        Err(why) => Err(TaskError::value(why)),
                    };
                    // If the reply is lost, so is the result.
                    let error = outcome.as_ref().err().cloned().unwrap_or(TaskError::Terminated);
                    *data = OutcomeData::Failed(Box::new(error));
                    let outcome = match outcome {
                        Ok(value) => {
                            single = Some(SingleValue::ToSend(value));
                            ForwardedOutcome::Single
                        }
                        Err(error) => ForwardedOutcome::Failed(Box::new(error)),
                    };
                    outcomes.push((first, outcome));
                }
                OutcomeData::Failed(error) if matches!(**error, TaskError::Cancelled) => {
                    outcomes.push((first, ForwardedOutcome::Cancelled { count }));
                }
                OutcomeData::Failed(error) => {
                    let len = error.to_string().len() + ERROR_BYTES;
                    let fits = most.saturating_sub(size) / len;
                    let taken = count.min(fits.max(usize::from(outcomes.is_empty())));
                    for item in first..first + taken {
                        outcomes.push((item, self.failed((**error).clone(), chunk.has_attachments)));
                    }
                    size += taken * len;
                    more = taken < count;
                    if more {
                        break;
                    }
                }
            }
        }
        ForwardReply::Outcomes { outcomes, single, more }
    }

    fn failed(&self, mut error: TaskError, has_attachments: bool) -> ForwardedOutcome {
        match &mut error {
            TaskError::Terminated
            | TaskError::Closed { .. }
            | TaskError::Broken(_)
            | TaskError::Interrupted => {
                return if has_attachments { ForwardedOutcome::Dropped } else { ForwardedOutcome::NotBegun };
            }
            TaskError::WorkerLost(lost) => lost.pool = Some(self.place.clone()),
            TaskError::TimedOut { pool, .. } => *pool = Some(self.place.clone()),
            _ => {}
        }
        ForwardedOutcome::Failed(Box::new(error))
    }
}

/// Encodes values without attachments in the form of a message.
fn packed<'a>(values: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let (mut bytes, mut ends) = (Vec::new(), EndPositions::default());
    for value in values {
        bytes.extend_from_slice(value);
        ends.push(bytes.len());
    }
    let mut out = Outgoing::default();
    ends.write(0..ends.len(), &bytes, &mut out);
    std::mem::take(out.bytes())
}

fn too_large() -> TaskError {
    TaskError::value("it is larger than `ClusterConfig::largest_message` of the host of the caller")
}

/// Returns a result with attachments for sending to another host, and its size in bytes.
fn leaving(received: mp_core::message::Incoming) -> Result<(Outgoing, usize), String> {
    let value = received.into_outgoing().ok_or("it was read")?;
    let blocks = value.relayed_blocks().map_err(|error| error.to_string())?;
    let size = blocks.iter().fold(value.written().len() as u64, |sum, (_, size)| sum.saturating_add(*size));
    Ok((value, usize::try_from(size).unwrap_or(usize::MAX)))
}

fn concerns_begun_chunks(request: &ForwardRequest) -> bool {
    matches!(request, ForwardRequest::Cancel { .. } | ForwardRequest::Rest { .. })
}

impl NetService for PoolService {
    type Request = ForwardRequest;
    type Reply = ForwardReply;

    fn serve(self: Arc<Self>, request: ForwardRequest) -> Replying<ForwardReply> {
        Box::pin(async move {
            // Chunks of a pool that was closed still run.
            if !self.is_open() && !concerns_begun_chunks(&request) {
                return match request {
                    // The forwarder gets its arguments back, and then asks for the function.
                    ForwardRequest::Run { args: TaskArgs::ReceivedSingle(alone), .. } => {
                        ForwardReply::UnknownFunction(alone.into_outgoing().map(SingleValue::ToSend))
                    }
                    _ => ForwardReply::Ended,
                };
            }
            let panicked = || ForwardReply::Unreadable("it panicked".into());
            match request {
                ForwardRequest::Begin { .. } => ForwardReply::Done,
                ForwardRequest::Size { kind } if kind == self.shared.settings.kind => {
                    ForwardReply::Size(self.shared.workers())
                }
                ForwardRequest::Size { .. } => ForwardReply::OtherKind(self.shared.settings.kind.clone()),
                ForwardRequest::Knows { pool, code } => self.knows((pool, code)),
                ForwardRequest::Learn { pool, code, runner } => {
                    let learn = move || self.learn((pool, code), runner);
                    blocking(learn).await.unwrap_or_else(panicked)
                }
                ForwardRequest::Forget { pool, code } => {
                    let forget = move || self.forget((pool, code));
                    blocking(forget).await.unwrap_or_else(panicked)
                }
                ForwardRequest::Run { from, chunk, code, timeout, most, args, .. } => {
                    self.run((from, chunk, most), code, timeout, args).await
                }
                ForwardRequest::Cancel { pool, chunks } => {
                    let keys = move |(forwarder, chunk)| (ForwarderId { pool, forwarder }, chunk);
                    let cancel = move || self.cancel(chunks.into_iter().map(keys));
                    blocking(cancel).await.map_or_else(panicked, |()| ForwardReply::Done)
                }
                ForwardRequest::Rest { from, chunk, item, most } => {
                    let Some(found) = self.forwarders.find_or_cancel((from, chunk)) else {
                        return ForwardReply::UnknownChunk;
                    };
                    self.outcomes(OutcomeWait::new(&self, &found), item, most).await
                }
            }
        })
    }

    fn serve_held(self: Arc<Self>, request: ForwardRequest) -> HeldReplying<ForwardReply> {
        let held = match &request {
            ForwardRequest::Begin { from } => {
                Some(HeldForwarder::new(&self.forwarders, *from, self.shared.workers()))
            }
            _ => None,
        };
        let reply = self.serve(request);
        Box::pin(async move { (reply.await, held.map(|held| Box::new(held) as HeldValue)) })
    }

    fn serve_withdrawn(self: Arc<Self>, request: ForwardRequest) -> Option<Replying<ForwardReply>> {
        concerns_begun_chunks(&request).then(|| self.serve(request))
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};

    use super::*;
    use crate::dispatcher::shared::tests::shared;
    use crate::tasks::call_state::tests::job;

    #[test]
    fn forwarder_is_registered_until_its_value_drops() {
        let service = Arc::new(PoolService::new(Arc::new(shared()), "pool of rank 1".into()));
        let from = ForwarderId { pool: 1, forwarder: 2 };
        let mut reply = service.clone().serve_held(ForwardRequest::Begin { from });
        let reply = reply.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        let Poll::Ready((ForwardReply::Done, held)) = reply else { panic!("it does not wait") };
        assert!(held.is_some() && service.forwarders.find_or_cancel((from, 1)).is_none());
        let chunk = |number| ArrivedChunk::new(number, (1, false), job(1, CallOptions::default()));
        assert!(!service.forwarders.begin(from, &chunk(1)), "the cancellation is stored");
        drop(held);
        service.forwarders.find_or_cancel((from, 2));
        assert!(service.forwarders.begin(from, &chunk(2)), "the forwarder is unknown");
    }

    /// Returns the call of a chunk whose three tasks have failed with this text, and a function that requests
    /// the outcomes from an item on. The function returns the items in the reply, and `true` if more outcomes
    /// follow.
    fn failed_chunk(text: &str) -> (Arc<CallState>, impl Fn(usize) -> (Vec<usize>, bool) + use<>) {
        let service = Arc::new(PoolService::new(Arc::new(shared()), "pool of rank 1".into()));
        let from = ForwarderId { pool: 1, forwarder: 2 };
        let held = HeldForwarder::new(&service.forwarders, from, 1);
        let call = job(3, CallOptions::default());
        assert!(service.forwarders.begin(from, &ArrivedChunk::new(1, (3, false), call.clone())));
        drop(held);
        let runs = (0..3).map(|item| OutcomeRun::failed(item..item + 1, TaskError::value(text)));
        call.settle(runs.collect(), |_| (), |(), _| ());
        let ask = move |item| {
            let request = ForwardRequest::Rest { from, chunk: 1, item, most: 1000 };
            let reply = service.clone().serve(request).as_mut().poll(&mut Context::from_waker(Waker::noop()));
            let Poll::Ready(ForwardReply::Outcomes { outcomes, more, .. }) = reply else {
                panic!("all tasks are done")
            };
            (outcomes.into_iter().map(|(item, _)| item).collect(), more)
        };
        (call, ask)
    }

    /// If the session ends before the reply arrives, the forwarder requests the same outcomes again.
    #[test]
    fn lost_reply_is_sent_again_on_request() {
        let (call, ask) = failed_chunk("");
        for (item, items) in
            [(0, vec![0, 1, 2]), (0, vec![0, 1, 2]), (1, vec![1, 2]), (1, vec![1, 2]), (3, vec![])]
        {
            assert_eq!(ask(item), (items, false));
        }
        mp_harness::eventually("the call is dropped, with its function", || Arc::strong_count(&call) == 1);
    }

    #[test]
    fn long_task_errors_are_sent_one_by_one() {
        let (_, ask) = failed_chunk(&"x".repeat(900));
        assert_eq!([0, 1, 2].map(ask), [(vec![0], true), (vec![1], true), (vec![2], false)]);
    }
}
