//! Rolling replacement of all workers.

use std::time::{Duration, Instant};

use mp_pool::{Pool, PoolError};

const DEADLINE: Duration = Duration::from_secs(60);

/// Task that runs for about a millisecond.
fn work(n: u64) -> (u64, u32) {
    let until = Instant::now() + Duration::from_millis(1);
    while Instant::now() < until {
        std::hint::spin_loop();
    }
    (n + 1, std::process::id())
}

#[test]
fn pool_recycle_replaces_workers_and_fails_no_task() {
    let pool = Pool::new(3).unwrap();
    let before = pool.map(|(): ()| std::process::id(), [(); 8]).map(|_| pool.pids()).unwrap();
    let results = pool.map_async(work, 0..600_u64);
    pool.recycle().unwrap();
    let after = pool.pids();
    assert!(after.iter().all(|pid| *pid != 0 && !before.contains(pid)), "{before:?}, {after:?}");
    let results = results.get_timeout(DEADLINE).unwrap_or_else(|_| panic!("not done in time")).unwrap();
    assert!(results.iter().enumerate().all(|(n, (sum, _))| *sum == n as u64 + 1));
    // Idle workers are replaced as well.
    pool.recycle().unwrap();
    assert!(pool.pids().iter().all(|pid| !after.contains(pid)));
    assert_eq!(pool.metrics().lost, 0);
    pool.join().unwrap();
}

#[test]
fn pool_recycle_creates_new_worker_states() {
    let pool = Pool::with_state(2, || 0_u64).unwrap();
    let count = |calls: &mut u64, (): ()| {
        *calls += 1;
        *calls
    };
    assert!(pool.map(count, [(); 50]).unwrap().into_iter().max() > Some(1));
    pool.pool().recycle().unwrap();
    assert_eq!(pool.apply(count, ()).unwrap(), 1);
}

#[test]
fn recycle_of_a_closed_or_broken_pool_returns() {
    let pool = Pool::new(1).unwrap();
    pool.close();
    pool.recycle().unwrap();
    let pool =
        Pool::builder().processes(1).initializer(|(): ()| Err::<(), _>("no device"), ()).build().unwrap();
    assert!(matches!(pool.recycle(), Err(PoolError::Broken(_))));
}
