//! Queues and channels in the arguments of a process that is restarted. They stay connected: the other ends
//! wait until the process has started again.

use std::time::Duration;

use mp::process::Restart;
use mp::queue::{DesertedWhen, channel};
use mp::{GetError, Process, Queue, QueueOptions, current_process};
use mp_tests::{DEADLINE, Outcome, alone, eventually_in_use, in_use, next, send, take};

fn at_most(max: u32) -> Restart {
    Restart::OnFailure { max, backoff: Duration::from_millis(1).into() }
}

/// Messages of a crashed worker are delivered again, also to its successor. A message that crashes each
/// worker becomes a dead letter.
#[test]
fn occasionally_crashing_worker_loses_no_message() {
    fn square((numbers, squares): (Queue<u64>, Queue<u64>)) -> Outcome {
        while let Some(number) = numbers.get_lease_timeout(DEADLINE)? {
            if *number == 3 || current_process().attempt == 3 {
                std::process::abort();
            }
            send(&squares, *number * *number)?;
            number.ack();
        }
        Ok(())
    }
    let _alone = alone();
    let before = in_use();
    let numbers = QueueOptions::new().deliveries(2).create().unwrap();
    let squares = Queue::unbounded().unwrap();
    numbers.put_many(0..6).unwrap();
    numbers.close();
    let worker =
        Process::builder().restart(at_most(3)).spawn(square, (numbers.clone(), squares.clone())).unwrap();
    let mut got: Vec<u64> = (0..5).map(|_| take(&squares)).collect();
    got.sort_unstable();
    assert_eq!(got, [0, 1, 4, 16, 25]);
    assert!(worker.wait_timeout(DEADLINE));
    worker.join().unwrap();
    assert_eq!((worker.restarts(), numbers.dead_letter().unwrap()), (3, Some(3)));
    drop((worker, numbers, squares));
    eventually_in_use(before, "nothing is kept for another start");
}

/// A waiting caller can't determine whether the other process runs or is being restarted.
#[test]
fn supervision_keeps_queue_and_channel_connected() {
    fn answer((words, report): (Queue<String>, mp::queue::Sender<u32>)) -> Outcome {
        let attempt = current_process().attempt;
        if attempt < 3 {
            std::process::abort();
        }
        report.send(attempt)?;
        send(&words, format!("attempt {attempt}"))
    }
    let _alone = alone();
    let [mild, strict] = [DesertedWhen::NoHandleIsLeft, DesertedWhen::NoOtherProcess];
    for (when, channel_first) in [(mild, false), (strict, false), (mild, true)] {
        let words = QueueOptions::new().deserted_when(when).create().unwrap();
        let (sender, receiver) = channel().unwrap();
        // Several times the interval at which a wait checks for desertion.
        let backoff = Duration::from_millis(350).into();
        let worker = Process::builder()
            .restart(Restart::OnFailure { max: 2, backoff })
            .spawn(answer, (words.clone(), sender))
            .unwrap();
        if channel_first {
            assert_eq!(receiver.recv_timeout(DEADLINE).unwrap(), 3);
        }
        // The wait begins before the first crash, and lasts until after the last one.
        assert_eq!(next(&words).unwrap().as_deref(), Some("attempt 3"), "{when:?}");
        if !channel_first {
            assert_eq!(receiver.recv_timeout(DEADLINE).unwrap(), 3);
        }
        // After the last start, the queue and the channel are disconnected.
        assert!(matches!(receiver.recv_timeout(DEADLINE), Err(GetError::Disconnected)), "{when:?}");
        assert!(matches!(words.get_timeout(DEADLINE), Err(GetError::Deserted { .. })), "{when:?}");
        worker.join().unwrap();
        assert_eq!(worker.restarts(), 2);
    }
}
