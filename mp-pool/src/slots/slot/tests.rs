use super::*;

/// Returns a worker that is ready.
pub(crate) fn worker() -> WorkerSlot {
    let mut worker = WorkerSlot::new(Queue::unbounded().unwrap(), WorkerWords::new().unwrap());
    worker.ready = true;
    worker
}

/// The pool's thread may be late by a time slice of a worker.
#[test]
fn worker_requests_tasks_until_it_has_enough() {
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

/// Otherwise a worker that has answered single tasks would receive most of the call.
#[test]
fn portion_is_limited_by_expected_duration() {
    let mut worker = worker();
    worker.pace = 1_000;
    assert_eq!(worker.portion(0) as u64, MOST_CHUNKS);
    assert_eq!(worker.portion(500_000), 15);
    worker.outstanding = 11;
    assert!(!worker.wants_tasks(), "chunks of 500 µs are assigned");
    (worker.pace, worker.outstanding) = (1_000, 0);
    assert_eq!(worker.portion(LONG_NANOS), 1);
}

/// Other messages need room, too.
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

/// The next process in the slot knows no functions.
#[test]
fn dead_worker_knows_no_functions() {
    let mut worker = worker();
    worker.known_functions.insert(5);
    worker.bury();
    assert!(worker.known_functions.is_empty());
}

#[test]
fn full_queue_of_functions_wants_no_tasks() {
    let mut worker = worker();
    assert!(worker.wants_tasks());
    worker.unanswered.extend((0..QUEUE_CAPACITY).map(|_| note()));
    assert!(!worker.wants_tasks());
}

/// A thread that is about to assign tasks relies on the functions that the worker knows after reading its
/// requests.
#[test]
fn learning_worker_is_not_recalled_while_fed() {
    let mut worker = worker();
    for (feeding, learning, may_be) in [(true, false, true), (false, true, true), (true, true, false)] {
        worker.feeding = feeding;
        worker.unanswered = if learning { VecDeque::from([note()]) } else { VecDeque::new() };
        assert_eq!(worker.may_be_recalled(), may_be, "{feeding} {learning}");
    }
}
