//! Reports on stderr of workers that die repeatedly, and of the end of a pool.

mod common;

use common::{DEADLINE, eventually, got, join, kill};
use mp_pool::{Pool, TaskError};
use mp_spawn::{Process, Stdio};

/// Returns the stderr of a process that runs this function.
fn stderr_of(function: impl Fn(()) + Copy + Send + 'static) -> String {
    let process = Process::builder().stderr(Stdio::Capture).spawn(function, ()).unwrap();
    assert!(process.wait_timeout(DEADLINE));
    let text = process.stderr().text();
    process.join().unwrap_or_else(|error| panic!("{error}\n{text}"));
    text
}

#[test]
fn first_of_many_killed_workers_is_reported() {
    let text = stderr_of(|()| {
        let pool = Pool::builder().name("resize").processes(1).build().unwrap();
        for _ in 0..3 {
            assert_eq!(pool.apply(|x: u32| x, 7).unwrap(), 7);
            let pid = pool.pids()[0];
            kill(pid);
            eventually("the worker is replaced", || ![0, pid].contains(&pool.pids()[0]));
        }
        pool.close();
        join(&pool);
    });
    let reports = text.lines().filter(|line| line.contains("failed and is replaced")).count();
    assert!(text.contains("mp: pool \"resize\": worker 0 (pid ") && reports == 1, "{text}");
    assert!(text.contains("SIGKILL"), "{text}");
}

#[test]
fn dump_shows_workers_in_their_back_off() {
    let text = stderr_of(|()| {
        let first = |rank, process: mp_spawn::ProcessBuilder| {
            if rank == 0 { process } else { process.executable("/bin/false") }
        };
        let pool = Pool::builder().name("resize").processes(2).per_worker(first).build().unwrap();
        assert_eq!(pool.apply(|x: u32| x, 7).unwrap(), 7);
        // The next restart is seconds away.
        let failed = || pool.metrics().failed_starts.iter().any(|failed| failed.starts >= 6);
        eventually("six starts have failed", failed);
        mp_core::waits::dump();
        pool.terminate();
    });
    assert!(text.contains("mp: worker 1 of pool \"resize\" is started again in "), "{text}");
    assert!(text.contains("failed starts: ") && text.contains("/bin/false"), "{text}");
}

#[test]
fn pool_whose_workers_never_start_is_broken() {
    let builder = Pool::builder().processes(2).per_worker(|_, process| process.executable("/bin/false"));
    let error = got(builder.build().unwrap().apply_async(|x: u32| x, 7)).unwrap_err();
    assert!(matches!(error, TaskError::Broken(_)), "{error}");
    let text = error.to_string();
    assert!(text.contains("/bin/false") && text.contains("exited with code 1"), "{text}");
}

#[cfg(feature = "log")]
#[test]
fn orderly_pool_end_logs_no_worker_replacement() {
    let text = stderr_of(|()| {
        mp_spawn::log_to_stderr(log::LevelFilter::Info).unwrap();
        let pool = Pool::new(2).unwrap();
        assert_eq!(pool.apply(|x: u32| x, 7).unwrap(), 7);
        pool.close();
        join(&pool);
    });
    assert!(text.contains("exited with code 0") && !text.contains("is replaced"), "{text}");
}
