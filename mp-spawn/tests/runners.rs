//! Runs tests that start processes in the ways of different test runners. (The test program without libtest
//! is `without_harness`.)

mod common;

use std::process::{self, Command};

use common::{failure, join};
use mp_spawn::{Process, SpawnOptions, StartMethod, Stdio, start_processes};

#[test]
fn test_in_any_runner_starts_processes() {
    for method in [StartMethod::Spawn, StartMethod::ForkServer] {
        let options = SpawnOptions::nprocs(3).start_method(method).stdout(Stdio::Capture);
        let context = start_processes(|rank: usize, (): ()| println!("rank {rank}"), (), options).unwrap();
        join(&context).unwrap();
        assert_eq!(context.stdout(2).unwrap().text(), "rank 2\n");
    }
}

#[test]
fn test_in_any_runner_receives_process_failures() {
    let panics = |rank: usize, (): ()| panic!("rank {rank} fails");
    let context = start_processes(panics, (), SpawnOptions::nprocs(1).stderr(Stdio::Null)).unwrap();
    assert!(failure(&context).to_string().contains("rank 0 fails"));
    let nested = |(): ()| Process::spawn(|n: u32| Ok::<_, String>(n + 1), 6)?.join();
    assert_eq!(Process::spawn(nested, ()).unwrap().join().unwrap(), 7);
}

#[test]
fn tests_with_workers_pass_in_separate_processes() {
    for name in ["test_in_any_runner_starts_processes", "test_in_any_runner_receives_process_failures"] {
        // Same options as nextest.
        let mut test = Command::new(std::env::current_exe().unwrap());
        test.args(["--exact", name, "--nocapture"]).env("NEXTEST", "1").stdin(process::Stdio::null());
        std::os::unix::process::CommandExt::process_group(&mut test, 0);
        let output = test.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed; 0 failed"), "{name}: {output:?}");
    }
}
