//! Ctrl-C, which the terminal sends to all processes of a program. If the program handles it, its pool keeps
//! working: the fork server is alive, and replaces the interrupted workers.
#![allow(unsafe_code)]

#[cfg(feature = "net")]
mod common;

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use mp_pool::{Pool, TaskError, TaskStream};
use mp_spawn::{Interrupt, Process, StartMethod, interrupted, take_interrupt};

const DEADLINE: Duration = Duration::from_secs(60);

static INTERRUPTS: AtomicU32 = AtomicU32::new(0);

extern "C" fn count(_: libc::c_int) {
    INTERRUPTS.fetch_add(1, Ordering::SeqCst);
}

#[test]
fn forkserver_pool_survives_ctrl_c() {
    let test = |(): ()| {
        rustix::process::setpgid(None, None).unwrap();
        // SAFETY: the handler only touches an atomic.
        unsafe { libc::signal(libc::SIGINT, count as *const () as libc::sighandler_t) };
        let pool = Pool::builder().processes(2).start_method(StartMethod::ForkServer).build().unwrap();
        let pid = |_: u32| Ok::<_, String>(std::process::id());
        let before = pool.map(pid, 0..8_u32).unwrap();
        // SAFETY: sends the signal to the group of this process, which the test has created.
        assert_eq!(unsafe { libc::kill(0, libc::SIGINT) }, 0);
        let until = Instant::now() + DEADLINE;
        loop {
            // Only tasks that a worker had when it was interrupted are lost.
            let after = pool.map(pid, 0..8_u32);
            if after.is_ok_and(|after| after.iter().all(|pid| !before.contains(pid))) {
                break;
            }
            assert!(Instant::now() < until, "the workers were not replaced");
        }
        // Another pool finds the server unchanged.
        let other = Pool::builder().processes(2).start_method(StartMethod::ForkServer).build().unwrap();
        other.map(pid, 0..8_u32).unwrap();
        other.join().unwrap();
        assert!(INTERRUPTS.load(Ordering::SeqCst) > 0);
        pool.join().unwrap();
    };
    alone(test);
}

/// Runs a test in a process of its own.
fn alone<F: Fn(()) + Copy + Send + 'static>(test: F) {
    let alone = Process::builder().start_method(StartMethod::Spawn).spawn(test, ()).unwrap();
    assert!(alone.wait_timeout(2 * DEADLINE), "{alone:?}");
    alone.join().unwrap();
}

/// Restores the default effect of SIGINT. A shell starts background jobs with SIGINT ignored.
fn stop_ignoring_interrupts() {
    // SAFETY: this installs no handler.
    unsafe { libc::signal(libc::SIGINT, libc::SIG_DFL) };
}

#[track_caller]
fn result_of(stream: &TaskStream<u64, u64>, x: u64) -> Result<u64, TaskError> {
    let ticket = stream.push(x).unwrap();
    match stream.take_timeout(ticket, DEADLINE) {
        Ok(Some(result)) => result,
        other => panic!("{x} has no result: {}", other.is_err()),
    }
}

/// Only tasks that are pushed before the interrupt is acknowledged are refused.
#[test]
fn stream_continues_after_take_interrupt() {
    alone(|(): ()| {
        rustix::process::setpgid(None, None).unwrap();
        stop_ignoring_interrupts();
        let pool = Pool::builder().processes(1).interrupt(Interrupt::Graceful).build().unwrap();
        let stream = pool.stream(|x: u64| x + 1);
        assert_eq!(result_of(&stream, 1).unwrap(), 2);
        // SAFETY: sends the signal to the group of this process, which the test has created.
        assert_eq!(unsafe { libc::kill(0, libc::SIGINT) }, 0);
        let until = Instant::now() + DEADLINE;
        while !interrupted() {
            assert!(Instant::now() < until, "no interrupt was received");
            std::thread::yield_now();
        }
        assert!(matches!(result_of(&stream, 2), Err(TaskError::Interrupted)));
        assert!(take_interrupt());
        assert_eq!(result_of(&stream, 3).unwrap(), 4);
        pool.join().unwrap();
    });
}

/// The served pool is not interrupted.
#[cfg(feature = "net")]
#[test]
fn interrupt_cancels_chunks_on_other_hosts() {
    use common::eventually;
    use common::hosts::{WORKERS, ready, slow_rank, two_members};
    use rustix::process::{Signal, getpid, kill_process};

    alone(|(): ()| {
        stop_ignoring_interrupts();
        let (cluster, second, there) = two_members(Pool::builder().processes(WORKERS));
        let served = there.serve(&second).unwrap();
        let builder = Pool::builder().processes(1).interrupt(Interrupt::Graceful);
        let pool = builder.cluster(&cluster).build().unwrap();
        ready(&pool, 1 + WORKERS);
        // One chunk for each worker.
        let call = pool.task(slow_rank).chunksize(500).map_async(0..1500);
        eventually("the served pool runs tasks", || there.metrics().done > 4);
        kill_process(getpid(), Signal::INT).unwrap();
        eventually("the process is interrupted", interrupted);
        eventually("the chunk of this host ends", || call.progress().done > 300);
        // Tasks that return later were interrupted, too.
        assert!(take_interrupt());
        assert!(call.wait_timeout(DEADLINE));
        let results = call.results();
        let is_interrupted = |result: &Result<_, _>| matches!(result, Err(TaskError::Interrupted));
        assert!(results.iter().all(|result| result.is_ok() || is_interrupted(result)));
        let interrupted = results.iter().filter(|result| is_interrupted(result)).count();
        assert!(interrupted > 1000 && there.metrics().cancelled > 500, "{interrupted} of 1500");
        drop(served);
        pool.join().unwrap();
    });
}
