//! Watch and broadcast channels of another member.

use std::time::Duration;

use mp_harness::{DEADLINE, eventually};
use mp_net::{Cluster, ClusterConfig, NetError, RemoteBroadcast, RemoteRecvError, RemoteWatch};
use mp_queue::{Queue, broadcast, watch};
use tokio::time::timeout;

type Outcome = Result<(), Box<dyn std::error::Error + Send + Sync>>;

const SHORT: Duration = Duration::from_millis(50);

fn two() -> (Cluster, Cluster) {
    let config =
        |rank, first: &str| ClusterConfig::new(rank, 2, first).lease(Duration::from_millis(500)).key(b"key");
    let first = Cluster::join(&config(0, "127.0.0.1:0")).unwrap();
    let second = Cluster::join(&config(1, first.address())).unwrap();
    (first, second)
}

fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

#[test]
fn remote_watch_receives_the_newest_value() -> Outcome {
    let (first, second) = two();
    let (sender, receiver) = watch::channel("first".to_string())?;
    first.publish("text", &receiver)?;
    drop(receiver);
    let remote = RemoteWatch::<String>::connect(&second, "text")?;
    assert_eq!(*remote.borrow()?, "first");
    assert!(!remote.has_changed()? && remote.wait_changed_timeout(SHORT).unwrap_err().is_empty());
    sender.send("second".into())?;
    remote.wait_changed()?;
    assert_eq!(*remote.borrow()?, "second");
    block_on(async {
        assert!(timeout(SHORT, remote.changed()).await.is_err());
        (0..1000).try_for_each(|i| sender.send(i.to_string())).unwrap();
        while *remote.borrow()? != "999" {
            remote.changed().await?;
        }
        Ok::<_, RemoteRecvError>(())
    })?;
    let other = RemoteWatch::<String>::connect(&second, "text")?;
    assert!(!other.has_changed()? && *other.borrow()? == "999");
    drop(sender);
    assert!(matches!(remote.wait_changed(), Err(RemoteRecvError::Closed)));
    assert_eq!(*remote.borrow_and_update()?, "999");
    Ok(())
}

#[test]
fn remote_watch_waits_for_a_value() -> Outcome {
    let (first, second) = two();
    let (sender, receiver) = watch::channel(1_u32)?;
    first.publish("epoch", &receiver)?;
    drop(receiver);
    let remote = RemoteWatch::<u32>::connect(&second, "epoch")?;
    assert_eq!(*remote.wait_for(|n| *n == 1)?, 1, "the current value");
    let waiting = std::thread::spawn({
        let remote = remote.clone();
        move || remote.wait_for_timeout(DEADLINE, |n| *n >= 3).map(|n| *n)
    });
    assert!(remote.wait_for_timeout(SHORT, |n| *n >= 3).unwrap_err().is_empty());
    sender.send(2)?;
    assert_eq!(*remote.wait_for(|n| *n >= 2)?, 2);
    assert!(!remote.has_changed()?, "the returned value counts as seen");
    assert!(!waiting.is_finished());
    sender.send(3)?;
    assert_eq!(waiting.join().unwrap()?, 3);
    drop(sender);
    assert!(matches!(remote.wait_for(|n| *n > 3), Err(RemoteRecvError::Closed)));
    Ok(())
}

#[test]
fn remote_broadcast_reaches_each_receiver() -> Outcome {
    let (first, second) = two();
    let (sender, receiver) = broadcast::channel::<(u32, String)>(100)?;
    first.publish("news", &receiver)?;
    drop(receiver);
    sender.send((0, "before".into()))?;
    let one = RemoteBroadcast::<(u32, String)>::connect(&second, "news")?;
    let other = RemoteBroadcast::<(u32, String)>::connect(&second, "news")?;
    assert!(one.try_recv().unwrap_err().is_empty() && one.recv_timeout(SHORT).unwrap_err().is_empty());
    for i in 0..50 {
        sender.send((i, "text".into()))?;
    }
    for i in 0..50 {
        assert_eq!((one.recv()?.0, block_on(other.recv_async())?.0), (i, i));
    }
    assert!(block_on(async { timeout(SHORT, one.recv_async()).await }).is_err());
    sender.send((50, "last".into()))?;
    drop(sender);
    assert_eq!((one.recv()?.1, other.recv()?.1), ("last".to_string(), "last".to_string()));
    assert!(matches!(one.recv(), Err(RemoteRecvError::Closed)));
    assert!(matches!(block_on(other.recv_async()), Err(RemoteRecvError::Closed)));
    Ok(())
}

#[test]
fn slow_remote_receivers_count_missed_messages() -> Outcome {
    let (first, second) = two();
    let (sender, receiver) = broadcast::channel::<u64>(4)?;
    first.publish("news", &receiver)?;
    let remote = RemoteBroadcast::<u64>::connect(&second, "news")?;
    let (mut next, mut missed) = (0, 0);
    for sent in 1..=20 {
        (0..500).try_for_each(|i| sender.send(500 * (sent - 1) + i))?;
        while next < 500 * sent {
            match remote.recv() {
                Ok(number) => {
                    assert_eq!(number, next);
                    next += 1;
                }
                Err(RemoteRecvError::Lagged(lag)) => {
                    next += lag;
                    missed += lag;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
    assert!((1..10_000).contains(&missed), "{missed} of 10000");
    Ok(())
}

#[test]
fn unsendable_value_ends_the_relay_of_a_channel() -> Outcome {
    let (first, second) = two();
    let (sender, receiver) = broadcast::channel::<Queue<u32>>(4)?;
    first.publish("queues", &receiver)?;
    let remote = RemoteBroadcast::<Queue<u32>>::connect(&second, "queues")?;
    sender.send(Queue::bounded(1)?)?;
    let error = remote.recv().unwrap_err();
    let RemoteRecvError::Failed(NetError::Home { rank: 0, text, .. }) = error else { panic!("{error}") };
    assert!(text.contains("can't leave this host"), "{text}");
    let (_sender, receiver) = watch::channel(Queue::<u32>::bounded(1)?)?;
    first.publish("queue", &receiver)?;
    let error = RemoteWatch::<Queue<u32>>::connect(&second, "queue").unwrap_err();
    assert!(error.to_string().contains("leave this host"), "{error}");
    Ok(())
}

#[test]
fn withdrawn_channel_ends_and_other_types_are_refused() -> Outcome {
    let (first, second) = two();
    let ((newest, values), (news, messages)) = (watch::channel(1_u32)?, broadcast::channel::<u32>(4)?);
    first.publish("newest", &values)?;
    first.publish("news", &messages)?;
    let error = RemoteWatch::<u64>::connect(&second, "newest").unwrap_err().to_string();
    assert_eq!(error, "\"newest\" is a watch channel of u32, and it was opened as a watch channel of u64");
    let error = RemoteBroadcast::<u32>::connect(&second, "newest").unwrap_err().to_string();
    assert_eq!(
        error,
        "\"newest\" is a watch channel of u32, and it was opened as a broadcast channel of u32"
    );
    let remote = RemoteBroadcast::<u32>::connect(&second, "news")?;
    first.withdraw("news")?;
    drop(messages);
    // The relay of this channel waits for a message.
    let error = remote.recv_timeout(DEADLINE).unwrap_err().to_string();
    assert!(error.contains("withdrawn"), "{error}");
    eventually("no receiver is left", || news.is_closed());
    drop(newest);
    Ok(())
}

#[test]
fn threads_share_a_remote_broadcast_receiver() -> Outcome {
    const MESSAGES: u32 = 2000;
    let (first, second) = two();
    let (sender, receiver) = broadcast::channel::<(u32, Vec<u32>)>(MESSAGES as usize)?;
    first.publish("news", &receiver)?;
    let remote = RemoteBroadcast::<(u32, Vec<u32>)>::connect(&second, "news")?;
    let other = remote.resubscribe()?;
    // Messages of different lengths, so that the times of decoding differ.
    (0..MESSAGES).try_for_each(|i| sender.send((i, vec![i; i as usize % 7 * 100])))?;
    drop(sender);
    while other.recv_timeout(DEADLINE)?.0 + 1 < MESSAGES {}
    let receive = || {
        let mut received = Vec::new();
        loop {
            match remote.recv_timeout(DEADLINE) {
                Ok((number, _)) => received.push(number),
                Err(RemoteRecvError::Closed) => return received,
                Err(error) => panic!("{error}"),
            }
        }
    };
    let mut all = std::thread::scope(|scope| {
        let threads = [(); 4].map(|()| scope.spawn(receive));
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    all.sort_unstable();
    assert!(all.into_iter().eq(0..MESSAGES));
    Ok(())
}

#[test]
fn sent_remote_handle_counts_the_unread_message() -> Outcome {
    let (first, second) = two();
    let (sender, receiver) = broadcast::channel::<u32>(2)?;
    first.publish("news", &receiver)?;
    let remote = RemoteBroadcast::<u32>::connect(&second, "news")?;
    let other = remote.resubscribe()?;
    for i in 0..5 {
        sender.send(i)?;
        assert_eq!(other.recv()?, i);
    }
    assert!(matches!(remote.recv(), Err(RemoteRecvError::Lagged(3))));
    let handles = Queue::bounded(1)?;
    handles.put(remote)?;
    let sent: RemoteBroadcast<u32> = handles.get()?.expect("it is open");
    assert!(matches!(sent.recv(), Err(RemoteRecvError::Lagged(1))));
    assert_eq!(sent.recv()?, 4);
    Ok(())
}
