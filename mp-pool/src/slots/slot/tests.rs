use super::*;
use crate::tasks::call_state::CallOptions;
use crate::tasks::call_state::tests::job;
use crate::tasks::source::SavedArgs;

/// Returns a worker that is ready.
pub(crate) fn worker() -> WorkerSlot {
    let mut worker = WorkerSlot::new(Queue::unbounded().unwrap(), WorkerWords::new().unwrap());
    worker.ready = true;
    worker
}

/// The assigned work lasts until the pool's thread assigns more, even if the thread has to wait for a
/// processor that a worker uses.
#[test]
fn pool_worker_requests_tasks_until_it_has_enough() {
    let mut worker = worker();
    for micros in [1, 10, 100, 900, 1_000, 2_500, 3_000, 4_999, 5_000, 9_999] {
        worker.pace = micros * 1_000;
        worker.outstanding = 0;
        while worker.wants_tasks() {
            worker.outstanding += 1;
        }
        let has = worker.outstanding as u64 - 1;
        assert!(has * worker.pace >= AHEAD_NANOS || has >= MOST_CHUNKS / 2, "{micros} µs: {has}");
        assert!((has + 1..=MOST_CHUNKS).contains(&(worker.depth() as u64)), "{micros} µs: {has}");
    }
    // Other workers could run the chunks after a long one.
    (worker.pace, worker.outstanding) = (LONG_NANOS, 1);
    assert!(!worker.wants_tasks());
}

/// Without the expected duration, a worker that has answered chunks of one task would receive most of the
/// call.
#[test]
fn portion_of_tasks_is_limited_by_expected_duration() {
    let mut worker = worker();
    worker.pace = 1_000;
    assert_eq!(worker.portion(0) as u64, MOST_CHUNKS);
    assert_eq!(worker.portion(500_000), 15);
    worker.outstanding = 11;
    assert!(!worker.wants_tasks(), "chunks of 500 µs are assigned");
    (worker.pace, worker.outstanding) = (1_000, 0);
    assert_eq!(worker.portion(LONG_NANOS), 1);
}

/// The program needs the other messages for its queues and channels.
#[test]
fn workers_hold_a_quarter_of_the_messages_at_most() {
    for (workers, messages) in [(1, 1024), (4, 1024), (4, 1 << 20), (100, 1024)] {
        let mut worker = worker();
        worker.set_share(workers, messages);
        for nanos in [1, 1_000, 1_000_000, AHEAD_NANOS] {
            worker.pace = nanos;
            let most = (messages as usize / 4 / workers).clamp(2, MOST_CHUNKS as usize);
            assert!(
                worker.depth() <= most,
                "{workers} workers, {messages} messages, {nanos} ns: {}",
                worker.depth()
            );
        }
    }
}

fn note() -> SentMessage {
    SentMessage::FunctionChange { code: 5, learn: true, message: None }
}

/// The next process in the slot has read no functions.
#[test]
fn slot_of_a_dead_worker_knows_no_functions() {
    let mut worker = worker();
    worker.known_functions.insert(5);
    worker.bury();
    assert!(worker.known_functions.is_empty());
}

#[test]
fn worker_with_full_function_queue_requests_no_tasks() {
    let mut worker = worker();
    assert!(worker.wants_tasks());
    worker.unanswered.extend((0..QUEUE_CAPACITY).map(|_| note()));
    assert!(!worker.wants_tasks());
}

/// The assigning thread expects that the worker will know the functions that are requested in its queue.
#[test]
fn learning_worker_is_not_recalled_while_fed() {
    let mut worker = worker();
    for (feeding, learning, may_be) in [(true, false, true), (false, true, true), (true, true, false)] {
        worker.feeding = feeding;
        worker.unanswered = if learning { VecDeque::from([note()]) } else { VecDeque::new() };
        assert_eq!(worker.may_be_recalled(), may_be, "{feeding} {learning}");
    }
}

/// Returns a worker that received a task with the limit `timeout` at `now`.
fn timed_worker(timeout: Duration, now: Instant) -> WorkerSlot {
    let mut worker = worker();
    let job = job(1, CallOptions { timeout: Some(timeout), ..CallOptions::default() });
    let chunk = Chunk::new(job, 0, SavedArgs::None);
    worker.unanswered.push_back(SentMessage::Chunk { chunk, message: None });
    worker.record_reply(now);
    worker
}

#[test]
fn task_deadline_moves_by_at_most_delay_and_limit() {
    let (second, now) = (Duration::from_secs(1), Instant::now());
    let mut worker = timed_worker(second, now);
    let moved = |worker: &WorkerSlot| worker.deadline().unwrap().1 - now - second;
    worker.excuse(second, now + second);
    assert_eq!(moved(&worker), Duration::ZERO, "it is not watched");
    worker.watch(second / 50, now + 9 * second);
    worker.watch(second / 50, now + 10 * second);
    assert_eq!(moved(&worker), 9 * second, "late once");
    worker.excuse(9 * second, now + 9 * second + second / 4);
    assert_eq!(moved(&worker), 9 * second + second / 4, "the time that it was watched for");
    worker.excuse(9 * second, now + 90 * second);
    assert_eq!(moved(&worker), 10 * second, "its limit");
    assert_eq!(worker.counted(90 * second, now + 11 * second), second);
    assert_eq!(worker.counted(second + second / 2, now + 90 * second), second / 2);
    // A worker that creates its state again has no deadline, which would be late afterwards.
    worker.ready = false;
    worker.record_reply(now);
    worker.watch(second / 50, now + 9 * second);
    worker.mark_ready(now);
    assert_eq!(moved(&worker), Duration::ZERO);
    worker.watch(second, now + second / 2);
    assert_eq!(moved(&worker), Duration::ZERO, "not late");
}
