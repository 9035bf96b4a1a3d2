//! Events, semaphores and barriers of members that are killed.

mod members;

use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use members::{LEASE, config};
use mp_harness::members::{Member, argument, part, ready, wait_for_end};
use mp_harness::{DEADLINE, eventually, signal, threads_are};
use mp_net::{
    Cluster, ClusterEvent, NetError, PeerLost, RemoteAcquireError, RemoteBarrier, RemoteBarrierError,
    RemoteBroadcast, RemoteEvent, RemoteRecvError, RemoteSemaphore, RemoteWatch,
};
use mp_queue::{broadcast, watch};
use mp_sync::{Barrier, BarrierError, BoundedSemaphore, Event};
use rustix::process::Signal;

/// Lease of members whose end must be detected by a closed socket, not by a missing heartbeat.
const LONG: Duration = Duration::from_secs(60);

type Outcome = Result<(), Box<dyn std::error::Error + Send + Sync>>;

/// Objects that the home publishes.
type Objects = (Event, BoundedSemaphore, Barrier, watch::Sender<u32>, broadcast::Sender<u32>);

fn publish(cluster: &Cluster) -> Result<Objects, Box<dyn std::error::Error + Send + Sync>> {
    let (event, semaphore, barrier) = (Event::new()?, BoundedSemaphore::new(1)?, Barrier::new(2)?);
    cluster.publish("event", &event)?;
    cluster.publish("permits", &semaphore)?;
    cluster.publish("step", &barrier)?;
    let ((newest, values), (news, messages)) = (watch::channel(7)?, broadcast::channel(4)?);
    cluster.publish("newest", &values)?;
    cluster.publish("news", &messages)?;
    Ok((event, semaphore, barrier, newest, news))
}

#[test]
#[ignore = "the program of the members that other tests start"]
fn started_member() {
    let part = part().unwrap();
    if part == "home" {
        let cluster = Cluster::join(&config(0, "127.0.0.1:0")).unwrap();
        let (event, _permits, _step, _newest, news) = publish(&cluster).unwrap();
        ready(cluster.address());
        event.wait().unwrap();
        news.send(1).unwrap();
        return wait_for_end();
    }
    let cluster = Cluster::join(&config(1, &argument())).unwrap();
    if part == "actor" {
        let step = RemoteBarrier::connect(&cluster, "step").unwrap();
        let act = || {
            ready("acting");
            wait_for_end();
        };
        return step.wait_then(act).map(drop).unwrap();
    }
    if part == "enrolled" {
        let parties = ["step", "alone"].map(|name| {
            let barrier = RemoteBarrier::connect(&cluster, name).unwrap();
            barrier.enroll().unwrap()
        });
        ready("enrolled");
        wait_for_end();
        return drop(parties);
    }
    if part == "user" {
        let event = RemoteEvent::connect(&cluster, "event").unwrap();
        let newest = RemoteWatch::<u32>::connect(&cluster, "newest").unwrap();
        let news = RemoteBroadcast::<u32>::connect(&cluster, "news").unwrap();
        assert!(!event.wait_timeout(LEASE / 8).unwrap());
        assert!((*newest.borrow().unwrap(), news.recv_timeout(LEASE / 8).is_err()) == (7, true));
        std::thread::spawn(move || event.wait());
        std::thread::spawn(move || newest.wait_changed());
        std::thread::spawn(move || news.recv());
        ready("waiting");
        return wait_for_end();
    }
    if part == "waiter" {
        let permits = RemoteSemaphore::connect(&cluster, "permits").unwrap();
        std::thread::spawn(move || permits.acquire());
        let permits = RemoteSemaphore::connect(&cluster, "permits").unwrap();
        assert!(permits.acquire_timeout(LEASE / 8).is_err());
        ready("waiting");
        return wait_for_end();
    }
    let _permit = RemoteSemaphore::connect(&cluster, "permits").unwrap().acquire().unwrap();
    let step = RemoteBarrier::connect(&cluster, "step").unwrap();
    std::thread::spawn({
        let step = step.clone();
        move || step.wait()
    });
    eventually("a party waits", || step.n_waiting().unwrap() == 1);
    ready("waiting");
    wait_for_end();
}

#[test]
fn killed_member_returns_permit_and_breaks_barrier() -> Outcome {
    let first = Cluster::join(&config(0, "127.0.0.1:0"))?;
    let (_event, semaphore, barrier, ..) = publish(&first)?;
    let (member, _) = Member::start("party", first.address());
    assert_eq!((semaphore.available(), barrier.n_waiting()), (0, 1));
    drop(member);
    drop(semaphore.acquire_timeout(Duration::from_secs(10))?);
    eventually("the barrier is broken", || barrier.is_broken());
    let error = barrier.wait().unwrap_err();
    assert!(matches!(error, BarrierError::MemberDied { who: None }), "{error}");
    let remote = RemoteBarrier::connect(&first, "step")?;
    let error = remote.wait().unwrap_err();
    let is_died = matches!(error, RemoteBarrierError::Barrier(BarrierError::MemberDied { .. }));
    assert!(is_died && error.is_broken(), "{error}");
    Ok(())
}

#[test]
fn waiting_acquire_of_a_killed_member_takes_no_permit() -> Outcome {
    let first = Cluster::join(&config(0, "127.0.0.1:0"))?;
    let (_event, semaphore, ..) = publish(&first)?;
    let permit = semaphore.acquire()?;
    let (member, _) = Member::start("waiter", first.address());
    drop(member);
    eventually("the member is lost", || first.members().len() == 1);
    drop(permit);
    assert_eq!(semaphore.available(), 1);
    Ok(())
}

#[test]
fn killed_member_with_an_action_breaks_barrier() -> Outcome {
    let first = Cluster::join(&config(0, "127.0.0.1:0"))?;
    let (_event, _semaphore, barrier, ..) = publish(&first)?;
    let waiting = std::thread::spawn({
        let barrier = barrier.clone();
        move || barrier.wait_then(|| panic!("the action of another party runs"))
    });
    eventually("a party waits", || barrier.n_waiting() == 1);
    let (member, _) = Member::start("actor", first.address());
    assert!(!barrier.is_broken() && !waiting.is_finished());
    drop(member);
    let error = waiting.join().unwrap().unwrap_err();
    assert!(matches!(error, BarrierError::MemberDied { who: None }), "{error}");
    Ok(())
}

#[test]
fn killed_enrolled_member_breaks_barriers() -> Outcome {
    let first = Cluster::join(&config(0, "127.0.0.1:0"))?;
    let (_event, _semaphore, barrier, ..) = publish(&first)?;
    let alone = Barrier::new(1)?;
    first.publish("alone", &alone)?;
    let (member, _) = Member::start("enrolled", first.address());
    let waiting = std::thread::spawn(move || barrier.wait());
    let index = alone.wait_then(|| {
        assert!(!waiting.is_finished());
        drop(member);
        let error = waiting.join().unwrap().unwrap_err();
        assert!(matches!(error, BarrierError::MemberDied { who: None }), "{error}");
    });
    assert_eq!(index?, 0, "a phase in which all parties have arrived does not break");
    eventually("the next phase is broken", || alone.is_broken());
    assert!(matches!(alone.wait(), Err(BarrierError::MemberDied { .. })));
    alone.reset()?;
    assert_eq!(alone.wait()?, 0);
    Ok(())
}

fn lost<T>(result: Result<T, NetError>) -> PeerLost {
    match result {
        Err(NetError::PeerLost(lost)) => lost,
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("the home was killed"),
    }
}

#[test]
fn killed_home_is_lost_to_all_remote_waiters() -> Outcome {
    let (home, address) = Member::start("home", "");
    let cluster = Cluster::join(&config(1, &address).lease(LONG))?;
    let event = RemoteEvent::connect(&cluster, "event")?;
    let permits = RemoteSemaphore::connect(&cluster, "permits")?;
    let step = RemoteBarrier::connect(&cluster, "step")?;
    let permit = permits.acquire()?;
    assert!(permit.is_held());
    let waiting = std::thread::spawn({
        let (event, permits, step) = (event.clone(), permits.clone(), step.clone());
        move || {
            let event = std::thread::spawn(move || event.wait());
            let permits = std::thread::spawn(move || permits.acquire().map(drop));
            let step = step.wait();
            (event.join().unwrap(), permits.join().unwrap(), step)
        }
    });
    eventually("a party waits", || step.n_waiting().unwrap() == 1);
    let since = Instant::now();
    drop(home);
    let (waited, acquired, passed) = waiting.join().unwrap();
    let known = since.elapsed();
    assert!(known < LONG / 2, "known after {known:?}");
    assert!(!permit.is_held());
    assert_eq!(lost(waited).rank, 0);
    assert!(matches!(acquired, Err(RemoteAcquireError::PeerLost(_))));
    assert!(matches!(passed, Err(RemoteBarrierError::PeerLost(lost)) if lost.in_doubt));
    assert!(!lost(event.set()).in_doubt);
    assert!(!lost(permits.available()).in_doubt);
    drop(permit);
    Ok(())
}

#[test]
fn channels_of_killed_home_end_after_all_messages() -> Outcome {
    let (home, address) = Member::start("home", "");
    let cluster = Cluster::join(&config(1, &address).lease(LONG))?;
    let newest = RemoteWatch::<u32>::connect(&cluster, "newest")?;
    let news = RemoteBroadcast::<u32>::connect(&cluster, "news")?;
    let late = news.resubscribe()?;
    RemoteEvent::connect(&cluster, "event")?.set()?;
    assert_eq!(news.recv()?, 1);
    let waiting = std::thread::spawn({
        let newest = newest.clone();
        move || newest.wait_changed()
    });
    let since = Instant::now();
    drop(home);
    let is_lost =
        |error: &RemoteRecvError| matches!(error, RemoteRecvError::PeerLost(lost) if !lost.in_doubt);
    let error = news.recv().unwrap_err();
    let known = since.elapsed();
    assert!(is_lost(&error), "{error}");
    assert!(known < LONG / 2, "known after {known:?}");
    let error = waiting.join().unwrap().unwrap_err();
    assert!(is_lost(&error), "{error}");
    assert_eq!((*newest.borrow()?, late.recv()?), (7, 1));
    assert!(is_lost(&late.recv().unwrap_err()) && is_lost(&newest.has_changed().unwrap_err()));
    let error = RemoteBroadcast::<u32>::connect(&cluster, "news").unwrap_err();
    assert!(is_lost(&error), "{error}");
    Ok(())
}

#[test]
fn killed_member_leaves_events_and_channels_intact() -> Outcome {
    let first = Cluster::join(&config(0, "127.0.0.1:0"))?;
    let (event, _semaphore, _barrier, newest, sender) = publish(&first)?;
    let there = RemoteEvent::connect(&first, "event")?;
    let values = RemoteWatch::<u32>::connect(&first, "newest")?;
    let news = RemoteBroadcast::<u32>::connect(&first, "news")?;
    let (member, _) = Member::start("user", first.address());
    drop(member);
    eventually("the member is lost", || first.members().len() == 1);
    assert!(!there.is_set()?);
    there.set()?;
    assert!(event.is_set() && there.wait_timeout(DEADLINE)?);
    newest.send(8)?;
    assert_eq!(*values.wait_for(|value| *value == 8)?, 8);
    // Sends more messages than the channel keeps: no sender waits for the lost receiver.
    for message in 0..10 {
        sender.send(message)?;
        assert_eq!(news.recv()?, message);
    }
    Ok(())
}

#[test]
fn stopped_home_is_lost_to_waiters_of_all_kinds() -> Outcome {
    type Wait = Box<dyn FnOnce() -> bool + Send>;
    let (home, address) = Member::start("home", "");
    let cluster = Cluster::join(&config(1, &address))?;
    let event = RemoteEvent::connect(&cluster, "event")?;
    let permits = RemoteSemaphore::connect(&cluster, "permits")?;
    let _permit = permits.acquire()?;
    let step = RemoteBarrier::connect(&cluster, "step")?;
    let newest = RemoteWatch::<u32>::connect(&cluster, "newest")?;
    let news = RemoteBroadcast::<u32>::connect(&cluster, "news")?;
    signal(home.id(), Signal::STOP);
    eventually("the home is stopped", || threads_are(home.id(), 'T'));
    let since = Instant::now();
    let waits: [(&str, Wait); 5] = [
        ("event", Box::new(move || matches!(event.wait(), Err(NetError::PeerLost(_))))),
        ("semaphore", Box::new(move || matches!(permits.acquire(), Err(RemoteAcquireError::PeerLost(_))))),
        ("barrier", Box::new(move || matches!(step.wait(), Err(RemoteBarrierError::PeerLost(_))))),
        ("watch", Box::new(move || matches!(newest.wait_changed(), Err(RemoteRecvError::PeerLost(_))))),
        ("broadcast", Box::new(move || matches!(news.recv(), Err(RemoteRecvError::PeerLost(_))))),
    ];
    let waits = waits.map(|(name, wait)| (name, std::thread::spawn(move || (wait(), since.elapsed()))));
    for (name, wait) in waits {
        let (is_lost, known) = wait.join().unwrap();
        assert!(is_lost, "{name}");
        assert!(known < LEASE + Duration::from_secs(1), "{name}: known after {known:?}");
    }
    Ok(())
}

#[test]
fn cluster_events_end_when_the_first_rank_is_lost() -> Outcome {
    let (home, address) = Member::start("home", "");
    let cluster = Cluster::join(&config(1, &address).lease(LONG))?;
    let events = cluster.events();
    cluster.wait_for(2, DEADLINE)?;
    drop(home);
    let mut last = None;
    let end = loop {
        match events.recv_timeout(DEADLINE) {
            Ok(event) => last = Some(event),
            Err(end) => break end,
        }
    };
    assert_eq!((last, end), (Some(ClusterEvent::FirstRankLost), RecvTimeoutError::Disconnected));
    let later = cluster.events().recv_timeout(DEADLINE);
    assert_eq!(later, Err(RecvTimeoutError::Disconnected));
    Ok(())
}
