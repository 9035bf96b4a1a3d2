//! Ends of handles, members and waits, and limits of calls.

use std::time::{Duration, Instant};

use mp_harness::eventually;
use mp_net::{Cluster, ClusterConfig, NetError, RemoteGetError, RemoteQueue};
use mp_queue::Queue;
use mp_tensor::Tensor;

type Outcome = Result<(), Box<dyn std::error::Error + Send + Sync>>;

fn two(change: impl Fn(ClusterConfig) -> ClusterConfig) -> (Cluster, Cluster) {
    let config =
        |rank, first: &str| change(ClusterConfig::new(rank, 2, first).lease(Duration::from_millis(500)));
    let first = Cluster::join(&config(0, "127.0.0.1:0")).unwrap();
    let second = Cluster::join(&config(1, first.address())).unwrap();
    (first, second)
}

/// Duration that is longer than a home waits for a caller to reconnect.
const RETURN: Duration = Duration::from_millis(700);

#[test]
fn remote_message_of_a_dropped_handle_is_taken_once() -> Outcome {
    let (first, second) = two(|config| config);
    let queue = Queue::<Tensor<u8>>::bounded(4)?;
    first.publish("tensors", &queue)?;
    for i in 0..20 {
        queue.put(Tensor::full([100_000], i)?)?;
        let remote = RemoteQueue::<Tensor<u8>>::connect(&second, "tensors")?;
        assert!(remote.get()?.unwrap().iter().all(|byte| byte == i));
    }
    let message = queue.get_timeout(RETURN);
    assert!(message.as_ref().is_err_and(|error| error.is_empty()), "{message:?}");
    Ok(())
}

#[test]
fn leaseholder_of_another_member_keeps_the_queue_open() -> Outcome {
    let (first, second) = two(|config| config);
    let queue = Queue::<u32>::bounded(4)?;
    first.publish("work", &queue)?;
    queue.put(1)?;
    let one = RemoteQueue::<u32>::connect(&second, "work")?;
    let other = RemoteQueue::<u32>::connect(&first, "work")?;
    let lease = one.get_lease()?.unwrap();
    queue.close();
    assert!(matches!(other.get_lease_timeout(Duration::from_millis(50)), Err(RemoteGetError::Empty)));
    drop(lease);
    assert_eq!(other.get_lease()?.unwrap().ack()?, 1);
    assert!(other.get_lease()?.is_none() && one.get_lease()?.is_none());
    Ok(())
}

#[test]
fn remote_put_without_credits_delays_no_other_calls() -> Outcome {
    let (first, second) = two(|config| config.credits(100, 1 << 20));
    let (inward, outward) = (Queue::<Tensor<u8>>::bounded(1)?, Queue::<u32>::bounded(1)?);
    first.publish("in", &inward)?;
    first.publish("out", &outward)?;
    let tensors = RemoteQueue::<Tensor<u8>>::connect(&second, "in")?;
    let numbers = RemoteQueue::<u32>::connect(&second, "out")?;
    let putting = std::thread::spawn({
        let tensors = tensors.clone();
        move || {
            tensors
                .put_many((0..4).map(|i| Tensor::full([1 << 20], i).unwrap()))
                .map_err(|e| e.error.forget())
        }
    });
    eventually("the queue is full", || inward.len() == 1);
    outward.put(7)?;
    assert_eq!(numbers.get_timeout(Duration::from_secs(5))?, Some(7));
    assert!(tensors.try_put(Tensor::full([1 << 20], 8)?).unwrap_err().is_full());
    let since = Instant::now();
    let error = tensors.put_timeout(Tensor::full([1 << 20], 9)?, Duration::from_millis(50)).unwrap_err();
    assert!(error.is_full() && since.elapsed() >= Duration::from_millis(50));
    assert!(error.into_value().iter().all(|byte| byte == 9));
    for i in 0..4 {
        assert!(inward.get()?.unwrap().iter().all(|byte| byte == i));
    }
    assert_eq!(putting.join().unwrap()?, 4);
    Ok(())
}

#[test]
fn message_above_the_limit_of_a_caller_stays_queued() -> Outcome {
    let first = Cluster::join(&ClusterConfig::new(0, 2, "127.0.0.1:0"))?;
    let second = Cluster::join(&ClusterConfig::new(1, 2, first.address()).largest_message(1 << 20))?;
    let queue = Queue::<Vec<(u32, String)>>::bounded(4)?;
    first.publish("lists", &queue)?;
    let remote = RemoteQueue::<Vec<(u32, String)>>::connect(&second, "lists")?;
    queue.put((0..100_000).map(|i| (i, "a text of some length".into())).collect())?;
    let error = remote.get().unwrap_err();
    assert!(matches!(&error, RemoteGetError::Failed(NetError::TooLarge { .. })), "{error}");
    assert_eq!(queue.get()?.unwrap().len(), 100_000);
    queue.put(vec![(1, String::new())])?;
    assert_eq!(remote.get()?.unwrap().len(), 1);
    Ok(())
}

#[test]
fn remote_calls_end_when_the_homes_cluster_is_dropped() -> Outcome {
    let (first, second) = two(|config| config.grace(Duration::MAX));
    let queue = Queue::<u32>::bounded(1)?;
    first.publish("numbers", &queue)?;
    let remote = RemoteQueue::<u32>::connect(&second, "numbers")?;
    let waiting = std::thread::spawn({
        let remote = remote.clone();
        move || remote.get()
    });
    assert_eq!(remote.len()?, 0);
    drop(first);
    let error = waiting.join().unwrap().unwrap_err();
    assert!(matches!(&error, RemoteGetError::PeerLost(lost) if lost.rank == 0), "{error}");
    Ok(())
}

#[test]
fn lost_later_call_leaves_put_many_in_doubt() -> Outcome {
    let (first, second) = two(|config| config);
    let queue = Queue::<Tensor<u8>>::bounded(1)?;
    first.publish("tensors", &queue)?;
    let remote = RemoteQueue::<Tensor<u8>>::connect(&second, "tensors")?;
    let (begun, all_begun) = std::sync::mpsc::channel();
    let putting = std::thread::spawn({
        let remote = remote.clone();
        // Each tensor is too large to share a call with another one.
        let tensors = (0..3).map(|i| Tensor::full([40_000], i).unwrap());
        let end = std::iter::from_fn(move || {
            begun.send(()).unwrap();
            None
        });
        move || remote.put_many(tensors.chain(end))
    });
    all_begun.recv()?;
    eventually("the queue is full", || queue.len() == 1);
    // Calls that begin before a reply arrives are still sent.
    assert_eq!((remote.len()?, remote.len()?), (1, 1));
    drop(first);
    let error = putting.join().unwrap().unwrap_err();
    assert!(error.in_doubt && error.put == 1, "{error}");
    assert!(error.error.peer_lost().is_some_and(|lost| lost.in_doubt), "{error}");
    assert!(error.error.into_value().iter().all(|byte| byte == 1));
    let rest: Vec<_> = error.rest.collect();
    assert!(rest.len() == 1 && rest[0].iter().all(|byte| byte == 2));
    Ok(())
}

#[test]
fn remote_put_within_a_runtime_fails_with_its_value() -> Outcome {
    let (first, second) = two(|config| config);
    let queue = Queue::<Tensor<u8>>::bounded(1)?;
    first.publish("tensors", &queue)?;
    let remote = RemoteQueue::<Tensor<u8>>::connect(&second, "tensors")?;
    remote.put(Tensor::full([10], 1)?)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let error = remote.try_put(Tensor::full([10], 2).unwrap()).unwrap_err();
        assert!(error.is_full() && error.into_value().iter().all(|byte| byte == 2));
    });
    Ok(())
}
