//! Processes that start processes, and what becomes of them when one in the middle is gone.

mod common;

use common::{
    DEADLINE, LIFETIME, Meeting, Outcome, alive, eventually, failure, join, say, wait_for_the_end,
    wait_for_word,
};
use mp_spawn::{Options, SpawnError, start_processes};

fn sleeper(_: usize, meeting: String) -> Outcome {
    let pids = format!("{} {:?}", std::process::id(), mp_spawn::parent_pid());
    say(&meeting, &pids)?;
    wait_for_the_end()
}

/// Starts a process and waits for its end.
fn middle(_: usize, meeting: String) -> Outcome {
    say(&meeting, &std::process::id().to_string())?;
    let context = start_processes(sleeper, meeting, Options::nprocs(1))?;
    context.join_timeout(LIFETIME)?;
    Ok(())
}

#[test]
fn nobody_outlives_a_parent_that_was_killed() {
    let meeting = Meeting::new("killed");
    let context = start_processes(middle, meeting.name.clone(), Options::nprocs(1)).unwrap();
    let child: u32 = meeting.hear().parse().unwrap();
    let heard = meeting.hear();
    let grandchild: u32 = heard.split(' ').next().unwrap().parse().unwrap();
    assert_eq!(context.pids(), [child]);
    assert!(heard.contains(&format!("Some({child})")), "{heard}");
    assert!(alive(child) && alive(grandchild));
    context.kill(0).unwrap();
    eventually("child and grandchild are gone", || !alive(child) && !alive(grandchild));
    assert!(failure(&context).to_string().contains("SIGKILL"));
}

#[test]
fn nobody_outlives_a_parent_that_executes_another_program() {
    /// From the main thread or from another one, both of which can start processes.
    fn executes(rank: usize, meeting: String) -> Outcome {
        let go = format!("{meeting}-{rank}");
        let start = move || -> Outcome {
            let child = start_processes(sleeper, meeting, Options::nprocs(1))?;
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
    let meeting = Meeting::new("executes");
    let parents = start_processes(executes, meeting.name.clone(), Options::nprocs(2)).unwrap();
    let children =
        [meeting.hear(), meeting.hear()].map(|said| said.split(' ').next().unwrap().parse().unwrap());
    for rank in 0..2 {
        eventually("it waits", || say(&format!("{}-{rank}", meeting.name), "go").is_ok());
    }
    for child in children {
        eventually("it ended with its parent's program", || !alive(child));
    }
    assert!(parents.pids().into_iter().all(alive), "the other program is gone");
}

#[test]
fn nobody_outlives_a_parent_that_panics() {
    /// With the context of its child in its hands, which ends it, or out of them.
    fn panics(rank: usize, meeting: String) -> Outcome {
        let go = format!("{meeting}-{rank}");
        let child = start_processes(sleeper, meeting, Options::nprocs(1))?;
        let (_ends, _runs_on) = match rank {
            0 => (Some(child), None),
            _ => (None, Some(std::mem::ManuallyDrop::new(child))),
        };
        wait_for_word(&go)?;
        panic!("for the test");
    }
    let meeting = Meeting::new("panics");
    let settings = Options::nprocs(2).on_failure(mp_spawn::OnFailure::Continue);
    let parents = start_processes(panics, meeting.name.clone(), settings).unwrap();
    let children: [u32; 2] =
        [meeting.hear(), meeting.hear()].map(|said| said.split(' ').next().unwrap().parse().unwrap());
    for rank in 0..2 {
        eventually("it waits", || say(&format!("{}-{rank}", meeting.name), "go").is_ok());
    }
    for child in children {
        eventually("it ended with its parent", || !alive(child));
    }
    assert!(failure(&parents).to_string().contains("for the test"));
}

#[test]
fn nobody_outlives_a_chain_whose_top_was_killed() {
    fn top(_: usize, meeting: String) -> Outcome {
        start_processes(middle, meeting, Options::nprocs(2))?.join_timeout(LIFETIME)?;
        Ok(())
    }
    let meeting = Meeting::new("chain");
    let context = start_processes(top, meeting.name.clone(), Options::nprocs(1)).unwrap();
    let pids: Vec<u32> = (0..4).map(|_| meeting.hear().split(' ').next().unwrap().parse().unwrap()).collect();
    assert!(pids.iter().all(|pid| alive(*pid)));
    context.kill(0).unwrap();
    eventually("all descendants are gone", || pids.iter().all(|pid| !alive(*pid)));
}

#[test]
fn errors_come_up_through_the_generations() {
    fn leaf(rank: usize, (): ()) {
        assert!(rank == 0, "the leaf of rank {rank} broke");
    }
    fn branch(_: usize, (): ()) -> Result<(), SpawnError> {
        mp_spawn::spawn(leaf, (), 2).map(drop)
    }
    let error = failure(&start_processes(branch, (), Options::nprocs(1)).unwrap());
    let SpawnError::ProcessRaised(raised) = &error else { panic!("unexpected: {error:?}") };
    assert!(raised.message.contains("rank 1 (rank-1, pid "), "{error}");
    assert!(raised.message.contains("the leaf of rank 1 broke"), "{error}");
}

#[test]
fn the_test_itself_is_nobodys_child() {
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
    let options = Options::nprocs(2).name("member");
    join(&start_processes(worker, std::process::id(), options).unwrap()).unwrap();
}

#[test]
fn threads_start_processes_side_by_side() {
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for round in 0..5usize {
                    let worker = |rank: usize, round: usize| assert!(rank < 3 && round < 5);
                    let context = start_processes(worker, round, Options::nprocs(3)).unwrap();
                    assert!(context.join_timeout(DEADLINE).unwrap());
                }
            });
        }
    });
}
