//! Remote queues in worker processes and in messages.

use mp_net::{
    Cluster, ClusterConfig, RemoteBarrier, RemoteBroadcast, RemoteEvent, RemoteQueue, RemoteRecvError,
    RemoteSemaphore, RemoteWatch,
};
use mp_queue::{Queue, broadcast, watch};
use mp_spawn::{SpawnOptions, start_processes};
use mp_sync::{Barrier, BoundedSemaphore, Event};
use mp_tensor::{FrozenTensor, Tensor};

type Outcome = Result<(), Box<dyn std::error::Error + Send + Sync>>;

type Weights = FrozenTensor<f32>;

/// Number of elements of the tensors of channels.
const ELEMENTS: usize = 1 << 18;

fn worker(rank: usize, queues: (RemoteQueue<u64>, Queue<String>)) -> Outcome {
    let (numbers, texts) = queues;
    for i in 0..100 {
        numbers.put(1000 * rank as u64 + i)?;
    }
    texts.put(format!("{numbers:?}"))?;
    Ok(())
}

#[test]
fn workers_use_a_remote_handle_of_their_parent() -> Outcome {
    let first = Cluster::join(&ClusterConfig::new(0, 2, "127.0.0.1:0").key(b"secret"))?;
    let second = Cluster::join(&ClusterConfig::new(1, 2, first.address()).key(b"secret"))?;
    let numbers = Queue::<u64>::bounded(1000)?;
    first.publish("numbers", &numbers)?;
    let remote = RemoteQueue::<u64>::connect(&second, "numbers")?;
    let texts = Queue::bounded(4)?;
    start_processes(worker, (remote, texts.clone()), SpawnOptions::nprocs(2))?.join()?;
    let mut all: Vec<u64> = std::iter::from_fn(|| numbers.try_get().ok().flatten()).collect();
    all.sort_unstable();
    assert!(all.into_iter().eq((0..100).chain(1000..1100)));
    assert!(texts.get()?.unwrap().starts_with("RemoteQueue(\"numbers\" of rank 0"));
    assert_eq!(first.members().len(), 2, "workers are not members");
    Ok(())
}

fn puts_a_file(_: usize, batches: Queue<Tensor<f32>>) -> Outcome {
    mp_core::set_sharing_strategy(mp_core::SharingStrategy::FileSystem)?;
    batches.put(Tensor::full([100_000], 2.0)?)?;
    Ok(())
}

/// The tensor's memory is in a file that the home has not mapped.
#[test]
fn tensor_in_a_file_of_a_worker_is_relayed() -> Outcome {
    let first = Cluster::join(&ClusterConfig::new(0, 2, "127.0.0.1:0").key(b"secret"))?;
    let second = Cluster::join(&ClusterConfig::new(1, 2, first.address()).key(b"secret"))?;
    let batches = Queue::bounded(1)?;
    first.publish("batches", &batches)?;
    let remote = RemoteQueue::<Tensor<f32>>::connect(&second, "batches")?;
    start_processes(puts_a_file, batches.clone(), SpawnOptions::nprocs(1))?.join()?;
    assert_eq!(remote.get()?.expect("it is open").iter().sum::<f32>(), 200_000.0);
    Ok(())
}

/// A worker that receives a handle also gets the certificates. This cluster has no key.
#[test]
fn worker_shows_the_certificate_of_its_parent() -> Outcome {
    let file = |name| format!("{}/tests/certificates/{name}", env!("CARGO_MANIFEST_DIR"));
    let files = ["ca.pem", "member.pem", "member.key"].map(file);
    let tls = mp_net::ClusterTls::from_pem_files(&files[0], &files[1], &files[2])?;
    let first = Cluster::join(&ClusterConfig::new(0, 2, "127.0.0.1:0").tls(tls.clone()))?;
    let second = Cluster::join(&ClusterConfig::new(1, 2, first.address()).tls(tls))?;
    let numbers = Queue::<u64>::bounded(1000)?;
    first.publish("numbers", &numbers)?;
    let remote = RemoteQueue::<u64>::connect(&second, "numbers")?;
    let texts = Queue::bounded(4)?;
    start_processes(worker, (remote, texts), SpawnOptions::nprocs(1))?.join()?;
    assert_eq!(numbers.len(), 100);
    assert_eq!(first.refused(), 0);
    Ok(())
}

#[test]
fn remote_handle_in_a_message_works_at_another_member() -> Outcome {
    let first = Cluster::join(&ClusterConfig::new(0, 2, "127.0.0.1:0").key(b"secret"))?;
    let second = Cluster::join(&ClusterConfig::new(1, 2, first.address()).key(b"secret"))?;
    let (handles, tensors) =
        (Queue::<RemoteQueue<Tensor<f32>>>::bounded(1)?, Queue::<Tensor<f32>>::bounded(1)?);
    first.publish("handles", &handles)?;
    second.publish("tensors", &tensors)?;
    let there = RemoteQueue::<RemoteQueue<Tensor<f32>>>::connect(&second, "handles")?;
    there.put(RemoteQueue::connect(&second, "tensors")?)?;
    handles.get()?.unwrap().put(Tensor::full([3], 2.0)?)?;
    assert_eq!(tensors.get()?.unwrap().iter().sum::<f32>(), 6.0);
    Ok(())
}

fn reader(_: usize, handles: (RemoteWatch<Weights>, RemoteBroadcast<Weights>, Queue<f32>)) -> Outcome {
    let (newest, news, sums) = handles;
    sums.put(newest.borrow()?.iter().sum())?;
    newest.wait_changed()?;
    sums.put(newest.borrow()?.iter().sum())?;
    for _ in 0..3 {
        sums.put(news.recv()?.iter().sum())?;
    }
    assert!(matches!(news.recv(), Err(RemoteRecvError::Closed)));
    assert!(matches!(newest.wait_changed(), Err(RemoteRecvError::Closed)));
    Ok(())
}

#[test]
fn channels_cross_the_link_once_for_all_receivers() -> Outcome {
    let first = Cluster::join(&ClusterConfig::new(0, 2, "127.0.0.1:0").key(b"secret"))?;
    let second = Cluster::join(&ClusterConfig::new(1, 2, first.address()).key(b"secret"))?;
    let weights = |value| -> mp_core::Result<_> { Ok(Tensor::full([ELEMENTS], value)?.freeze()) };
    let (newest, values) = watch::channel(weights(1.0)?)?;
    let (news, messages) = broadcast::channel(8)?;
    first.publish("newest", &values)?;
    first.publish("news", &messages)?;
    drop((values, messages));
    let before = mp_net::copied_bytes();
    let remote = (RemoteWatch::connect(&second, "newest")?, RemoteBroadcast::connect(&second, "news")?);
    let again = (remote.0.clone(), RemoteBroadcast::<Weights>::connect(&second, "news")?);
    let sums = Queue::bounded(100)?;
    let handles = (remote.0, remote.1, sums.clone());
    let workers = start_processes(reader, handles, SpawnOptions::nprocs(2))?;
    let of = |sum: f32| sum / ELEMENTS as f32;
    assert_eq!((of(sums.get()?.unwrap()), of(sums.get()?.unwrap())), (1.0, 1.0));
    newest.send(weights(2.0)?)?;
    (3..6).try_for_each(|value| {
        news.send(weights(value as f32)?).map_err(Box::<dyn std::error::Error + Send + Sync>::from)
    })?;
    drop((newest, news));
    workers.join()?;
    let mut all: Vec<f32> = std::iter::from_fn(|| sums.try_get().ok().flatten()).map(of).collect();
    all.sort_unstable_by(f32::total_cmp);
    assert_eq!(all, [2.0, 2.0, 3.0, 3.0, 4.0, 4.0, 5.0, 5.0]);
    assert_eq!(of(again.0.borrow()?.iter().sum()), 2.0);
    assert_eq!(of(again.1.recv()?.iter().sum()), 3.0);
    let after = mp_net::copied_bytes();
    let copies = (after.1 - before.1) as f64 / (4 * ELEMENTS) as f64;
    assert_eq!(after.0 - before.0, after.1 - before.1);
    // The counts include the padding of blocks to their size classes.
    assert!((5.0..6.25).contains(&copies), "{copies} copies of 5 tensors for 4 receivers");
    Ok(())
}

fn party(_: usize, handles: (RemoteEvent, RemoteSemaphore, RemoteBarrier)) -> Outcome {
    let (go, permits, step) = handles;
    let permit = permits.acquire()?;
    step.wait()?;
    go.wait()?;
    std::mem::forget(permit);
    Ok(())
}

#[test]
fn worker_processes_wait_at_objects_of_another_member() -> Outcome {
    let first = Cluster::join(&ClusterConfig::new(0, 2, "127.0.0.1:0").key(b"secret"))?;
    let second = Cluster::join(&ClusterConfig::new(1, 2, first.address()).key(b"secret"))?;
    let (go, permits, step) = (Event::new()?, BoundedSemaphore::new(2)?, Barrier::new(3)?);
    first.publish("go", &go)?;
    first.publish("permits", &permits)?;
    first.publish("step", &step)?;
    let handles = (
        RemoteEvent::connect(&second, "go")?,
        RemoteSemaphore::connect(&second, "permits")?,
        RemoteBarrier::connect(&second, "step")?,
    );
    let workers = start_processes(party, handles, SpawnOptions::nprocs(2))?;
    step.wait()?;
    assert_eq!(permits.available(), 0);
    go.set()?;
    workers.join()?;
    // The permits of an ended worker return without a release.
    drop((permits.acquire()?, permits.acquire()?));
    Ok(())
}
