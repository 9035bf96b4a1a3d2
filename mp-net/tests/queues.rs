//! Queues of other members, in one process.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use mp_harness::{DEADLINE, eventually};
use mp_net::{Cluster, ClusterConfig, NetError, RemoteGetError, RemotePutError, RemoteQueue};
use mp_queue::Queue;
use mp_reduce::Bundle;
use mp_tensor::{FrozenTensor, SharedTensor, Tensor};
use serde::{Deserialize, Deserializer, Serialize};

type Outcome = Result<(), Box<dyn std::error::Error + Send + Sync>>;

fn config(rank: usize, ranks: usize, first: &str) -> ClusterConfig {
    ClusterConfig::new(rank, ranks, first).key(b"secret").timeout(Duration::from_secs(10))
}

/// Rank 0 at a free port, configured by `change`.
fn first_of_two(change: impl FnOnce(ClusterConfig) -> ClusterConfig) -> Cluster {
    Cluster::join(&change(config(0, 2, "127.0.0.1:0"))).unwrap()
}

fn two() -> (Cluster, Cluster) {
    let first = first_of_two(|config| config);
    let second = Cluster::join(&config(1, 2, first.address())).unwrap();
    (first, second)
}

#[test]
fn remote_put_and_get_keep_order_and_values() -> Outcome {
    let (first, second) = two();
    let queue = Queue::<(u64, String)>::bounded(1000)?;
    first.publish("jobs", &queue)?;
    let remote = RemoteQueue::<(u64, String)>::connect(&second, "jobs")?;
    for i in 0..100 {
        remote.put((i, format!("job {i}")))?;
    }
    assert_eq!(remote.len()?, 100);
    for i in 0..50 {
        assert_eq!(queue.get()?, Some((i, format!("job {i}"))));
    }
    for i in 50..100 {
        assert_eq!(remote.get()?, Some((i, format!("job {i}"))));
    }
    assert!(remote.try_get().unwrap_err().is_empty());
    assert!(remote.get_timeout(Duration::from_millis(30)).unwrap_err().is_empty());
    assert_eq!(remote.put_many((0..500).map(|i| (i, String::new())))?, 500);
    assert!(remote.close()?);
    for i in 0..500 {
        assert_eq!(remote.get()?, Some((i, String::new())));
    }
    assert_eq!(remote.get()?, None);
    let refused = remote.put((7, "late".into())).unwrap_err();
    assert!(refused.is_closed());
    assert_eq!(refused.into_value(), (7, "late".into()));
    Ok(())
}

#[test]
fn remote_put_returns_the_value_if_full() -> Outcome {
    let (first, second) = two();
    let queue = Queue::<Tensor<f32>>::bounded(1)?;
    first.publish("batches", &queue)?;
    let remote = RemoteQueue::<Tensor<f32>>::connect(&second, "batches")?;
    remote.put(Tensor::full([3], 1.0)?)?;
    let full = remote.try_put(Tensor::full([100_000], 2.0)?).unwrap_err();
    assert!(full.is_full());
    let back = full.into_value();
    assert_eq!(back.iter().sum::<f32>(), 200_000.0);
    let since = Instant::now();
    let full = remote.put_timeout(back, Duration::from_millis(50)).unwrap_err();
    assert!(full.is_full() && since.elapsed() >= Duration::from_millis(50));
    let waiting = std::thread::spawn({
        let (remote, value) = (remote.clone(), full.into_value());
        move || remote.put(value).map_err(|e| e.forget())
    });
    assert_eq!(queue.get()?.unwrap().iter().sum::<f32>(), 3.0);
    assert_eq!(queue.get()?.unwrap().iter().sum::<f32>(), 200_000.0);
    waiting.join().unwrap()?;
    Ok(())
}

#[test]
fn tensors_arrive_at_another_host_with_their_modes() -> Outcome {
    let (first, second) = two();
    let queue = Queue::<Bundle<(Tensor<f32>, FrozenTensor<u8>, Vec<f64>)>>::bounded(4)?;
    first.publish("mixed", &queue)?;
    let remote = RemoteQueue::<Bundle<(Tensor<f32>, FrozenTensor<u8>, Vec<f64>)>>::connect(&second, "mixed")?;
    let numbers: Vec<f64> = (0..100_000).map(f64::from).collect();
    let frozen = Tensor::<u8>::full([3_000_000], 5)?.freeze();
    remote.put(Bundle((Tensor::full([256, 1024], 0.5)?, frozen, numbers.clone())))?;
    let Bundle((mut own, frozen, list)) = queue.get()?.unwrap();
    own.fill(2.0)?;
    assert_eq!(own.shape(), [256, 1024]);
    assert!(frozen.iter().all(|x| x == 5) && frozen.len() == 3_000_000 && list == numbers);
    queue.put(Bundle((own, frozen, list)))?;
    let Bundle((own, frozen, list)) = remote.get()?.unwrap();
    assert!(own.iter().all(|x| x == 2.0) && frozen.len() == 3_000_000 && list == numbers);
    Ok(())
}

#[test]
fn shared_tensors_and_handles_stay_on_their_host() -> Outcome {
    let (first, second) = two();
    let shared = Queue::<SharedTensor<f32>>::bounded(4)?;
    first.publish("shared", &shared)?;
    let remote = RemoteQueue::connect(&second, "shared")?;
    let error = remote.put(Tensor::<f32>::zeros([4])?.share()).unwrap_err();
    assert!(error.to_string().contains("shared tensor can't leave this host"), "{error}");
    assert_eq!(error.into_value().len(), 4);
    let handles = Queue::<Queue<u8>>::bounded(4)?;
    first.publish("handles", &handles)?;
    handles.put(Queue::bounded(1)?)?;
    let remote = RemoteQueue::<Queue<u8>>::connect(&second, "handles")?;
    let error = remote.get().unwrap_err();
    assert!(error.to_string().contains("can't leave this host"), "{error}");
    assert!(handles.get()?.is_some(), "the message is still in the queue");
    Ok(())
}

#[test]
fn remote_lease_returns_if_not_acknowledged() -> Outcome {
    let (first, second) = two();
    let queue = Queue::<String>::bounded(4)?;
    first.publish("work", &queue)?;
    let remote = RemoteQueue::<String>::connect(&second, "work")?;
    remote.put("a".into())?;
    remote.put("b".into())?;
    let a = remote.get_lease()?.unwrap();
    assert_eq!((a.as_str(), a.deliveries()), ("a", 1));
    drop(a);
    remote.get_lease()?.unwrap().give_back();
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let a = runtime.block_on(remote.get_lease_async())?.unwrap();
    assert_eq!((a.as_str(), a.deliveries()), ("a", 3));
    assert_eq!(a.ack()?, "a");
    assert_eq!(remote.get_lease()?.unwrap().ack()?, "b");
    assert!(remote.try_get_lease().unwrap_err().is_empty());
    {
        let mut dropped = pin!(remote.get_lease_async());
        assert!(dropped.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
    queue.put("c".into())?;
    queue.close();
    assert_eq!(remote.get_lease_timeout(Duration::from_secs(10))?.unwrap().ack()?, "c");
    assert_eq!(remote.iter().next().transpose()?, None);
    Ok(())
}

#[test]
fn connect_error_names_types_and_published_names() -> Outcome {
    let first = first_of_two(|config| config);
    let second = Cluster::join(&config(1, 2, first.address()).timeout(Duration::from_millis(100)))?;
    let queue = Queue::<u64>::bounded(4)?;
    first.publish("numbers", &queue)?;
    let error = RemoteQueue::<String>::connect(&second, "numbers").unwrap_err();
    assert!(matches!(&error, NetError::WrongType { theirs, .. } if theirs == "a queue of u64"), "{error}");
    let error = RemoteQueue::<u64>::connect(&second, "number").unwrap_err();
    assert!(error.to_string().contains("published are: \"numbers\""), "{error}");
    assert!(matches!(second.publish("numbers", &queue), Err(NetError::NameTaken { .. })));
    first.withdraw("numbers")?;
    second.publish("numbers", &queue)?;
    RemoteQueue::<u64>::connect(&first, "numbers")?.put(3)?;
    assert_eq!(queue.get()?, Some(3));
    Ok(())
}

#[test]
fn cluster_join_error_reports_key_rank_and_silence() {
    let short = Duration::from_millis(200);
    // Below the ports that the system assigns, and not used by tests.
    let silent = Cluster::join(&config(1, 2, "127.0.0.1:29749").timeout(short)).unwrap_err();
    assert!(matches!(silent, NetError::Unreachable { .. }), "{silent}");
    let first = first_of_two(|config| config);
    let address = first.address();
    let keyless = Cluster::join(&ClusterConfig::new(1, 2, address).timeout(short)).unwrap_err();
    assert!(keyless.to_string().contains("this process has none"), "{keyless}");
    let other = Cluster::join(&config(1, 2, address).key(b"Secret").timeout(short)).unwrap_err();
    assert!(other.to_string().contains("the keys differ"), "{other}");
    let more = Cluster::join(&config(2, 3, address).timeout(short)).unwrap_err();
    assert!(more.to_string().contains("a world of 3 ranks"), "{more}");
    let again = Cluster::join(&config(0, 2, address).timeout(short)).unwrap_err();
    assert!(again.to_string().contains("uses the port"), "{again}");
    let _second = Cluster::join(&config(1, 2, address)).unwrap();
    let taken = Cluster::join(&config(1, 2, address).timeout(short)).unwrap_err();
    assert!(taken.to_string().contains("rank 1 is taken"), "{taken}");
    assert_eq!(first.wait_for(2, Duration::from_secs(5)).unwrap().len(), 2);
}

#[test]
fn remote_message_above_the_limit_is_returned() -> Outcome {
    let first = first_of_two(|config| config.largest_message(1 << 20));
    let second = Cluster::join(&config(1, 2, first.address()))?;
    let queue = Queue::<Tensor<u8>>::bounded(4)?;
    first.publish("limited", &queue)?;
    let remote = RemoteQueue::<Tensor<u8>>::connect(&second, "limited")?;
    let error = remote.put(Tensor::zeros([2 << 20])?).unwrap_err();
    assert!(error.to_string().contains("above the limit"), "{error}");
    remote.put(Tensor::zeros([1000])?)?;
    queue.put(Tensor::zeros([2 << 20])?)?;
    assert_eq!(queue.get()?.unwrap().len(), 1000);
    Ok(())
}

#[test]
fn remote_put_async_and_get_async_move_messages() -> Outcome {
    let (first, second) = two();
    let queue = Queue::<u32>::bounded(2)?;
    first.publish("numbers", &queue)?;
    let remote = RemoteQueue::<u32>::connect(&second, "numbers")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        remote.put_async(1).await?;
        assert_eq!(remote.get_async().await?, Some(1));
        // A future that is dropped takes no message.
        for _ in 0..20 {
            let waiting = tokio::time::timeout(Duration::from_millis(5), remote.get_async()).await;
            assert!(waiting.is_err());
        }
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    })?;
    remote.put(2)?;
    assert_eq!(remote.get_timeout(Duration::from_secs(5))?, Some(2));
    assert!(matches!(remote.try_get(), Err(RemoteGetError::Empty)));
    Ok(())
}

/// Value `i` of a test, with up to two tensors.
fn tensors(i: usize) -> Bundle<Vec<Tensor<u32>>> {
    Bundle((0..i % 3).map(|k| Tensor::full([i % 7 + k], (10 * i + k) as u32).unwrap()).collect())
}

fn assert_tensors(Bundle(value): &Bundle<Vec<Tensor<u32>>>, i: usize) {
    assert_eq!(value.len(), i % 3, "value {i}");
    for (k, tensor) in value.iter().enumerate() {
        assert_eq!(tensor.iter().collect::<Vec<_>>(), vec![(10 * i + k) as u32; i % 7 + k], "value {i}");
    }
}

#[test]
fn remote_put_many_to_closed_queue_returns_the_rest() -> Outcome {
    // The home accepts one call at a time, so that messages wait and share calls.
    let first = first_of_two(|config| config.credits(1, 1 << 20));
    let second = Cluster::join(&config(1, 2, first.address()))?;
    let queue = Queue::<Bundle<Vec<Tensor<u32>>>>::bounded(300)?;
    first.publish("batches", &queue)?;
    let remote = RemoteQueue::<Bundle<Vec<Tensor<u32>>>>::connect(&second, "batches")?;
    let putting = std::thread::spawn(move || remote.put_many((0..2000).map(tensors)));
    eventually("the queue is full", || queue.len() == 300);
    for i in 0..100 {
        assert_tensors(&queue.get()?.unwrap(), i);
    }
    eventually("the queue is full again", || queue.len() == 300);
    queue.close();
    let error = putting.join().unwrap().unwrap_err();
    assert!(error.error.is_closed() && error.put == 400, "{error}");
    assert_tensors(&error.error.into_value(), 400);
    let rest: Vec<_> = error.rest.collect();
    assert_eq!(rest.len(), 1599);
    rest.iter().enumerate().for_each(|(i, value)| assert_tensors(value, 401 + i));
    for i in 100..400 {
        assert_tensors(&queue.get()?.unwrap(), i);
    }
    assert!(queue.get()?.is_none());
    Ok(())
}

#[test]
fn remote_put_many_ends_at_a_message_above_limit() -> Outcome {
    let first = first_of_two(|config| config.largest_message(1000));
    let second = Cluster::join(&config(1, 2, first.address()))?;
    let queue = Queue::<Vec<u8>>::bounded(1000)?;
    first.publish("bytes", &queue)?;
    let remote = RemoteQueue::<Vec<u8>>::connect(&second, "bytes")?;
    // The limit applies to each message, not to all messages of one call.
    assert_eq!(remote.put_many((0..100).map(|i| vec![i; 900]))?, 100);
    let error = remote.put_many((0..100).map(|i| vec![i; if i == 70 { 1001 } else { 1 }])).unwrap_err();
    let is_expected = matches!(&error.error, RemotePutError::Failed { error: NetError::TooLarge { .. }, .. });
    assert!(is_expected, "{error}");
    assert_eq!(error.error.into_value(), vec![70; 1001]);
    for i in (0..100).map(|i| vec![i; 900]).chain((0..70).map(|i| vec![i])) {
        assert_eq!(queue.get()?.unwrap(), i);
    }
    // A later call may have been put before the error was known.
    let mut others: Vec<_> = error.rest.collect();
    while !queue.is_empty() {
        others.extend(queue.get()?);
    }
    others.sort_unstable();
    assert!(others.into_iter().eq((71..100).map(|i| vec![i])), "{} were put", error.put);
    Ok(())
}

#[test]
fn remote_get_many_takes_available_messages_in_order() -> Outcome {
    let (first, second) = two();
    let queue = Queue::<Bundle<Vec<Tensor<u32>>>>::bounded(1000)?;
    first.publish("batches", &queue)?;
    let remote = RemoteQueue::<Bundle<Vec<Tensor<u32>>>>::connect(&second, "batches")?;
    let mut got = Vec::new();
    assert!(remote.get_many(&mut got, 0).unwrap_err().is_empty());
    assert!(remote.get_many_timeout(&mut got, 10, Duration::from_millis(10)).unwrap_err().is_empty());
    let waiting = std::thread::spawn({
        let remote = remote.clone();
        move || remote.get_many(&mut Vec::new(), 10)
    });
    queue.put(tensors(1))?;
    assert_eq!(waiting.join().unwrap()?, 1);
    queue.put_many((0..600).map(tensors)).map_err(|e| e.error.forget())?;
    assert_eq!(remote.get_many(&mut got, 7)?, 7);
    while got.len() < 600 {
        let taken = remote.get_many(&mut got, usize::MAX)?;
        assert!((1..=256).contains(&taken), "{taken} messages");
    }
    for (i, value) in got.iter().enumerate() {
        assert_tensors(value, i);
    }
    queue.close();
    assert_eq!(remote.get_many(&mut got, 10)?, 0);
    Ok(())
}

/// Number that can't be decoded if it is 3, and whose decoding panics if it is 6.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Picky(u32);

impl<'de> Deserialize<'de> for Picky {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match u32::deserialize(deserializer)? {
            3 => Err(serde::de::Error::custom("three is refused")),
            6 => panic!("six panics"),
            number => Ok(Self(number)),
        }
    }
}

#[test]
fn remote_messages_after_an_undecodable_one_return() -> Outcome {
    let (first, second) = two();
    let queue = Queue::<Picky>::bounded(20)?;
    first.publish("numbers", &queue)?;
    let remote = RemoteQueue::<Picky>::connect(&second, "numbers")?;
    queue.put_many((0..10).map(Picky)).map_err(|e| e.error.forget())?;
    let mut got = Vec::new();
    let (mut refused, mut panics) = (0, 0);
    while got.len() < 8 {
        match catch_unwind(AssertUnwindSafe(|| remote.try_get_many(&mut got, 20))) {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => {
                assert!(error.to_string().contains("three is refused"), "{error}");
                refused += 1;
            }
            Err(_) => panics += 1,
        }
        if refused + panics == 1 {
            let taken = got.len() as u32 + 1;
            assert!(got.iter().copied().eq((0..3).map(Picky)), "{got:?}");
            // After this reply, the home has all messages that were given back.
            assert_eq!(remote.len()? as u32, 10 - taken);
        }
    }
    got.sort_by_key(|number| number.0);
    assert!(got.into_iter().eq([0, 1, 2, 4, 5, 7, 8, 9].map(Picky)));
    assert_eq!((refused, panics, remote.len()?), (1, 1, 0));
    Ok(())
}

#[test]
fn remote_get_many_stops_after_a_large_message() -> Outcome {
    let (first, second) = two();
    let queue = Queue::<Vec<u8>>::bounded(10)?;
    first.publish("bytes", &queue)?;
    let remote = RemoteQueue::<Vec<u8>>::connect(&second, "bytes")?;
    let sizes = [10, 1 << 20, 30_000, 40, 50];
    for (i, size) in sizes.into_iter().enumerate() {
        queue.put(vec![i as u8; size])?;
    }
    // If a message had to be given back, another consumer could get the end of the queue before.
    queue.close();
    let (mut got, mut calls) = (Vec::new(), Vec::new());
    while got.len() < sizes.len() {
        calls.push(remote.get_many(&mut got, 10)?);
    }
    assert_eq!(calls, [2, 1, 2]);
    assert!(got.iter().enumerate().all(|(i, value)| *value == vec![i as u8; sizes[i]]));
    Ok(())
}

#[test]
fn limited_remote_put_many_returns_unsent_values() -> Outcome {
    let (first, second) = two();
    let queue = Queue::<u64>::bounded(10)?;
    first.publish("numbers", &queue)?;
    let remote = RemoteQueue::<u64>::connect(&second, "numbers")?;
    let mut values: Vec<u64> = (0..1000).collect();
    for round in 1..=3 {
        let since = Instant::now();
        let end = match round {
            1 => remote.try_put_many(values),
            2 => remote.put_many_timeout(values, Duration::from_millis(50)),
            _ => remote.put_many_deadline(values, since + Duration::from_millis(50)),
        };
        let error = end.unwrap_err();
        assert!(error.error.is_full() && error.put == 10, "{error}");
        assert!(round == 1 || since.elapsed() >= Duration::from_millis(50));
        values = std::iter::once(error.error.into_value()).chain(error.rest).collect();
        assert!(values.iter().copied().eq(10 * round..1000));
        assert!((10 * (round - 1)..10 * round).all(|number| queue.get().unwrap() == Some(number)));
    }
    Ok(())
}

#[test]
fn limited_remote_put_many_keeps_order_with_consumer() -> Outcome {
    // If several calls were unanswered, a later one could be put after an earlier one found no room.
    let (first, second) = two();
    let queue = Queue::<u64>::bounded(20)?;
    first.publish("numbers", &queue)?;
    let remote = RemoteQueue::<u64>::connect(&second, "numbers")?;
    let consumer = std::thread::spawn({
        let queue = queue.clone();
        move || std::iter::from_fn(|| queue.get().unwrap()).collect::<Vec<_>>()
    });
    let mut values: Vec<u64> = (0..5000).collect();
    let since = Instant::now();
    for round in 0.. {
        assert!(since.elapsed() < DEADLINE, "{} values are left", values.len());
        let end = match round % 2 {
            0 => remote.try_put_many(values),
            _ => remote.put_many_timeout(values, Duration::from_micros(500)),
        };
        let Err(error) = end else { break };
        assert!(error.error.is_full(), "{error}");
        values = std::iter::once(error.error.into_value()).chain(error.rest).collect();
    }
    queue.close();
    assert!(consumer.join().unwrap().into_iter().eq(0..5000));
    Ok(())
}

#[test]
fn remote_put_many_of_slow_iterator_ends_at_an_error() -> Outcome {
    let (first, second) = two();
    let queue = Queue::<u64>::bounded(20)?;
    first.publish("numbers", &queue)?;
    let remote = RemoteQueue::<u64>::connect(&second, "numbers")?;
    queue.close();
    let pulled = Cell::new(0);
    let slow = (0..).inspect(|_| {
        pulled.set(pulled.get() + 1);
        // sleep: the time that the iterator needs for a value.
        std::thread::sleep(Duration::from_millis(1));
    });
    let mut error = remote.put_many(slow).unwrap_err();
    assert!(pulled.get() < 1000, "{} values were taken", pulled.get());
    assert!(error.error.is_closed() && error.put == 0 && error.rest.next() == Some(1));
    Ok(())
}
