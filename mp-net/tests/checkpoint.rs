//! Queues of a cluster in files: a home writes one and is killed, and a home in the next cluster restores it.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use mp_harness::DEADLINE;
use mp_net::{Cluster, ClusterConfig, RemoteQueue};
use mp_queue::Queue;
use mp_tensor::{FrozenTensor, Tensor};

type Outcome = Result<(), Box<dyn std::error::Error + Send + Sync>>;
type Job = (u32, FrozenTensor<f32>);

/// Variables of a started home: its part, and the path of the file.
const PART: &str = "MP_NET_TEST_PART";
const FILE: &str = "MP_NET_TEST_FILE";

fn config(rank: usize, first: &str) -> ClusterConfig {
    ClusterConfig::new(rank, 2, first).timeout(Duration::from_secs(20))
}

/// A started home of rank 0, which is killed on drop.
struct Home(Child);

impl Drop for Home {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

/// Starts a home, and returns it with its address.
fn start(part: &str, file: &Path) -> (Home, String) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "started_home", "--ignored", "--nocapture"])
        .env(PART, part)
        .env(FILE, file)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = lines.map_while(Result::ok).find_map(|line| line.strip_prefix("home: ").map(str::to_owned));
    (Home(child), line.expect("the home prints its address"))
}

#[test]
#[ignore = "the program of the homes that the test starts"]
fn started_home() {
    let file = PathBuf::from(std::env::var(FILE).unwrap());
    let cluster = Cluster::join(&config(0, "127.0.0.1:0")).unwrap();
    let jobs = match std::env::var(PART).unwrap().as_str() {
        "first" => Queue::bounded(8).unwrap(),
        _ => Queue::<Job>::restore(&file).unwrap(),
    };
    let saves = Queue::<()>::bounded(1).unwrap();
    let saved = Queue::<usize>::bounded(1).unwrap();
    cluster.publish("jobs", &jobs).unwrap();
    cluster.publish("saves", &saves).unwrap();
    cluster.publish("saved", &saved).unwrap();
    println!("\nhome: {}", cluster.address());
    while let Ok(Some(())) = saves.get_timeout(DEADLINE) {
        saved.put(jobs.checkpoint(&file).unwrap()).unwrap();
    }
}

#[test]
fn queue_of_a_lost_home_continues_at_another() -> Outcome {
    let file = std::env::temp_dir().join(format!("mp-net-{}-jobs", std::process::id()));
    let (home, address) = start("first", &file);
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

    let (_home, address) = start("second", &file);
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
