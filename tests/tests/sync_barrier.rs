//! Barriers between real processes that are killed, stopped or slow.

mod common;

use std::time::Duration;

use common::{DEADLINE, Outcome, alone, eventually, failure, give, join, signal, take, threads_are};
use mp::{Barrier, BarrierError, Lock, Options, ProcessContext, Queue, start_processes};
use rustix::process::Signal;

/// Longer than a slice, after which waiting processes ask for the dead.
const LONG: Duration = Duration::from_millis(250);

fn pass(_: usize, (barrier, phases, order): (Barrier, u64, Lock<[u64; 2]>)) -> Outcome {
    for phase in 0..phases {
        {
            let mut order = order.lock()?;
            assert_eq!(order[0] / 4, phase, "somebody is ahead");
            order[0] += 1;
        }
        let number = barrier.wait_timeout(DEADLINE)?;
        order.lock()?[1] += number as u64;
        barrier.wait()?;
    }
    Ok(())
}

#[test]
fn nobody_passes_before_all_have_come() {
    let _alone = alone();
    let args = (Barrier::new(4).unwrap(), 50, Lock::new([0; 2]).unwrap());
    let context = start_processes(pass, args.clone(), Options::nprocs(4)).unwrap();
    join(&context).unwrap();
    assert_eq!(*args.2.lock().unwrap(), [200, 50 * 6], "each has its number");
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
    let context =
        start_processes(stand, (barrier.clone(), enrolled, ready.clone()), Options::nprocs(1)).unwrap();
    (context, take(&ready))
}

#[test]
fn a_barrier_breaks_when_one_that_waits_or_is_enrolled_is_killed() {
    let _alone = alone();
    for enrolled in [false, true] {
        let barrier = Barrier::new(3).unwrap();
        let (context, pid) = party(&barrier, enrolled);
        if !enrolled {
            eventually("it waits", || barrier.n_waiting() == 1);
        }
        let copy = barrier.clone();
        let waits = std::thread::spawn(move || copy.wait_timeout(DEADLINE));
        eventually("this one waits", || barrier.n_waiting() == 1 + usize::from(!enrolled));
        signal(pid, Signal::KILL);
        let error = waits.join().unwrap().unwrap_err();
        match error {
            BarrierError::PartyDied { who: Some(who) } => assert_eq!(who.pid, pid),
            other => panic!("{other}"),
        }
        assert!(barrier.is_broken() && barrier.n_waiting() == 0);
        assert!(matches!(barrier.wait(), Err(BarrierError::PartyDied { .. })), "it stays broken");
        failure(&context);
        barrier.reset().unwrap();
        assert!(!barrier.is_broken());
        let all: Vec<_> = (0..3).map(|_| barrier.clone()).collect();
        let all: Vec<_> =
            all.into_iter().map(|b| std::thread::spawn(move || b.wait_timeout(DEADLINE))).collect();
        all.into_iter().for_each(|t| _ = t.join().unwrap().expect("it is whole again"));
    }
}

#[test]
fn a_stopped_party_is_waited_for_until_the_time_is_over() {
    let _alone = alone();
    let barrier = Barrier::new(3).unwrap();
    let (context, pid) = party(&barrier, true);
    signal(pid, Signal::STOP);
    eventually("it is stopped", || threads_are(pid, 'T'));
    let copy = barrier.clone();
    let waits = std::thread::spawn(move || copy.wait_timeout(DEADLINE));
    eventually("it waits", || barrier.n_waiting() == 1);
    let error = barrier.wait_timeout(LONG).unwrap_err();
    assert!(
        matches!(error, BarrierError::TimedOut { arrived: 2, parties: 3 }) && error.is_broken(),
        "{error}"
    );
    assert!(matches!(waits.join().unwrap(), Err(BarrierError::Broken)));
    signal(pid, Signal::KILL);
    failure(&context);
}

#[test]
fn a_barrier_is_aborted_and_reset() {
    let _alone = alone();
    let barrier = Barrier::new(2).unwrap();
    let waits = |barrier: &Barrier| {
        let copy = barrier.clone();
        let thread = std::thread::spawn(move || copy.wait_timeout(DEADLINE));
        eventually("it waits", || barrier.n_waiting() == 1);
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
