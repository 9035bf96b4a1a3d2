//! Assignment of tasks to workers, in chunks.
//!
//! A thread that submits tasks assigns them itself as long as workers have room. Then the pool's thread
//! continues, whenever a reply arrives. Encoding runs user code, so it happens without the lock: the worker
//! is marked as being fed, and if it has died when the tasks are encoded, they go to another worker.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use mp_queue::EncodedMessage;
use mp_spawn::CallFailure;

use crate::calls::chunk::{Chunk, ForWorker, Kept, Ready};
use crate::calls::job::{Code, Job};
use crate::calls::source::Piece;
use crate::dispatch::settled::Settled;
use crate::dispatch::shared::Shared;
use crate::error::{TaskError, Unsendable};
use crate::message::{Sent, Task};
use crate::run::values::Args;
use crate::workers::state::{Given, next_chunk};

/// Number of tasks in small chunks that are encoded together, so that their arguments share memory.
const TOGETHER: usize = 64;

impl Shared {
    /// Assigns tasks to workers until either has run out.
    pub(crate) fn feed(&self) {
        while self.feed_one() {}
    }

    /// Assigns tasks to one worker. Returns `false` if there are no tasks, or no worker wants any.
    fn feed_one(&self) -> bool {
        let mut ready = Vec::new();
        let (mut job, mut takes) = (None, None);
        let mut room = true;
        let (fed, sent, workers) = {
            let mut state = self.state.lock();
            if state.short.is_some() && state.waits_for_room(Instant::now()) {
                return false;
            }
            let fed = state.wanting().and_then(|mut worker| {
                let mut most = usize::MAX;
                if state.returned.is_empty() {
                    if let Some(next) = state.next_job(worker) {
                        (worker, job, takes) = (next.worker, Some(next.job), next.takes);
                    } else {
                        most = state.help(worker);
                    }
                    if most == 0 {
                        return None;
                    }
                }
                let portion = state.workers[worker].portion().min(most);
                let returned = portion.min(state.returned.len());
                ready.extend(state.returned.drain(..returned));
                ready.iter().for_each(|ready: &Ready| ready.chunk.job.hand.take(ready.chunk.left()));
                let found = &mut state.workers[worker];
                found.feeding = true;
                Some((worker, found.pid, portion))
            });
            // Done even if there is nothing to assign, so that a finished call is not kept until the next
            // one.
            (fed, (std::mem::take(&mut state.sent), std::mem::take(&mut state.emptied)), state.wanted)
        };
        drop(sent);
        let Some((worker, pid, portion)) = fed else { return false };
        let mut settled = Settled::new(self);
        if let Some(job) = job {
            let size = job.size(workers);
            while ready.len() < portion {
                let chunks = (TOGETHER / size).clamp(1, portion - ready.len());
                let pieces = job.take(size * chunks, takes.as_ref());
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
        self.give(worker, pid, ready, &mut room, &mut settled);
        settled.tell();
        room
    }

    /// Creates a chunk of tasks with encoded arguments.
    fn pack(
        &self,
        job: &Arc<Job>,
        piece: Piece,
        room: &mut bool,
        ready: &mut Vec<Ready>,
        settled: &mut Settled<'_>,
    ) {
        let Piece { first, tries, args, kept } = piece;
        let end = args.as_ref().map_or(1, Args::len);
        let chunk = Chunk { id: next_chunk(), job: Arc::clone(job), first, reported: 0, end, tries, kept };
        match args.and_then(|args| self.message(&chunk, args, room)) {
            Ok(message) => ready.push(Ready { chunk, message }),
            Err(why) => settled.add_from_hand(chunk, TaskError::arguments(why)),
        }
    }

    /// Returns the message of a chunk, or the arguments to create it later if there is no `room` or
    /// allocation fails. (For arguments with attachments, a failed allocation is an error if another thread
    /// takes the room after the check.)
    fn message(&self, chunk: &Chunk, args: Args, room: &mut bool) -> Result<ForWorker, Unsendable> {
        let is_kept = match &args {
            Args::Plain(_) => matches!(chunk.kept, Kept::Plain(_)),
            // Packing consumes the arguments, so the room is checked before.
            Args::Alone(_) => {
                *room = *room && self.form.can_pack();
                false
            }
            Args::Many(_) | Args::One(_) => false,
        };
        match args {
            Args::Plain(_) if is_kept && !*room => return Ok(ForWorker::Kept),
            Args::Alone(alone) if !*room => return Ok(ForWorker::Alone(alone)),
            _ => {}
        }
        let (code, timed) = (chunk.job.code.number, chunk.job.terms.timeout.is_some());
        match self.packed(Task::Run { id: chunk.id, code, timed, args }) {
            Err(why) if is_kept && why.is_out_of_space() => {
                *room = false;
                Ok(ForWorker::Kept)
            }
            packed => packed.map(ForWorker::Packed),
        }
    }

    /// Packs the chunks that have no message yet, as far as there is room.
    fn pack_rests(&self, ready: Vec<Ready>, room: &mut bool, settled: &mut Settled<'_>) -> Vec<Ready> {
        if ready.iter().all(|ready| matches!(ready.message, ForWorker::Packed(_))) {
            return ready;
        }
        let mut all = Vec::with_capacity(ready.len());
        for Ready { chunk, message } in ready {
            let message = match (message, &chunk.kept) {
                (ForWorker::Kept, Kept::Plain(slice)) => {
                    self.message(&chunk, Args::Plain(slice.clone()), room)
                }
                (ForWorker::Kept, _) => Err(Unsendable::said("they were not kept")),
                (ForWorker::Alone(alone), _) => self.message(&chunk, Args::Alone(alone), room),
                (packed, _) => Ok(packed),
            };
            match message {
                Ok(message) => all.push(Ready { chunk, message }),
                Err(why) => settled.add_from_hand(chunk, TaskError::arguments(why)),
            }
        }
        all
    }

    /// Packs a message for a worker. A panic of user code is returned as an error.
    pub(crate) fn packed(&self, task: Task) -> Result<EncodedMessage<Task>, Unsendable> {
        let runs_no_code = matches!(&task, Task::Run { args: Args::Plain(_), .. });
        let pack = || self.form.pack(task).map_err(|refused| refused.error.into());
        if runs_no_code {
            return pack();
        }
        CallFailure::catch(pack).unwrap_or_else(|raise| Err(Unsendable::said(raise.message())))
    }

    /// Sends tasks to a worker that was marked as being fed, if it is still the same process.
    fn give(&self, worker: usize, pid: u32, ready: Vec<Ready>, room: &mut bool, settled: &mut Settled<'_>) {
        let ready = self.pack_rests(ready, room, settled);
        let unknown: Vec<Arc<Code>> = {
            let state = self.state.lock();
            let knows = &state.workers[worker].knows;
            let mut unknown: Vec<Arc<Code>> = Vec::new();
            let mut last = None;
            for code in ready.iter().map(|ready| &ready.chunk.job.code) {
                // Usually all are of one call.
                if last.replace(code.number) == Some(code.number) {
                    continue;
                }
                if !knows.contains(&code.number) && !unknown.iter().any(|u| u.number == code.number) {
                    unknown.push(Arc::clone(code));
                }
            }
            unknown
        };
        let (mut notes, mut waiting) = (Vec::new(), Vec::new());
        let mut unsendable = HashMap::new();
        for code in unknown {
            let Some(runner) = code.runner.get().cloned() else { continue };
            let runner = Sent::Out(runner);
            match self.packed(Task::Learn { code: code.number, runner }) {
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
        let found = &mut state.workers[worker];
        found.feeding = false;
        let alive = found.ready && found.pid == pid && found.stays();
        let mut messages = VecDeque::with_capacity(notes.len() + ready.len());
        let mut given = VecDeque::with_capacity(messages.capacity());
        // A function is only sent together with a task of it.
        let goes = |code| {
            let is_packed = |ready: &Ready| matches!(ready.message, ForWorker::Packed(_));
            alive && ready.iter().any(|ready| ready.chunk.job.code.number == code && is_packed(ready))
        };
        for (code, packed) in notes.into_iter().filter(|(code, _)| goes(*code)) {
            found.knows.insert(code);
            given.push_back(Given::Note { code, learn: true, message: packed.number() });
            messages.push_back(packed);
        }
        let mut keep = Vec::new();
        let mut found_room = 0;
        for Ready { chunk, message } in ready {
            let code = chunk.job.code.number;
            if let Some(Unsendable { why, cause }) = unsendable.get(&code) {
                let (why, cause) = (format!("the function can't be sent: {why}"), cause.clone());
                settled.add_from_hand(chunk, TaskError::arguments(Unsendable { why, cause }));
            } else if let Some(error) = chunk.job.hand.release(chunk.left()).or_else(|| end.clone()) {
                settled.add(chunk, error);
            } else {
                match message {
                    ForWorker::Packed(packed) if alive && !waiting.contains(&code) => {
                        found_room += 1;
                        chunk.job.goes_to(chunk.first + chunk.reported..chunk.first + chunk.end, worker);
                        given.push_back(Given::Task { chunk, message: packed.number() });
                        messages.push_back(packed);
                    }
                    // The message of this chunk may occupy the only room that the function could use.
                    _ if waiting.contains(&code) && matches!(chunk.kept, Kept::Plain(_)) => {
                        keep.push(Ready::rest(chunk));
                    }
                    message => keep.push(Ready { chunk, message }),
                }
            }
        }
        // Chunks and functions that did not fit into the queue.
        for (packed, given) in found.give(messages, given) {
            match given {
                Given::Task { chunk, .. } => keep.push(Ready::packed(chunk, packed)),
                Given::Note { code, .. } => _ = found.knows.remove(&code),
            }
        }
        state.returned.extend(keep);
        if *room {
            state.has_room();
            return;
        }
        let tell = state.lacks_room(Instant::now(), found_room);
        drop(state);
        if tell {
            let (pool, why) = (self.settings.pool_name(), self.form.too_many_messages());
            mp_core::waits::tell(&format!("mp: {pool}: its tasks wait for room: {why}\n"));
        }
        // The pool's thread must set the time of the next attempt.
        if self.thread.get() != Some(&thread::current().id()) {
            self.ring();
        }
    }

    /// Makes a worker forget a function.
    pub(crate) fn forget(&self, worker: usize, code: u64) {
        let Ok(packed) = self.packed(Task::Forget { code }) else { return };
        let mut state = self.state.lock();
        let Some(found) = state.workers.get_mut(worker) else { return };
        if found.ready && found.knows.remove(&code) {
            let message = packed.number();
            // If there is no room, the worker keeps the function until it ends.
            let note = Given::Note { code, learn: false, message };
            _ = found.give([packed].into(), [note].into());
        }
    }
}
