//! Roles `pool`, `pool-rate` and `serve`: run or measure numbered tasks on all hosts, and serve a pool for
//! them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mp_pool::Pool;
use rustix::system::uname;

use crate::message::{Job, check_bytes, job};
use crate::options::Options;
use crate::{RoleResult, join, say, wait_for_end_of_input};

/// Size of the arguments and of the result of a task.
const SIZE: usize = 4096;

/// Task that may run on any host. Returns its host and process, and the arguments.
fn task((number, bytes): Job) -> (String, u32, Vec<u8>) {
    say!("begun {number}");
    // sleep: the duration of the task, so long that all workers are needed.
    std::thread::sleep(Duration::from_millis(5 + number % 16));
    (uname().nodename().to_string_lossy().into_owned(), std::process::id(), bytes)
}

/// Runs numbered tasks on all hosts until the input ends, and reports their outcomes. With `chunk`, chunks of
/// that size run until the process is ended.
pub(crate) fn run(options: &Options) -> RoleResult {
    let cluster = join(options)?;
    let pool = Pool::builder().processes(1).cluster(&cluster).build()?;
    let call = pool.task(task).retries(options.number_or_zero("retries")?);
    // More than 64 KiB would be divided into several chunks.
    let small = 64;
    let chunk = options.number_or_zero("chunk")?;
    if chunk > 0 {
        say!("ready");
        for outcome in call.clone().chunksize(chunk).imap_unordered((0..).map(|number| job(number, small))) {
            let (host, pid, _) = outcome?;
            say!("done - {host} {pid}");
        }
    }
    let stream = Arc::new(call.max_in_flight(64).stream());
    let ended = stream.clone();
    std::thread::spawn(move || {
        _ = wait_for_end_of_input();
        ended.close();
    });
    say!("ready");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0.. {
                if stream.push(job(number, SIZE)).is_err() {
                    return;
                }
                say!("put {number}");
            }
        });
        while let Some((ticket, outcome)) = stream.next() {
            let number = ticket.number();
            match outcome {
                Ok((host, pid, bytes)) => match check_bytes(number as u64, &bytes, SIZE) {
                    Ok(_) => say!("done {number} {host} {pid}"),
                    Err(error) => say!("corrupt {error}"),
                },
                Err(error) => say!("error {number} {}", error.to_string().replace('\n', " ")),
            }
        }
    });
    drop(stream);
    pool.join()?;
    cluster.leave()?;
    Ok(())
}

/// Serves a pool until rank 0 has left. With `again`, the process joins again after an interruption.
pub(crate) fn serve(options: &Options) -> RoleResult {
    let pool = Pool::builder().processes(2).build()?;
    let again = options.number_or_zero::<u8>("again")? != 0;
    loop {
        let cluster = join(options)?;
        let served = pool.serve(&cluster)?;
        say!("ready");
        let has_left = served.wait();
        say!("over");
        if has_left || !again {
            break;
        }
    }
    pool.join()?;
    Ok(())
}

/// Reports the number of tasks per second of two workers on each of two hosts: in chunks, and one by one.
pub(crate) fn measure(options: &Options) -> RoleResult {
    let cluster = join(options)?;
    let pool = Pool::builder().processes(2).cluster(&cluster).build()?;
    say!("ready");
    while pool.processes() < 4 || pool.metrics().workers.iter().any(|worker| worker.pid == 0) {
        // sleep: waits until workers of the other host are ready. The process has a time limit.
        std::thread::sleep(Duration::from_millis(20));
    }
    let call = pool.task(|x: u64| x * x);
    let alone = call.clone().chunksize(1);
    for (name, count, call) in [("tasks", 100_000, call), ("tasks-alone", 5000, alone)] {
        let mut best = 0.0_f64;
        for _ in 0..3 {
            let since = Instant::now();
            let squares = call.map(0..count)?;
            best = best.max(count as f64 / since.elapsed().as_secs_f64());
            if !squares.into_iter().eq((0..count).map(|x| x * x)) {
                return Err("wrong results".into());
            }
        }
        say!("figure {name} {best:.0}");
    }
    pool.join()?;
    cluster.leave()?;
    Ok(())
}
