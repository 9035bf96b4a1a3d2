//! Checkpoints of a cluster's queues: a home writes a checkpoint and is killed, and a home in the next
//! cluster restores the queue.

use std::path::PathBuf;
use std::time::Duration;

use mp_harness::DEADLINE;
use mp_harness::members::{Member, argument, part, ready};
use mp_net::{Cluster, ClusterConfig, RemoteQueue};
use mp_queue::Queue;
use mp_tensor::{FrozenTensor, Tensor};

type Outcome = Result<(), Box<dyn std::error::Error + Send + Sync>>;
type Job = (u32, FrozenTensor<f32>);

fn config(rank: usize, first: &str) -> ClusterConfig {
    ClusterConfig::new(rank, 2, first).timeout(Duration::from_secs(20))
}

#[test]
#[ignore = "the program of the homes that the other test starts"]
fn started_member() {
    let file = PathBuf::from(argument());
    let cluster = Cluster::join(&config(0, "127.0.0.1:0")).unwrap();
    let jobs = match part().unwrap().as_str() {
        "first" => Queue::bounded(8).unwrap(),
        _ => Queue::<Job>::restore(&file).unwrap(),
    };
    let saves = Queue::<()>::bounded(1).unwrap();
    let saved = Queue::<usize>::bounded(1).unwrap();
    cluster.publish("jobs", &jobs).unwrap();
    cluster.publish("saves", &saves).unwrap();
    cluster.publish("saved", &saved).unwrap();
    ready(cluster.address());
    while let Ok(Some(())) = saves.get_timeout(DEADLINE) {
        saved.put(jobs.checkpoint(&file).unwrap()).unwrap();
    }
}

#[test]
fn queue_of_a_lost_home_continues_at_another() -> Outcome {
    let file = std::env::temp_dir().join(format!("mp-net-{}-jobs", std::process::id()));
    let (home, address) = Member::start("first", file.to_str().unwrap());
    let cluster = Cluster::join(&config(1, &address))?;
    let jobs = RemoteQueue::<Job>::connect(&cluster, "jobs")?;
    for n in 0..4 {
        jobs.put((n, Tensor::full([10_000], n as f32)?.freeze()))?;
    }
    let lease = jobs.get_lease()?.expect("it is open");
    assert_eq!(lease.0, 0);
    RemoteQueue::<()>::connect(&cluster, "saves")?.put(())?;
    let saved = RemoteQueue::<usize>::connect(&cluster, "saved")?;
    assert_eq!(saved.get_timeout(DEADLINE)?, Some(4));
    drop(home);
    drop((lease, jobs, saved, cluster));

    let (_home, address) = Member::start("second", file.to_str().unwrap());
    std::fs::remove_file(&file)?;
    let cluster = Cluster::join(&config(1, &address))?;
    let jobs = RemoteQueue::<Job>::connect(&cluster, "jobs")?;
    for n in 0..4 {
        let lease = jobs.get_lease()?.expect("it is open");
        assert_eq!((lease.0, lease.1.iter().sum::<f32>()), (n, n as f32 * 10_000.0));
        assert_eq!(lease.deliveries(), if n == 0 { 2 } else { 1 });
        lease.ack()?;
    }
    assert!(jobs.try_get().unwrap_err().is_empty());
    Ok(())
}
