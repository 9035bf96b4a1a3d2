//! A worker that crashes now and then, and is restarted. No item is lost, and an item with which the worker
//! always crashes is set aside.
//!
//! `cargo run --release --example supervised`

use std::sync::mpsc;
use std::time::Duration;

use mp::process::{Backoff, GaveUpReason, ProcessEvent, Restart};
use mp::{Process, Queue, QueueOptions, SpawnError, current_process};

/// Squares numbers until the queue is closed. The worker always crashes at the number 13. Its third process
/// also crashes at any other number.
fn work((numbers, squares): (Queue<u64>, Queue<u64>)) -> mp::AnyResult<u32> {
    let attempt = current_process().attempt;
    // A number is delivered to another worker if this one dies before it acknowledges it.
    while let Some(number) = numbers.get_lease()? {
        if *number == 13 || attempt == 3 {
            std::process::abort();
        }
        squares.put(*number * *number)?;
        number.ack();
    }
    Ok(attempt)
}

fn main() -> mp::AnyResult<()> {
    let numbers = QueueOptions::new().deliveries(2).create()?;
    let squares = Queue::unbounded()?;
    numbers.put_many(0..1000)?;
    numbers.close();

    let (report, events) = mpsc::channel();
    let backoff = Backoff::new(Duration::from_millis(10)).max(Duration::from_secs(1));
    let worker = Process::builder()
        .name("worker")
        .restart(Restart::OnFailure { max: 5, backoff })
        .on_event(move |event: ProcessEvent| _ = report.send(event))
        .spawn(work, (numbers.clone(), squares.clone()))?;
    // Ends when no other start follows.
    for event in events {
        println!("{event}");
    }
    let attempts = worker.join()?;
    squares.close();
    let got = std::iter::from_fn(|| squares.get().transpose()).collect::<Result<Vec<_>, _>>()?.len();
    println!("{got} squares in {attempts} attempts; set aside: {:?}", numbers.dead_letter()?);

    // If it can't succeed, the error lists all attempts.
    let hopeless = |path: String| std::fs::read_to_string(path);
    let restart = Restart::OnFailure { max: 2, backoff: Duration::from_millis(10).into() };
    let error = Process::builder()
        .name("reader")
        .restart(restart)
        .spawn(hopeless, "/nowhere".into())?
        .join()
        .unwrap_err();
    println!("{error}");
    let SpawnError::GaveUp(gave_up) = error else { panic!("another error") };
    assert_eq!((got, gave_up.reason), (999, GaveUpReason::Limit));
    println!("999 squares, and 13 is set aside");
    Ok(())
}
