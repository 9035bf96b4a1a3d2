//! Barriers between real processes that are killed, stopped or slow.

use std::time::Duration;

use mp::sync::{BarrierError, RawValue};
use mp::{Barrier, Lock, ProcessContext, Queue, SpawnOptions, start_processes};
use mp_tests::{
    DEADLINE, Outcome, alone, eventually, failure, give, join, one_process, signal, take, threads_are,
};
use rustix::process::Signal;

/// Time longer than a poll interval. Waiting processes check for dead processes once in each interval.
const LONG: Duration = Duration::from_millis(250);

fn pass(_: usize, (barrier, phases, order): (Barrier, u64, Lock<[u64; 2]>)) -> Outcome {
    for phase in 0..phases {
        {
            let mut order = order.lock()?;
            assert_eq!(order[0] / 4, phase, "a party is ahead");
            order[0] += 1;
        }
        let number = barrier.wait_timeout(DEADLINE)?;
        order.lock()?[1] += number as u64;
        barrier.wait()?;
    }
    Ok(())
}

#[test]
fn barrier_parties_pass_only_after_all_have_arrived() {
    let _alone = alone();
    let args = (Barrier::new(4).unwrap(), 50, Lock::new([0; 2]).unwrap());
    let context = start_processes(pass, args.clone(), SpawnOptions::nprocs(4)).unwrap();
    join(&context).unwrap();
    assert_eq!(*args.2.lock().unwrap(), [200, 50 * 6], "each index is returned the same number of times");
    assert_eq!((args.0.parties(), args.0.n_waiting(), args.0.is_broken()), (4, 0, false));
}

fn stand(_: usize, (barrier, enrolled, ready): (Barrier, bool, Queue<u32>)) -> Outcome {
    let party = barrier.enroll()?;
    give(&ready, std::process::id());
    if enrolled {
        std::thread::sleep(DEADLINE); // sleep: the test kills this process while it is elsewhere
    }
    drop(party);
    barrier.wait_timeout(DEADLINE)?;
    Ok(())
}

fn party(barrier: &Barrier, enrolled: bool) -> (ProcessContext, u32) {
    let ready = Queue::bounded(1).unwrap();
    let context = one_process(stand, (barrier.clone(), enrolled, ready.clone()));
    (context, take(&ready))
}

#[test]
fn barrier_breaks_when_a_party_is_killed() {
    let _alone = alone();
    for enrolled in [false, true] {
        let barrier = Barrier::new(3).unwrap();
        let (context, pid) = party(&barrier, enrolled);
        if !enrolled {
            eventually("the waiter waits", || barrier.n_waiting() == 1);
        }
        let copy = barrier.clone();
        let waits = std::thread::spawn(move || copy.wait_timeout(DEADLINE));
        eventually("this party waits", || barrier.n_waiting() == 1 + usize::from(!enrolled));
        signal(pid, Signal::KILL);
        let error = waits.join().unwrap().unwrap_err();
        match error {
            BarrierError::MemberDied { who: Some(who) } => assert_eq!(who.pid, pid),
            other => panic!("{other}"),
        }
        assert!(barrier.is_broken() && barrier.n_waiting() == 0);
        assert!(matches!(barrier.wait(), Err(BarrierError::MemberDied { .. })), "the barrier stays broken");
        failure(&context);
        barrier.reset().unwrap();
        assert!(!barrier.is_broken());
        let all: Vec<_> = (0..3).map(|_| barrier.clone()).collect();
        let all: Vec<_> =
            all.into_iter().map(|b| std::thread::spawn(move || b.wait_timeout(DEADLINE))).collect();
        all.into_iter().for_each(|t| _ = t.join().unwrap().expect("the barrier was reset"));
    }
}

#[test]
fn stopped_barrier_party_is_awaited_until_a_time_out() {
    let _alone = alone();
    let barrier = Barrier::new(3).unwrap();
    let (context, pid) = party(&barrier, true);
    // This process arrives, so it isn't missing.
    let _this = barrier.enroll().unwrap();
    signal(pid, Signal::STOP);
    eventually("the process is stopped", || threads_are(pid, 'T'));
    let copy = barrier.clone();
    let waits = std::thread::spawn(move || copy.wait_timeout(DEADLINE));
    eventually("the waiter waits", || barrier.n_waiting() == 1);
    let error = barrier.wait_timeout(LONG).unwrap_err();
    assert!(error.is_broken() && error.to_string().contains(&format!("process {pid} (member ")), "{error}");
    match error {
        BarrierError::TimedOut { arrived: 2, parties: 3, missing } => {
            assert_eq!(missing.iter().map(|m| m.pid).collect::<Vec<_>>(), [pid]);
        }
        other => panic!("{other}"),
    }
    assert!(matches!(waits.join().unwrap(), Err(BarrierError::Broken)));
    signal(pid, Signal::KILL);
    failure(&context);
}

#[test]
fn barrier_is_aborted_and_reset() {
    let _alone = alone();
    let barrier = Barrier::new(2).unwrap();
    let waits = |barrier: &Barrier| {
        let copy = barrier.clone();
        let thread = std::thread::spawn(move || copy.wait_timeout(DEADLINE));
        eventually("the waiter waits", || barrier.n_waiting() == 1);
        thread
    };
    let thread = waits(&barrier);
    barrier.abort().unwrap();
    assert!(matches!(thread.join().unwrap(), Err(BarrierError::Aborted)));
    assert!(matches!(barrier.wait(), Err(BarrierError::Aborted)));
    barrier.reset().unwrap();
    let thread = waits(&barrier);
    barrier.reset().unwrap();
    assert!(matches!(thread.join().unwrap(), Err(BarrierError::Reset)));
    let (one, two) = (barrier.enroll().unwrap(), barrier.enroll().unwrap());
    assert!(matches!(barrier.enroll(), Err(BarrierError::TooMany { parties: 2 })));
    drop(one);
    let thread = waits(&barrier);
    assert_eq!(two.wait().unwrap() + thread.join().unwrap().unwrap(), 1);
    assert!(Barrier::new(0).is_err() && Barrier::new(1 << 20).is_err());
}

/// Checks in each phase how many times the action has run.
fn pass_and_count(_: usize, (barrier, phases, done): (Barrier, u64, RawValue<u64>)) -> Outcome {
    for phase in 1..=phases {
        barrier.wait_then_timeout(DEADLINE, || done.set(done.get() + 1))?;
        assert_eq!(done.get(), phase, "the others continue after the action has run once");
        barrier.wait_timeout(DEADLINE)?;
    }
    Ok(())
}

#[test]
fn last_barrier_party_acts_before_the_others_continue() {
    let _alone = alone();
    let args = (Barrier::new(3).unwrap(), 100, RawValue::new(0).unwrap());
    let context = start_processes(pass_and_count, args.clone(), SpawnOptions::nprocs(2)).unwrap();
    pass_and_count(2, args.clone()).unwrap();
    join(&context).unwrap();
    assert_eq!((args.2.get(), args.0.is_broken()), (100, false));
}

fn act_for_long(_: usize, (barrier, ready): (Barrier, Queue<u32>)) -> Outcome {
    barrier.wait_then(|| {
        give(&ready, std::process::id());
        std::thread::sleep(DEADLINE); // sleep: the test stops and kills this process while it acts
    })?;
    Ok(())
}

#[test]
fn barrier_breaks_on_leader_death_and_on_time_out() {
    let _alone = alone();
    let (barrier, ready) = (Barrier::new(2).unwrap(), Queue::bounded(1).unwrap());
    for killed in [true, false] {
        let copy = barrier.clone();
        let waits = std::thread::spawn(move || copy.wait_timeout(if killed { DEADLINE } else { 3 * LONG }));
        eventually("the waiter waits", || barrier.n_waiting() == 1);
        let context = one_process(act_for_long, (barrier.clone(), ready.clone()));
        let pid = take(&ready);
        // One more party arrives, which is too early for the next phase.
        let copy = barrier.clone();
        let early = std::thread::spawn(move || copy.wait_timeout(DEADLINE));
        signal(pid, if killed { Signal::KILL } else { Signal::STOP });
        let error = waits.join().unwrap().unwrap_err();
        let early = early.join().unwrap().unwrap_err();
        match (&error, &early) {
            (BarrierError::MemberDied { who: Some(who) }, BarrierError::MemberDied { .. }) if killed => {
                assert_eq!(who.pid, pid);
            }
            (BarrierError::TimedOut { arrived: 2, parties: 2, .. }, BarrierError::Broken) if !killed => {
                assert!(error.to_string().contains("took too long"), "{error}");
            }
            other => panic!("{other:?}"),
        }
        if !killed {
            signal(pid, Signal::KILL);
        }
        failure(&context);
        barrier.reset().unwrap();
    }
}

#[test]
fn panicking_or_aborting_action_breaks_the_barrier() {
    let _alone = alone();
    let barrier = Barrier::new(2).unwrap();
    for panics in [true, false] {
        let copy = barrier.clone();
        let waits = std::thread::spawn(move || copy.wait_timeout(DEADLINE));
        eventually("the waiter waits", || barrier.n_waiting() == 1);
        let copy = barrier.clone();
        let acts = std::thread::spawn(move || {
            let abort = copy.clone();
            copy.wait_then(|| {
                assert!(!panics, "as the test wants it");
                abort.abort().expect("it can");
            })
        });
        match acts.join() {
            Err(_) => assert!(panics),
            Ok(ended) => assert!(!panics && matches!(ended, Err(BarrierError::Aborted))),
        }
        assert!(matches!(waits.join().unwrap(), Err(BarrierError::Aborted)));
        barrier.reset().unwrap();
    }
}
