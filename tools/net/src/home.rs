//! Role `home`: rank 0, with the queues `up`, `down` and `jobs`.

use std::time::Duration;

use mp_queue::Queue;

use crate::message::{Job, Numbered, check, job, numbered};
use crate::options::Options;
use crate::{RoleResult, join, say, wait_for_end_of_input};

/// Takes and reports the messages of `up`.
fn consume(up: &Queue<Numbered>, size: usize, pause: Duration) -> RoleResult {
    while let Some(message) = up.get()? {
        match check(&message, size) {
            Ok(number) => say!("arrived {number}"),
            Err(error) => say!("corrupt {error}"),
        }
        if !pause.is_zero() {
            // sleep: a slow consumer is the subject of the run.
            std::thread::sleep(pause);
        }
    }
    Ok(())
}

/// Puts messages into `down`, or into `jobs`.
fn fill(down: &Queue<Numbered>, jobs: &Queue<Job>, options: &Options) -> RoleResult {
    let size = options.number("size")?;
    for number in 0..options.number_or_zero("down")? {
        down.put(numbered(number, size)?).map_err(|error| error.forget())?;
        say!("filled {number}");
    }
    for number in 0..options.number_or_zero("jobs")? {
        jobs.put(job(number, size)).map_err(|error| error.forget())?;
        say!("filled {number}");
    }
    Ok(())
}

/// Runs the role `home` until the input has ended and the messages of `up` are taken.
pub(crate) fn run(options: &Options) -> RoleResult {
    let size = options.number("size")?;
    let capacity = options.number("capacity")?;
    let pause = Duration::from_millis(options.number_or_zero("pause")?);
    let cluster = join(options)?;
    let up = Queue::<Numbered>::bounded(capacity)?;
    let down = Queue::<Numbered>::bounded(capacity)?;
    cluster.publish("up", &up)?;
    cluster.publish("down", &down)?;
    let jobs = Queue::<Job>::bounded(capacity)?;
    cluster.publish("jobs", &jobs)?;
    say!("ready");
    std::thread::scope(|scope| {
        let consumer = scope.spawn(|| consume(&up, size, pause));
        let filler = scope.spawn(|| fill(&down, &jobs, options));
        let waited = wait_for_end_of_input();
        up.close();
        down.close();
        jobs.close();
        let failed = |_| "a thread panicked";
        // This process may end before all messages are in their queue.
        if let Err(error) = filler.join().map_err(failed)? {
            say!("unfilled {error}");
        }
        consumer.join().map_err(failed)??;
        waited
    })
}
