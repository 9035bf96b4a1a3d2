//! Ends of workers, and their reports in the parent.
#![allow(unsafe_code)]

mod common;

use std::cell::RefCell;
use std::error::Error;
use std::fmt;
use std::time::Duration;

use common::{Meeting, Outcome, failure, join, say, wait_for_the_end};
use mp_spawn::{
    ExitDetail, ExitStatus, OnFailure, Process, ProcessExited, ProcessStatus, RaisedKind, Signal, SpawnError,
    SpawnOptions, allow_fork, get_all_start_methods, spawn, start_processes,
};

fn exited(error: SpawnError) -> ProcessExited {
    match error {
        SpawnError::ProcessExited(exited) => *exited,
        other => panic!("unexpected: {other:?}"),
    }
}

fn signal(exited: &ProcessExited) -> String {
    match exited.exit {
        ExitStatus::Signal { signal, .. } => signal.name().into_owned(),
        other => panic!("unexpected: {other:?}"),
    }
}

#[test]
fn ranks_receive_their_rank_and_arguments() {
    let meeting = Meeting::new("four");
    let args = (meeting.name.clone(), vec![1.5f64, -2.0], Some('x'));
    let context = start_processes(
        |rank: usize, (meeting, numbers, letter): (String, Vec<f64>, Option<char>)| -> Outcome {
            let name = mp_spawn::thread_name();
            say(&meeting, &format!("{rank} {numbers:?} {letter:?} {name} {:?}", mp_spawn::rank()))
        },
        args,
        SpawnOptions::nprocs(4),
    )
    .unwrap();
    let mut received: Vec<String> = (0..4).map(|_| meeting.recv()).collect();
    received.sort();
    let expected: Vec<String> =
        (0..4).map(|rank| format!("{rank} [1.5, -2.0] Some('x') rank-{rank} Some({rank})")).collect();
    assert_eq!(received, expected);
    join(&context).unwrap();
    join(&context).unwrap();
    assert!((0..4).all(|rank| matches!(context.status(rank), Ok(ProcessStatus::Ended))));
    assert!(matches!(context.status(4), Err(SpawnError::NoSuchRank { rank: 4, nprocs: 4 })));
}

#[test]
fn thread_name_matches_the_kernels_name() {
    let comm = || std::fs::read_to_string("/proc/thread-self/comm").unwrap().trim_end().to_owned();
    mp_spawn::set_thread_name("loads batches of images").unwrap();
    assert_eq!((comm().as_str(), mp_spawn::thread_name().as_str()), ("loads batches o", "loads batches o"));
    assert!(mp_spawn::set_thread_name("a\0b").is_err());
    let other = std::thread::Builder::new().name("other".to_owned());
    let other = other.spawn(move || (mp_spawn::thread_name(), comm())).unwrap().join().unwrap();
    assert_eq!(other, ("other".to_owned(), "other".to_owned()));
}

#[test]
fn large_arguments_reach_the_workers() {
    let text = "0123456789abcdef".repeat(1 << 18);
    spawn(|_: usize, text: String| assert_eq!(text.len(), 4 << 20), text, 2).unwrap();
}

#[test]
fn no_processes_are_started_for_zero_ranks() {
    spawn(|_: usize, (): ()| {}, (), 0).unwrap();
}

#[derive(Debug)]
struct Unreadable(std::num::ParseIntError);

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the label is unreadable")
    }
}

impl Error for Unreadable {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.0)
    }
}

#[test]
fn worker_error_arrives_with_its_sources() {
    fn worker(_: usize, text: String) -> Result<(), Unreadable> {
        text.parse::<i32>().map(drop).map_err(Unreadable)
    }
    let context =
        start_processes(worker, "seven".to_string(), SpawnOptions::nprocs(1).name("reader")).unwrap();
    let error = failure(&context);
    let SpawnError::ProcessRaised(raised) = &error else { panic!("unexpected: {error:?}") };
    assert_eq!((raised.who.rank, raised.kind), (Some(0), RaisedKind::Error));
    assert_eq!(raised.who.pid, context.pids()[0]);
    assert_eq!(raised.who.name, "reader-0");
    assert_eq!(raised.message, "the label is unreadable");
    assert_eq!(raised.chain, ["invalid digit found in string"]);
    assert!(raised.debug.contains("ParseIntError"));
    let text = error.to_string();
    assert!(text.contains("rank 0 (reader-0, pid "), "{text}");
    assert!(text.contains("caused by: invalid digit found in string"), "{text}");
}

#[test]
fn worker_panic_arrives_with_its_location() {
    let line = line!() + 1;
    let worker = |rank: usize, (): ()| panic!("no data for rank {rank}");
    let error = failure(&start_processes(worker, (), SpawnOptions::nprocs(1)).unwrap());
    let SpawnError::ProcessRaised(raised) = error else { panic!("unexpected: {error:?}") };
    assert_eq!((raised.kind, raised.message.as_str()), (RaisedKind::Panic, "no data for rank 0"));
    let location = raised.location.unwrap();
    assert!(location.contains(&format!("outcomes.rs:{line}:")), "{location}");
}

#[test]
fn panic_without_a_text_or_a_hook_is_reported() {
    let silent = |_: usize, (): ()| {
        let _ = std::panic::catch_unwind(|| panic!("caught"));
        std::panic::resume_unwind(Box::new(17));
    };
    let error = failure(&start_processes(silent, (), SpawnOptions::nprocs(1)).unwrap());
    let SpawnError::ProcessRaised(raised) = error else { panic!("unexpected: {error:?}") };
    assert_eq!((raised.message.as_str(), raised.location), ("a panic whose payload is not a string", None));
}

#[test]
fn panic_of_another_thread_does_not_end_the_worker() {
    let worker = |_: usize, (): ()| {
        let joined = std::thread::spawn(|| panic!("not the worker's")).join();
        assert!(joined.is_err());
    };
    spawn(worker, (), 1).unwrap();
}

#[test]
fn worker_panic_in_a_panic_is_an_abort_with_a_reason() {
    struct Bad;
    impl Drop for Bad {
        fn drop(&mut self) {
            panic!("and the destructor too");
        }
    }
    let worker = |_: usize, (): ()| {
        let _bad = Bad;
        panic!("first");
    };
    let exited = exited(failure(&start_processes(worker, (), SpawnOptions::nprocs(1)).unwrap()));
    assert_eq!(signal(&exited), "SIGABRT");
    let Some(ExitDetail::Panics(panics)) = &exited.detail else { panic!("{exited}") };
    assert!(panics.iter().any(|panic| panic.starts_with("first, at ")), "{exited}");
    assert!(panics.iter().any(|panic| panic.contains("and the destructor too")), "{exited}");
}

/// Returns the detail of the end of a worker by SIGABRT.
fn of_an_abort(worker: impl Fn(usize, ()) + Copy + Send + Sync + 'static) -> Option<ExitDetail> {
    let exited = exited(failure(&start_processes(worker, (), SpawnOptions::nprocs(1)).unwrap()));
    assert_eq!(signal(&exited), "SIGABRT");
    exited.detail
}

#[test]
fn caught_panic_is_not_the_cause_of_a_later_abort() {
    let caught = |_: usize, (): ()| {
        assert!(std::panic::catch_unwind(|| panic!("long ago")).is_err());
        std::process::abort();
    };
    assert_eq!(of_an_abort(caught), None);
    let elsewhere = |_: usize, (): ()| {
        struct Meets<'a>(&'a std::sync::Barrier);
        impl Drop for Meets<'_> {
            fn drop(&mut self) {
                self.0.wait();
                // The other thread ends the process.
                self.0.wait();
            }
        }
        static BOTH: std::sync::LazyLock<std::sync::Barrier> =
            std::sync::LazyLock::new(|| std::sync::Barrier::new(2));
        std::thread::spawn(|| {
            let _meets = Meets(&BOTH);
            panic!("in another thread, at the same time");
        });
        BOTH.wait();
        std::process::abort();
    };
    assert_eq!(of_an_abort(elsewhere), None);
}

#[test]
fn panic_in_a_c_function_is_an_explained_abort() {
    extern "C" fn never_unwinds() {
        panic!("through C");
    }
    let detail = of_an_abort(|_: usize, (): ()| {
        assert!(std::panic::catch_unwind(|| panic!("long ago")).is_err());
        never_unwinds();
    });
    let Some(ExitDetail::Panics(panics)) = detail else { panic!("{detail:?}") };
    assert!(panics.iter().any(|panic| panic.starts_with("through C, at ")), "{panics:?}");
}

#[test]
fn unhandled_abort_is_not_blamed_on_a_panic() {
    let detail = of_an_abort(|_: usize, (): ()| {
        assert!(std::panic::catch_unwind(|| panic!("long ago")).is_err());
        // SAFETY: the default handler replaces the one of this process.
        unsafe { libc::signal(libc::SIGABRT, libc::SIG_DFL) };
        std::process::abort();
    });
    let Some(ExitDetail::EarlierPanics(panics)) = &detail else { panic!("{detail:?}") };
    assert!(panics[0].starts_with("long ago, at "), "{panics:?}");
    let text = detail.unwrap().to_string();
    assert!(text.contains("which may have been caught") && !text.contains("could not be caught"), "{text}");
}

#[test]
fn exit_code_of_a_worker_is_reported() {
    let exited = exited(failure(
        &start_processes(|_: usize, (): ()| std::process::exit(3), (), SpawnOptions::nprocs(1)).unwrap(),
    ));
    assert_eq!((exited.exit, exited.detail.clone()), (ExitStatus::Code(3), None));
    assert!(exited.to_string().ends_with("exited with code 3"), "{exited}");
}

#[test]
fn worker_exit_with_code_zero_is_success() {
    spawn(|_: usize, (): ()| std::process::exit(0), (), 2).unwrap();
}

#[test]
fn segmentation_fault_reports_its_address() {
    let worker = |_: usize, address: usize| {
        let place = std::ptr::with_exposed_provenance_mut::<u8>(address);
        // SAFETY: none; the test observes the crash.
        unsafe { place.write_volatile(1) };
    };
    let exited = exited(failure(&start_processes(worker, 24, SpawnOptions::nprocs(1)).unwrap()));
    assert_eq!(signal(&exited), "SIGSEGV");
    assert_eq!(exited.detail, Some(ExitDetail::Fault { address: 24 }));
    assert!(exited.to_string().contains("was killed by SIGSEGV (signal 11"), "{exited}");
}

fn deeper(depth: u64) -> u64 {
    let here = std::hint::black_box([depth; 64]);
    if depth == 0 { here[0] } else { deeper(depth - 1).wrapping_add(here[7]) }
}

#[test]
fn worker_stack_overflow_is_named_in_the_error() {
    let worker = |_: usize, depth: u64| {
        std::hint::black_box(deeper(depth));
    };
    let exited = exited(failure(&start_processes(worker, u64::MAX, SpawnOptions::nprocs(1)).unwrap()));
    assert_eq!(signal(&exited), "SIGSEGV");
    assert!(matches!(exited.detail, Some(ExitDetail::StackOverflow { .. })), "{exited}");
    assert!(exited.to_string().contains("stack overflow"), "{exited}");
}

#[test]
fn overflow_of_another_threads_stack_is_named_likely() {
    fn overflows(_: usize, (): ()) {
        let thread = std::thread::spawn(|| deeper(u64::MAX));
        std::hint::black_box(thread.join().ok());
    }
    // In a separate process, which may be copied. `without_harness` has threads on which a handler can run.
    let each_method = |(): ()| {
        // SAFETY: code in copies needs no state of other threads.
        unsafe { allow_fork() };
        for method in get_all_start_methods() {
            let options = SpawnOptions::nprocs(1).start_method(*method);
            let exited = exited(failure(&start_processes(overflows, (), options).unwrap()));
            assert_eq!(signal(&exited), "SIGSEGV", "{method}: {exited}");
            assert_eq!(exited.detail, Some(ExitDetail::LikelyStackOverflow), "{method}: {exited}");
        }
    };
    let process = Process::spawn(each_method, ()).unwrap();
    assert!(process.wait_timeout(common::DEADLINE));
    process.join().unwrap();
}

#[test]
fn worker_abort_is_reported_as_sigabrt() {
    let exited = exited(failure(
        &start_processes(|_: usize, (): ()| std::process::abort(), (), SpawnOptions::nprocs(1)).unwrap(),
    ));
    assert_eq!((signal(&exited).as_str(), exited.detail), ("SIGABRT", None));
}

#[test]
fn own_and_foreign_sigkill_are_distinguished() {
    let worker = |_: usize, meeting: String| -> Outcome {
        say(&meeting, "here")?;
        wait_for_the_end()
    };
    let meeting = Meeting::new("outside");
    let options = SpawnOptions::nprocs(2).on_failure(OnFailure::Continue);
    let context = start_processes(worker, meeting.name.clone(), options).unwrap();
    let _ = (meeting.recv(), meeting.recv());
    let pid = i32::try_from(context.pids()[0]).unwrap();
    // SAFETY: the process was started above and has not been reaped, so its id is not reused.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0);
    common::eventually("rank 0 failed", || matches!(context.status(0), Ok(ProcessStatus::Failed(_))));
    context.kill(1).unwrap();
    let first = exited(failure(&context));
    assert_eq!((first.who.rank, signal(&first).as_str(), first.detail.clone()), (Some(0), "SIGKILL", None));
    assert!(first.to_string().contains("which mp did not send"), "{first}");
    let Ok(ProcessStatus::Failed(second)) = context.status(1) else { panic!("{context:?}") };
    assert_eq!(exited(second).detail, Some(ExitDetail::Requested));
    assert_eq!(context.failures().len(), 2);
    assert_eq!(Signal::KILL.name(), "SIGKILL");
}

#[test]
fn undecodable_arguments_are_an_error() {
    #[derive(serde::Serialize)]
    struct Lying;
    impl<'de> serde::Deserialize<'de> for Lying {
        fn deserialize<D: serde::Deserializer<'de>>(_: D) -> Result<Lying, D::Error> {
            Err(serde::de::Error::custom("there is no such thing"))
        }
    }
    let error = failure(&start_processes(|_: usize, _: Lying| {}, Lying, SpawnOptions::nprocs(1)).unwrap());
    let text = error.to_string();
    assert!(
        matches!(&error, SpawnError::Arguments { who: Some(who), .. } if who.rank == Some(0)),
        "{error:?}"
    );
    assert!(text.contains("there is no such thing") && text.contains("Lying"), "{text}");
}

#[test]
fn unencodable_arguments_are_an_error() {
    struct Shy;
    impl serde::Serialize for Shy {
        fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
            Err(serde::ser::Error::custom("not for others"))
        }
    }
    impl<'de> serde::Deserialize<'de> for Shy {
        fn deserialize<D: serde::Deserializer<'de>>(_: D) -> Result<Shy, D::Error> {
            Ok(Shy)
        }
    }
    let error = spawn(|_: usize, _: Shy| {}, Shy, 3).unwrap_err();
    assert!(matches!(error, SpawnError::Arguments { who: None, .. }), "{error:?}");
    assert!(error.to_string().contains("not for others"), "{error}");
}

#[test]
fn generic_functions_and_equal_closures_run() {
    fn worker<T: PartialEq + std::fmt::Debug>(_: usize, (left, right): (T, T)) {
        assert_eq!(left, right);
    }
    spawn(worker::<u8>, (3, 3), 1).unwrap();
    spawn(worker::<String>, ("a".to_string(), "a".to_string()), 1).unwrap();
    // Two closures that a compiler may fold into one.
    spawn(|rank: usize, (): ()| assert!(rank < 9), (), 1).unwrap();
    spawn(|rank: usize, (): ()| assert!(rank < 9), (), 1).unwrap();
}

#[test]
#[cfg_attr(target_feature = "crt-static", ignore = "static programs drop no locals of their main thread")]
fn failure_is_reported_before_its_process_ends() {
    thread_local! {
        static LINGERS: RefCell<Option<Lingers>> = const { RefCell::new(None) };
    }
    struct Lingers(String);
    impl Drop for Lingers {
        fn drop(&mut self) {
            let _ = common::wait_for_word(&self.0);
        }
    }
    let worker = |_: usize, (word, fails): (String, bool)| -> Result<(), String> {
        LINGERS.set(Some(Lingers(word)));
        if fails { Err("it went wrong".to_string()) } else { Ok(()) }
    };
    // The process reports in the first milliseconds of its life, and no caller waits for it or queries the
    // missing hello.
    let word = format!("mp-spawn-{}-lingers", std::process::id());
    let patient = SpawnOptions::nprocs(1).handshake_timeout(10 * common::DEADLINE);
    let context = start_processes(worker, (word.clone(), true), patient).unwrap();
    let pid = context.pids()[0];
    common::eventually("the rank failed", || matches!(context.status(0), Ok(ProcessStatus::Failed(_))));
    assert!(common::alive(pid) && matches!(context.exit(0), Ok(None)));
    common::eventually("the process gets the word", || say(&word, "go on").is_ok());
    assert!(failure(&context).to_string().contains("it went wrong"));
    // A process whose function has returned has not ended before it exits.
    let context = start_processes(worker, (word.clone(), false), SpawnOptions::nprocs(1)).unwrap();
    assert!(!context.join_timeout(Duration::from_millis(20)).unwrap());
    common::eventually("the process gets the word", || say(&word, "go on").is_ok());
    join(&context).unwrap();
}
