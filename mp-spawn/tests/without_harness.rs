//! Program with its own `main`, like a test with `harness = false`. Its threads have stacks for signal
//! handlers, unlike the threads of a worker that never runs `main`.
#![allow(unsafe_code)]

mod common;

use common::{failure, join};
use mp_spawn::{
    ExitDetail, OnFailure, ProcessStatus, SpawnError, SpawnOptions, StartMethod, allow_fork,
    get_all_start_methods, start_processes,
};

fn deeper(depth: u64) -> u64 {
    let here = std::hint::black_box([depth; 64]);
    if depth == 0 { here[0] } else { deeper(depth - 1).wrapping_add(here[7]) }
}

/// Rank 0 overflows the stack of its own thread, rank 1 the stack of another thread.
fn overflows(rank: usize, (): ()) {
    let depth = u64::MAX;
    let result = if rank == 0 { Ok(deeper(depth)) } else { std::thread::spawn(move || deeper(depth)).join() };
    std::hint::black_box(result.ok());
}

fn main() {
    // Runners first list the tests: this program is one test, which ignores its arguments.
    if std::env::args().any(|argument| argument == "--list") {
        println!("without_harness: test");
        return;
    }
    // SAFETY: code in copies needs no state of other threads.
    unsafe { allow_fork() };
    for method in get_all_start_methods() {
        let square = |rank: usize, base: usize| Ok::<_, String>(base + rank * rank);
        let context = start_processes(square, 10, SpawnOptions::nprocs(3).start_method(*method)).unwrap();
        join(&context).unwrap();
        assert_eq!(context.join().unwrap(), [10, 11, 14], "{method}");
    }
    let options = SpawnOptions::nprocs(2).start_method(StartMethod::Fork).on_failure(OnFailure::Continue);
    let context = start_processes(overflows, (), options).unwrap();
    let _first = failure(&context);
    for rank in 0..2 {
        let status = context.status(rank).unwrap();
        let ProcessStatus::Failed(SpawnError::ProcessExited(exited)) = &status else { panic!("{status:?}") };
        assert!(matches!(exited.detail, Some(ExitDetail::StackOverflow { .. })), "rank {rank}: {exited}");
    }
    // Same output as of other test binaries, for tools that count tests.
    println!("running 1 test\ntest without_harness ... ok\ntest result: ok. 1 passed; 0 failed; 0 ignored");
}
