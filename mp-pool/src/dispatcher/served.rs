//! A pool that runs tasks of pools of other members.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use mp_core::message::{Message, Outgoing};
use mp_core::mutex::Mutex;
use mp_net::service::{NetService, Replying};
use mp_reduce::MessagePack;
use mp_spawn::{CallFailure, Closure};

use crate::child::message::{FunctionMessage, SingleValue};
use crate::child::runner::Runner;
use crate::child::values::{EndPositions, TaskArgs};
use crate::dispatcher::shared::PoolShared;
use crate::error::TaskError;
use crate::forward::messages::{ForwardReply, ForwardRequest, ForwardedOutcome, ForwarderId};
use crate::tasks::call_outcomes::{CallOutcomes, ResultOrder};
use crate::tasks::call_state::{CallOptions, CallState, TaskFunction};
use crate::tasks::outcome_run::{OutcomeData, OutcomeRun};
use crate::tasks::source::{ArgsPiece, LaneFilter, SavedArgs, TaskSource, UnneededValues};
use crate::tasks::transit::TransitCounter;

/// Maximum number of functions that are kept for pools of other members. The oldest is dropped, and is sent
/// again if it is needed.
const MOST_FUNCTIONS: usize = 256;
/// Time for which outcomes are kept that a forwarder has not requested.
const LONGEST_REST: Duration = Duration::from_secs(60);

/// Outcomes that did not fit into a reply.
struct UnsentOutcomes {
    since: Instant,
    runs: VecDeque<OutcomeRun>,
}

/// Functions by the numbers of their pool and in it, the oldest first.
type StoredFunctions = VecDeque<((u64, u64), Arc<TaskFunction>)>;

/// Service of a pool.
pub(crate) struct PoolService {
    shared: Arc<PoolShared>,
    /// Pool and member for errors of tasks, such as `resize at rank 1`.
    place: Arc<str>,
    functions: Mutex<StoredFunctions>,
    rests: Mutex<HashMap<ForwarderId, UnsentOutcomes>>,
}

/// Tasks of one chunk.
struct ForwardedTasks {
    /// Arguments, and the index of the first.
    left: Mutex<(Option<TaskArgs>, usize)>,
}

impl TaskSource for ForwardedTasks {
    fn take(&self, most: usize, _: Option<&LaneFilter>, transit: &TransitCounter) -> Vec<ArgsPiece> {
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
}

/// Call that is cancelled when the future that waits for it is dropped.
struct CancelledOnDrop<'a> {
    shared: &'a PoolShared,
    job: &'a Arc<CallState>,
}

impl Drop for CancelledOnDrop<'_> {
    fn drop(&mut self) {
        if !self.job.outcomes().all_done() {
            self.shared.cancel(self.job);
        }
    }
}

impl PoolService {
    /// Creates the service of a pool. `place` is its name and member, for errors of tasks.
    pub(crate) fn new(shared: Arc<PoolShared>, place: Arc<str>) -> Self {
        Self { shared, place, functions: Mutex::default(), rests: Mutex::default() }
    }

    fn learn(&self, key: (u64, u64), runner: FunctionMessage) -> ForwardReply {
        let FunctionMessage::Received(mut inc) = runner else {
            return ForwardReply::Unreadable("it is not there".into());
        };
        // Decoding the captures calls user code.
        let read = CallFailure::catch(|| Closure::<(), Runner>::decode::<MessagePack>(&mut inc));
        let runner = match read {
            Ok(Ok(runner)) => runner,
            Ok(Err(error)) => return ForwardReply::Unreadable(error.to_string()),
            Err(raise) => return ForwardReply::Unreadable(raise.message().to_string()),
        };
        let code = self.shared.code(runner);
        let mut functions = self.functions.lock();
        functions.retain(|(other, _)| *other != key);
        functions.push_back((key, code));
        let oldest = (functions.len() > MOST_FUNCTIONS).then(|| functions.pop_front());
        drop(functions);
        drop(oldest);
        ForwardReply::Done
    }

    fn function(&self, key: (u64, u64)) -> Option<Arc<TaskFunction>> {
        let functions = self.functions.lock();
        functions.iter().find(|(other, _)| *other == key).map(|(_, code)| code.clone())
    }

    fn forget(&self, key: (u64, u64)) -> ForwardReply {
        let mut functions = self.functions.lock();
        let at = functions.iter().position(|(other, _)| *other == key);
        let forgotten = at.and_then(|at| functions.remove(at));
        drop(functions);
        drop(forgotten);
        ForwardReply::Done
    }

    async fn run(
        &self,
        from: ForwarderId,
        code: u64,
        timeout: Option<Duration>,
        args: TaskArgs,
    ) -> ForwardReply {
        let Some(code) = self.function((from.pool, code)) else {
            let back = match args {
                TaskArgs::ReceivedSingle(alone) => alone.into_outgoing().map(SingleValue::ToSend),
                _ => None,
            };
            return ForwardReply::UnknownFunction(back);
        };
        let count = args.len();
        let failed = |error| {
            let outcomes =
                (0..count).map(|item| (item, ForwardedOutcome::Failed(Box::new(TaskError::clone(&error)))));
            ForwardReply::Outcomes { outcomes: outcomes.collect(), single: None, more: false }
        };
        let args = match args.into_unsent() {
            Ok(args) => args,
            Err(error) => return failed(TaskError::arguments(mp_reduce::Error::from(error).into())),
        };
        let has_attachments = matches!(args, TaskArgs::Single(_));
        let source = Arc::new(ForwardedTasks { left: Mutex::new((None, 0)) });
        let options = CallOptions { chunk: count, timeout, ..CallOptions::default() };
        let job = CallState::new(code, options, source.clone(), ResultOrder::Submission);
        self.shared.submit(&job, count, || source.left.lock().0 = Some(args));
        let end = CancelledOnDrop { shared: &self.shared, job: &job };
        std::future::poll_fn(|cx| match job.register_waker(cx.waker(), CallOutcomes::all_done) {
            true => Poll::Pending,
            false => Poll::Ready(()),
        })
        .await;
        drop(end);
        let runs = std::iter::from_fn(|| job.outcomes().next()).collect();
        match self.reply(from, runs) {
            ForwardReply::Outcomes { mut outcomes, single, more } if has_attachments => {
                for (_, outcome) in &mut outcomes {
                    if let ForwardedOutcome::NotBegun = outcome {
                        *outcome = ForwardedOutcome::Dropped;
                    }
                }
                ForwardReply::Outcomes { outcomes, single, more }
            }
            reply => reply,
        }
    }

    /// Returns a reply with as many of these outcomes as fit into it, and keeps the others.
    fn reply(&self, from: ForwarderId, mut runs: VecDeque<OutcomeRun>) -> ForwardReply {
        let (mut outcomes, mut single) = (Vec::new(), None);
        while single.is_none()
            && let Some(OutcomeRun { first, count, data, run_time }) = runs.pop_front()
        {
            let outcome = match data {
                OutcomeData::Values(many, from) => {
                    let values = (from..from + count).map_while(|i| many.get(i));
                    let (mut bytes, mut ends) = (Vec::new(), EndPositions::default());
                    for value in values {
                        bytes.extend_from_slice(value);
                        ends.push(bytes.len());
                    }
                    let mut out = Outgoing::default();
                    ends.write(0..ends.len(), &bytes, &mut out);
                    let nanos = run_time.unwrap_or_default().as_nanos() as u64 * count as u64;
                    ForwardedOutcome::Values { count, nanos, bytes: std::mem::take(out.bytes()) }
                }
                OutcomeData::Single(received) => match leaving(*received) {
                    Ok(value) => {
                        single = Some(SingleValue::ToSend(value));
                        ForwardedOutcome::Single
                    }
                    Err(why) => ForwardedOutcome::Failed(Box::new(TaskError::value(why))),
                },
                OutcomeData::Failed(error) => {
                    for item in first..first + count {
                        outcomes.push((item, self.failed((*error).clone())));
                    }
                    continue;
                }
            };
            outcomes.push((first, outcome));
        }
        let more = !runs.is_empty();
        let mut rests = self.rests.lock();
        rests.retain(|_, rest| rest.since.elapsed() < LONGEST_REST);
        if more {
            rests.insert(from, UnsentOutcomes { since: Instant::now(), runs });
        }
        ForwardReply::Outcomes { outcomes, single, more }
    }

    fn failed(&self, mut error: TaskError) -> ForwardedOutcome {
        match &mut error {
            TaskError::Terminated
            | TaskError::Closed { .. }
            | TaskError::Broken(_)
            | TaskError::Interrupted
            | TaskError::Cancelled => return ForwardedOutcome::NotBegun,
            TaskError::WorkerLost(lost) => lost.pool = Some(self.place.clone()),
            TaskError::TimedOut { pool, .. } => *pool = Some(self.place.clone()),
            _ => {}
        }
        ForwardedOutcome::Failed(Box::new(error))
    }
}

/// Returns a result with attachments for sending to another host.
fn leaving(received: mp_core::message::Incoming) -> Result<Outgoing, String> {
    let value = received.into_outgoing().ok_or("it was read")?;
    value.relayed_blocks().map_err(|error| error.to_string())?;
    Ok(value)
}

impl NetService for PoolService {
    type Request = ForwardRequest;
    type Reply = ForwardReply;

    fn serve(self: Arc<Self>, request: ForwardRequest) -> Replying<ForwardReply> {
        Box::pin(async move {
            match request {
                ForwardRequest::Size { kind } if kind == self.shared.settings.kind => {
                    ForwardReply::Size(self.shared.workers())
                }
                ForwardRequest::Size { .. } => ForwardReply::OtherKind(self.shared.settings.kind.clone()),
                ForwardRequest::Learn { pool, code, runner } => self.learn((pool, code), runner),
                ForwardRequest::Knows { pool, code } => match self.function((pool, code)) {
                    Some(_) => ForwardReply::Done,
                    None => ForwardReply::UnknownFunction(None),
                },
                ForwardRequest::Forget { pool, code } => self.forget((pool, code)),
                ForwardRequest::Run { from, code, timeout, args } => {
                    self.run(from, code, timeout, args).await
                }
                ForwardRequest::Rest { from } => {
                    let rest = self.rests.lock().remove(&from);
                    self.reply(from, rest.map(|rest| rest.runs).unwrap_or_default())
                }
            }
        })
    }
}
