//! Processes that a fork server makes, and what its death costs.

mod common;

use std::os::unix::process::parent_id;
use std::sync::OnceLock;
use std::time::Duration;

use common::{DEADLINE, Meeting, Outcome, alive, eventually, failure, join, say, wait_for_the_end};
use mp_spawn::{
    Exit, Options, Output, Process, Signal, SpawnError, StartMethod, current_process, get_context,
    get_start_method, set_forkserver_preload, set_start_method, start_processes,
};

fn served(nprocs: usize) -> Options {
    Options::nprocs(nprocs).start_method(StartMethod::ForkServer)
}

/// Each test has a process of its own, for there is one fork server in each.
fn alone(test: fn()) {
    fn call(test: (usize,)) {
        TESTS[test.0]();
    }
    let number = TESTS.iter().position(|known| std::ptr::fn_addr_eq(*known, test)).unwrap();
    let child = Process::builder().start_method(StartMethod::Spawn).spawn(call, (number,)).unwrap();
    assert!(child.wait_timeout(2 * DEADLINE), "{child:?}");
    child.join().unwrap();
}

const TESTS: &[fn()] = &[];

#[test]
fn placeholder() {
    let square = |rank: usize, (): ()| Ok::<_, String>((rank * rank, std::process::id(), parent_id()));
    let all = start_processes(square, (), served(5)).unwrap().join().unwrap();
    for (rank, (square, pid, parent)) in all.iter().enumerate() {
        assert_eq!((*square, *parent), (rank * rank, std::process::id()));
        println!("{pid}");
    }
}
