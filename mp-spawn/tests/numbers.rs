//! Numbers that users may give, at their edges: a number that can't be is an error that names it, and none is a panic.

mod common;

use std::time::Duration;

use common::{DEADLINE, alone, wait_for_the_end};
use mp_spawn::{OnFailure, Options, Process, Signal, SpawnError, StartMethod, start_processes};

const DURATIONS: [Duration; 5] = [
    Duration::ZERO,
    Duration::from_nanos(1),
    Duration::from_secs(u64::MAX / 2),
    Duration::new(u64::MAX, 0),
    Duration::MAX,
];

#[test]
fn any_number_of_processes_is_started_or_refused_by_name() {
    // Each member of the tree counts, so in a process of its own; and by all its threads.
    alone(|()| {
        for count in [usize::MAX, usize::MAX - 1, isize::MAX as usize, 1 << 40, 1 << 20, 1025, 1024] {
            for method in [StartMethod::Spawn, StartMethod::ForkServer] {
                let options = Options::nprocs(count).start_method(method);
                let error = start_processes(|_: usize, (): ()| {}, (), options).unwrap_err();
                let text = error.to_string();
                assert!(matches!(error, SpawnError::Launch(_)), "{error:?}");
                assert!(text.contains(&format!("{count} were asked for")), "{text}");
                assert!(text.contains("processes that share memory"), "{text}");
                assert!(common::children().is_empty(), "something was started");
            }
        }
        let none = start_processes(|_: usize, (): ()| {}, (), Options::nprocs(0)).unwrap();
        assert_eq!(none.join().unwrap().len(), 0);
        assert!(none.pids().is_empty() && none.sentinels().is_empty() && none.failures().is_empty());
        assert_eq!(mp_spawn::spawn(|rank: usize, (): ()| Ok::<_, String>(rank), (), 0).unwrap(), []);
    });
}

#[test]
fn those_that_run_already_count() {
    alone(|()| {
        let few = || Options::nprocs(3).on_failure(OnFailure::Continue);
        let runs = start_processes(|_: usize, (): ()| wait_for_the_end(), (), few()).unwrap();
        // This process, its parent, and those three are members, or will be; no other process.
        let error = start_processes(|_: usize, (): ()| {}, (), Options::nprocs(1 << 20)).unwrap_err();
        let text = error.to_string();
        let room: usize =
            text.split("there is room for ").nth(1).unwrap().split('.').next().unwrap().parse().unwrap();
        let taken: usize =
            text.split("tree included; ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
        assert!(taken >= 4 && [256, 1024].contains(&(room + taken)), "{text}");
        let error = start_processes(|_: usize, (): ()| {}, (), Options::nprocs(room + 1)).unwrap_err();
        assert!(error.to_string().contains(&format!("room for {room}")), "{error}");
        runs.kill_all().unwrap();
        assert!(runs.join_timeout(DEADLINE).is_err());
        // Their places are free again, and nothing is reserved for what was refused.
        let error = start_processes(|_: usize, (): ()| {}, (), Options::nprocs(1 << 20)).unwrap_err();
        assert!(error.to_string().contains(&format!("room for {}", room + 3)), "{error}");
    });
}

#[test]
fn any_time_is_waited_for_without_a_panic() {
    alone(|()| {
        for time in DURATIONS {
            let options = Options::nprocs(2).grace_period(time).handshake_timeout(Duration::MAX);
            let context = start_processes(|rank: usize, (): ()| assert!(rank < 2), (), options).unwrap();
            if time > DEADLINE {
                assert!(context.join_timeout(time).unwrap());
            } else {
                // Whether it is over by then is a matter of luck.
                context.join_timeout(time).unwrap();
                context.join_with_grace(None, time).unwrap();
            }
            context.join().unwrap();
            let child = Process::spawn(|(): ()| {}, ()).unwrap();
            assert!(child.wait_timeout(time) || time < DEADLINE);
            child.join().unwrap();
        }
        // No time at all to report is too little, or enough for one that is quick.
        for time in [Duration::ZERO, Duration::from_nanos(1)] {
            let hasty = Options::nprocs(1).handshake_timeout(time);
            let outcome = start_processes(|_: usize, (): ()| {}, (), hasty).unwrap().join();
            assert!(matches!(outcome, Ok(_) | Err(SpawnError::Timeout { .. })), "{outcome:?}");
        }
    });
}

#[test]
fn ranks_processors_and_numbers_may_be_anything() {
    alone(|()| {
        let context = start_processes(|_: usize, (): ()| {}, (), Options::nprocs(2)).unwrap();
        for rank in [2, usize::MAX / 2, usize::MAX] {
            let is_error = |error: SpawnError| matches!(error, SpawnError::NoSuchRank { rank: r, nprocs: 2 } if r == rank);
            assert!(is_error(context.status(rank).unwrap_err()) && is_error(context.exit(rank).unwrap_err()));
            assert!(
                is_error(context.kill(rank).unwrap_err()) && is_error(context.terminate(rank).unwrap_err())
            );
            assert!(
                is_error(context.stdout(rank).unwrap_err()) && is_error(context.stderr(rank).unwrap_err())
            );
        }
        context.join().unwrap();
        for processor in [1 << 20, usize::MAX] {
            let error = Process::builder()
                .processors([processor])
                .spawn(|(): ()| {}, ())
                .unwrap()
                .join()
                .unwrap_err();
            assert!(error.to_string().contains(&format!("no processor {processor}")), "{error}");
        }
        for number in [0, usize::MAX] {
            let tee = Process::builder().number(number).stdout(mp_spawn::Output::Tee);
            tee.spawn(|(): ()| {}, ()).unwrap().join().unwrap();
        }
        for number in [i32::MIN, -1, 0, 64, 65, i32::MAX] {
            assert!(!Signal::from_number(number).name().is_empty());
        }
    });
}
