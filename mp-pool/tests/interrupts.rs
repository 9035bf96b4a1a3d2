//! Ctrl-C, which the terminal sends to all processes of a program. If the program handles it, its pool keeps
//! working: the fork server is alive, and replaces the interrupted workers.
#![allow(unsafe_code)]

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
        // SAFETY: sends to the group of this process.
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

#[track_caller]
fn result_of(stream: &TaskStream<u64, u64>, x: u64) -> Result<u64, TaskError> {
    let ticket = stream.push(x).unwrap();
    match stream.take_timeout(ticket, DEADLINE) {
        Ok(Some(result)) => result,
        other => panic!("{x} has no result: {}", other.is_err()),
    }
}

/// Tasks that are pushed meanwhile are refused, and nothing else.
#[test]
fn stream_continues_after_take_interrupt() {
    alone(|(): ()| {
        rustix::process::setpgid(None, None).unwrap();
        // SAFETY: this installs no handler.
        unsafe { libc::signal(libc::SIGINT, libc::SIG_DFL) };
        let pool = Pool::builder().processes(1).interrupt(Interrupt::Graceful).build().unwrap();
        let stream = pool.stream(|x: u64| x + 1);
        assert_eq!(result_of(&stream, 1).unwrap(), 2);
        // SAFETY: sends to the group of this process.
        assert_eq!(unsafe { libc::kill(0, libc::SIGINT) }, 0);
        let until = Instant::now() + DEADLINE;
        while !interrupted() {
            assert!(Instant::now() < until, "it was not interrupted");
            std::thread::yield_now();
        }
        assert!(matches!(result_of(&stream, 2), Err(TaskError::Interrupted)));
        assert!(take_interrupt());
        assert_eq!(result_of(&stream, 3).unwrap(), 4);
        pool.join().unwrap();
    });
}
