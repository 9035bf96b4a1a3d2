//! A single loop for all events: results, a timer, a stop button, and the end of a process.
//!
//! `cargo run --example select`

use std::time::{Duration, Instant};

use mp::{Event, Process, Queue};

/// Squares numbers up to 5. At a larger number, the worker hangs.
fn worker((jobs, results): (Queue<u64>, Queue<u64>)) -> Result<(), String> {
    while let Some(job) = jobs.get().map_err(|e| e.to_string())? {
        if job > 5 {
            std::thread::park();
        }
        results.put(job * job).map_err(|e| e.to_string())?;
    }
    Ok(())
}

fn main() -> mp::AnyResult<()> {
    let (jobs, results) = (Queue::bounded(2)?, Queue::bounded(2)?);
    let stop = Event::new()?;
    let child = Process::spawn(worker, (jobs.clone(), results.clone()))?;
    let (mut next, most, begin) = (1, Duration::from_millis(300), Instant::now());
    loop {
        // Room in one queue, messages in another, an event, a process: one wait. All ready objects have the
        // same chance.
        let room = jobs.put_ready();
        match mp::select(&[&room, &results, &stop, &child], Some(most))? {
            Some(0) if jobs.try_put(next).is_ok() => next += 1,
            Some(1) => {
                // Another consumer may have been faster, but there is none here.
                if let Ok(Some(square)) = results.try_get() {
                    println!("{square}");
                }
            }
            Some(2) => {
                println!("it was asked to stop, so the process is ended");
                child.kill()?;
                stop.clear()?;
            }
            Some(3) => break,
            Some(_) => {}
            None => {
                println!("nothing for {most:?}");
                stop.set()?;
            }
        }
        assert!(begin.elapsed() < Duration::from_secs(60));
    }
    if let Err(error) = child.join() {
        println!("it has ended: {error}");
    }
    Ok(())
}
