//! Async tasks on one thread that receive from a queue, into which another process puts. A receive that times
//! out loses no message.
//!
//! `cargo run --example async_consumer`

use std::time::Duration;

use mp::{Process, Queue};
use tokio::time::timeout;

/// Produces numbers, and pauses now and then.
fn producer(queue: Queue<u64>) -> Result<(), String> {
    for i in 1..=1000 {
        if i % 250 == 0 {
            std::thread::sleep(Duration::from_millis(20));
        }
        queue.put(i).map_err(|e| e.to_string())?;
    }
    queue.close();
    Ok(())
}

/// Returns the sum of the numbers, and the number of waits that timed out.
async fn consumer(queue: Queue<u64>) -> mp::AnyResult<(u64, u32)> {
    let (mut sum, mut pauses) = (0, 0);
    loop {
        // The future is dropped when the time has expired. It has taken nothing then.
        match timeout(Duration::from_millis(1), queue.get_async()).await {
            Ok(got) => match got? {
                Some(i) => sum += i,
                None => return Ok((sum, pauses)),
            },
            Err(_) => pauses += 1,
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> mp::AnyResult<()> {
    let queue = Queue::bounded(4)?;
    let child = Process::spawn(producer, queue.clone())?;
    let (a, b) = tokio::join!(consumer(queue.clone()), consumer(queue.clone()));
    let (a, b) = (a?, b?);
    child.join()?;
    println!("{} + {} = {}, with {} pauses", a.0, b.0, a.0 + b.0, a.1 + b.1);
    assert_eq!(a.0 + b.0, 500_500);
    Ok(())
}
