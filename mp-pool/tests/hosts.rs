//! Pools whose tasks run in the pools of other members of a cluster. Each member is a process with an arena
//! of its own, like a program on another host.
#![cfg(feature = "net")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use common::{DEADLINE, Gate, got, stop_at};
use mp_harness::{alive, eventually};
use mp_net::{Cluster, ClusterConfig};
use mp_pool::{MapResult, Pool, PoolBuilder, PoolError, ServedPool, TaskError};
use mp_queue::Queue;
use mp_spawn::closure;
use mp_tensor::{FrozenTensor, Tensor};

type Outcome = Result<(), Box<dyn Error + Send + Sync>>;

/// Number of workers of a member.
const WORKERS: usize = 2;

fn config(rank: usize, first: &str) -> ClusterConfig {
    let config = ClusterConfig::new(rank, 3, first).lease(Duration::from_secs(2));
    config.timeout(Duration::from_secs(20))
}

/// Starts a member with a served pool.
fn start(rank: usize, cluster: &Cluster) -> Member {
    Member::start(&rank.to_string(), cluster.address()).0
}

fn served(cluster: &Cluster) -> (Pool, ServedPool) {
    let pool = Pool::builder().processes(WORKERS).build().unwrap();
    let served = pool.serve(cluster).unwrap();
    (pool, served)
}

#[test]
#[ignore = "the program of the members that other tests start"]
fn started_member() {
    let cluster = Cluster::join(&config(rank(0), &argument())).unwrap();
    let (pool, served) = served(&cluster);
    members::ready("it serves");
    wait_for_end();
    drop(served);
    pool.join().unwrap();
    cluster.leave().unwrap();
}

fn first() -> Cluster {
    Cluster::join(&config(0, "127.0.0.1:0")).unwrap()
}

/// Returns the rank of the member in whose worker it runs.
fn rank(_: u64) -> usize {
    part().map_or(0, |rank| rank.parse().unwrap())
}

/// Like [`rank`], for a task that takes longer than its way.
fn slow_rank(x: u64) -> usize {
    // sleep: the duration of the task, for which all workers are needed.
    std::thread::sleep(Duration::from_millis(20));
    rank(x)
}

fn counted(ranks: &[usize]) -> BTreeMap<usize, usize> {
    let mut counts = BTreeMap::new();
    ranks.iter().for_each(|rank| *counts.entry(*rank).or_default() += 1);
    counts
}

/// Waits until the pool has this number of ready workers.
fn ready(pool: &Pool, workers: usize) {
    let is_ready = || pool.metrics().workers.iter().filter(|worker| worker.pid != 0).count() == workers;
    eventually("the workers are ready", || {
        pool.processes() == workers && is_ready() && !pool.pids().contains(&0)
    });
}

#[test]
fn tasks_run_on_all_hosts() -> Outcome {
    let cluster = first();
    let members = [start(1, &cluster), start(2, &cluster)];
    let pool = Pool::builder().processes(1).cluster(&cluster).build()?;
    ready(&pool, 1 + 2 * WORKERS);
    let ranks = got(pool.map_async(slow_rank, 0..100))?;
    let counts = counted(&ranks);
    assert!(counts.len() == 3 && counts.values().all(|tasks| *tasks >= 10), "{counts:?}");
    let squares: Vec<u64> = (0..50_000).map(|x| x * x).collect();
    assert_eq!(got(pool.map_async(|x: u64| x * x, 0..50_000))?, squares);
    assert_eq!(pool.imap(|x: u64| x * x, 0..50_000).collect::<Result<Vec<_>, _>>()?, squares);
    let texts = got(pool.task(|x: u64| "x".repeat(x as usize)).chunksize(7).map_async(0..100))?;
    assert!(texts.iter().enumerate().all(|(x, text)| text.len() == x));
    drop(members);
    Ok(())
}

#[test]
fn tensors_and_captures_travel_to_other_hosts() -> Outcome {
    let cluster = first();
    let member = start(1, &cluster);
    let pool = Pool::builder().processes(1).cluster(&cluster).build()?;
    ready(&pool, 1 + WORKERS);
    let add = |(x, by): (FrozenTensor<f32>, f32)| {
        let sum: Vec<f32> = x.iter().map(|x| x + by).collect();
        (slow_rank(0), Tensor::from_slice(&sum, [sum.len()]).unwrap().freeze())
    };
    let table = Tensor::full([3000], 1.5_f32)?.freeze();
    let sums = got(pool.map_async(add, (0..20).map(|by| (table.clone(), by as f32))))?;
    for (by, (_, sum)) in sums.iter().enumerate() {
        assert!(sum.len() == 3000 && sum.iter().all(|x| x == 1.5 + by as f32), "{by}");
    }
    assert_eq!(counted(&sums.iter().map(|(rank, _)| *rank).collect::<Vec<_>>()).len(), 2);
    // Several results with attachments in one chunk.
    let call = pool.task(add).chunksize(5);
    let sums = got(call.map_async((0..20).map(|by| (table.clone(), by as f32))))?;
    assert!(sums.iter().enumerate().all(|(by, (_, sum))| sum.iter().all(|x| x == 1.5 + by as f32)));
    let pairs = pool.task(|x: u64| (slow_rank(x), Tensor::full([10], x as f32).unwrap().freeze()));
    let pairs = got(pairs.chunksize(5).map_async(0..40))?;
    assert!(pairs.iter().enumerate().all(|(x, (_, t))| t.iter().all(|y| y == x as f32)));
    assert_eq!(counted(&pairs.iter().map(|(rank, _)| *rank).collect::<Vec<_>>()).len(), 2);
    let scaled = closure!([table] |x: u64| (slow_rank(x), table.iter().sum::<f32>() as u64 + x));
    let scaled = got(pool.task_closure(scaled).map_async(0..20))?;
    assert!(scaled.iter().enumerate().all(|(x, (_, sum))| *sum == 4500 + x as u64));
    assert_eq!(counted(&scaled.iter().map(|(rank, _)| *rank).collect::<Vec<_>>()).len(), 2);
    drop(member);
    Ok(())
}

#[test]
fn failures_on_other_hosts_are_reported() -> Outcome {
    let cluster = first();
    let member = start(1, &cluster);
    let pool = Pool::builder().processes(1).cluster(&cluster).build()?;
    ready(&pool, 1 + WORKERS);
    let fails = |x: u64| {
        if slow_rank(x) == 0 { Ok(x) } else { Err(format!("{x} is not for rank 1")) }
    };
    let results = pool.map_async(fails, 0..20).results();
    let mut raised = 0;
    for (x, result) in results.into_iter().enumerate() {
        match result {
            Ok(y) => assert_eq!(x as u64, y),
            Err(TaskError::Raised(error)) => {
                assert_eq!(error.message, format!("{x} is not for rank 1"));
                raised += 1;
            }
            Err(other) => panic!("{other}"),
        }
    }
    assert!(raised > 0);

    let aborts = |x: u64| {
        if slow_rank(x) == 0 { x } else { std::process::abort() }
    };
    let results = pool.map_async(aborts, 0..12).results();
    let lost: Vec<_> = results.into_iter().filter_map(Result::err).collect();
    let TaskError::WorkerLost(first_lost) = lost.first().expect("some run there") else {
        panic!("{}", lost[0])
    };
    assert_eq!(first_lost.pool.as_deref(), Some("pool of rank 1"), "{first_lost}");
    // The others are tried again until they run here.
    assert_eq!(got(pool.task(aborts).retries(100).map_async(0..12))?, (0..12).collect::<Vec<_>>());

    let hangs = |x: u64| if slow_rank(x) == 0 { x } else { stop_here() };
    let call = pool.task(hangs).timeout(Duration::from_secs(1));
    let results = call.map_async(0..6).results();
    let late: Vec<_> = results.into_iter().filter_map(Result::err).collect();
    assert!(
        !late.is_empty() && late.iter().all(|error| matches!(error, TaskError::TimedOut { .. })),
        "{late:?}"
    );

    let queue = Queue::<u64>::bounded(4)?;
    let len = |(x, queue): (u64, Queue<u64>)| (slow_rank(x), queue.len());
    let results = pool.map_async(len, (0..12).map(|x| (x, queue.clone()))).results();
    let refused: Vec<_> = results.into_iter().filter_map(Result::err).collect();
    let TaskError::Arguments { why, .. } = refused.first().expect("a queue can't travel") else {
        panic!("{}", refused[0])
    };
    assert!(why.contains("host") || why.contains("leave"), "{why}");
    let shares = |x: u64| (slow_rank(x), Tensor::<f32>::zeros([4]).unwrap().share());
    let results = pool.map_async(shares, 0..12).results();
    let refused = results.into_iter().find_map(Result::err).expect("shared memory can't travel");
    assert!(matches!(refused, TaskError::Value { .. }), "{refused}");
    drop(member);
    Ok(())
}

fn stop_here() -> u64 {
    loop {
        std::thread::park();
    }
}

#[test]
fn tasks_of_a_killed_host_run_elsewhere() -> Outcome {
    let cluster = first();
    let members = [start(1, &cluster), start(2, &cluster)];
    let pool = Pool::builder().processes(1).cluster(&cluster).build()?;
    ready(&pool, 1 + 2 * WORKERS);
    let ranks = pool.map_async(slow_rank, 0..150);
    let table = Tensor::full([100], 1.5_f32)?.freeze();
    let sums = pool.task(|x: FrozenTensor<f32>| (slow_rank(0), x.iter().sum::<f32>()));
    let sums = sums.map_async((0..50).map(|_| table.clone()));
    eventually("tasks are done", || ranks.progress().done > 20);
    let [killed, other] = members;
    drop(killed);
    let counts = counted(&ranks.get()?);
    assert_eq!(counts.values().sum::<usize>(), 150);
    assert!(sums.get()?.iter().all(|(_, sum)| *sum == 150.0));
    ready(&pool, 1 + WORKERS);
    assert!(!counted(&got(pool.map_async(slow_rank, 0..40))?).contains_key(&1));
    // A rank that is started again is used again.
    let again = start(1, &cluster);
    ready(&pool, 1 + 2 * WORKERS);
    assert!(counted(&got(pool.map_async(slow_rank, 0..60))?).contains_key(&1));
    drop((again, other));
    ready(&pool, 1);
    assert_eq!(counted(&got(pool.map_async(rank, 0..10))?).len(), 1);
    Ok(())
}

#[test]
fn served_pool_ends_without_an_error() -> Outcome {
    let cluster = first();
    let member = start(1, &cluster);
    let pool = Pool::builder().processes(1).cluster(&cluster).build()?;
    ready(&pool, 1 + WORKERS);
    let ranks = pool.map_async(slow_rank, 0..100);
    eventually("tasks are done", || ranks.progress().done > 10);
    member.end();
    assert_eq!(counted(&ranks.get()?).len(), 2);
    ready(&pool, 1);
    Ok(())
}

/// Returns two members of one process, with a pool of the second one.
fn two_members(builder: PoolBuilder) -> (Cluster, Cluster, Pool) {
    let cluster = first();
    let second = Cluster::join(&config(1, cluster.address())).unwrap();
    (cluster, second, builder.build().unwrap())
}

#[test]
fn pool_that_is_served_again_is_used_again() -> Outcome {
    let (cluster, second, there) = two_members(Pool::builder().processes(WORKERS));
    let served = there.serve(&second)?;
    let pool = Pool::builder().processes(1).cluster(&cluster).build()?;
    ready(&pool, 1 + WORKERS);
    drop(served);
    let served = there.serve(&second)?;
    let answers = || {
        let done = there.metrics().done;
        got(pool.map_async(slow_rank, 0..20)).unwrap();
        there.metrics().done > done
    };
    eventually("the pool that is served again gets tasks", answers);
    // A pool that has ended, and is still published.
    there.terminate();
    served.wait();
    assert_eq!(got(pool.map_async(rank, 0..100))?, [0; 100]);
    let tensors = pool.task(|x: FrozenTensor<f32>| x.len()).retries(3);
    let table = Tensor::full([100], 1.5_f32)?.freeze();
    assert_eq!(got(tensors.map_async((0..30).map(|_| table.clone())))?, [100; 30]);
    drop(served);
    ready(&pool, 1);
    Ok(())
}

#[test]
fn large_results_travel_one_by_one() -> Outcome {
    let cluster = Cluster::join(&config(0, "127.0.0.1:0").largest_message(100_000))?;
    let second = Cluster::join(&config(1, cluster.address()))?;
    let there = Pool::new(WORKERS)?;
    let served = there.serve(&second)?;
    let pool = Pool::builder().processes(1).cluster(&cluster).build()?;
    ready(&pool, 1 + WORKERS);
    let texts = pool.task(|x: u64| (slow_rank(x), "x".repeat(30_000)).1).chunksize(10);
    assert!(got(texts.map_async(0..60))?.iter().all(|text| text.len() == 30_000));
    assert!(there.metrics().done > 0);
    // Two results don't fit into one reply. Each task writes a byte.
    let log = std::env::temp_dir().join(format!("mp-pool-hosts-{}", std::process::id()));
    let path = log.to_str().unwrap().to_owned();
    let text = closure!([path] |x: u64| {
        let mut log = std::fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
        log.write_all(b"x").unwrap();
        (slow_rank(x), "x".repeat(50_000)).1
    });
    let texts = got(pool.task_closure(text).chunksize(10).map_async(0..60))?;
    assert!(texts.iter().all(|text| text.len() == 50_000));
    assert_eq!(std::fs::metadata(&log)?.len(), 60, "each task runs once");
    std::fs::remove_file(log)?;
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
    assert!(refused > 0, "the second member makes some of them");
    // A closure that is too large for the second member, with an error that says so.
    let captured = vec![1_u8; 300_000];
    let closure = closure!([captured] |x: u64| (slow_rank(x), captured.len()).1);
    let third = Cluster::join(&config(2, cluster.address()).largest_message(100_000))?;
    let small = Pool::new(1)?;
    let also_served = small.serve(&third)?;
    ready(&pool, 2 + WORKERS);
    let results = pool.task_closure(closure).map_async(0..40).results();
    let refused = results.into_iter().find_map(Result::err).expect("the third member can't have it");
    assert!(
        matches!(&refused, TaskError::Arguments { why, .. } if why.contains("the function")),
        "{refused}"
    );
    drop((served, also_served));
    Ok(())
}

#[test]
fn closed_pool_survives_the_loss_of_a_host() -> Outcome {
    let cluster = first();
    let member = start(1, &cluster);
    let pool = Pool::builder().processes(1).cluster(&cluster).build()?;
    ready(&pool, 1 + WORKERS);
    let ranks = pool.map_async(slow_rank, 0..100);
    eventually("tasks are done", || ranks.progress().done > 10);
    pool.close();
    drop(member);
    assert_eq!(counted(&got(ranks)?).len(), 2);
    assert!(pool.join_timeout(DEADLINE)?);
    Ok(())
}

#[test]
fn pool_with_a_cluster_is_not_served() -> Outcome {
    let cluster = first();
    let pool = Pool::builder().processes(1).cluster(&cluster).build()?;
    let refused = pool.serve(&cluster).unwrap_err();
    assert!(matches!(refused, PoolError::Settings(_)), "{refused}");
    Ok(())
}

#[test]
fn workers_of_a_host_keep_their_state() -> Outcome {
    let cluster = first();
    let second = Cluster::join(&config(1, cluster.address()))?;
    let builder = || Pool::builder().processes(2).name("counts");
    let there = builder().state(|| 100_u64).build()?;
    let served = there.pool().serve(&second)?;
    let here = builder().cluster(&cluster).state(|| 0_u64).build()?;
    ready(here.pool(), 4);
    let count = |n: &mut u64, _: u64| {
        // sleep: the duration of the task, for which all workers are needed.
        std::thread::sleep(Duration::from_millis(10));
        *n += 1;
        *n
    };
    let counts = got(here.map_async(count, 0..40))?;
    assert!(counts.iter().any(|n| *n > 100) && counts.iter().any(|n| *n <= 100), "{counts:?}");
    drop(served);
    ready(here.pool(), 2);
    Ok(())
}

#[test]
fn resize_changes_the_workers_of_this_host() -> Outcome {
    let cluster = first();
    let member = start(1, &cluster);
    let pool = Pool::builder().processes(1).cluster(&cluster).build()?;
    ready(&pool, 1 + WORKERS);
    let here = |counts: BTreeMap<usize, usize>| counts.get(&0).copied().unwrap_or(0);
    pool.resize(3)?;
    ready(&pool, 3 + WORKERS);
    let there = |counts: BTreeMap<usize, usize>| counts.get(&1).copied().unwrap_or(0);
    assert!(here(counted(&got(pool.map_async(slow_rank, 0..100))?)) >= 30);
    pool.resize(1)?;
    ready(&pool, 1 + WORKERS);
    assert!(there(counted(&got(pool.map_async(slow_rank, 0..60))?)) >= 10);
    eventually("one worker is of this host", || {
        here(counted(&got(pool.map_async(slow_rank, 0..30)).unwrap())) <= 15
    });
    drop(member);
    Ok(())
}

/// Returns its argument, and the rank and process in which it runs.
fn located(lane: u64) -> (u64, (usize, u32)) {
    (lane, (slow_rank(lane), std::process::id()))
}

#[test]
fn lane_stays_in_a_process_of_another_host() -> Outcome {
    let cluster = first();
    let member = Member::start(1, &cluster);
    let pool = Pool::builder().processes(1).cluster(&cluster).build()?;
    ready(&pool, 1 + WORKERS);
    let stream = pool.task(located).stream();
    let next = || stream.next().unwrap().1;
    let mut lanes = Vec::new();
    eventually("lanes stay where they are", || {
        // All workers are busy, so each runs some lanes.
        (0..9).try_for_each(|lane| stream.push_to(lane, lane).map(drop)).unwrap();
        let mut places = (0..9).map(|_| next()).collect::<Result<BTreeMap<_, _>, _>>().unwrap();
        places.retain(|_, (rank, _)| *rank == 1);
        lanes = places.keys().copied().collect();
        let processes: BTreeSet<u32> = places.values().map(|(_, pid)| *pid).collect();
        // One task at a time, so that all workers are free. On a busy machine, one may still lose a task that
        // it does not take in time.
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
    let member = Member::start(1, &cluster);
    let pool = Pool::builder().processes(1).cluster(&cluster).build()?;
    ready(&pool, 1 + WORKERS);
    // Each task on the other host writes a byte.
    let log = std::env::temp_dir().join(format!("mp-pool-cancelled-{}", std::process::id()));
    let path = log.to_str().unwrap().to_owned();
    let task = closure!([path] |x: u64| {
        let rank = slow_rank(x);
        if rank == 1 {
            let mut log = std::fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
            log.write_all(b"x").unwrap();
        }
        rank
    });
    let written = || std::fs::metadata(&log).map_or(0, |log| log.len());
    // One chunk for each worker.
    let call = pool.task_closure(task).chunksize(500).map_async(0..1500);
    eventually("the other host runs tasks", || written() > 4);
    let counted_first = call.cancel();
    assert!(call.wait_timeout(DEADLINE));
    let counted = counted_first + call.cancel();
    let (ranks, cancelled) = done_and_cancelled(call);
    assert_eq!(counted, cancelled);
    assert!(cancelled > 1000, "{cancelled} of 1500");
    assert_eq!(ranks.get(&1).copied(), Some(written() as usize), "executed tasks have results");
    let done = written();
    assert_eq!(got(pool.map_async(slow_rank, 0..30))?.len(), 30);
    assert_eq!(written(), done, "none runs later");
    std::fs::remove_file(log)?;
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
    assert!(call.wait_timeout(DEADLINE), "they end while the workers are busy");
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
fn cancelled_call_ends_on_other_hosts() -> Outcome {
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
