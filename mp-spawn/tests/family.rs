//! Processes that start processes, and their end when an intermediate process has ended.

mod common;

use common::{
    DEADLINE, LIFETIME, Meeting, Outcome, alive, eventually, failure, join, say, time_until,
    wait_for_the_end, wait_for_word,
};
use std::time::Duration;

use mp_spawn::{
    Process, SpawnError, SpawnOptions, StartMethod, allow_fork, get_all_start_methods, set_start_method,
    start_processes,
};

/// Maximum time until processes without a parent have ended. Only time in which this process runs counts.
const SOON: Duration = Duration::from_secs(1);

fn within_a_second(what: &str, measure: impl FnOnce() -> Duration) {
    let took = measure();
    assert!(took <= SOON, "{what}: {took:?}");
    println!("{what}: gone after {took:?}");
}

/// Runs a test with each start method as the default, which children inherit, in a separate process.
#[allow(unsafe_code)]
fn by_each_method<F: Fn() + Copy + Send + 'static>(test: F) {
    for method in get_all_start_methods() {
        let alone = move |name: String| {
            // SAFETY: code in copies needs no state of other threads.
            unsafe { allow_fork() };
            set_start_method(name.parse().unwrap());
            println!("by {name}");
            test();
        };
        let process = Process::builder().start_method(StartMethod::Spawn);
        let process = process.spawn(alone, method.name().to_string()).unwrap();
        assert!(process.wait_timeout(2 * DEADLINE), "{method}: {process:?}");
        process.join().unwrap_or_else(|error| panic!("{method}: {error}"));
    }
}

/// Waits until none of these processes is alive, and returns the time that took.
fn wait_until_ended(pids: &[u32]) -> Duration {
    time_until("the processes have ended", || !pids.iter().any(|pid| alive(*pid)))
}

/// Returns the process ids that `count` processes have sent, at the beginning of their lines.
fn pids(meeting: &Meeting, count: usize) -> Vec<u32> {
    let received = (0..count).map(|_| meeting.recv());
    let pids: Vec<u32> =
        received.map(|received| received.split(' ').next().unwrap().parse().unwrap()).collect();
    assert!(pids.iter().all(|pid| alive(*pid)), "{pids:?}");
    pids
}

fn sleeper(_: usize, meeting: String) -> Outcome {
    let pids = format!("{} {:?}", std::process::id(), mp_spawn::parent_pid());
    say(&meeting, &pids)?;
    wait_for_the_end()
}

/// Starts a process and waits for its end.
fn middle(_: usize, meeting: String) -> Outcome {
    say(&meeting, &std::process::id().to_string())?;
    let context = start_processes(sleeper, meeting, SpawnOptions::nprocs(1))?;
    context.join_timeout(LIFETIME)?;
    Ok(())
}

#[test]
fn killed_parent_ends_its_descendants() {
    by_each_method(|| {
        within_a_second("child and grandchild of a parent that was killed", || {
            let meeting = Meeting::new("killed");
            let context = start_processes(middle, meeting.name.clone(), SpawnOptions::nprocs(1)).unwrap();
            let child: u32 = meeting.recv().parse().unwrap();
            let received = meeting.recv();
            let grandchild: u32 = received.split(' ').next().unwrap().parse().unwrap();
            assert_eq!(context.pids(), [child]);
            assert!(received.contains(&format!("Some({child})")), "{received}");
            assert!(alive(child) && alive(grandchild));
            context.kill(0).unwrap();
            let took = wait_until_ended(&[child, grandchild]);
            assert!(failure(&context).to_string().contains("SIGKILL"));
            took
        });
    });
}

#[test]
fn processes_end_when_parent_executes_another_program() {
    /// Executes another program on the main thread or on another thread, both of which can start processes.
    fn executes(rank: usize, meeting: String) -> Outcome {
        let go = format!("{meeting}-{rank}");
        let start = move || -> Outcome {
            let child = start_processes(middle, meeting, SpawnOptions::nprocs(1).daemon(true))?;
            let _runs_on = std::mem::ManuallyDrop::new(child);
            Ok(())
        };
        if rank == 0 {
            start()?
        } else {
            std::thread::spawn(start).join().map_err(|_| "a panic")??
        }
        wait_for_word(&go)?;
        Err(std::os::unix::process::CommandExt::exec(std::process::Command::new("sleep").arg("120")).into())
    }
    by_each_method(|| {
        within_a_second("descendants of parents that execute another program", || {
            let meeting = Meeting::new("executes");
            let parents = start_processes(executes, meeting.name.clone(), SpawnOptions::nprocs(2)).unwrap();
            // Each parent has a child and a grandchild.
            let descendants = pids(&meeting, 4);
            for rank in 0..2 {
                eventually("the parent waits", || say(&format!("{}-{rank}", meeting.name), "go").is_ok());
            }
            let took = wait_until_ended(&descendants);
            assert!(parents.pids().into_iter().all(alive), "the executed program still runs");
            took
        });
    });
}

#[test]
fn panicking_parent_ends_its_descendants() {
    /// Panics after it has started a child. Rank 0 owns the child's context, which ends the child. The other
    /// ranks have leaked the context.
    fn panics(rank: usize, meeting: String) -> Outcome {
        let go = format!("{meeting}-{rank}");
        let child = start_processes(middle, meeting, SpawnOptions::nprocs(1).daemon(true))?;
        let (_ends, _runs_on) = match rank {
            0 => (Some(child), None),
            _ => (None, Some(std::mem::ManuallyDrop::new(child))),
        };
        wait_for_word(&go)?;
        panic!("for the test");
    }
    by_each_method(|| {
        within_a_second("descendants of parents that panic", || {
            let meeting = Meeting::new("panics");
            let settings = SpawnOptions::nprocs(2).on_failure(mp_spawn::OnFailure::Continue);
            let parents = start_processes(panics, meeting.name.clone(), settings).unwrap();
            let descendants = pids(&meeting, 4);
            for rank in 0..2 {
                eventually("the parent waits", || say(&format!("{}-{rank}", meeting.name), "go").is_ok());
            }
            let took = wait_until_ended(&descendants);
            assert!(failure(&parents).to_string().contains("for the test"));
            took
        });
    });
}

#[test]
fn ending_parent_ends_its_descendants() {
    /// Exits normally without waiting for its child, which does not wait for its own child either.
    fn ends(_: usize, meeting: String) -> Outcome {
        let go = format!("{meeting}-go");
        let _runs_on = std::mem::ManuallyDrop::new(start_processes(
            middle,
            meeting,
            SpawnOptions::nprocs(1).daemon(true),
        )?);
        wait_for_word(&go)?;
        std::process::exit(0)
    }
    by_each_method(|| {
        within_a_second("descendants of a parent that exits", || {
            let meeting = Meeting::new("ends");
            let context = start_processes(ends, meeting.name.clone(), SpawnOptions::nprocs(1)).unwrap();
            let descendants = pids(&meeting, 2);
            eventually("the parent waits", || say(&format!("{}-go", meeting.name), "go").is_ok());
            let took = wait_until_ended(&descendants);
            join(&context).unwrap();
            took
        });
    });
}

#[test]
fn killed_ancestor_ends_the_whole_chain() {
    fn top(_: usize, meeting: String) -> Outcome {
        start_processes(middle, meeting, SpawnOptions::nprocs(2))?.join_timeout(LIFETIME)?;
        Ok(())
    }
    by_each_method(|| {
        within_a_second("a chain whose top was killed", || {
            let meeting = Meeting::new("chain");
            let context = start_processes(top, meeting.name.clone(), SpawnOptions::nprocs(1)).unwrap();
            let descendants = pids(&meeting, 4);
            context.kill(0).unwrap();
            wait_until_ended(&descendants)
        });
    });
}

#[test]
fn errors_of_grandchildren_reach_the_first_parent() {
    fn leaf(rank: usize, (): ()) {
        assert!(rank == 0, "the leaf of rank {rank} broke");
    }
    fn branch(_: usize, (): ()) -> Result<(), SpawnError> {
        mp_spawn::spawn(leaf, (), 2).map(drop)
    }
    let error = failure(&start_processes(branch, (), SpawnOptions::nprocs(1)).unwrap());
    let SpawnError::ProcessRaised(raised) = &error else { panic!("unexpected: {error:?}") };
    assert!(raised.message.contains("rank 1 (pid "), "{error}");
    assert!(raised.message.contains("the leaf of rank 1 broke"), "{error}");
}

#[test]
fn test_process_is_not_a_child() {
    assert_eq!((mp_spawn::rank(), mp_spawn::parent_pid(), mp_spawn::name()), (None, None, None));
    assert!(!mp_spawn::is_child());
    mp_spawn::init();
    let worker = |rank: usize, parent: u32| {
        mp_spawn::init();
        assert!(mp_spawn::is_child());
        assert_eq!(mp_spawn::rank(), Some(rank));
        assert_eq!(mp_spawn::parent_pid(), Some(parent));
        assert_eq!(mp_spawn::name(), Some(format!("member-{rank}").as_str()));
        assert_eq!(std::env::var_os("MP_CHILD"), None);
    };
    let options = SpawnOptions::nprocs(2).name("member");
    join(&start_processes(worker, std::process::id(), options).unwrap()).unwrap();
}

#[test]
fn threads_start_processes_concurrently() {
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for round in 0..5usize {
                    let worker = |rank: usize, round: usize| assert!(rank < 3 && round < 5);
                    let context = start_processes(worker, round, SpawnOptions::nprocs(3)).unwrap();
                    assert!(context.join_timeout(DEADLINE).unwrap());
                }
            });
        }
    });
}
