//! Lanes, cancellations, large results and a changing number of workers, with pools of other members of a
//! cluster.
#![cfg(feature = "net")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::time::{Duration, Instant};

use common::hosts::{
    Log, WORKERS, config, counted, first, ready, serve_until_told, slow_rank, start, two_members,
};
use common::{DEADLINE, Gate, alive, eventually, got, signal, stop_at};
use mp_net::Cluster;
use mp_pool::{MapResult, Pool, ServedPool, TaskError};
use mp_spawn::closure;
use mp_tensor::{FrozenTensor, Tensor};
use rustix::process::Signal;

type Outcome = Result<(), Box<dyn Error + Send + Sync>>;

#[test]
#[ignore = "the program of the members that other tests start"]
fn started_member() {
    serve_until_told();
}

#[test]
fn large_task_results_travel_one_by_one() -> Outcome {
    let cluster = Cluster::join(&config(0, "127.0.0.1:0").largest_message(100_000))?;
    let second = Cluster::join(&config(1, cluster.address()))?;
    let there = Pool::new(WORKERS)?;
    let served = there.serve(&second)?;
    let pool = Pool::builder().processes(1).cluster(&cluster).build()?;
    ready(&pool, 1 + WORKERS);
    let texts = pool.task(|x: u64| (slow_rank(x), "x".repeat(30_000)).1).chunksize(10);
    assert!(got(texts.map_async(0..60))?.iter().all(|text| text.len() == 30_000));
    assert!(there.metrics().done > 0);
    let large = |x: u64| (slow_rank(x), "x".repeat(if x.is_multiple_of(2) { 200_000 } else { 10 })).1;
    let results = pool.task(large).chunksize(6).map_async(0..36).results();
    let mut refused = 0;
    for (x, result) in results.into_iter().enumerate() {
        match result {
            Ok(text) => assert_eq!(text.len(), if x.is_multiple_of(2) { 200_000 } else { 10 }),
            Err(TaskError::Value { why, .. }) => {
                assert!(x.is_multiple_of(2) && why.contains("largest_message"), "{x}: {why}");
                refused += 1;
            }
            Err(other) => panic!("{other}"),
        }
    }
    assert!(refused > 0, "the second member runs some tasks");
    // A closure that is too large for the third member: the error names the function.
    let captured = vec![1_u8; 300_000];
    let closure = closure!([captured] |x: u64| (slow_rank(x), captured.len()).1);
    let third = Cluster::join(&config(2, cluster.address()).largest_message(100_000))?;
    let small = Pool::new(1)?;
    let also_served = small.serve(&third)?;
    ready(&pool, 2 + WORKERS);
    let results = pool.task_closure(closure).map_async(0..40).results();
    let refused = results.into_iter().find_map(Result::err).expect("the third member refuses the closure");
    assert!(
        matches!(&refused, TaskError::Arguments { why, .. } if why.contains("the function")),
        "{refused}"
    );
    drop((served, also_served));
    Ok(())
}

/// Each reply has room for one result. Neither two short texts fit, nor a short text and a long one, which is
/// sent in a block.
#[test]
fn task_with_a_large_result_runs_once() -> Outcome {
    const SIZES: [usize; 3] = [15_000, 15_000, 17_000];
    let cluster = Cluster::join(&config(0, "127.0.0.1:0").largest_message(30_000))?;
    let second = Cluster::join(&config(1, cluster.address()))?;
    let there = Pool::new(WORKERS)?;
    let served = there.serve(&second)?;
    let pool = Pool::builder().processes(1).cluster(&cluster).build()?;
    ready(&pool, 1 + WORKERS);
    let log = Log::new("large");
    let to_log = log.clone();
    // Each task takes longer than a worker holds back a result to send it with the next one.
    let text = closure!([to_log] |x: u64| {
        to_log.write();
        (slow_rank(x), "x".repeat(SIZES[x as usize % 3])).1
    });
    let texts = got(pool.task_closure(text).chunksize(9).map_async(0..54))?;
    assert!(texts.iter().enumerate().all(|(x, text)| text.len() == SIZES[x % 3]));
    assert_eq!(log.len(), 54, "each task runs once");
    assert!(there.metrics().done > 9);
    log.remove();
    drop(served);
    Ok(())
}

/// The first reply has room for the result alone. The error is too large for a reply, but its task has ended.
#[test]
fn task_with_a_too_large_error_runs_once() -> Outcome {
    let cluster = Cluster::join(&config(0, "127.0.0.1:0").largest_message(100_000))?;
    let second = Cluster::join(&config(1, cluster.address()))?;
    let there = Pool::new(1)?;
    let served = there.serve(&second)?;
    let pool = Pool::builder().processes(1).cluster(&cluster).build()?;
    ready(&pool, 2);
    let log = Log::new("large-error");
    let to_log = log.clone();
    let fails = closure!([to_log] |x: u64| {
        to_log.write();
        slow_rank(x);
        match x % 2 {
            0 => Ok("x".repeat(35_000)),
            _ => Err("y".repeat(60_000)),
        }
    });
    let results = pool.task_closure(fails).chunksize(2).map_async(0..40).results();
    assert_eq!(log.len(), 40, "each task runs once");
    assert!(results.iter().enumerate().all(|(x, result)| result.is_ok() == x.is_multiple_of(2)));
    let too_large = |result: &Result<String, TaskError>| match result {
        Err(TaskError::Value { why, .. }) => why.contains("largest_message"),
        _ => false,
    };
    assert!(results.iter().any(too_large), "{:?}", results.iter().find(|result| result.is_err()));
    log.remove();
    drop(served);
    Ok(())
}

/// A forwarder that is stopped for longer than the lease gets a new session. The served pool stores the
/// outcomes of its chunk, also outcomes that do not fit into one reply.
#[test]
fn task_runs_once_after_a_stop_of_its_forwarder() -> Outcome {
    let lease = Duration::from_millis(200);
    let cluster = Cluster::join(&config(0, "127.0.0.1:0").lease(lease).largest_message(30_000))?;
    let second = Cluster::join(&config(1, cluster.address()).lease(lease))?;
    let there = Pool::new(WORKERS)?;
    let served = there.serve(&second)?;
    let pool = Pool::builder().processes(1).cluster(&cluster).build()?;
    ready(&pool, 1 + WORKERS);
    let log = Log::new("stopped");
    // In the last round, a chunk takes longer than the session of its stopped forwarder.
    for (round, chunk) in [(1, 9), (2, 9), (3, 30)] {
        let to_log = log.clone();
        let text = closure!([to_log] |x: u64| {
            to_log.write();
            (slow_rank(x), "x".repeat(15_000)).1
        });
        let (before, done) = (log.len(), there.metrics().done);
        let call = pool.task_closure(text).chunksize(chunk).map_async(0..90);
        if round > 1 {
            eventually("the served pool runs tasks", || there.metrics().done > done);
            let pids = pool.pids();
            pids.iter().for_each(|pid| signal(*pid, Signal::STOP));
            // sleep: the duration of the stop. The end of a session in the served pool can't be observed.
            std::thread::sleep(Duration::from_secs(1));
            pids.iter().for_each(|pid| signal(*pid, Signal::CONT));
        }
        assert!(got(call)?.iter().all(|text| text.len() == 15_000));
        assert_eq!(log.len() - before, 90, "each task runs once");
    }
    log.remove();
    drop(served);
    Ok(())
}

/// The tasks of a served pool continue while its process is stopped.
#[test]
fn task_runs_once_after_a_silence_of_its_host() -> Outcome {
    let (lease, grace) = (Duration::from_millis(500), Duration::from_millis(2500));
    let cluster = Cluster::join(&config(0, "127.0.0.1:0").lease(lease).grace(grace))?;
    let member = start(1, &cluster);
    let pool = Pool::builder().processes(1).cluster(&cluster).build()?;
    ready(&pool, 1 + WORKERS);
    let log = Log::new("silent");
    let to_log = log.clone();
    let task = closure!([to_log] |x: u64| {
        to_log.write();
        slow_rank(x)
    });
    let call = pool.task_closure(task).chunksize(30).map_async(0..90);
    eventually("all workers run tasks", || log.len() > 15);
    signal(member.id(), Signal::STOP);
    // sleep: the duration of the silence.
    std::thread::sleep(lease + grace + Duration::from_secs(1));
    signal(member.id(), Signal::CONT);
    assert!(counted(&got(call)?).contains_key(&1));
    assert_eq!(log.len(), 90, "each task runs once");
    log.remove();
    drop(member);
    Ok(())
}

/// The served pool cancels the tasks when the sessions of their forwarders are lost.
#[test]
fn tensor_task_of_a_lost_session_runs_elsewhere() -> Outcome {
    let lease = Duration::from_millis(200);
    let cluster = Cluster::join(&config(0, "127.0.0.1:0").lease(lease))?;
    let second = Cluster::join(&config(1, cluster.address()).lease(lease))?;
    let there = Pool::new(WORKERS)?;
    let served = there.serve(&second)?;
    let gate = Gate::new();
    let busy = there.map_async(stop_at, (0..WORKERS as u32).map(|number| (gate.clone(), number)));
    (0..WORKERS).for_each(|_| _ = gate.arrived());
    let pool = Pool::builder().processes(1).cluster(&cluster).build()?;
    ready(&pool, 1 + WORKERS);
    let table = Tensor::full([100], 1.5_f32)?.freeze();
    let sum = pool.task(|x: FrozenTensor<f32>| (slow_rank(0), x.iter().sum::<f32>()).1);
    let sums = sum.map_async((0..10).map(|_| table.clone()));
    eventually("the served pool has tasks", || there.metrics().queued == WORKERS);
    let pids = pool.pids();
    pids.iter().for_each(|pid| signal(*pid, Signal::STOP));
    eventually("the served pool drops the tasks", || there.metrics().cancelled == WORKERS as u64);
    pids.iter().for_each(|pid| signal(*pid, Signal::CONT));
    gate.open(WORKERS);
    got(busy)?;
    assert_eq!(got(sums)?, [150.0; 10]);
    drop(served);
    Ok(())
}

/// The results are larger than the buffers of a connection, so a stopped forwarder does not receive them.
#[test]
fn tensor_task_whose_result_is_lost_runs_again() -> Outcome {
    const LEN: usize = 32 << 20;
    let lease = Duration::from_millis(200);
    let cluster = Cluster::join(&config(0, "127.0.0.1:0").lease(lease))?;
    let second = Cluster::join(&config(1, cluster.address()).lease(lease))?;
    let there = Pool::new(WORKERS)?;
    let served = there.serve(&second)?;
    let pool = Pool::builder().processes(1).cluster(&cluster).build()?;
    ready(&pool, 1 + WORKERS);
    let (begun, go) = (Log::new("begun"), Log::new("go"));
    let (to_begun, gate) = (begun.clone(), go.clone());
    let task = closure!([to_begun, gate] |x: FrozenTensor<u8>| {
        to_begun.write();
        eventually("the gate is open", || gate.len() > 0);
        (x.len(), Tensor::<u8>::zeros([LEN]).unwrap().freeze())
    });
    let table = Tensor::<u8>::zeros([100])?.freeze();
    let call = pool.task_closure(task).map_async((0..6).map(|_| table.clone()));
    eventually("all workers run tasks", || begun.len() == 1 + WORKERS);
    let pids = pool.pids();
    pids.iter().for_each(|pid| signal(*pid, Signal::STOP));
    go.write();
    eventually("the served pool has results", || there.metrics().done == WORKERS as u64);
    // sleep: the duration of the stop. The end of a session in the served pool can't be observed.
    std::thread::sleep(Duration::from_secs(1));
    pids.iter().for_each(|pid| signal(*pid, Signal::CONT));
    assert!(got(call)?.iter().all(|(len, result)| *len == 100 && result.len() == LEN));
    assert!(begun.len() > 6, "a task runs again");
    begun.remove();
    go.remove();
    drop(served);
    Ok(())
}

/// Returns its argument, and the rank and process in which it runs.
fn located(lane: u64) -> (u64, (usize, u32)) {
    (lane, (slow_rank(lane), std::process::id()))
}

#[test]
fn lane_stays_in_a_process_of_another_host() -> Outcome {
    let cluster = first();
    let member = start(1, &cluster);
    let pool = Pool::builder().processes(1).cluster(&cluster).build()?;
    ready(&pool, 1 + WORKERS);
    let stream = pool.task(located).stream();
    let next = || stream.next().unwrap().1;
    let mut lanes = Vec::new();
    eventually("lanes stay in their processes", || {
        // All workers are busy, so each runs some lanes.
        (0..9).try_for_each(|lane| stream.push_to(lane, lane).map(drop)).unwrap();
        let mut places = (0..9).map(|_| next()).collect::<Result<BTreeMap<_, _>, _>>().unwrap();
        places.retain(|_, (rank, _)| *rank == 1);
        lanes = places.keys().copied().collect();
        let processes: BTreeSet<u32> = places.values().map(|(_, pid)| *pid).collect();
        // One task at a time, so that all workers are free. On a busy machine, a worker may still lose a task
        // that it does not take in time.
        let stays = |lane: &u64| {
            stream.push_to(*lane, *lane).unwrap();
            next().unwrap() == (*lane, places[lane])
        };
        processes.len() == WORKERS && lanes.iter().cycle().take(4 * lanes.len()).all(stays)
    });
    drop(member);
    for lane in lanes {
        stream.push_to(lane, lane)?;
        assert_eq!(next()?.1.0, 0);
    }
    Ok(())
}

#[test]
fn resize_of_a_served_pool_is_followed() -> Outcome {
    let (cluster, second, there) = two_members(Pool::builder().processes(1));
    let served = there.serve(&second)?;
    let pool = Pool::builder().processes(1).cluster(&cluster).build()?;
    ready(&pool, 2);
    for workers in [3, 2, 4, 1] {
        let call = pool.map_async(slow_rank, 0..100);
        there.resize(workers)?;
        let since = Instant::now();
        eventually("the pool follows", || pool.processes() == 1 + workers);
        assert!(since.elapsed() < Duration::from_secs(5), "{:?}", since.elapsed());
        assert_eq!(got(call)?, [0; 100], "no task is lost");
        ready(&pool, 1 + workers);
        eventually("all workers of the served pool are used", || {
            let places = got(pool.map_async(located, 0..60)).unwrap();
            let used: BTreeSet<u32> = places.into_iter().map(|(_, (_, pid))| pid).collect();
            there.pids().len() == workers && there.pids().iter().all(|pid| used.contains(pid))
        });
    }
    let pids = pool.pids();
    got(pool.map_async(slow_rank, 0..100))?;
    assert_eq!(pool.pids(), pids, "no removed worker is tried again");
    there.terminate();
    ready(&pool, 1);
    drop(served);
    Ok(())
}

/// Waits for a call. Returns the numbers of tasks that were done in each rank, and that were cancelled.
fn done_and_cancelled(call: MapResult<usize>) -> (BTreeMap<usize, usize>, usize) {
    assert!(call.wait_timeout(DEADLINE));
    let (mut ranks, mut cancelled) = (Vec::new(), 0);
    for result in call.results() {
        match result {
            Ok(rank) => ranks.push(rank),
            Err(TaskError::Cancelled) => cancelled += 1,
            Err(other) => panic!("{other}"),
        }
    }
    (counted(&ranks), cancelled)
}

#[test]
fn cancelled_chunk_stops_on_another_host() -> Outcome {
    let cluster = first();
    let member = start(1, &cluster);
    let pool = Pool::builder().processes(1).cluster(&cluster).build()?;
    ready(&pool, 1 + WORKERS);
    let log = Log::new("cancelled");
    let to_log = log.clone();
    let task = closure!([to_log] |x: u64| {
        let rank = slow_rank(x);
        if rank == 1 {
            to_log.write();
        }
        rank
    });
    // One chunk for each worker.
    let call = pool.task_closure(task).chunksize(500).map_async(0..1500);
    eventually("the other host runs tasks", || log.len() > 4);
    let counted_first = call.cancel();
    assert!(call.wait_timeout(DEADLINE));
    let counted = counted_first + call.cancel();
    let (ranks, cancelled) = done_and_cancelled(call);
    assert_eq!(counted, cancelled);
    assert!(cancelled > 1000, "{cancelled} of 1500");
    assert_eq!(ranks.get(&1).copied(), Some(log.len()), "executed tasks have results");
    let done = log.len();
    assert_eq!(got(pool.map_async(slow_rank, 0..30))?.len(), 30);
    assert_eq!(log.len(), done, "no task runs later");
    log.remove();
    drop(member);
    Ok(())
}

#[test]
fn cancelled_task_of_a_busy_host_never_runs() -> Outcome {
    let (cluster, second, there) = two_members(Pool::builder().processes(WORKERS));
    let served = there.serve(&second)?;
    let gate = Gate::new();
    let busy = there.map_async(stop_at, (0..WORKERS as u32).map(|number| (gate.clone(), number)));
    (0..WORKERS).for_each(|_| _ = gate.arrived());
    let pool = Pool::builder().processes(1).cluster(&cluster).build()?;
    ready(&pool, 1 + WORKERS);
    let call = pool.task(slow_rank).chunksize(1).map_async(0..40);
    eventually("other tasks are done", || call.progress().done >= 40 - 2 * WORKERS);
    let counted_first = call.cancel();
    assert!(call.wait_timeout(DEADLINE), "the tasks end while the workers are busy");
    let counted = counted_first + call.cancel();
    let (_, cancelled) = done_and_cancelled(call);
    assert!(counted == cancelled && cancelled >= WORKERS, "{counted} {cancelled}");
    gate.open(WORKERS);
    got(busy)?;
    assert_eq!(there.metrics().done, WORKERS as u64);
    drop(served);
    Ok(())
}

#[test]
fn cancelled_pool_call_ends_on_other_hosts() -> Outcome {
    let cluster = first();
    let member = start(1, &cluster);
    let pool = Pool::builder().processes(1).cluster(&cluster).build()?;
    ready(&pool, 1 + WORKERS);
    let call = pool.map_async(slow_rank, 0..10_000);
    eventually("tasks are done", || call.progress().done > 10);
    assert!(call.cancel() > 9000);
    eventually("the call ends", || call.progress().done == 10_000);
    let stream = pool.task(slow_rank).stream();
    for x in 0..30 {
        stream.push(x)?;
    }
    stream.close();
    assert_eq!(std::iter::from_fn(|| stream.next()).filter(|(_, rank)| rank.is_ok()).count(), 30);
    let pids = pool.pids();
    drop(pool);
    assert!(pids.iter().all(|pid| !alive(*pid)));
    drop(member);
    Ok(())
}

/// Cancels a call whose chunks run in a served pool, after `stop` has ended the service.
fn cancel_after<T>(stop: impl FnOnce(&Pool, ServedPool) -> T) -> Outcome {
    let (cluster, second, there) = two_members(Pool::builder().processes(WORKERS));
    let served = there.serve(&second)?;
    let pool = Pool::builder().processes(1).cluster(&cluster).build()?;
    ready(&pool, 1 + WORKERS);
    // One chunk for each worker.
    let call = pool.task(slow_rank).chunksize(500).map_async(0..1500);
    eventually("the served pool runs tasks", || there.metrics().done > 4);
    let stopped = stop(&there, served);
    eventually("the pool is not used", || pool.processes() == 1);
    call.cancel();
    let (_, cancelled) = done_and_cancelled(call);
    assert!(cancelled > 1000, "{cancelled} of 1500");
    assert!(there.metrics().cancelled > 500, "{:?}", there.metrics());
    drop(stopped);
    Ok(())
}

#[test]
fn cancelled_chunk_stops_in_a_closed_pool() -> Outcome {
    cancel_after(|there, served| {
        there.close();
        served
    })
}

#[test]
fn cancelled_chunk_stops_in_a_withdrawn_pool() -> Outcome {
    cancel_after(|_, served| drop(served))
}
