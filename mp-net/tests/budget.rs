//! Puts at a home with too little memory. The test limits the arena of its process, so it is alone in this
//! file.

use mp_core::Arena;
use mp_net::{Cluster, ClusterConfig, RemoteQueue};
use mp_queue::Queue;

#[test]
fn remote_put_many_without_memory_returns_value() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let first = Cluster::join(&ClusterConfig::new(0, 2, "127.0.0.1:0"))?;
    let second = Cluster::join(&ClusterConfig::new(1, 2, first.address()))?;
    let queue = Queue::<u64>::unbounded()?;
    first.publish("numbers", &queue)?;
    let remote = RemoteQueue::<u64>::connect(&second, "numbers")?;
    assert_eq!(remote.put_many(0..10)?, 10);
    Arena::current()?.set_budget(1);
    let error = remote.put_many(10..2000).unwrap_err();
    Arena::current()?.set_budget(0);
    assert!(error.to_string().contains("budget"), "{error}");
    let put = error.error.into_value();
    assert!(!error.in_doubt && error.rest.eq(put + 1..2000), "all values after the failed one are returned");
    assert_eq!(
        (queue.len() as u64, error.put as u64),
        (put, put - 10),
        "the returned value is the first one that was not put"
    );
    assert!(put > 10 && (0..put).all(|number| queue.get().unwrap() == Some(number)));
    Ok(())
}
