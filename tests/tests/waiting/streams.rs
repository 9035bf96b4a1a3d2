//! Streams of a pool as futures, under tokio. Tasks of the runtime push and take concurrently, and none of
//! them blocks a thread of the runtime.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use mp::Pool;
use mp::pool::{PushError, TaskStream};
use mp_tests::{DEADLINE, alone};
use tokio::runtime::{Builder, Runtime};

fn triple(x: u64) -> u64 {
    3 * x
}

fn runtime(threads: usize) -> Runtime {
    let mut builder = if threads == 1 { Builder::new_current_thread() } else { Builder::new_multi_thread() };
    if threads > 1 {
        builder.worker_threads(threads);
    }
    builder.enable_time().build().unwrap()
}

/// Runs a future to its end. Panics at the deadline.
fn run<F: Future>(threads: usize, future: F) -> F::Output {
    runtime(threads).block_on(async {
        match tokio::time::timeout(DEADLINE, future).await {
            Ok(output) => output,
            Err(_) => panic!("not within {DEADLINE:?}"),
        }
    })
}

/// Results that tasks have taken.
#[derive(Default)]
struct Seen(Mutex<BTreeSet<u64>>);

impl Seen {
    fn has(&self, x: u64) {
        assert!(self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(x), "{x} arrived twice");
    }

    fn are(&self, all: u64) {
        let seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(seen.iter().copied().eq(0..all), "{} of {all}", seen.len());
    }
}

/// If a push, or a take, blocked the only thread, the other call could never run.
#[test]
fn one_thread_pushes_and_takes_with_capacity_one() {
    const TASKS: u64 = 500;
    let _alone = alone();
    let pool = Pool::new(2).unwrap();
    let stream = pool.task(triple).max_in_flight(1).stream();
    let seen = Seen::default();
    run(1, async {
        let push = async {
            for x in 0..TASKS {
                stream.push_to_async(x % 3, x).await.unwrap();
            }
            stream.close();
        };
        let take = async {
            while let Some((_, result)) = stream.next_async().await {
                seen.has(result.unwrap() / 3);
            }
        };
        tokio::join!(push, take);
    });
    seen.are(TASKS);
    pool.join().unwrap();
}

#[test]
fn many_tasks_push_to_lanes_of_a_full_pool() {
    const EACH: u64 = 250;
    const PUSHERS: u64 = 6;
    let _alone = alone();
    let pool = Pool::builder().processes(2).max_waiting(40).build().unwrap();
    let stream: Arc<TaskStream<u64, u64>> = Arc::new(pool.task(triple).max_in_flight(16).stream());
    let seen = Arc::new(Seen::default());
    run(2, async {
        let takers: Vec<_> = (0..3)
            .map(|_| {
                let (stream, seen) = (Arc::clone(&stream), Arc::clone(&seen));
                tokio::spawn(async move {
                    while let Some((_, result)) = stream.next_async().await {
                        assert!(stream.in_flight() <= 16, "{stream:?}");
                        seen.has(result.unwrap() / 3);
                    }
                })
            })
            .collect();
        let pushers: Vec<_> = (0..PUSHERS)
            .map(|pusher| {
                let stream = Arc::clone(&stream);
                tokio::spawn(async move {
                    for x in pusher * EACH..(pusher + 1) * EACH {
                        stream.push_to_async(x % 7, x).await.unwrap();
                    }
                })
            })
            .collect();
        for pusher in pushers {
            pusher.await.unwrap();
        }
        stream.close();
        for taker in takers {
            taker.await.unwrap();
        }
        assert!(matches!(stream.push_async(0).await, Err(PushError::Closed(0))));
    });
    seen.are(PUSHERS * EACH);
    pool.join().unwrap();
}

/// Futures are dropped when their time-outs have expired. Some time-outs expire at once.
#[test]
fn timed_out_stream_futures_push_and_take_nothing() {
    const TASKS: u64 = 400;
    let _alone = alone();
    let pool = Pool::new(2).unwrap();
    let stream = pool.task(triple).max_in_flight(3).stream();
    let seen = Seen::default();
    let time = |turn: u64| Duration::from_micros(turn % 5 * 40);
    run(2, async {
        // Before the first push there is no result. While no result is taken, the stream has room for three
        // tasks.
        tokio::time::timeout(Duration::ZERO, stream.next_async()).await.expect_err("there is no task");
        let mut pushed = 0;
        while tokio::time::timeout(Duration::ZERO, stream.push_async(pushed)).await.is_ok() {
            pushed += 1;
        }
        assert!(pushed <= 3, "{pushed} tasks were pushed");
        let push = async {
            let (mut x, mut turn) = (pushed, 0);
            while x < TASKS {
                turn += 1;
                if let Ok(pushed) = tokio::time::timeout(time(turn), stream.push_async(x)).await {
                    assert_eq!(pushed.unwrap().number() as u64, x, "dropped futures have pushed nothing");
                    x += 1;
                }
                tokio::task::yield_now().await;
            }
            stream.close();
        };
        let take = async {
            for turn in 0.. {
                match tokio::time::timeout(time(turn), stream.next_async()).await {
                    Ok(Some((_, result))) => seen.has(result.unwrap() / 3),
                    Ok(None) => break,
                    Err(_) => {}
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::join!(push, take);
    });
    seen.are(TASKS);
    pool.join().unwrap();
}
