//! Assignment of tasks to workers, in chunks.
//!
//! A thread that submits tasks assigns them itself as long as workers have room. Then the pool's thread
//! continues, whenever a reply arrives. Encoding runs user code, so the thread does not hold the lock
//! meanwhile. The worker is marked as being fed. If the worker has died when the tasks are encoded, the tasks
//! go to another worker.
//!
//! If other workers already know a function, a replacement worker is first sent only the function, which may
//! contain a large dataset. Until the replacement has read the function, the other workers run the tasks of
//! the function.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use mp_queue::EncodedMessage;
use mp_spawn::CallFailure;

use crate::child::message::{FunctionMessage, WorkerRequest};
use crate::child::task_span::FirstTask;
use crate::child::values::TaskArgs;
use crate::dispatcher::settlements::Settlements;
use crate::dispatcher::shared::PoolShared;
use crate::error::{EncodeError, TaskError};
use crate::slots::slot::SentMessage;
use crate::tasks::call_state::{CallState, TaskFunction};
use crate::tasks::chunk::{Chunk, ChunkMessage, ReadyChunk};
use crate::tasks::source::{ArgsPiece, SavedArgs};

/// Number of tasks that are taken and encoded together. If chunks are smaller, the arguments of several
/// chunks share memory.
const TASKS_AT_ONCE: usize = 64;

impl PoolShared {
    /// Assigns tasks to workers until no tasks are left or no worker needs any.
    pub(crate) fn feed(&self) {
        while self.feed_one() {}
    }

    /// Assigns tasks to one worker. Returns `false` if no assignment is possible now: there are no tasks, no
    /// worker needs tasks, or there is no room for messages.
    fn feed_one(&self) -> bool {
        let mut ready = Vec::new();
        let (mut job, mut filter) = (None, None);
        let mut room = true;
        let (fed, finished) = {
            let mut state = self.state.lock();
            if state.backpressure.is_active() && state.waits_for_room(Instant::now()) {
                return false;
            }
            let fed = state.neediest().and_then(|mut worker| {
                let mut most = usize::MAX;
                if state.tasks.ready.is_empty() {
                    if let Some(next) = state.next_assignment(worker) {
                        (worker, job, filter) = (next.worker, Some(next.job), next.filter);
                    } else {
                        most = state.steal(worker);
                    }
                    if most == 0 {
                        return None;
                    }
                }
                let size = job.as_ref().map_or(0, |job| job.chunk_size(state.wanted));
                let nanos = job.as_ref().map_or(0, |job| job.chunk_nanos(size));
                let portion = state.workers[worker].portion(nanos).min(most);
                let returned = portion.min(state.tasks.ready.len());
                ready.extend(state.tasks.ready.drain(..returned));
                ready
                    .iter()
                    .for_each(|ready: &ReadyChunk| ready.chunk.job.transit.add(ready.chunk.remaining()));
                let found = &mut state.workers[worker];
                found.feeding = true;
                Some((worker, found.pid, portion, size))
            });
            // Finished calls are taken even if there is nothing to assign. Otherwise a finished call would be
            // kept until the next call.
            (fed, std::mem::take(&mut state.tasks.finished))
        };
        drop(finished);
        let Some((worker, pid, portion, size)) = fed else { return false };
        let mut settled = Settlements::new(self);
        if let Some(job) = job {
            while ready.len() < portion {
                let chunks = (TASKS_AT_ONCE / size).clamp(1, portion - ready.len());
                let pieces = job.source.take(size * chunks, filter.as_ref(), &job.transit);
                if pieces.is_empty() {
                    break;
                }
                for piece in pieces {
                    piece.split(size, |piece| self.pack(&job, piece, &mut room, &mut ready, &mut settled));
                }
                if !room {
                    break;
                }
            }
        }
        self.send_to(worker, pid, ready, &mut room, &mut settled);
        settled.deliver();
        room
    }

    /// Creates a chunk of tasks with encoded arguments.
    fn pack(
        &self,
        job: &Arc<CallState>,
        piece: ArgsPiece,
        room: &mut bool,
        ready: &mut Vec<ReadyChunk>,
        settled: &mut Settlements<'_>,
    ) {
        let ArgsPiece { first, args, saved } = piece;
        let end = args.as_ref().map_or(1, TaskArgs::len);
        let chunk = Chunk { end, ..Chunk::new(Arc::clone(job), first, saved) };
        match args.and_then(|args| self.message(&chunk, args, room)) {
            Ok(message) => ready.push(ReadyChunk { chunk, message }),
            Err(why) => settled.add_from_transit(chunk, TaskError::arguments(why)),
        }
    }

    /// Creates the message of a chunk. If there is no room for a message (`room` is `false`, or the
    /// allocation fails), keeps the arguments instead, so that the message can be created later. Packing
    /// consumes arguments with attachments. If another thread takes the room between the check and the
    /// packing, returns an error.
    fn message(&self, chunk: &Chunk, args: TaskArgs, room: &mut bool) -> Result<ChunkMessage, EncodeError> {
        let is_kept = match &args {
            TaskArgs::Packed(_) => matches!(chunk.saved, SavedArgs::Packed(_)),
            // Packing consumes the arguments, so the room is checked before.
            TaskArgs::Single(_) => {
                *room = *room && self.packer.can_pack();
                false
            }
            TaskArgs::Received(_) | TaskArgs::ReceivedSingle(_) => false,
        };
        match args {
            TaskArgs::Packed(_) if is_kept && !*room => return Ok(ChunkMessage::Saved),
            TaskArgs::Single(alone) if !*room => return Ok(ChunkMessage::Unpacked(alone)),
            _ => {}
        }
        let (code, timeout) = (chunk.job.code.number, chunk.job.options.timeout);
        let first = FirstTask::new(chunk.first);
        match self.packed(WorkerRequest::Run { id: chunk.id, code, timeout, first, args }) {
            Err(why) if is_kept && why.is_out_of_space() => {
                *room = false;
                Ok(ChunkMessage::Saved)
            }
            packed => packed.map(ChunkMessage::Packed),
        }
    }

    /// Creates the messages of the chunks that have none, while there is room.
    fn pack_rests(
        &self,
        ready: Vec<ReadyChunk>,
        room: &mut bool,
        settled: &mut Settlements<'_>,
    ) -> Vec<ReadyChunk> {
        if ready.iter().all(|ready| matches!(ready.message, ChunkMessage::Packed(_))) {
            return ready;
        }
        let mut all = Vec::with_capacity(ready.len());
        for ReadyChunk { mut chunk, message } in ready {
            let message = match message {
                ChunkMessage::Saved => chunk.saved.args().and_then(|args| self.message(&chunk, args, room)),
                ChunkMessage::Unpacked(alone) => self.message(&chunk, TaskArgs::Single(alone), room),
                packed => Ok(packed),
            };
            match message {
                Ok(message) => all.push(ReadyChunk { chunk, message }),
                Err(why) => settled.add_from_transit(chunk, TaskError::arguments(why)),
            }
        }
        all
    }

    /// Packs a message for a worker. A panic of user code is returned as an error.
    pub(crate) fn packed(&self, task: WorkerRequest) -> Result<EncodedMessage<WorkerRequest>, EncodeError> {
        let runs_no_code = matches!(&task, WorkerRequest::Run { args: TaskArgs::Packed(_), .. });
        let pack = || self.packer.pack(task).map_err(|refused| refused.error.into());
        if runs_no_code {
            return pack();
        }
        CallFailure::catch(pack).unwrap_or_else(|raise| Err(EncodeError::new(raise.message())))
    }

    /// Sends tasks to a worker that was marked as being fed, if it is still the same process.
    fn send_to(
        &self,
        worker: usize,
        pid: u32,
        ready: Vec<ReadyChunk>,
        room: &mut bool,
        settled: &mut Settlements<'_>,
    ) {
        let ready = self.pack_rests(ready, room, settled);
        let unknown: Vec<Arc<TaskFunction>> = {
            let state = self.state.lock();
            let known_functions = &state.workers[worker].known_functions;
            let mut unknown: Vec<Arc<TaskFunction>> = Vec::new();
            let mut last = None;
            for code in ready.iter().map(|ready| &ready.chunk.job.code) {
                // Usually all are of one call.
                if last.replace(code.number) == Some(code.number) {
                    continue;
                }
                if !known_functions.contains(&code.number) && !unknown.iter().any(|u| u.number == code.number)
                {
                    unknown.push(Arc::clone(code));
                }
            }
            unknown
        };
        let (mut notes, mut waiting) = (Vec::new(), Vec::new());
        let mut unsendable = HashMap::new();
        for code in unknown {
            let Some(runner) = code.runner.get().cloned() else { continue };
            let runner = FunctionMessage::ToSend(runner);
            match self.packed(WorkerRequest::Learn { code: code.number, runner }) {
                Ok(packed) => notes.push((code.number, packed)),
                Err(why) if why.is_out_of_space() => {
                    *room = false;
                    waiting.push(code.number);
                }
                Err(why) => _ = unsendable.insert(code.number, why),
            }
        }
        let mut state = self.state.lock();
        let interrupted = self.is_interrupted().then_some(TaskError::Interrupted);
        let end = state.phase.error().or(interrupted);
        let mut reads: Vec<u64> = notes.iter().map(|(code, _)| *code).collect();
        reads.retain(|code| state.reads_first(worker, *code));
        let found = &mut state.workers[worker];
        found.feeding = false;
        let alive = found.ready && found.pid == pid && found.is_staying();
        let mut messages = VecDeque::with_capacity(notes.len() + ready.len());
        let mut unanswered = VecDeque::with_capacity(messages.capacity());
        // A function is only sent together with, or before, a task of it.
        let goes = |code| {
            let is_packed = |ready: &ReadyChunk| matches!(ready.message, ChunkMessage::Packed(_));
            alive && ready.iter().any(|ready| ready.chunk.job.code.number == code && is_packed(ready))
        };
        for (code, packed) in notes.into_iter().filter(|(code, _)| goes(*code)) {
            found.known_functions.insert(code);
            unanswered.push_back(SentMessage::FunctionChange { code, learn: true, message: packed.number() });
            messages.push_back(packed);
        }
        let mut keep = Vec::new();
        let (mut found_room, mut has_limit) = (0, false);
        for ReadyChunk { chunk, message } in ready {
            let code = chunk.job.code.number;
            if let Some(EncodeError { why, cause }) = unsendable.get(&code) {
                let (why, cause) = (format!("the function can't be sent: {why}"), cause.clone());
                settled.add_from_transit(chunk, TaskError::arguments(EncodeError { why, cause }));
            } else if let Some(error) = chunk.job.transit.release(chunk.remaining()).or_else(|| end.clone()) {
                settled.add(chunk, error);
            } else {
                match message {
                    ChunkMessage::Packed(packed)
                        if alive && !waiting.contains(&code) && !reads.contains(&code) =>
                    {
                        found_room += 1;
                        has_limit |= chunk.job.options.timeout.is_some();
                        chunk
                            .job
                            .record_worker(chunk.first + chunk.reported..chunk.first + chunk.end, worker);
                        unanswered.push_back(SentMessage::Chunk { chunk, message: packed.number() });
                        messages.push_back(packed);
                    }
                    // The message of this chunk may occupy the only room that the function could use.
                    _ if waiting.contains(&code) && matches!(chunk.saved, SavedArgs::Packed(_)) => {
                        keep.push(ReadyChunk::unpacked(chunk));
                    }
                    message => keep.push(ReadyChunk { chunk, message }),
                }
            }
        }
        // Chunks and functions that did not fit into the queue.
        for (packed, sent) in found.send_messages(messages, unanswered) {
            match sent {
                SentMessage::Chunk { chunk, .. } => keep.push(ReadyChunk::packed(chunk, packed)),
                SentMessage::FunctionChange { code, .. } => _ = found.known_functions.remove(&code),
            }
        }
        state.tasks.put_first(keep.into_iter());
        // The pool's thread must watch the deadlines of these tasks, or set the time of the next attempt.
        let wakes = (has_limit || !*room) && self.thread.get() != Some(&thread::current().id());
        if *room {
            state.backpressure.clear();
            drop(state);
            if wakes {
                self.wake_thread();
            }
            return;
        }
        let report = state.lacks_room(Instant::now(), found_room);
        drop(state);
        if report {
            let (pool, why) = (self.settings.pool_name(), self.packer.too_many_messages());
            mp_core::waits::publish_report(&format!("mp: {pool}: its tasks wait for room: {why}\n"));
        }
        if wakes {
            self.wake_thread();
        }
    }

    /// Makes a worker forget a function.
    pub(crate) fn forget(&self, worker: usize, code: u64) {
        let Ok(packed) = self.packed(WorkerRequest::Forget { code }) else { return };
        let mut state = self.state.lock();
        let Some(found) = state.workers.get_mut(worker) else { return };
        if found.ready && found.known_functions.remove(&code) {
            let message = packed.number();
            // If there is no room, the worker keeps the function until it ends.
            let note = SentMessage::FunctionChange { code, learn: false, message };
            _ = found.send_messages([packed].into(), [note].into());
        }
    }
}
