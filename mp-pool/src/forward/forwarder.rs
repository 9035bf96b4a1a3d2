//! Process that represents a worker of a served pool.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use mp_core::message::{Incoming, Outgoing};
use mp_net::service::{ServiceHold, UnservedRequest};
use mp_net::{NetError, PeerLost};
use mp_queue::{GetError, Queue};
use mp_spawn::{Closure, ExitStatus};
use serde::{Deserialize, Serialize};

use crate::child::journal_words::{WordsWriter, WorkerWords};
use crate::child::main_loop::send_reply;
use crate::child::message::{
    FunctionMessage, LEAVE, ManyValues, PoolReply, SingleValue, TaskReply, WorkerRequest,
};
use crate::child::runner::Runner;
use crate::child::user_state::WorkerError;
use crate::child::values::{ReceivedValues, TaskArgs};
use crate::error::{Attempts, TaskError, WorkerLost};
use crate::forward::messages::{
    ForwardReply, ForwardRequest, ForwardedOutcome, ForwarderId, ServedPoolService,
};
use crate::steps::chunk::Turn;

/// Longest wait for a function that another forwarder sends. [`LEARN_INTERVAL`] is the time between two
/// requests.
const LONGEST_LEARN: Duration = Duration::from_secs(20);
const LEARN_INTERVAL: Duration = Duration::from_millis(5);
/// Number of consecutive short sessions that may be lost while outcomes are requested.
const MOST_LOST: usize = 3;
/// Duration of a short session.
const SHORT_SESSION: Duration = Duration::from_secs(1);
/// Maximum time for attempts to connect again, which is shorter than the time for which a served pool stores
/// outcomes. [`RECONNECT_INTERVAL`] is the time between two attempts.
const LONGEST_RECONNECT: Duration = Duration::from_secs(30);
const RECONNECT_INTERVAL: Duration = Duration::from_millis(50);
/// Maximum size of the outcomes that a served pool stores until the next chunk, in bytes.
const MOST_STORED: usize = 64 << 10;

/// Arguments of a forwarder.
#[derive(Serialize, Deserialize)]
pub(crate) struct ForwarderArgs {
    pub(crate) worker: usize,
    pub(crate) tasks: Queue<WorkerRequest>,
    pub(crate) replies: Queue<PoolReply>,
    pub(crate) shared_words: WorkerWords,
    pub(crate) from: ForwarderId,
    pub(crate) service: ServedPoolService,
}

/// Main function of the process.
pub(crate) fn forwarder_main(args: ForwarderArgs) -> Result<(), WorkerError> {
    let ForwarderArgs { worker, tasks, replies, shared_words, from, service } = args;
    // Connects to the served pool.
    let hold = begin(&service, from)?;
    send_reply(&replies, PoolReply::Ready { worker, pid: std::process::id() })?;
    let words = WordsWriter::new(shared_words);
    let (functions, sent, waiting) = (HashMap::new(), HashSet::new(), HashMap::new());
    let mut forwarder =
        Forwarder { worker, replies, words, from, service, hold, functions, sent, waiting, is_over: false };
    while !forwarder.is_over {
        match tasks.get() {
            Ok(Some(request)) => forwarder.take(request)?,
            Ok(None) | Err(GetError::Interrupted) => break,
            Err(error) => return Err(error.into()),
        }
    }
    for chunk in std::mem::take(&mut forwarder.waiting).into_values().flatten() {
        forwarder.return_chunk(chunk)?;
    }
    Ok(())
}

struct ReceivedChunk {
    id: u64,
    code: u64,
    timeout: Option<Duration>,
    args: TaskArgs,
}

struct Forwarder {
    worker: usize,
    replies: Queue<PoolReply>,
    words: WordsWriter,
    from: ForwarderId,
    service: ServedPoolService,
    /// Registration of this process with the served pool. Dropping it ends the registration.
    hold: Option<ServiceHold>,
    /// Functions by their numbers, or the reasons why they can't be decoded.
    functions: HashMap<u64, Result<Closure<(), Runner>, String>>,
    /// Functions that the served pool has stored.
    sent: HashSet<u64>,
    /// Chunks whose function has not arrived: see [`main_loop`](crate::child::main_loop).
    waiting: HashMap<u64, Vec<ReceivedChunk>>,
    /// `true` if the process ends: it was asked to end, or the served pool is lost.
    is_over: bool,
}

impl Forwarder {
    fn take(&mut self, request: WorkerRequest) -> Result<(), WorkerError> {
        let worker = self.worker;
        match request {
            WorkerRequest::Run { id, code, timeout, args, .. } => {
                let chunk = ReceivedChunk { id, code, timeout, args };
                if self.functions.contains_key(&code) {
                    return self.run(chunk);
                }
                self.waiting.entry(code).or_default().push(chunk);
                Ok(())
            }
            WorkerRequest::Learn { code, runner } => {
                self.functions.insert(code, read(runner));
                send_reply(&self.replies, PoolReply::FunctionChanged { worker, code })?;
                let waiting = self.waiting.remove(&code).unwrap_or_default();
                waiting.into_iter().try_for_each(|chunk| self.run(chunk))
            }
            WorkerRequest::Forget { code: LEAVE } => {
                self.is_over = true;
                Ok(())
            }
            WorkerRequest::Forget { code } => {
                self.functions.remove(&code);
                if self.sent.remove(&code) {
                    // If this fails, the served pool and its functions are lost.
                    _ = self.call(ForwardRequest::Forget { pool: self.from.pool, code });
                }
                send_reply(&self.replies, PoolReply::FunctionChanged { worker, code })
            }
        }
    }

    /// Calls the served pool. An interrupt ends the process after the call, so that the result of a running
    /// task is received.
    fn call(&self, request: ForwardRequest) -> Result<ForwardReply, Box<UnservedRequest<ForwardRequest>>> {
        mp_core::with_interrupts_masked(|| self.service.call(request).map_err(Box::new))
    }

    /// Returns all tasks of a chunk to the pool. No task of the chunk may have begun.
    fn return_chunk(&self, ReceivedChunk { id, args, .. }: ReceivedChunk) -> Result<(), WorkerError> {
        self.reply(id, 0, returned(args.len(), single_of(args)))
    }

    /// Sends an outcome of the items of a chunk from `item` on.
    fn reply(&self, id: u64, item: usize, outcome: TaskReply) -> Result<(), WorkerError> {
        send_reply(&self.replies, PoolReply::Outcome { worker: self.worker, id, item, outcome })
    }

    /// Forwards a chunk, and sends its outcomes.
    fn run(&mut self, chunk: ReceivedChunk) -> Result<(), WorkerError> {
        let ReceivedChunk { id, code, timeout, args } = chunk;
        let count = args.len();
        // Same condition as in a worker.
        let is_watched = count > 1 || timeout.is_some();
        let mut claimed = 1;
        if is_watched {
            // Host B may begin any of these items, so none may be withdrawn.
            _ = self.words.begin(id, count);
            while let Turn::Go(_) = self.words.claim() {
                claimed += 1;
            }
        }
        let mut reported = 0;
        let arguments = match args.into_unsent() {
            Ok(args) => self.forward(id, (code, timeout), first_of(args, claimed), claimed, &mut reported)?,
            Err(error) => self.fail_all(id, claimed, (false, &error.to_string()), &mut reported)?,
        };
        if reported < claimed {
            self.reply(id, reported, returned(claimed - reported, arguments))?;
        }
        if is_watched {
            _ = self.words.finish();
        }
        Ok(())
    }

    /// Forwards the first `count` items of a chunk, and reports their outcomes. Sets `reported` to the first
    /// item without an outcome. If an item has no outcome, the served pool is lost and this process ends. The
    /// arguments of this item are then returned if they have attachments and are available.
    fn forward(
        &mut self,
        id: u64,
        (code, timeout): (u64, Option<Duration>),
        mut args: TaskArgs,
        count: usize,
        reported: &mut usize,
    ) -> Result<Option<Outgoing>, WorkerError> {
        loop {
            if self.hold.as_ref().is_none_or(ServiceHold::is_lost) {
                match mp_core::with_interrupts_masked(|| begin(&self.service, self.from)) {
                    Ok(hold) => self.hold = hold,
                    Err(_) => return self.give_up(single_of(args)),
                }
            }
            match self.teach(code) {
                Ok(None) => {}
                Ok(Some(why)) => return self.fail_all(id, count, (false, &why), reported),
                Err(()) => return self.give_up(single_of(args)),
            }
            let kept = match &args {
                TaskArgs::Packed(range) => Some(range.clone()),
                _ => None,
            };
            let most = self.service.largest_message();
            let (from, chunk) = (self.from, id);
            let packed = kept.as_ref().map(|range| range.len());
            let request = ForwardRequest::Run { from, chunk, code, timeout, most, count: packed, args };
            args = match (self.call(request).map_err(|unserved| *unserved), kept) {
                (Ok(ForwardReply::UnknownFunction(_)), Some(range)) => TaskArgs::Packed(range),
                (Ok(ForwardReply::UnknownFunction(Some(SingleValue::Received(back)))), None) => {
                    TaskArgs::ReceivedSingle(back).into_unsent()?
                }
                (Ok(reply), _) => return self.report(id, count, reply, None, reported),
                (Err(UnservedRequest { request: None, is_served, error }), _) => {
                    return self.fail_all(id, count, (is_served, &error.to_string()), reported);
                }
                (Err(UnservedRequest { error: error @ NetError::TooLarge { .. }, .. }), _) => {
                    return self.fail_all(id, count, (false, &error.to_string()), reported);
                }
                (Err(UnservedRequest { request: Some(request), error, .. }), _) => {
                    let args = match request {
                        ForwardRequest::Run { args, .. } => single_of(args),
                        _ => None,
                    };
                    return match self.rest(id, (0, count), Some(error)) {
                        Some(reply) => self.report(id, count, reply, args, reported),
                        None => self.give_up(args),
                    };
                }
            };
            // The served pool was replaced, or has dropped its oldest functions.
            self.sent.remove(&code);
        }
    }

    /// Makes sure that the served pool has a function. Returns the reason why it can't be decoded, if any, or
    /// an error if the served pool is lost.
    fn teach(&mut self, code: u64) -> Result<Option<String>, ()> {
        if self.sent.contains(&code) {
            return Ok(None);
        }
        let closure = match self.functions.get(&code) {
            Some(Ok(closure)) => closure.clone(),
            Some(Err(why)) => return Ok(Some(format!("the function can't be read: {why}"))),
            None => return Ok(Some("the forwarder does not know the function".into())),
        };
        let pool = self.from.pool;
        let since = Instant::now();
        loop {
            match self.call(ForwardRequest::Knows { pool, code }).map_err(drop)? {
                ForwardReply::Done => break,
                ForwardReply::Ended => return Err(()),
                // Another forwarder sends the function.
                ForwardReply::Later if since.elapsed() < LONGEST_LEARN => {
                    // sleep: the interval of questions while another process sends the function.
                    std::thread::sleep(LEARN_INTERVAL);
                    continue;
                }
                _ => {}
            }
            let runner = FunctionMessage::ToSend(closure);
            match self.call(ForwardRequest::Learn { pool, code, runner }) {
                Ok(ForwardReply::Unreadable(why)) => {
                    let why = format!("{} can't read it: {why}", self.service.place());
                    self.functions.insert(code, Err(why.clone()));
                    return Ok(Some(format!("the function can't be read: {why}")));
                }
                Ok(ForwardReply::Ended) => return Err(()),
                Ok(_) => break,
                // The function is too large, or captures a value that can't leave this host.
                Err(unserved)
                    if unserved.request.is_none() || matches!(unserved.error, NetError::TooLarge { .. }) =>
                {
                    let why = format!("it can't be sent: {}", unserved.error);
                    self.functions.insert(code, Err(why.clone()));
                    // Other forwarders need not wait for the function.
                    self.call(ForwardRequest::Forget { pool, code }).map_err(drop)?;
                    return Ok(Some(format!("the function can't be read: {why}")));
                }
                Err(_) => return Err(()),
            }
        }
        self.sent.insert(code);
        Ok(None)
    }

    /// Reports the outcomes of `count` items to the pool, from a reply and further requests. `args` are the
    /// arguments of a single item with attachments, if available. They are returned if the item gets no
    /// outcome.
    fn report(
        &mut self,
        id: u64,
        count: usize,
        mut reply: ForwardReply,
        mut args: Option<Outgoing>,
        reported: &mut usize,
    ) -> Result<Option<Outgoing>, WorkerError> {
        let mut stored = 0;
        loop {
            let (outcomes, mut single, more) = match reply {
                ForwardReply::Outcomes { outcomes, single, more } => (outcomes, single, more),
                ForwardReply::Unreadable(why) => return self.fail_all(id, count, (false, &why), reported),
                // Also `Ended`.
                _ => return self.give_up(args),
            };
            if outcomes.is_empty() && more {
                return self.give_up(args);
            }
            for (item, outcome) in outcomes {
                // The served pool has skipped or repeated a task, or has sent too many outcomes.
                if item != *reported || item >= count {
                    return self.give_up(args);
                }
                let (items, outcome) = match outcome {
                    ForwardedOutcome::Values { count: values, nanos, bytes } => {
                        if values == 0 || values > count - item {
                            return self.give_up(args);
                        }
                        let count = values;
                        stored += bytes.len();
                        let values = ReceivedValues::new(&mut Incoming::from_plain(bytes), count);
                        let values = values.to_packed().ok_or("a served pool sent malformed results")?;
                        (count, TaskReply::Results { nanos, values: ManyValues::ToSend(values) })
                    }
                    ForwardedOutcome::Single => {
                        let value = match single.take() {
                            Some(SingleValue::Received(value)) => value.into_outgoing(),
                            _ => None,
                        };
                        let value = value.ok_or("a served pool sent no result")?;
                        (1, TaskReply::Done(SingleValue::ToSend(value)))
                    }
                    ForwardedOutcome::Failed(error) => (1, TaskReply::Failed(error)),
                    ForwardedOutcome::Cancelled { count: cancelled } => {
                        if cancelled == 0 || cancelled > count - item {
                            return self.give_up(args);
                        }
                        (cancelled, returned(cancelled, args.take()))
                    }
                    ForwardedOutcome::Dropped if args.is_none() => {
                        self.is_over = true;
                        (1, TaskReply::Failed(Box::new(self.lost())))
                    }
                    ForwardedOutcome::NotBegun | ForwardedOutcome::Dropped => {
                        self.is_over = true;
                        (1, returned(1, args.take()))
                    }
                };
                self.reply(id, item, outcome)?;
                *reported = item + items;
            }
            if !more {
                if stored > MOST_STORED {
                    let (from, item, most) = (self.from, *reported, 0);
                    // If this fails, the served pool is lost.
                    _ = self.service.post(ForwardRequest::Rest { from, chunk: id, item, most });
                }
                return Ok(args);
            }
            match self.rest(id, (*reported, count), None) {
                Some(next) => reply = next,
                None => return self.give_up(args),
            }
        }
    }

    /// Requests the outcomes of a chunk's tasks from `item` to `count`, and requests them again after a lost
    /// session. `error` is the error of the request that sent the chunk. Returns `None` if the outcomes are
    /// lost.
    fn rest(
        &mut self,
        chunk: u64,
        (item, count): (usize, usize),
        mut error: Option<NetError>,
    ) -> Option<ForwardReply> {
        let (from, most) = (self.from, self.service.largest_message());
        let mut lost = 0;
        while lost <= MOST_LOST {
            match &error {
                None => {}
                Some(NetError::PeerLost(PeerLost { silent, .. })) if self.reconnect(*silent) => {}
                Some(_) => return None,
            }
            let since = Instant::now();
            let unserved = match self.call(ForwardRequest::Rest { from, chunk, item, most }) {
                Ok(ForwardReply::UnknownChunk) => return None,
                Ok(reply) => return Some(reply),
                Err(unserved) => *unserved,
            };
            match unserved {
                // The tasks have ended, but this process can't receive their outcomes.
                UnservedRequest { is_served: true, error, .. } => {
                    let failed = || ForwardedOutcome::Failed(Box::new(TaskError::value(error.to_string())));
                    let outcomes = (item..count).map(|item| (item, failed())).collect();
                    return Some(ForwardReply::Outcomes { outcomes, single: None, more: false });
                }
                UnservedRequest { error: other, .. } => error = Some(other),
            }
            lost = if since.elapsed() < SHORT_SESSION { lost + 1 } else { 0 };
        }
        None
    }

    /// Registers this process again after a lost session. If the served pool did not answer for a while,
    /// retries for the same length of time. Returns `false` if all attempts fail.
    fn reconnect(&mut self, silent: Duration) -> bool {
        let until = Instant::now() + silent.min(LONGEST_RECONNECT);
        let mut timeout = None;
        loop {
            let begin = || self.service.call_held(ForwardRequest::Begin { from: self.from }, timeout);
            match mp_core::with_interrupts_masked(begin) {
                Ok(Some((ForwardReply::Done, hold))) => {
                    self.hold = hold;
                    return true;
                }
                // A pool that has ended stores the outcomes of chunks until it is withdrawn.
                Ok(Some(_)) | Err(NetError::Home { .. }) => return true,
                Err(NetError::PeerLost(_)) => {}
                Ok(None) | Err(_) => return false,
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            // sleep: the interval of the attempts.
            std::thread::sleep(RECONNECT_INTERVAL.min(left));
            timeout = Some(left);
        }
    }

    /// Makes this process end, because its served pool is lost. Returns `args`, for the caller to return.
    fn give_up(&mut self, args: Option<Outgoing>) -> Result<Option<Outgoing>, WorkerError> {
        self.is_over = true;
        Ok(args)
    }

    /// Reports for all items that their results (`true`) or their arguments (`false`) can't be sent.
    fn fail_all(
        &self,
        id: u64,
        count: usize,
        (result, why): (bool, &str),
        reported: &mut usize,
    ) -> Result<Option<Outgoing>, WorkerError> {
        while *reported < count {
            self.reply(id, *reported, TaskReply::Unsendable { result, why: why.to_owned() })?;
            *reported += 1;
        }
        Ok(None)
    }

    /// Returns the error of a task that was lost with the served pool, and whose arguments are lost, too.
    fn lost(&self) -> TaskError {
        TaskError::WorkerLost(Box::new(WorkerLost {
            worker: self.worker,
            pid: std::process::id(),
            pool: Some(self.service.place().into()),
            exit: ExitStatus::Unknown,
            detail: None,
            stderr: None,
            attempts: Attempts::default(),
            note: None,
        }))
    }
}

/// Registers a forwarder with the served pool.
fn begin(service: &ServedPoolService, from: ForwarderId) -> Result<Option<ServiceHold>, WorkerError> {
    match service.call_held(ForwardRequest::Begin { from }, None) {
        Ok(Some((ForwardReply::Done, hold))) => Ok(hold),
        Ok(_) => Err(format!("the pool of {} has ended", service.place()).into()),
        Err(error) => Err(error.to_string().into()),
    }
}

/// Returns the arguments if they have attachments, or `None`.
fn single_of(args: TaskArgs) -> Option<Outgoing> {
    match args {
        TaskArgs::Single(alone) => Some(alone),
        TaskArgs::ReceivedSingle(alone) => alone.into_outgoing(),
        TaskArgs::Packed(_) | TaskArgs::Received(_) => None,
    }
}

/// Returns the outcome of tasks that were not begun.
fn returned(count: usize, arguments: Option<Outgoing>) -> TaskReply {
    TaskReply::Returned { count, arguments: arguments.map(SingleValue::ToSend) }
}

/// Returns the first `count` items.
fn first_of(args: TaskArgs, count: usize) -> TaskArgs {
    match args {
        TaskArgs::Packed(range) => TaskArgs::Packed(range.part(0, count.min(range.len()))),
        single => single,
    }
}

/// Decodes a function, to encode it for another host.
fn read(mut runner: FunctionMessage) -> Result<Closure<(), Runner>, String> {
    if let FunctionMessage::Received(inc) = &mut runner {
        inc.claim().map_err(|error| error.to_string())?;
    }
    runner.read()
}
