//! Role `put`: puts numbered messages into `up`.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use mp_net::{PeerLost, RemotePutError, RemoteQueue};

use crate::message::{Numbered, check, numbered};
use crate::options::Options;
use crate::{RoleResult, join, say, wait_for_end_of_input};

/// Reaction to a lost home.
#[derive(Clone, Copy, PartialEq)]
enum LossPolicy {
    Stop,
    /// Continue with the next number.
    Next,
    /// Put the returned value again.
    Retry,
}

/// Reports a lost home.
fn report(number: u64, lost: &PeerLost) {
    let (silent, doubt) = (lost.silent.as_millis(), if lost.in_doubt { "doubt" } else { "unsent" });
    say!("lost {number} {doubt} silent {silent} ms: {}", lost.cause);
    // sleep: a lost home refuses connections at once, so a retry needs a pause.
    std::thread::sleep(Duration::from_millis(20));
}

/// Numbers of the messages to put.
struct Numbers {
    next: Mutex<u64>,
    end: u64,
}

impl Numbers {
    fn take(&self) -> Option<u64> {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let number = Some(*next).filter(|number| *number < self.end)?;
        *next += 1;
        Some(number)
    }

    /// Discards the remaining numbers.
    fn finish(&self) {
        *self.next.lock().unwrap_or_else(PoisonError::into_inner) = self.end;
    }
}

fn put(
    queue: &RemoteQueue<Numbered>,
    numbers: &Numbers,
    size: usize,
    (policy, pause): (LossPolicy, Duration),
) -> RoleResult {
    while let Some(number) = numbers.take() {
        // sleep: limits the rate, so that a run with a long fault has not too many messages.
        std::thread::sleep(pause);
        let mut message = numbered(number, size)?;
        say!("put {number}");
        loop {
            match queue.put(message) {
                Ok(()) => say!("ack {number}"),
                Err(RemotePutError::PeerLost { value, lost }) => {
                    if check(&value, size)? != number {
                        return Err("another value came back".into());
                    }
                    report(number, &lost);
                    match policy {
                        LossPolicy::Stop => return Ok(()),
                        LossPolicy::Next => {}
                        LossPolicy::Retry => {
                            message = value;
                            continue;
                        }
                    }
                }
                Err(error) => return Err(error.forget().into()),
            }
            break;
        }
    }
    Ok(())
}

/// Puts batches of `many` messages.
fn put_batches(
    queue: &RemoteQueue<Numbered>,
    numbers: &Numbers,
    size: usize,
    (many, policy): (usize, LossPolicy),
) -> RoleResult {
    loop {
        let batch: Vec<u64> = std::iter::from_fn(|| numbers.take()).take(many).collect();
        let Some(last) = batch.last() else { return Ok(()) };
        let messages = batch.iter().map_while(|number| {
            say!("put {number}");
            numbered(*number, size).ok()
        });
        let end = match queue.put_many(messages) {
            Ok(count) if count == batch.len() => *last + 1,
            Ok(count) => return Err(format!("{count} of {} messages were put", batch.len()).into()),
            Err(error) => match error.error {
                RemotePutError::PeerLost { value, lost } => {
                    let number = check(&value, size)?;
                    report(number, &lost);
                    number
                }
                error => return Err(error.forget().into()),
            },
        };
        batch.iter().filter(|number| **number < end).for_each(|number| say!("ack {number}"));
        if end <= *last && policy == LossPolicy::Stop {
            return Ok(());
        }
    }
}

/// Runs the role `put` until all messages are put or the input ends.
pub(crate) fn run(options: &Options) -> RoleResult {
    let (size, from, count) =
        (options.number("size")?, options.number("from")?, options.number::<u64>("count")?);
    let many = options.number_or_zero::<usize>("many")?;
    let threads: usize = options.number("threads")?;
    let pause = Duration::from_millis(options.number_or_zero("pause")?);
    let policy = match options.text("lost")? {
        "stop" => LossPolicy::Stop,
        "next" => LossPolicy::Next,
        "retry" => LossPolicy::Retry,
        other => return Err(format!("lost={other}").into()),
    };
    let cluster = join(options)?;
    let queue = RemoteQueue::<Numbered>::connect(&cluster, "up")?;
    let numbers = Arc::new(Numbers { next: Mutex::new(from), end: from + count });
    let ended = numbers.clone();
    std::thread::spawn(move || {
        _ = wait_for_end_of_input();
        ended.finish();
    });
    say!("ready");
    std::thread::scope(|scope| {
        let work = || match many {
            0 => put(&queue, &numbers, size, (policy, pause)),
            many => put_batches(&queue, &numbers, size, (many, policy)),
        };
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a thread panicked")?)
    })?;
    cluster.leave().or_else(|error| if policy == LossPolicy::Stop { Ok(()) } else { Err(error.into()) })
}
