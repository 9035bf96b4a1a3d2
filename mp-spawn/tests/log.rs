//! Events that this crate logs, and the output of `log_to_stderr`. Each test runs in a separate process,
//! because a process has one logger.

mod common;

use std::time::Duration;

use common::DEADLINE;
use log::LevelFilter;
use mp_spawn::{
    Process, SpawnOptions, StartMethod, Stdio, allow_fork, log_to_stderr, set_forkserver_preload,
    start_processes,
};

/// Returns the standard error output of a process that runs `test`.
fn printed<F: Fn(()) + Copy + Send + 'static>(test: F) -> String {
    let child = Process::builder().name("tested").start_method(StartMethod::Spawn).stderr(Stdio::Capture);
    let child = child.spawn(test, ()).unwrap();
    assert!(child.wait_timeout(2 * DEADLINE), "{child:?}");
    let text = child.stderr().text();
    child.join().unwrap_or_else(|error| panic!("{error}\n{text}"));
    text
}

fn work(rank: usize, (): ()) -> Result<u32, String> {
    log::info!("this is rank {rank}");
    log::trace!("this is not printed");
    if rank == 1 { Err("it is tired".to_string()) } else { Ok(std::process::id()) }
}

#[test]
#[allow(unsafe_code)]
fn process_events_are_logged_with_the_process_name() {
    let text = printed(|()| {
        log_to_stderr(LevelFilter::Debug).unwrap();
        // SAFETY: code in copies prints, and no other thread does meanwhile except mp's own.
        unsafe { allow_fork() };
        for method in [StartMethod::Spawn, StartMethod::ForkServer, StartMethod::Fork] {
            let options = SpawnOptions::nprocs(2).name(method.name()).start_method(method);
            let results = start_processes(work, (), options).unwrap().results().unwrap();
            assert!(results[0].is_ok() && results[1].is_err());
        }
        // A lower level from now on, also in other processes.
        log_to_stderr(LevelFilter::Warn).unwrap();
        start_processes(work, (), SpawnOptions::nprocs(1).name("later")).unwrap().join().unwrap();
    });
    let lines: Vec<_> = text.lines().collect();
    assert!(lines.iter().all(|line| line.starts_with('[') && line.contains("/")), "whole lines: {text}");
    let count = |parts: [&str; 3]| {
        let [start, middle, end] = parts;
        lines.iter().filter(|l| l.starts_with(start) && l.contains(middle) && l.ends_with(end)).count()
    };
    for method in ["spawn", "forkserver", "fork"] {
        for rank in 0..2 {
            let name = format!("{method}-{rank}");
            assert_eq!(count([&format!("[INFO/{name}] this is rank {rank}"), "", ""]), 1, "{name}: {text}");
            assert_eq!(count([&format!("[DEBUG/{name}] calls "), "", "log::work"]), 1, "{text}");
            assert_eq!(
                count(["[INFO/tested] ", &format!("{name} (pid "), &format!("was started by {method}")]),
                1,
                "{text}"
            );
        }
        assert_eq!(
            count(["[INFO/tested] ", &format!("{method}-0 (pid "), "exited with code 0"]),
            1,
            "{text}"
        );
        assert_eq!(
            count(["[WARN/tested] ", &format!("({method}-1, pid "), "failed: it is tired"]),
            1,
            "{text}"
        );
    }
    assert_eq!(count(["[DEBUG/tested] a fork server (pid ", "", "was started"]), 1, "{text}");
    assert!(!text.contains("this is not printed") && !text.contains("later"), "{text}");
}

#[test]
fn wait_for_preloading_is_logged_once() {
    let text = printed(|()| {
        log_to_stderr(LevelFilter::Warn).unwrap();
        let slow = || std::thread::sleep(Duration::from_secs(2)); // sleep: simulates slow work
        set_forkserver_preload(slow).unwrap();
        let impatient = SpawnOptions::nprocs(1).start_method(StartMethod::ForkServer);
        let impatient = impatient.handshake_timeout(Duration::from_millis(500));
        start_processes(|_: usize, (): ()| {}, (), impatient).unwrap().join().unwrap();
    });
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.starts_with("[WARN/tested] a fork server (pid "), "{text}");
    assert!(
        text.contains("has called log::") && text.contains(" for 500ms, and a thread that starts"),
        "{text}"
    );
    assert!(text.contains("waits for that: it sleeps"), "{text}");
}

#[test]
fn replaced_fork_server_is_logged_once() {
    let text = printed(|()| {
        log_to_stderr(LevelFilter::Warn).unwrap();
        let served = || SpawnOptions::nprocs(1).start_method(StartMethod::ForkServer);
        start_processes(|_: usize, (): ()| {}, (), served()).unwrap().join().unwrap();
        let old = common::server();
        common::signal(old, libc::SIGKILL);
        common::eventually("the server is dead", || !common::alive(old));
        start_processes(|_: usize, (): ()| {}, (), served()).unwrap().join().unwrap();
    });
    let end = "was killed by SIGKILL (signal 9), and another one takes its place";
    let reported =
        text.lines().filter(|l| l.starts_with("[WARN/tested] a fork server (pid ") && l.ends_with(end));
    assert_eq!(reported.count(), 1, "{text}");
}

#[test]
fn nothing_is_logged_without_a_logger() {
    let text = printed(|()| {
        let results = start_processes(work, (), SpawnOptions::nprocs(2)).unwrap().results().unwrap();
        assert!(results[1].is_err());
    });
    assert_eq!(text, "");
}

#[test]
fn programs_own_logger_is_kept() {
    struct Mine;
    impl log::Log for Mine {
        fn enabled(&self, _: &log::Metadata<'_>) -> bool {
            true
        }
        fn log(&self, record: &log::Record<'_>) {
            eprintln!("mine: {} {}", record.target(), record.args());
        }
        fn flush(&self) {}
    }
    let text = printed(|()| {
        log::set_logger(&Mine).unwrap();
        log::set_max_level(LevelFilter::Info);
        assert!(log_to_stderr(LevelFilter::Info).is_err());
        start_processes(|_: usize, (): ()| log::info!("unheard"), (), SpawnOptions::nprocs(1))
            .unwrap()
            .join()
            .unwrap();
    });
    assert!(text.contains("mine: mp::process rank-0 (pid ") && !text.contains("unheard"), "{text}");
}
