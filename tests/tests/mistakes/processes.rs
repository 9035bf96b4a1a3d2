//! Starting processes, and how they end.

use std::time::Duration;

use mp::process::{Restart, Stdio};
use mp::{Pool, Process, Queue, SpawnOptions, StartMethod, start_processes};
use mp_tests::{Outcome, failure, one_process};

use crate::says;

#[test]
fn zero_processes_return_no_values() {
    assert!(mp::spawn(|_: usize, (): ()| {}, (), 0).unwrap().is_empty(), "as many values as processes");
}

#[test]
fn zero_workers_error_names_the_range() {
    says(Pool::new(0).unwrap_err(), &["pool of 0", "1 to "]);
}

#[test]
fn worker_panic_error_includes_its_output() {
    fn loads(row: u32) {
        print!("loading");
        panic!("row {row} is missing");
    }
    let start = |backtrace: &str| {
        let loader = Process::builder().name("loader").env("RUST_BACKTRACE", backtrace);
        loader.stdout(Stdio::Capture).stderr(Stdio::Capture).spawn(loads, 7).unwrap()
    };
    let child = start("0");
    says(child.join().unwrap_err(), &["loader", "row 7 is missing", "processes.rs:"]);
    assert_eq!(child.stdout().text(), "loading");
    let said = child.stderr().text();
    says(&said, &["thread 'loader'", "panicked at", "row 7 is missing", "RUST_BACKTRACE=1"]);
    assert!(!said.contains("unnamed") && !said.contains("stack backtrace"), "{said}");
    let child = start("1");
    child.join().unwrap_err();
    let said = child.stderr().text();
    says(
        &said,
        &["thread 'loader'", "row 7 is missing", "stack backtrace:", "::loads", "RUST_BACKTRACE=full"],
    );
    assert!(!said.contains("_start"), "{said}");
}

#[test]
fn worker_exit_error_names_the_code() {
    let context = one_process(|_: usize, (): ()| std::process::exit(3), ());
    says(failure(&context), &["rank 0", "code 3"]);
}

#[test]
fn worker_error_names_rank_and_cause() {
    fn worker(_: usize, text: String) -> mp::AnyResult<u32> {
        Ok(text.parse()?)
    }
    says(mp::spawn(worker, "x".to_string(), 1).unwrap_err(), &["rank 0", "invalid digit"]);
}

#[test]
fn second_join_error_names_the_first() {
    let child = Process::spawn(|(): ()| 7_u32, ()).unwrap();
    assert_eq!(child.join().unwrap(), 7);
    says(child.join().unwrap_err(), &["process-", "returned", "an earlier call has taken it"]);
}

#[test]
fn exhausted_restarts_error_lists_failures() {
    fn loads((): ()) -> Result<(), String> {
        Err("no such file: weights".to_string())
    }
    let restart = Restart::OnFailure { max: 2, backoff: Duration::from_millis(1).into() };
    let child = Process::builder().name("loader").restart(restart).spawn(loads, ()).unwrap();
    says(
        child.join().unwrap_err(),
        &[
            "loader was started 3 times and is given up",
            "no such file: weights",
            "before that, attempt 2",
            "before that, attempt 1",
        ],
    );
}

#[test]
fn fork_without_permission_error_names_allow_fork() {
    let options = SpawnOptions::nprocs(1).start_method(StartMethod::Fork);
    says(start_processes(|_: usize, (): ()| {}, (), options).map(drop).unwrap_err(), &["allow_fork"]);
}

#[test]
fn unknown_start_method_error_lists_the_methods() {
    says("threads".parse::<StartMethod>().unwrap_err(), &["threads", "spawn", "forkserver"]);
}

#[test]
fn handle_as_bytes_error_names_put() {
    let queue = Queue::<u8>::bounded(1).unwrap();
    says(rmp_serde::to_vec(&queue).unwrap_err(), &["Queue", "inside of a message", "put"]);
}

/// Workers start this test program again, but run none of its tests.
#[test]
fn processes_start_in_a_libtest_test() {
    fn worker(rank: usize, base: usize) -> Result<usize, String> {
        Ok(base + rank)
    }
    assert_eq!(mp::spawn(worker, 5, 2).unwrap(), [5, 6]);
    let nested = |_: usize, (): ()| -> Outcome {
        assert_eq!(mp::spawn(worker, 1, 1)?, [1]);
        Ok(())
    };
    mp::spawn(nested, (), 1).unwrap();
}
