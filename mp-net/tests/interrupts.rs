//! Interrupts of this process. An interrupt ends all waits of a process, so the test is alone in this file.

use std::time::Duration;

use mp_harness::{DEADLINE, eventually};
use mp_net::{Cluster, ClusterConfig, NetError, RemoteGetError, RemotePutError, RemoteQueue};
use mp_queue::Queue;

#[test]
fn interrupt_ends_remote_waits_taking_no_message() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let cluster = Cluster::join(&ClusterConfig::new(0, 1, "127.0.0.1:0"))?;
    let queue = Queue::<u32>::bounded(10)?;
    cluster.publish("numbers", &queue)?;
    let remote = RemoteQueue::<u32>::connect(&cluster, "numbers")?;
    let waiting = std::thread::spawn({
        let remote = remote.clone();
        move || remote.get()
    });
    let full = Queue::<u32>::bounded(10)?;
    cluster.publish("full", &full)?;
    let putting = std::thread::spawn({
        let remote = RemoteQueue::<u32>::connect(&cluster, "full")?;
        move || remote.put_many(0..1000)
    });
    eventually("the queue is full", || full.len() == 10);
    assert_eq!(remote.len()?, 0);
    mp_core::record_interrupt();
    let error = putting.join().unwrap().unwrap_err();
    let is_expected =
        matches!(error.error, RemotePutError::Failed { value: 10, error: NetError::Interrupted });
    assert!(is_expected && error.put == 10, "{error}");
    assert!(error.rest.eq(11..1000), "all values after the failed one are returned");
    let error = waiting.join().unwrap().unwrap_err();
    assert!(matches!(error, RemoteGetError::Failed(NetError::Interrupted)), "{error}");
    // The interrupt stays set until it is taken. A reply that arrives is returned to the caller, and its
    // message does not also return to the queue.
    for number in 0..10 {
        queue.put(number)?;
    }
    let mut taken = Vec::new();
    while taken.len() < 10 {
        match remote.get() {
            Ok(number) => taken.extend(number),
            Err(RemoteGetError::Failed(NetError::Interrupted)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    // An interrupt does not affect calls that wait for nothing.
    assert_eq!(remote.len()?, 0);
    remote.flush()?;
    cluster.withdraw("numbers")?;
    cluster.publish("numbers", &queue)?;
    let remote = RemoteQueue::<u32>::connect(&cluster, "numbers")?;
    // Without an interrupt, the address would be looked up until the time limit.
    let unknown = ClusterConfig::new(0, 1, "no-such-host.invalid:29700").timeout(DEADLINE);
    let error = Cluster::join(&unknown).unwrap_err();
    assert!(matches!(error, NetError::Interrupted), "{error}");
    assert!(mp_core::take_interrupt());
    assert_eq!(taken, (0..10).collect::<Vec<_>>());
    assert!(remote.get_timeout(Duration::from_millis(50)).unwrap_err().is_empty());
    Ok(())
}
