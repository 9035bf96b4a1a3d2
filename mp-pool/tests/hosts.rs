//! Pools whose tasks run in the pools of other members of a cluster.
#![cfg(feature = "net")]

mod common;

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::hosts::{
    WORKERS, config, counted, first, rank, ready, serve_until_told, slow_rank, start, two_members,
};
use common::{DEADLINE, eventually, got, signal};
use mp_harness::members::Member;
use mp_harness::{OtherBuild, skip};
use mp_net::Cluster;
use mp_pool::{Pool, PoolError, TaskError};
use mp_queue::Queue;
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
fn pool_tasks_run_on_all_hosts_of_a_cluster() -> Outcome {
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
fn task_failures_on_other_hosts_are_reported() -> Outcome {
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
    let TaskError::WorkerLost(first_lost) = lost.first().expect("some tasks run on rank 1") else {
        panic!("{}", lost[0])
    };
    assert_eq!(first_lost.pool.as_deref(), Some("pool of rank 1"), "{first_lost}");
    // Lost tasks are retried until they run on this host.
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

/// A stopped process accepts connections, and does not answer.
#[test]
fn silent_host_delays_no_other_host() -> Outcome {
    let lease = Duration::from_secs(30);
    let cluster = Cluster::join(&config(0, "127.0.0.1:0").lease(lease))?;
    let (silent, other) = (start(1, &cluster), start(2, &cluster));
    signal(silent.id(), Signal::STOP);
    let since = Instant::now();
    let pool = Pool::builder().processes(1).cluster(&cluster).build()?;
    ready(&pool, 1 + WORKERS);
    assert!(since.elapsed() < lease / 3, "{:?}", since.elapsed());
    assert!(counted(&got(pool.map_async(slow_rank, 0..40))?).contains_key(&2));
    drop((silent, other));
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

#[test]
fn pool_that_is_served_again_gets_tasks_again() -> Outcome {
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
    // The pool has ended, and is still published.
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

#[test]
fn served_pool_of_another_build_is_not_used() -> Outcome {
    static IS_REPORTED: AtomicBool = AtomicBool::new(false);
    let Some(other) = OtherBuild::new() else {
        skip("the linker writes no build-id");
        return Ok(());
    };
    mp_core::waits::on_report(|text, _| {
        let is_expected = text.contains("its program is another build") && text.contains("#[message(name");
        IS_REPORTED.fetch_or(is_expected, Ordering::Relaxed);
    });
    let cluster = first();
    let (member, _) = Member::start_program(other.path(), "1", cluster.address());
    let pool = Pool::builder().processes(1).cluster(&cluster).build()?;
    eventually("the other build is reported", || IS_REPORTED.load(Ordering::Relaxed));
    assert_eq!(pool.processes(), 1);
    assert_eq!(got(pool.map_async(slow_rank, 0..4))?, [0; 4]);
    drop(member);
    Ok(())
}
