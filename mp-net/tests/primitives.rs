//! Events, semaphores and barriers of another member.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use mp_harness::{DEADLINE, eventually};
use mp_net::{
    Cluster, ClusterConfig, NetError, RemoteAcquireError, RemoteBarrier, RemoteBarrierError, RemoteEvent,
    RemoteQueue, RemoteSemaphore,
};
use mp_queue::Queue;
use mp_sync::{Barrier, BarrierError, BoundedSemaphore, Event, Semaphore};
use tokio::time::timeout;

type Outcome = Result<(), Box<dyn std::error::Error + Send + Sync>>;

const SHORT: Duration = Duration::from_millis(50);

fn two() -> (Cluster, Cluster) {
    let config =
        |rank, first: &str| ClusterConfig::new(rank, 2, first).lease(Duration::from_millis(500)).key(b"key");
    let first = Cluster::join(&config(0, "127.0.0.1:0")).unwrap();
    let second = Cluster::join(&config(1, first.address())).unwrap();
    (first, second)
}

fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

#[test]
fn remote_event_is_set_and_cleared_from_both_sides() -> Outcome {
    let (first, second) = two();
    let event = Event::new()?;
    first.publish("event", &event)?;
    let remote = RemoteEvent::connect(&second, "event")?;
    assert!(!remote.is_set()? && !remote.wait_timeout(SHORT)?);
    assert!(remote.set()? && !remote.set()? && event.is_set());
    assert!(event.clear()? && !remote.clear()?);
    let waiting = std::thread::spawn({
        let remote = remote.clone();
        move || remote.wait()
    });
    block_on(async {
        assert!(timeout(SHORT, remote.wait_async()).await.is_err());
        event.set()?;
        remote.wait_async().await
    })?;
    waiting.join().unwrap()?;
    Ok(())
}

#[test]
fn remote_permits_are_taken_and_released() -> Outcome {
    let (first, second) = two();
    let semaphore = BoundedSemaphore::new(2)?;
    first.publish("permits", &semaphore)?;
    let remote = RemoteSemaphore::connect(&second, "permits")?;
    let (one, two) = (remote.acquire()?, semaphore.acquire()?);
    assert!(matches!(remote.try_acquire(), Err(RemoteAcquireError::Held)));
    assert!(matches!(remote.acquire_timeout(SHORT), Err(RemoteAcquireError::Held)));
    block_on(async {
        assert!(timeout(SHORT, remote.acquire_async()).await.is_err(), "no permit is available");
        drop(one);
        let again = remote.acquire_async().await?;
        assert_eq!(remote.available()?, 0);
        drop(again);
        Ok::<_, RemoteAcquireError>(())
    })?;
    drop(two);
    eventually("both permits have returned", || semaphore.available() == 2);
    assert!(matches!(remote.add_permits(1), Err(NetError::Home { .. })));
    let growing = Semaphore::with_limit(0, 3)?;
    first.publish("signals", &growing)?;
    let signals = RemoteSemaphore::connect(&second, "signals")?;
    signals.add_permits(2)?;
    signals.acquire()?.forget()?;
    assert_eq!(growing.available(), 1);
    assert!(signals.add_permits(3).unwrap_err().to_string().contains("limit of 3 permits"));
    let many = Semaphore::with_limit(0, 1000)?;
    first.publish("many", &many)?;
    RemoteSemaphore::connect(&second, "many")?.add_permits(1000)?;
    assert_eq!(many.available(), 1000);
    Ok(())
}

#[test]
fn dropped_remote_acquire_future_keeps_no_permit() -> Outcome {
    let (first, second) = two();
    let semaphore = BoundedSemaphore::new(1)?;
    first.publish("permits", &semaphore)?;
    let remote = RemoteSemaphore::connect(&second, "permits")?;
    for i in 0..200 {
        // The future is dropped before, while or after its reply arrives.
        let time = Duration::from_micros(i * 5);
        block_on(async { drop(timeout(time, remote.acquire_async()).await) });
        drop(semaphore.acquire_timeout(Duration::from_secs(10))?);
    }
    Ok(())
}

#[test]
fn thousand_remote_waits_need_no_threads() -> Outcome {
    let (first, second) = two();
    let (event, semaphore) = (Event::new()?, BoundedSemaphore::new(1)?);
    first.publish("event", &event)?;
    first.publish("permits", &semaphore)?;
    let remote = RemoteEvent::connect(&second, "event")?;
    let permits = RemoteSemaphore::connect(&second, "permits")?;
    let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
    block_on(async {
        let held = permits.acquire_async().await?;
        let before = threads();
        let waits: Vec<_> =
            (0..1000).map(|_| tokio::task::spawn(wait(remote.clone(), permits.clone()))).collect();
        tokio::task::yield_now().await;
        assert!(!remote.is_set()?, "the home has received all waits");
        assert!(threads() <= before + 4, "{before} threads, and then {}", threads());
        remote.set()?;
        drop(held);
        for wait in waits {
            wait.await.unwrap()?;
        }
        Ok::<_, RemoteAcquireError>(())
    })?;
    Ok(())
}

async fn wait(event: RemoteEvent, permits: RemoteSemaphore) -> Result<(), RemoteAcquireError> {
    event.wait_async().await?;
    drop(permits.acquire_async().await?);
    Ok(())
}

#[test]
fn remote_barrier_is_passed_broken_and_reset() -> Outcome {
    let (first, second) = two();
    let barrier = Barrier::new(2)?;
    first.publish("step", &barrier)?;
    let remote = RemoteBarrier::connect(&second, "step")?;
    let wait = || {
        let remote = remote.clone();
        std::thread::spawn(move || remote.wait())
    };
    for _ in 0..3 {
        let other = wait();
        assert_eq!(barrier.wait()? + other.join().unwrap()?, 1);
    }
    assert_eq!((remote.parties()?, remote.n_waiting()?, remote.is_broken()?), (2, 0, false));
    let late = remote.wait_timeout(SHORT).unwrap_err();
    assert!(
        matches!(&late, RemoteBarrierError::TimedOut {
            error: BarrierError::TimedOut { arrived: 1, parties: 2, .. },
            missing
        } if missing.is_empty()),
        "{late}"
    );
    assert!(matches!(barrier.wait(), Err(BarrierError::Broken)) && remote.is_broken()?);
    remote.reset()?;
    let other = wait();
    eventually("a party waits", || remote.n_waiting().unwrap() == 1);
    remote.abort()?;
    let aborted = other.join().unwrap().unwrap_err();
    assert!(matches!(aborted, RemoteBarrierError::Barrier(BarrierError::Aborted)), "{aborted}");
    remote.reset()?;
    let other = wait();
    eventually("a party waits", || barrier.n_waiting() == 1);
    barrier.reset()?;
    let reset = other.join().unwrap().unwrap_err();
    assert!(matches!(reset, RemoteBarrierError::Barrier(BarrierError::Reset)), "{reset}");
    block_on(async {
        assert!(timeout(SHORT, remote.wait_async()).await.is_err());
        eventually("the barrier is broken", || barrier.is_broken());
        assert!(matches!(remote.wait_async().await, Err(RemoteBarrierError::Barrier(BarrierError::Aborted))));
    });
    Ok(())
}

#[test]
fn remote_wait_for_a_barrier_action_times_out() -> Outcome {
    let (first, second) = two();
    let barrier = Barrier::new(1)?;
    first.publish("step", &barrier)?;
    let remote = RemoteBarrier::connect(&second, "step")?;
    let (began, begun) = std::sync::mpsc::channel();
    let (end, ends) = std::sync::mpsc::channel::<()>();
    let acting = std::thread::spawn(move || {
        barrier.wait_then(|| {
            began.send(()).unwrap();
            _ = ends.recv_timeout(DEADLINE);
        })
    });
    begun.recv_timeout(DEADLINE)?;
    let late = remote.wait_timeout(SHORT).unwrap_err();
    assert!(matches!(late, RemoteBarrierError::TimedOut { .. }), "{late}");
    drop(end);
    assert!(matches!(acting.join().unwrap(), Err(BarrierError::Broken)));
    Ok(())
}

#[test]
fn barrier_action_runs_only_in_the_last_remote_party() -> Outcome {
    let (first, second) = two();
    let barrier = Barrier::new(3)?;
    first.publish("step", &barrier)?;
    let remotes = [RemoteBarrier::connect(&first, "step")?, RemoteBarrier::connect(&second, "step")?];
    let acted = AtomicU32::new(0);
    let act = || _ = acted.fetch_add(1, Ordering::Relaxed);
    for phase in 1..=50 {
        let (mut ends, here) = std::thread::scope(|scope| {
            let acted = &acted;
            let wait =
                |remote: &RemoteBarrier| remote.wait_then(act).map(|i| (i, acted.load(Ordering::Relaxed)));
            let others = remotes.each_ref().map(|remote| scope.spawn(move || wait(remote)));
            let here = barrier.wait_then(act).map(|index| (index, acted.load(Ordering::Relaxed)));
            (others.map(|other| other.join().unwrap().unwrap()).to_vec(), here)
        });
        ends.push(here?);
        ends.sort_unstable();
        assert_eq!(ends, [(0, phase), (1, phase), (2, phase)]);
    }
    Ok(())
}

#[test]
fn remote_party_acts_before_others_pass_the_barrier() -> Outcome {
    let (first, second) = two();
    let barrier = Barrier::new(2)?;
    first.publish("step", &barrier)?;
    let remote = RemoteBarrier::connect(&second, "step")?;
    let wait_here = || {
        let here = barrier.clone();
        let thread = std::thread::spawn(move || here.wait_then(|| panic!("it is the first party")));
        eventually("a party waits", || barrier.n_waiting() == 1);
        thread
    };
    let here = wait_here();
    let index = remote.wait_then(|| {
        assert!(barrier.arrive_timeout(SHORT, false).unwrap().is_none(), "the action still runs");
        assert!(!here.is_finished());
    })?;
    assert_eq!((index, here.join().unwrap()?), (1, 0));
    let here = wait_here();
    // `resume_unwind` prints no panic message, whose backtrace can take longer than the lease.
    let panics = || _ = remote.wait_then(|| std::panic::resume_unwind(Box::new("as requested")));
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics)).unwrap_err();
    let aborted = here.join().unwrap().unwrap_err();
    assert!(matches!(aborted, BarrierError::Aborted), "{aborted}");
    remote.reset()?;
    let here = wait_here();
    let reset = remote.wait_then(|| remote.reset().unwrap()).unwrap_err();
    assert!(matches!(reset, RemoteBarrierError::Barrier(BarrierError::Reset)), "{reset}");
    assert!(matches!(here.join().unwrap(), Err(BarrierError::Reset)));
    let late = remote.wait_then_timeout(SHORT, || panic!("a party is missing")).unwrap_err();
    assert!(
        matches!(&late, RemoteBarrierError::TimedOut {
            error: BarrierError::TimedOut { arrived: 1, parties: 2, .. },
            missing
        } if missing.is_empty()),
        "{late}"
    );
    Ok(())
}

#[test]
fn remote_party_waits_for_previous_barrier_action() -> Outcome {
    let (first, second) = two();
    let barrier = Barrier::new(1)?;
    first.publish("step", &barrier)?;
    let remote = RemoteBarrier::connect(&second, "step")?;
    let (began, begun) = std::sync::mpsc::channel();
    let act = || {
        let (barrier, began) = (barrier.clone(), began.clone());
        let (end, ends) = std::sync::mpsc::channel::<()>();
        let acting = std::thread::spawn(move || {
            barrier.wait_then(|| {
                began.send(()).unwrap();
                _ = ends.recv_timeout(DEADLINE);
            })
        });
        begun.recv_timeout(DEADLINE).unwrap();
        (acting, end)
    };
    let (acting, end) = act();
    let other = std::thread::spawn({
        let remote = remote.clone();
        move || remote.wait_then(|| ())
    });
    // sleep: the time in which the other party would arrive.
    std::thread::sleep(SHORT);
    assert!(!other.is_finished());
    drop(end);
    assert_eq!((acting.join().unwrap()?, other.join().unwrap()?), (0, 0));
    let (acting, end) = act();
    let late = remote.wait_then_timeout(SHORT, || panic!("this party arrives too late to act")).unwrap_err();
    assert!(matches!(late, RemoteBarrierError::TimedOut { .. }), "{late}");
    drop(end);
    assert!(matches!(acting.join().unwrap(), Err(BarrierError::Broken)));
    Ok(())
}

#[test]
fn enrolled_party_leaves_a_remote_barrier_unbroken() -> Outcome {
    let (first, second) = two();
    let barrier = Barrier::new(2)?;
    first.publish("step", &barrier)?;
    let remote = RemoteBarrier::connect(&second, "step")?;
    let (one, other) = (remote.enroll()?, barrier.enroll()?);
    let full = remote.enroll().unwrap_err();
    assert!(matches!(full, RemoteBarrierError::Barrier(BarrierError::TooMany { parties: 2 })), "{full}");
    assert!(matches!(barrier.enroll(), Err(BarrierError::TooMany { .. })));
    let here = std::thread::spawn(move || other.wait());
    assert_eq!(one.wait()? + here.join().unwrap()?, 1);
    one.leave()?;
    drop(barrier.enroll()?);
    let one = remote.enroll()?;
    let two = remote.enroll()?;
    drop(one);
    eventually("the dropped party has left", || barrier.enroll().is_ok());
    two.leave()?;
    assert!(!barrier.is_broken());
    Ok(())
}

#[test]
fn remote_connect_to_another_kind_of_object_fails() -> Outcome {
    let (first, second) = two();
    let (queue, event) = (Queue::<u32>::bounded(1)?, Event::new()?);
    first.publish("queue", &queue)?;
    first.publish("event", &event)?;
    let error = RemoteEvent::connect(&second, "queue").unwrap_err().to_string();
    assert_eq!(error, "\"queue\" is a queue of u32, and it was opened as an event");
    let error = RemoteQueue::<u32>::connect(&second, "event").unwrap_err().to_string();
    assert_eq!(error, "\"event\" is an event, and it was opened as a queue of u32");
    let error = RemoteSemaphore::connect(&second, "event").unwrap_err().to_string();
    assert_eq!(error, "\"event\" is an event, and it was opened as a semaphore");
    let remote = RemoteEvent::connect(&second, "event")?;
    first.withdraw("event")?;
    assert!(remote.set().unwrap_err().to_string().contains("the object was withdrawn"));
    Ok(())
}

#[test]
fn timed_out_remote_barrier_names_missing_members() -> Outcome {
    let (first, second) = two();
    let barrier = Barrier::new(3)?;
    first.publish("step", &barrier)?;
    let one = RemoteBarrier::connect(&first, "step")?.enroll()?;
    let other = RemoteBarrier::connect(&second, "step")?.enroll()?;
    for (late, missing) in [(&one, 1), (&other, 0)] {
        let error = late.wait_timeout(SHORT).unwrap_err();
        let RemoteBarrierError::TimedOut { missing: found, .. } = &error else { panic!("{error}") };
        assert_eq!(found.iter().map(|member| member.rank).collect::<Vec<_>>(), [missing]);
        assert!(error.to_string().contains(&format!("missing: rank {missing} (")), "{error}");
        barrier.reset()?;
    }
    let waiting = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| other.wait());
        eventually("a party waits", || barrier.n_waiting() == 1);
        let error = one.wait_timeout(SHORT).unwrap_err();
        assert!(
            matches!(&error, RemoteBarrierError::TimedOut { missing, .. } if missing.is_empty()),
            "{error}"
        );
        waiting.join().unwrap()
    });
    assert!(matches!(waiting, Err(RemoteBarrierError::Barrier(BarrierError::Broken))));
    barrier.reset()?;
    other.leave()?;
    let error = one.wait_timeout(SHORT).unwrap_err();
    assert!(matches!(error, RemoteBarrierError::TimedOut { missing, .. } if missing.is_empty()));
    Ok(())
}
