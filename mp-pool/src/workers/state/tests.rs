use super::*;

/// Returns a worker that is ready.
pub(crate) fn worker() -> Worker {
    let mut worker = Worker::new(Queue::unbounded().unwrap(), Watch::new().unwrap());
    worker.ready = true;
    worker
}

/// The pool's thread may be late by a time slice of a worker.
#[test]
fn a_worker_that_gets_no_more_has_enough_for_some_milliseconds() {
    let mut worker = worker();
    for micros in [1, 10, 100, 900, 1_000, 2_500, 3_000, 4_999, 5_000, 9_999] {
        worker.pace = micros * 1_000;
        worker.outstanding = 0;
        while worker.wants() {
            worker.outstanding += 1;
        }
        let has = worker.outstanding as u64 - 1;
        assert!(has * worker.pace >= AHEAD_NANOS || has >= DEEPEST / 2, "{micros} µs: {has}");
        assert!((has + 1..=DEEPEST).contains(&(worker.depth() as u64)), "{micros} µs: {has}");
    }
    // Other workers could run the chunks after a long one.
    (worker.pace, worker.outstanding) = (LONG_NANOS, 1);
    assert!(!worker.wants());
}

/// Other messages need room, too.
#[test]
fn workers_have_a_quarter_of_the_messages_ahead_at_most() {
    for (workers, messages) in [(1, 1024), (4, 1024), (4, 1 << 20), (100, 1024)] {
        let mut worker = worker();
        worker.is_one_of(workers, messages);
        for nanos in [1, 1_000, 1_000_000, AHEAD_NANOS] {
            worker.pace = nanos;
            let most = (messages as usize / 4 / workers).clamp(2, DEEPEST as usize);
            assert!(
                worker.depth() <= most,
                "{workers} workers, {messages} messages, {nanos} ns: {}",
                worker.depth()
            );
        }
    }
}

fn note() -> Given {
    Given::Note { code: 5, learn: true, message: None }
}

/// The next process in its slot knows none of its functions.
#[test]
fn a_dead_worker_knows_nothing() {
    let mut worker = worker();
    worker.knows.insert(5);
    worker.bury();
    assert!(worker.knows.is_empty());
}

#[test]
fn a_worker_whose_queue_is_full_of_notes_wants_nothing() {
    let mut worker = worker();
    assert!(worker.wants());
    worker.given.extend((0..ROOM).map(|_| note()));
    assert!(!worker.wants());
}

/// Tasks that are about to be assigned assume the functions that the worker knows after reading the note.
#[test]
fn tasks_are_not_taken_from_a_worker_that_is_learning_and_being_fed() {
    let mut worker = worker();
    for (feeding, learning, may_be) in [(true, false, true), (false, true, true), (true, true, false)] {
        worker.feeding = feeding;
        worker.given = if learning { VecDeque::from([note()]) } else { VecDeque::new() };
        assert_eq!(worker.may_be_recalled(), may_be, "{feeding} {learning}");
    }
}
