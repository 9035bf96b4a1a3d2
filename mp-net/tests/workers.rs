//! Remote queues in worker processes and in messages.

use mp_net::{Cluster, ClusterConfig, RemoteQueue};
use mp_queue::Queue;
use mp_spawn::{SpawnOptions, start_processes};
use mp_tensor::Tensor;

type Outcome = Result<(), Box<dyn std::error::Error + Send + Sync>>;

fn worker(rank: usize, queues: (RemoteQueue<u64>, Queue<String>)) -> Outcome {
    let (numbers, texts) = queues;
    for i in 0..100 {
        numbers.put(1000 * rank as u64 + i)?;
    }
    texts.put(format!("{numbers:?}"))?;
    Ok(())
}

#[test]
fn workers_use_a_handle_of_their_parent() -> Outcome {
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

/// Certificates instead of a key reach a worker with the handle.
#[cfg(feature = "tls")]
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
fn handle_travels_to_another_member() -> Outcome {
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
