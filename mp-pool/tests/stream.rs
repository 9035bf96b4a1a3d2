//! Open-ended calls: pushes, the choice of workers, and the order of results.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use common::{DEADLINE, Gate, Random, eventually, got, in_use, join, kill, lost, stop_at};
use mp_pool::{PendingError, Pool, PushError, TaskError, TaskStream, Ticket};
use mp_reduce::Message;
use mp_spawn::Stdio;
use mp_tensor::{SharedTensor, Tensor};
use rustix::process::{Pid, Signal, kill_process};

const SOON: Duration = Duration::from_millis(20);

/// Waits for the next result. Panics if none arrives in time.
#[track_caller]
fn next<A: Message + Send, T: Message + Send>(stream: &TaskStream<A, T>) -> (Ticket, Result<T, TaskError>) {
    match stream.next_timeout(DEADLINE) {
        Ok(Some(next)) => next,
        Ok(None) => panic!("the stream is at its end: {stream:?}"),
        Err(not_yet) => panic!("not within {DEADLINE:?}: {not_yet}"),
    }
}

/// Waits for the result of a task. Panics if it does not arrive in time.
#[track_caller]
fn of<A: Message + Send, T: Message + Send>(
    stream: &TaskStream<A, T>,
    ticket: Ticket,
) -> Result<T, TaskError> {
    match stream.take_timeout(ticket, DEADLINE) {
        Ok(Some(result)) => result,
        other => panic!("not within {DEADLINE:?}: {}", other.is_err()),
    }
}

fn pid(_: u64) -> Result<u32, String> {
    Ok(std::process::id())
}

/// Stops at the gate, if any. Returns the id of this process.
fn pid_at((gate, number): (Option<Gate>, u32)) -> Result<u32, String> {
    if let Some(gate) = gate {
        gate.pass(number);
    }
    Ok(std::process::id())
}

#[test]
fn stream_results_are_taken_by_arrival_or_ticket() {
    let pool = Pool::new(2).unwrap();
    let gates = [Gate::new(), Gate::new()];
    let push = |stream: &TaskStream<(Gate, u32), u32>| {
        [0, 1].map(|i| stream.push((gates[i as usize].clone(), i)).unwrap())
    };
    let both_began = || gates.iter().for_each(|gate| _ = gate.arrived());
    let as_done = pool.stream(stop_at);
    let tickets = push(&as_done);
    assert_eq!(tickets.map(Ticket::number), [0, 1]);
    both_began();
    assert_eq!(as_done.try_next().unwrap_err().in_flight, 2);
    gates[1].open(1);
    assert_eq!(next(&as_done).0, tickets[1]);
    gates[0].open(1);
    assert_eq!(next(&as_done).0, tickets[0]);

    let in_order = pool.stream(stop_at).in_order();
    let tickets = push(&in_order);
    both_began();
    gates[1].open(1);
    eventually("the second is done", || pool.metrics().done == 3);
    assert!(in_order.next_timeout(SOON).is_err(), "the first task is not done");
    gates[0].open(1);
    assert_eq!([next(&in_order).0, next(&in_order).0], tickets);

    let by_ticket = pool.stream(stop_at);
    let tickets = push(&by_ticket);
    both_began();
    gates[1].open(1);
    assert_eq!(of(&by_ticket, tickets[1]).unwrap(), 1);
    assert!(by_ticket.take(tickets[1]).is_none(), "the result was taken");
    assert!(by_ticket.take_timeout(tickets[0], SOON).is_err());
    gates[0].open(1);
    assert_eq!(of(&by_ticket, tickets[0]).unwrap(), 0);
    assert_eq!(by_ticket.in_flight(), 0);
    drop((as_done, in_order, by_ticket));
    join(&pool);
}

/// Results that arrive together can still be taken one by one.
#[test]
fn short_tasks_share_messages_and_keep_tickets() {
    let pool = Pool::new(2).unwrap();
    let stream =
        pool.task(|x: u64| if x % 7 == 3 { Err("odd one") } else { Ok(3 * x) }).chunksize(10).stream();
    let tickets: Vec<Ticket> = (0..500).map(|x| stream.push(x).unwrap()).collect();
    let is = |ticket: Ticket, result: Result<u64, TaskError>| {
        let x = ticket.number() as u64;
        match result {
            Ok(value) => assert_eq!(value, 3 * x),
            Err(error) => assert!(x % 7 == 3 && error.to_string().contains("odd one"), "{x}: {error}"),
        }
    };
    tickets.iter().rev().step_by(3).for_each(|ticket| is(*ticket, of(&stream, *ticket)));
    stream.close();
    let mut left: BTreeSet<Ticket> = tickets.iter().rev().skip(1).step_by(3).copied().collect();
    left.extend(tickets.iter().rev().skip(2).step_by(3));
    while let Some((ticket, result)) = stream.next_timeout(DEADLINE).unwrap() {
        assert!(left.remove(&ticket), "{ticket} came twice");
        is(ticket, result);
    }
    assert!(left.is_empty(), "{left:?} never came");
    join(&pool);
}

#[test]
fn lane_stays_with_its_worker_until_it_is_busy() {
    const ROUNDS: usize = 50;
    /// Time after which an idle worker takes a task that another worker has not begun.
    const SLOW: Duration = Duration::from_millis(100);
    let pool = Pool::new(2).unwrap();
    let gate = Gate::new();
    let stream = pool.stream(pid_at);
    // Lane 0 belongs to one worker, lane 1 to the other.
    stream.push_to(0, (Some(gate.clone()), 0)).unwrap();
    let first = gate.arrived().1;
    stream.push_to(1, (None, 1)).unwrap();
    let other = next(&stream).1.unwrap();
    assert_ne!(first, other);
    // The worker of lane 0 is busy, and the other worker is idle.
    let ticket = stream.push_to(0, (None, 2)).unwrap();
    assert_eq!(of(&stream, ticket).unwrap(), other);
    gate.open(1);
    next(&stream).1.unwrap();
    // The other worker has both lanes now. While it is busy, lane 0 returns to the first worker.
    let busy = stream.push_to(1, (Some(gate.clone()), 3)).unwrap();
    assert_eq!(gate.arrived().1, other);
    let ticket = stream.push_to(0, (None, 4)).unwrap();
    assert_eq!(of(&stream, ticket).unwrap(), first);
    gate.open(1);
    of(&stream, busy).unwrap();

    let mut homes = [first, other];
    for lane in (0..2).cycle().take(2 * ROUNDS) {
        let pushed = Instant::now();
        let ticket = stream.push_to(lane as u64, (None, 5)).unwrap();
        let by = of(&stream, ticket).unwrap();
        // Only a worker that was not scheduled for that long loses a lane, permanently, to the other worker.
        assert!(by == homes[lane] || pushed.elapsed() >= SLOW, "{lane} after {:?}", pushed.elapsed());
        homes[lane] = by;
    }
    drop(stream);
    join(&pool);
}

#[test]
fn lane_of_a_killed_worker_moves_to_another() {
    for retries in [0, 1] {
        let pool = Pool::builder().processes(2).stderr(Stdio::Null).build().unwrap();
        let stream = pool.task(pid_at).retries(retries).stream();
        let gates = [Gate::new(), Gate::new()];
        let at_work = stream.push_to(3, (Some(gates[0].clone()), 0)).unwrap();
        let victim = gates[0].arrived().1;
        let elsewhere = stream.push((Some(gates[1].clone()), 1)).unwrap();
        assert_ne!(gates[1].arrived().1, victim);
        // Both workers are busy: these tasks wait for either.
        let waiting: Vec<Ticket> = (2..12).map(|i| stream.push_to(3, (None, i)).unwrap()).collect();
        kill(victim);
        eventually("the death was handled", || pool.metrics().lost + pool.metrics().retried == 1);
        gates[0].open(usize::from(retries > 0));
        for ticket in waiting {
            assert_ne!(of(&stream, ticket).unwrap(), victim);
        }
        gates[1].open(1);
        of(&stream, elsewhere).unwrap();
        match retries {
            0 => assert_eq!(lost(of(&stream, at_work)).pid, victim),
            _ => assert_ne!(of(&stream, at_work).unwrap(), victim),
        }
        let metrics = pool.metrics();
        assert_eq!(
            (metrics.lost, metrics.retried, metrics.failed),
            (1 - u64::from(retries), u64::from(retries), 0)
        );
        drop(stream);
        join(&pool);
    }
}

#[test]
fn stream_with_retries_loses_nothing_to_kills() {
    let pool = Pool::builder().processes(3).stderr(Stdio::Null).build().unwrap();
    let stream = pool.task(|x: u64| x + 1).retries(1000).max_in_flight(40).stream();
    let mut random = Random(7);
    let (mut next_task, mut seen) = (0, BTreeSet::new());
    while seen.len() < 600 {
        while next_task < 600 && stream.in_flight() < 40 {
            let lane = random.below(6);
            let pushed = if lane < 5 { stream.push_to(lane, next_task) } else { stream.push(next_task) };
            assert_eq!(pushed.unwrap().number() as u64, next_task);
            next_task += 1;
        }
        if random.below(50) == 0 {
            let victim =
                pool.pids().into_iter().find(|pid| *pid != 0).and_then(|pid| Pid::from_raw(pid as i32));
            // The process may have just ended.
            victim.into_iter().for_each(|pid| _ = kill_process(pid, Signal::KILL));
        }
        let (ticket, result) = next(&stream);
        assert_eq!(result.unwrap(), ticket.number() as u64 + 1);
        assert!(seen.insert(ticket), "{ticket} came twice");
    }
    stream.close();
    assert!(stream.next().is_none());
    join(&pool);
}

#[test]
fn failed_stream_task_affects_no_other_task() {
    let pool = Pool::builder().processes(2).stderr(Stdio::Null).build().unwrap();
    let task = |x: u32| match x {
        0 => Err("an error"),
        1 => panic!("a panic"),
        2 => std::process::abort(),
        3 => loop {
            std::thread::park();
        },
        x => {
            mp_pool::note(u64::from(x));
            Ok(x)
        }
    };
    let stream = pool.task(task).timeout(Duration::from_millis(300)).stream();
    let tickets: Vec<Ticket> = (0..8).map(|x| stream.push(x).unwrap()).collect();
    let results: Vec<_> = tickets.iter().map(|ticket| of(&stream, *ticket)).collect();
    assert!(matches!(&results[0], Err(TaskError::Raised(raised)) if raised.message == "an error"));
    assert!(matches!(&results[1], Err(TaskError::Raised(raised)) if raised.message == "a panic"));
    assert!(matches!(&results[2], Err(TaskError::WorkerLost(_))));
    assert!(matches!(&results[3], Err(TaskError::TimedOut { .. })));
    assert_eq!(results[4..].iter().map(|result| *result.as_ref().unwrap()).collect::<Vec<_>>(), [4, 5, 6, 7]);
    join(&pool);
}

fn count((gate, begun): (Gate, SharedTensor<u64>)) -> u64 {
    let before = begun.fetch_add(0, 1);
    gate.pass(0);
    before
}

#[test]
fn stream_drop_cancels_unbegun_tasks_without_waiting() {
    let pool = Pool::new(2).unwrap();
    let (gate, begun) = (Gate::new(), Tensor::zeros([1]).unwrap().share());
    let stream = pool.stream(count);
    for _ in 0..12 {
        stream.push((gate.clone(), begun.clone())).unwrap();
    }
    (0..2).for_each(|_| _ = gate.arrived());
    let cancelled = pool.metrics().cancelled;
    drop(stream);
    assert_eq!(pool.metrics().cancelled - cancelled, 10);
    // Waits only for the running tasks.
    let later = pool.map_async(|x: u64| x + 1, 0..4);
    assert!(!later.ready());
    gate.open(2);
    assert_eq!(got(later).unwrap(), [1, 2, 3, 4]);
    assert_eq!(begun.load(0), 2);
    // Results that were not taken are dropped with the stream.
    let before = in_use().0;
    let stream = pool.stream(|x: u64| Tensor::full([100_000], x));
    let ticket = stream.push(1).unwrap();
    stream.push(2).unwrap();
    drop(of(&stream, ticket).unwrap());
    eventually("the other task is done", || pool.metrics().queued + pool.metrics().running == 0);
    drop(stream);
    eventually("its result is dropped", || in_use().0 <= before);
    join(&pool);
}

#[test]
fn closed_stream_refuses_tasks_and_yields_the_rest() {
    let pool = Pool::new(1).unwrap();
    let stream = pool.stream(pid);
    let first = stream.push(1).unwrap();
    stream.close();
    for refused in
        [stream.push(2), stream.try_push(2), stream.push_to(1, 2), stream.push_timeout(2, DEADLINE)]
    {
        assert!(matches!(refused, Err(PushError::Closed(2))), "{refused:?}");
    }
    assert_eq!(next(&stream).0, first);
    assert!(stream.next().is_none() && stream.try_next().unwrap().is_none() && stream.take(first).is_none());
    // A waiting thread is woken.
    let (stream, other) = (pool.stream(pid), pool.stream(pid));
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| stream.next().is_none());
        stream.close();
        assert!(waits.join().unwrap());
    });
    // The end of the pool ends the tasks.
    let gate = Gate::new();
    let at_work = pool.apply_async(stop_at, (gate.clone(), 1));
    gate.arrived();
    let waiting = other.push(1).unwrap();
    drop(pool);
    assert!(matches!(of(&other, waiting), Err(TaskError::Terminated)));
    let late = other.push(2).unwrap();
    assert!(matches!(next(&other), (ticket, Err(TaskError::Closed { .. })) if ticket == late));
    assert!(got(at_work).is_err());
}

#[test]
fn stream_push_blocks_at_the_limit_in_flight() {
    let pool = Pool::new(1).unwrap();
    let stream = pool.task(stop_at).max_in_flight(2).stream();
    let gate = Gate::new();
    let task = |x| (gate.clone(), x);
    stream.push(task(0)).unwrap();
    stream.push(task(1)).unwrap();
    assert!(matches!(stream.try_push(task(2)), Err(PushError::Full((_, 2)))));
    assert!(matches!(stream.push_timeout(task(2), SOON), Err(PushError::Full((_, 2)))));
    gate.open(9);
    eventually("both tasks are done", || pool.metrics().done == 2);
    assert!(
        matches!(stream.try_push_to(0, task(2)), Err(PushError::Full(_))),
        "their results were not taken"
    );
    std::thread::scope(|scope| {
        let pushes =
            scope.spawn(|| (2..6).map(|x| stream.push(task(x)).unwrap().number()).collect::<Vec<_>>());
        for x in 0..6 {
            assert!(stream.in_flight() <= 2, "{stream:?}");
            assert_eq!(next(&stream).1.unwrap(), x);
        }
        assert_eq!(pushes.join().unwrap(), [2, 3, 4, 5]);
    });
    // The limit of a bounded pool is separate.
    let pool = Pool::builder().processes(1).max_waiting(1).build().unwrap();
    let stream = pool.stream(stop_at);
    let gate = Gate::new();
    stream.push((gate.clone(), 7)).unwrap();
    assert!(matches!(stream.try_push((gate.clone(), 8)), Err(PushError::Full((_, 8)))));
    assert!(matches!(stream.push_timeout((gate.clone(), 8), SOON), Err(PushError::Full((_, 8)))));
    assert_eq!(stream.in_flight(), 1, "nothing was pushed");
    gate.open(1);
    assert_eq!(next(&stream).1.unwrap(), 7);
}

#[test]
fn streams_and_calls_share_a_pool_across_threads() {
    fn is_shared<T: Send + Sync + 'static>(_: &T) {}
    let pool = Pool::new(2).unwrap();
    let [double, triple] = [pool.stream(|x: u64| 2 * x), pool.stream(|x: u64| 3 * x)];
    is_shared(&double);
    let run = |stream: TaskStream<u64, u64>, factor: u64| {
        std::thread::spawn(move || {
            let mut results = BTreeMap::new();
            for x in 0..300 {
                stream.push_to(x % 3, x).unwrap();
            }
            stream.close();
            while let Some((ticket, result)) = stream.next_timeout(DEADLINE).unwrap() {
                results.insert(ticket.number() as u64, result.unwrap());
            }
            assert!(results.into_iter().eq((0..300).map(|x| (x, factor * x))));
        })
    };
    let threads = [run(double, 2), run(triple, 3)];
    for _ in 0..20 {
        assert!(got(pool.map_async(|x: u64| x + 1, 0..50)).unwrap().into_iter().eq(1..51));
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    join(&pool);
}

#[test]
fn worker_state_stays_with_its_lane() {
    let pool = Pool::with_state(2, BTreeMap::<u64, u64>::new).unwrap();
    let stream = pool.stream(|seen: &mut BTreeMap<u64, u64>, lane: u64| {
        let times = seen.entry(lane).or_default();
        *times += 1;
        Ok::<_, String>(*times)
    });
    let mut most = 0;
    for _ in 0..30 {
        for lane in 0..4 {
            let ticket = stream.push_to(lane, lane).unwrap();
            most = most.max(of(&stream, ticket).unwrap());
        }
    }
    assert!(most >= 20, "{most}");
    drop(stream);
    pool.join().unwrap();
}

#[test]
fn ticket_of_another_stream_is_refused() {
    let pools = [Pool::new(1).unwrap(), Pool::new(1).unwrap()];
    let streams = [&pools[0], &pools[0], &pools[1]].map(|pool| pool.stream(|x: u64| x + 1));
    let tickets: Vec<Ticket> = (0..3).map(|x| streams[x].push(x as u64).unwrap()).collect();
    assert!(tickets.iter().all(|ticket| ticket.number() == 0) && tickets[0] != tickets[1]);
    for (stream, others) in [(0, [1, 2]), (1, [0, 2]), (2, [0, 1])] {
        for other in others {
            assert!(streams[stream].take(tickets[other]).is_none());
            let mut context = Context::from_waker(Waker::noop());
            let taken = pin!(streams[stream].take_async(tickets[other])).poll(&mut context);
            assert!(matches!(taken, Poll::Ready(None)));
        }
    }
    (0..3).for_each(|x| assert_eq!(of(&streams[x], tickets[x]).unwrap(), x as u64 + 1));
    drop(streams);
    pools.iter().for_each(join);
}

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Polls a pending future, calls `what`, which must wake the future, and polls the future again.
#[track_caller]
fn woken_by<F: Future>(future: F, what: impl FnOnce()) -> F::Output {
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    let (mut future, mut context) = (pin!(future), Context::from_waker(&waker));
    assert!(future.as_mut().poll(&mut context).is_pending(), "the future waits");
    what();
    loop {
        eventually("the future is woken", || woken.0.swap(false, Ordering::SeqCst));
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return value;
        }
    }
}

#[test]
fn stream_futures_wait_for_room_and_results() {
    let pool = Pool::new(1).unwrap();
    let stream = pool.task(stop_at).max_in_flight(1).stream();
    let gate = Gate::new();
    let first = stream.push((gate.clone(), 1)).unwrap();
    let (ticket, result) = woken_by(stream.next_async(), || gate.open(1)).unwrap();
    assert_eq!((ticket, result.unwrap()), (first, 1));
    let second = stream.push((gate.clone(), 2)).unwrap();
    gate.open(1);
    eventually("the second task is done", || pool.metrics().done == 2);
    let third =
        woken_by(stream.push_async((gate.clone(), 3)), || assert_eq!(of(&stream, second).unwrap(), 2));
    let third = third.unwrap();
    assert_eq!(woken_by(stream.take_async(third), || gate.open(1)).unwrap().unwrap(), 3);
    // A dropped future has pushed nothing, and taken nothing.
    let fourth = stream.push((gate.clone(), 4)).unwrap();
    let mut context = Context::from_waker(Waker::noop());
    assert!(pin!(stream.push_to_async(1, (gate.clone(), 5))).poll(&mut context).is_pending());
    assert!(pin!(stream.next_async()).poll(&mut context).is_pending());
    assert_eq!(stream.in_flight(), 1);
    // After the close, no push waits for room, and the stream ends after the last result.
    let refused = woken_by(stream.push_async((gate.clone(), 6)), || stream.close());
    assert!(matches!(refused, Err(PushError::Closed((_, 6)))));
    let end = woken_by(stream.next_async(), || {
        gate.open(1);
        assert_eq!(of(&stream, fourth).unwrap(), 4);
    });
    assert!(end.is_none());
}

#[test]
fn stream_errors_name_a_remedy() {
    let full = PushError::Full(1).to_string();
    assert!(full.contains("take results") && full.contains("Call::max_in_flight"), "{full}");
    assert!(PushError::Closed(1).to_string().contains("closed"));
    let pool = Pool::new(1).unwrap();
    let stream = pool.stream(pid);
    let not_yet: PendingError = stream.try_next().unwrap_err();
    assert!(not_yet.to_string().contains("in flight: 0 tasks"), "{not_yet}");
    assert_eq!(format!("{stream:?}"), "TaskStream(0 of 0 tasks done, 0 in flight)");
    assert_eq!(PushError::Full(5).into_args(), 5);
}
