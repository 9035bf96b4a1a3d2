//! Slot of a worker: its process, and the messages that were sent to it.
//!
//! A worker takes messages from its queue in order, and answers each chunk before it takes the next. So it
//! has taken at most one of its chunks; the others are in the queue, identified by the number of their
//! message. A message's number may be reused after the worker has taken it: if two messages have the same
//! number, the later one is in the queue. The chunk word contains the worker's position in its chunk
//! (`steps::chunk`).

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mp_queue::{EncodedMessage, Queue};
use mp_spawn::Process;

use crate::child::clock;
use crate::child::journal_words::{PublishedWorker, WorkerWords};
use crate::child::message::WorkerRequest;
#[cfg(feature = "net")]
use crate::forward::places::{ForwardedChunk, ForwarderPlace};
use crate::slots::pending::PendingTasks;
use crate::steps::chunk::CutShare;
use crate::steps::journal::JournalResults;
use crate::tasks::call_state::CallState;
use crate::tasks::chunk::{Chunk, ReadyChunk};

/// Capacity of a worker's queue in messages.
pub(crate) const QUEUE_CAPACITY: usize = 1024;
/// Maximum number of chunks that a worker has in advance.
const MOST_CHUNKS: u64 = 512;
/// Duration of unfinished work below which a worker receives more chunks. If the workers use all processors,
/// the pool's thread may wait that long for a processor, and the workers need work in the meantime.
const AHEAD_NANOS: u64 = 5_000_000;
/// Chunk duration from which on a worker has at most one chunk. If chunks are shorter, the next chunk is in
/// the worker's queue before the worker has finished a chunk.
const LONG_NANOS: u64 = 10_000_000;
/// Time without a reply after which the pool reads a worker's journal. Doubled when there are no new results.
const JOURNAL_INTERVAL: Duration = Duration::from_millis(10);
/// Maximum time between two reads of a journal.
const LONGEST_JOURNAL_INTERVAL: Duration = Duration::from_secs(1);
/// Time after which queued messages are withdrawn from a worker that has not begun its first task. They are
/// withdrawn only while another worker is idle.
const SLOW: Duration = Duration::from_millis(100);
/// Number that is never assigned to a function. A worker answers a request to forget this number, and does
/// nothing else.
pub(crate) const NO_CODE: u64 = 0;

/// Message that was sent to a worker.
pub(crate) enum SentMessage {
    Chunk {
        chunk: Chunk,
        message: Option<u32>,
    },
    /// Request to learn or forget a function.
    FunctionChange {
        code: u64,
        /// `true` for a request to learn the function, `false` to forget it.
        learn: bool,
        message: Option<u32>,
    },
}

impl SentMessage {
    fn message(&self) -> Option<u32> {
        match self {
            SentMessage::Chunk { message, .. } | SentMessage::FunctionChange { message, .. } => *message,
        }
    }
}

/// Slot of a worker, which may be empty.
pub(crate) struct WorkerSlot {
    pub(crate) tasks: Queue<WorkerRequest>,
    pub(crate) shared_words: WorkerWords,
    pub(crate) process: Option<Process>,
    /// Served pool for which the process is a forwarder, or `None` if it is a worker.
    pub(crate) place: Option<u64>,
    /// Place of the forwarder, if the process is a forwarder.
    #[cfg(feature = "net")]
    pub(crate) forwarder: Option<ForwarderPlace>,
    /// Process id of the last process in this slot; 0 before the first.
    pub(crate) pid: u32,
    /// `true` if the worker is initialized and alive.
    pub(crate) ready: bool,
    /// `true` if a thread is about to assign tasks to the worker.
    pub(crate) feeding: bool,
    pub(crate) unanswered: VecDeque<SentMessage>,
    /// Number of chunks in `unanswered`.
    pub(crate) outstanding: usize,
    /// Maximum number of chunks that the worker has in advance.
    most_chunks: u64,
    /// Time from which the deadline of the first unanswered task counts: last reply of the worker, or first
    /// assignment to a worker without tasks. Moved when the pool's thread reads the start of the task.
    pub(crate) since: Instant,
    /// `true` if the pool's thread has seen the deadline of the current task.
    pub(crate) watched: bool,
    /// Delay between `since` and the time at which the pool's thread first saw the deadline. Zero if the
    /// delay was short.
    late: Duration,
    /// Further time by which the deadline was moved, because the program may have been stopped.
    excused: Duration,
    /// Recent duration of a chunk in nanoseconds; 0 if unknown.
    pace: u64,
    /// Functions that the worker knows, or will know after reading its queue.
    pub(crate) known_functions: HashSet<u64>,
    /// Time at which the process was started, or began to create its state again, while it is not ready.
    pub(crate) starts_since: Option<Instant>,
    /// `true` if the process was killed for exceeding the start time-out.
    pub(crate) start_timed_out: bool,
    /// Number of consecutive failed starts.
    pub(crate) failed_starts: u32,
    /// Time of the last failed start.
    pub(crate) failed_at: Option<Instant>,
    /// Reason of the last failed start.
    pub(crate) failed_why: String,
    /// `true` if the failed starts were reported.
    pub(crate) start_failures_reported: bool,
    /// Number of consecutive processes that were ready and died without having had a task.
    pub(crate) idle_deaths: u32,
    pub(crate) had_tasks: bool,
    /// `true` if the process replaces another and has answered nothing yet.
    pub(crate) is_new: bool,
    pub(crate) restart_at: Option<Instant>,
    /// Chunk and item that exceeded the time limit.
    pub(crate) condemned: Option<(u64, usize)>,
    /// `true` if the pool has already checked whether the worker begins the first unanswered task: see
    /// [`slow_check_at`](Self::slow_check_at).
    pub(crate) queue_checked: bool,
    /// `true` if the worker did not take messages from its queue. Until the worker has answered a request in
    /// the queue, it is sent no other message.
    pub(crate) suspect: bool,
    /// Time without a reply after which the worker's journal is read.
    journal_interval: Duration,
    /// `true` if the worker was asked to end after its remaining tasks. It is sent no other tasks.
    pub(crate) asked_to_leave: bool,
    /// Time at which the worker is asked to end and tasks are withdrawn, if its slot is not wanted.
    pub(crate) leaves_at: Option<Instant>,
}

impl WorkerSlot {
    pub(crate) fn new(tasks: Queue<WorkerRequest>, shared_words: WorkerWords) -> WorkerSlot {
        WorkerSlot {
            tasks,
            shared_words,
            process: None,
            place: None,
            #[cfg(feature = "net")]
            forwarder: None,
            pid: 0,
            ready: false,
            feeding: false,
            unanswered: VecDeque::new(),
            outstanding: 0,
            most_chunks: MOST_CHUNKS,
            since: Instant::now(),
            watched: false,
            late: Duration::ZERO,
            excused: Duration::ZERO,
            pace: 0,
            known_functions: HashSet::new(),
            starts_since: None,
            start_timed_out: false,
            failed_starts: 0,
            failed_at: None,
            failed_why: String::new(),
            start_failures_reported: false,
            idle_deaths: 0,
            had_tasks: false,
            is_new: false,
            restart_at: None,
            condemned: None,
            queue_checked: false,
            suspect: false,
            journal_interval: JOURNAL_INTERVAL,
            asked_to_leave: false,
            leaves_at: None,
        }
    }

    /// Sets the maximum number of chunks of this worker, from the number of workers and the arena's capacity
    /// in messages. All workers together use at most a quarter of the messages, or two messages each.
    pub(crate) fn set_share(&mut self, workers: usize, messages: u32) {
        let share = u64::from(messages) / (4 * workers.max(1) as u64);
        self.most_chunks = share.clamp(2, MOST_CHUNKS);
    }

    /// Publishes the state of the worker for tools.
    pub(crate) fn publish(&self) {
        let pid = if self.process.is_some() { self.pid } else { 0 };
        let worker = PublishedWorker { pid, ready: self.ready, chunks: self.outstanding };
        self.shared_words.publish_state(worker);
    }

    /// Returns the number of unfinished chunks above which the worker is assigned no more.
    fn enough(&self) -> usize {
        match self.pace {
            0 | LONG_NANOS.. => 0,
            pace => AHEAD_NANOS.div_ceil(pace).clamp(1, self.most_chunks / 2) as usize,
        }
    }

    /// Returns the number of chunks that the worker should have after an assignment:
    /// [`enough`](Self::enough), plus the chunks that take half of [`AHEAD_NANOS`], but at least one more.
    fn depth(&self) -> usize {
        let more = (AHEAD_NANOS / 2).checked_div(self.pace).unwrap_or(0);
        self.enough() + more.clamp(1, self.most_chunks / 2) as usize
    }

    pub(crate) fn wants_tasks(&self) -> bool {
        // A stopped worker may have a queue full of requests about functions, and no task.
        self.ready
            && !self.feeding
            && !self.suspect
            && !self.reads_first_function()
            && self.is_staying()
            && self.outstanding <= self.enough()
            && (self.unanswered.len() < QUEUE_CAPACITY)
    }

    /// Returns the number of chunks to assign, at least 1. `nanos` is the expected duration of a chunk, or 0
    /// if unknown. The recorded duration of the worker's chunks is raised to this value.
    pub(crate) fn portion(&mut self, nanos: u64) -> usize {
        // The answered chunks may have had fewer tasks.
        self.pace = self.pace.max(nanos);
        let wanted = self.depth().saturating_sub(self.outstanding);
        wanted.min(QUEUE_CAPACITY.saturating_sub(self.unanswered.len() + 1)).max(1)
    }

    /// Sends messages. `unanswered` describes each message. Returns the messages that did not fit into the
    /// worker's queue, with their descriptions.
    pub(crate) fn send_messages(
        &mut self,
        mut messages: VecDeque<EncodedMessage<WorkerRequest>>,
        mut unanswered: VecDeque<SentMessage>,
    ) -> Vec<(EncodedMessage<WorkerRequest>, SentMessage)> {
        if self.outstanding == 0 {
            self.record_reply(Instant::now());
        }
        // Fails only in a forked process, where nothing is assigned.
        let put = self.tasks.try_put_packed_many(&mut messages).unwrap_or(0);
        let rest = unanswered.split_off(put.min(unanswered.len()));
        self.outstanding +=
            unanswered.iter().filter(|sent| matches!(sent, SentMessage::Chunk { .. })).count();
        self.publish();
        self.unanswered.append(&mut unanswered);
        messages.into_iter().zip(rest).collect()
    }

    /// Returns the worker's chunk with this number.
    pub(crate) fn chunk(&mut self, id: u64) -> Option<&mut Chunk> {
        self.chunks().find(|chunk| chunk.id == id)
    }

    /// Returns the worker's chunks, the current chunk first.
    fn chunks(&mut self) -> impl Iterator<Item = &mut Chunk> {
        self.unanswered.iter_mut().filter_map(|sent| match sent {
            SentMessage::Chunk { chunk, .. } => Some(chunk),
            SentMessage::FunctionChange { .. } => None,
        })
    }

    /// Records a reply of the live worker.
    pub(crate) fn record_reply(&mut self, now: Instant) {
        self.restart_clock(now);
        (self.queue_checked, self.journal_interval) = (false, JOURNAL_INTERVAL);
        self.shared_words.publish_since(clock::monotonic_ms(now));
    }

    /// Records an answer to a chunk. Removes and returns the chunk if it was the last answer.
    pub(crate) fn finish_chunk(&mut self, id: u64) -> Option<Chunk> {
        self.suspect = false;
        self.had_tasks = true;
        self.is_new = false;
        let is = |chunk: &Chunk| chunk.id == id && chunk.remaining() == 0;
        let is = |sent: &SentMessage| matches!(sent, SentMessage::Chunk { chunk, .. } if is(chunk));
        let at = self.unanswered.iter().position(is)?;
        match self.unanswered.remove(at)? {
            SentMessage::Chunk { chunk, .. } => {
                self.outstanding -= 1;
                self.publish();
                Some(chunk)
            }
            SentMessage::FunctionChange { .. } => None,
        }
    }

    /// Records that the worker answered `answered` chunks since the previous replies.
    pub(crate) fn record_pace(&mut self, answered: u32, now: Instant) {
        let took = now.saturating_duration_since(self.since).as_nanos() as u64 / u64::from(answered.max(1));
        // Adapts quickly to faster chunks, and slowly to slower chunks: then other workers take some of them.
        self.pace = if took < self.pace || self.pace == 0 { took } else { (self.pace + took) / 2 }.max(1);
    }

    /// Withdraws unclaimed items of the worker's current chunk. The first value is a new chunk with these
    /// items. The second value is the current chunk, if it has no more tasks without an outcome.
    pub(crate) fn cut(&mut self, share: CutShare) -> (Option<Chunk>, Option<Chunk>) {
        let shared_words = self.shared_words.clone();
        let Some(chunk) = self.current_chunk() else { return (None, None) };
        if chunk.remaining() < 2 {
            return (None, None);
        }
        let Some(from) = shared_words.cut(chunk.id, share) else { return (None, None) };
        let (from, at) = (from.max(chunk.reported), chunk.id);
        (chunk.split_off(from), self.finish_chunk(at))
    }

    /// Returns the worker's current chunk, from its chunk word. Earlier chunks are finished, and their
    /// answers are about to arrive.
    fn current_chunk(&mut self) -> Option<&mut Chunk> {
        let word = self.shared_words.word();
        self.chunks().find(|chunk| word.is_of(chunk.id))
    }

    /// Returns `true` if a process other than `pid` is ready in its slot.
    pub(crate) fn is_successor_of(&self, pid: u32) -> bool {
        self.ready && self.pid != pid
    }

    /// Records that the worker is ready.
    pub(crate) fn mark_ready(&mut self, now: Instant) {
        (self.ready, self.failed_starts, self.starts_since) = (true, 0, None);
        self.restart_clock(now);
        self.publish();
        self.start_failures_reported = false;
    }

    /// Withdraws the tasks that the worker has not begun, and puts them first in `tasks`. Leaves the messages
    /// in the worker's queue if they [may not be recalled](Self::may_be_recalled).
    pub(crate) fn take_back(&mut self, tasks: &mut PendingTasks) {
        let recalled = self.recall_all(false);
        let (rest, emptied) = self.cut(CutShare::All);
        tasks.finished.1.extend(emptied);
        tasks.put_first(rest.map(ReadyChunk::unpacked).into_iter().chain(recalled));
    }

    /// Returns the time at which the start time-out ends.
    pub(crate) fn ready_until(&self, timeout: Option<Duration>) -> Option<Instant> {
        let timeout = timeout?;
        self.process.as_ref()?;
        self.starts_since?.checked_add(timeout)
    }

    /// Records that the worker has answered a request to learn or forget a function.
    pub(crate) fn function_changed(&mut self, code: u64) {
        self.suspect = false;
        self.is_new = false;
        let is =
            |sent: &SentMessage| matches!(sent, SentMessage::FunctionChange { code: c, .. } if *c == code);
        if let Some(at) = self.unanswered.iter().position(is) {
            self.unanswered.remove(at);
        }
    }

    /// Returns `true` if the process replaces another and reads its first function.
    fn reads_first_function(&self) -> bool {
        self.is_new && self.is_learning()
    }

    /// Returns `true` if the worker has read this function.
    pub(crate) fn knows(&self, code: u64) -> bool {
        self.known_functions.contains(&code) && !self.is_learning()
    }

    /// Returns `true` if the worker has unanswered requests about functions, so its tasks may need a function
    /// that it has not read. If messages are withdrawn from such a worker, all are withdrawn, and the
    /// function is sent again.
    pub(crate) fn is_learning(&self) -> bool {
        self.unanswered.iter().any(|sent| matches!(sent, SentMessage::FunctionChange { .. }))
    }

    /// Returns `true` if withdrawing messages from the queue of this live worker is allowed. It is forbidden
    /// while another thread assigns tasks to a learning worker, because that thread expects that the worker
    /// learns the functions in its queue.
    pub(crate) fn may_be_recalled(&self) -> bool {
        !(self.feeding && self.is_learning())
    }

    /// Returns `true` if the worker may have chunks of this call in its queue.
    pub(crate) fn has_more_of(&self, job: &Arc<CallState>) -> bool {
        let is_its = |chunk: &Chunk| Arc::ptr_eq(&chunk.job, job);
        let is = |sent: &SentMessage| matches!(sent, SentMessage::Chunk { chunk, .. } if is_its(chunk));
        self.outstanding > 1 && self.unanswered.iter().any(is)
    }

    /// Withdraws all unclaimed items of the worker's current chunk, if the chunk belongs to this call.
    pub(crate) fn cut_all_of(&mut self, job: &Arc<CallState>) -> (Option<Chunk>, Option<Chunk>) {
        let is_its = self.current_chunk().is_some_and(|chunk| Arc::ptr_eq(&chunk.job, job));
        if is_its { self.cut(CutShare::All) } else { (None, None) }
    }

    /// Adds the chunks of this call (or of any call) to `chunks`, if the process is a forwarder. Omits chunks
    /// for which a cancellation was already requested.
    #[cfg(feature = "net")]
    pub(crate) fn find_forwarded(&mut self, job: Option<&Arc<CallState>>, chunks: &mut Vec<ForwardedChunk>) {
        let Some(forwarder) = self.forwarder.clone() else { return };
        for chunk in self.chunks().filter(|chunk| job.is_none_or(|job| Arc::ptr_eq(&chunk.job, job))) {
            if !std::mem::replace(&mut chunk.is_cancelled_there, true) {
                chunks.push(ForwardedChunk { forwarder: forwarder.clone(), chunk: chunk.id });
            }
        }
    }

    /// Returns `true` if the worker may have taken a chunk of this call (or of any call) from its queue
    /// without having begun the chunk. Items of the chunk can be withdrawn only after the worker has begun
    /// it.
    pub(crate) fn is_taking(&mut self, job: Option<&Arc<CallState>>) -> bool {
        let word = self.shared_words.word();
        let may = self.ready && self.process.is_some();
        let is_its = |chunk: &Chunk| job.is_none_or(|job| Arc::ptr_eq(&chunk.job, job));
        may && self.chunks().any(|chunk| chunk.remaining() > 1 && is_its(chunk) && !word.is_of(chunk.id))
    }

    /// Withdraws the next unread message from the worker's queue.
    pub(crate) fn recall(&mut self) -> Option<(EncodedMessage<WorkerRequest>, SentMessage)> {
        let packed = self.tasks.try_get_packed().ok()??;
        let number = packed.number();
        // Chunks that the worker has taken precede the chunks in its queue. Numbers are reused, so the last
        // message with this number is the message in the queue.
        let queued = self.unanswered.len().saturating_sub(1 + self.tasks.len());
        let is = |sent: &SentMessage| sent.message() == number;
        let at = match self.unanswered.get(queued) {
            Some(sent) if is(sent) => queued,
            _ => self.unanswered.iter().rposition(is)?,
        };
        let mut sent = self.unanswered.remove(at)?;
        if let SentMessage::Chunk { chunk, .. } = &mut sent {
            self.outstanding -= 1;
            chunk.is_cancelled_there = false;
        }
        self.publish();
        Some((packed, sent))
    }

    /// Closes the worker's queue, so that the worker ends after its running task. Returns the tasks that it
    /// has not begun.
    pub(crate) fn stop_taking(&mut self) -> Vec<Chunk> {
        let mut back: Vec<Chunk> = self.recall_all(true).into_iter().map(|ready| ready.chunk).collect();
        // Fails only in a forked process.
        _ = self.tasks.close();
        let (rest, emptied) = self.cut(CutShare::All);
        back.extend(rest.into_iter().chain(emptied));
        back
    }

    /// Withdraws all unread messages from the worker's queue, and returns the chunks. Requests about
    /// functions are sent again, unless the worker is `dead`.
    pub(crate) fn recall_all(&mut self, dead: bool) -> Vec<ReadyChunk> {
        if !dead && !self.may_be_recalled() {
            return Vec::new();
        }
        let (mut recalled, mut notes, mut given_back) = (Vec::new(), VecDeque::new(), VecDeque::new());
        while let Some((packed, sent)) = self.recall() {
            match sent {
                SentMessage::Chunk { chunk, .. } => recalled.push(ReadyChunk::packed(chunk, packed)),
                SentMessage::FunctionChange { .. } if dead => {}
                note => {
                    notes.push_back(packed);
                    given_back.push_back(note);
                }
            }
        }
        // A live worker may have taken a task after this loop had withdrawn the request to learn its
        // function. The worker waits for the request, so requests are sent again. There is room for them,
        // since they were in the queue before.
        for (_, sent) in self.send_messages(notes, given_back) {
            if let SentMessage::FunctionChange { code, learn: true, .. } = sent {
                self.known_functions.remove(&code);
            }
        }
        recalled
    }

    /// Kills the worker's process.
    pub(crate) fn kill(&self) {
        // Fails only if the process has ended.
        self.process.iter().for_each(|process| _ = process.kill());
    }

    /// Resets the slot of a dead worker after its unread messages were withdrawn. Returns its chunks, and the
    /// function that it was reading.
    pub(crate) fn bury(&mut self) -> (Vec<Chunk>, Option<u64>) {
        self.ready = false;
        self.suspect = false;
        (self.asked_to_leave, self.leaves_at) = (false, None);
        self.starts_since = None;
        (self.process, self.place) = (None, None);
        #[cfg(feature = "net")]
        {
            self.forwarder = None;
        }
        self.outstanding = 0;
        self.publish();
        self.pace = 0;
        self.known_functions.clear();
        let (mut lost, mut reading) = (Vec::new(), None);
        for sent in self.unanswered.drain(..) {
            match sent {
                SentMessage::Chunk { chunk, .. } => lost.push(chunk),
                SentMessage::FunctionChange { code, .. } => reading = Some(code),
            }
        }
        (lost, reading)
    }

    /// Returns `true` if the worker would begin a task at once.
    pub(crate) fn is_idle(&self) -> bool {
        self.wants_tasks() && self.outstanding == 0
    }

    /// Returns the time at which the pool checks if the worker has begun its first task. The pool checks only
    /// while another worker is idle.
    pub(crate) fn slow_check_at(&self) -> Option<Instant> {
        // A worker that creates its state again may have received tasks just before.
        let lives = self.ready || self.starts_since.is_some();
        let may = lives && !self.feeding && !self.queue_checked && self.outstanding > 0;
        may.then(|| self.since + SLOW)
    }

    /// Returns the deadline of the worker's running task, with its chunk and time limit.
    pub(crate) fn deadline(&self) -> Option<(&Chunk, Instant, Duration)> {
        // A served pool enforces the limits of its workers.
        if self.condemned.is_some() || !self.ready || self.place.is_some() {
            return None;
        }
        let first = self.first()?;
        let timeout = first.job.options.timeout?;
        Some((first, self.since.checked_add(timeout.checked_add(self.moved())?)?, timeout))
    }

    /// Restarts the time of the worker's first unanswered task, without compensation for pauses.
    fn restart_clock(&mut self, now: Instant) {
        (self.since, self.watched, self.late, self.excused) = (now, false, Duration::ZERO, Duration::ZERO);
    }

    /// Returns the time by which the deadline of the worker's first task was moved.
    pub(crate) fn moved(&self) -> Duration {
        self.late + self.excused
    }

    /// Returns the part of `elapsed` that counts toward the time limit of the worker's task. `elapsed` is the
    /// time since the task began.
    pub(crate) fn counted(&self, elapsed: Duration, now: Instant) -> Duration {
        let watched = now.saturating_duration_since(self.since).saturating_sub(self.late);
        elapsed.min(watched).saturating_sub(self.excused)
    }

    /// Marks the deadline of the worker's first task as seen by the pool's thread. If more than `late` has
    /// passed since the task became the first one, the task's time restarts.
    pub(crate) fn watch(&mut self, late: Duration, now: Instant) {
        if self.watched || self.deadline().is_none() {
            return;
        }
        let since = now.saturating_duration_since(self.since);
        (self.watched, self.late) = (true, if since > late { since } else { Duration::ZERO });
    }

    /// Moves the deadline of a watched task by `time`, but at most by the time for which the task has run.
    /// All moves together are at most the task's time limit.
    pub(crate) fn excuse(&mut self, time: Duration, now: Instant) {
        if let Some((_, _, timeout)) = self.deadline().filter(|_| self.watched) {
            let since = now.saturating_duration_since(self.since).saturating_sub(self.moved());
            self.excused += time.min(since).min(timeout.saturating_sub(self.excused));
        }
    }

    pub(crate) fn first(&self) -> Option<&Chunk> {
        self.unanswered.iter().find_map(|sent| match sent {
            SentMessage::Chunk { chunk, .. } => Some(chunk),
            SentMessage::FunctionChange { .. } => None,
        })
    }

    /// Returns the time at which the worker's journal should be read: the worker may run a long task while
    /// results of earlier tasks are not sent.
    pub(crate) fn journal_due(&self) -> Option<Instant> {
        let may_have = self.ready && self.first().is_some_and(|chunk| chunk.remaining() > 1);
        may_have.then(|| self.since + self.journal_interval)
    }

    /// Reads the worker's journal. Returns its current chunk and the results.
    pub(crate) fn read_journal(&mut self) -> Option<(&mut Chunk, JournalResults)> {
        self.journal_interval = (2 * self.journal_interval).min(LONGEST_JOURNAL_INTERVAL);
        let shared_words = self.shared_words.clone();
        let chunk = self.chunks().next()?;
        let found = shared_words.journal_results(chunk.id)?;
        Some((chunk, found))
    }
}

#[cfg(test)]
pub(crate) mod tests;
