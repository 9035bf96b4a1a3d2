//! Home without free descriptors. The test changes a limit of its process, so it is alone in this file.

use std::net::TcpStream;
use std::time::Duration;

use mp_net::{Cluster, ClusterConfig};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};

fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
fn home_accepts_again_when_descriptors_are_free() {
    let first = Cluster::join(&ClusterConfig::new(0, 2, "127.0.0.1:0").key(b"secret")).unwrap();
    let before = getrlimit(Resource::Nofile);
    // Uses up all descriptors below the limit except one, which the caller's socket gets.
    let one = std::fs::File::open("/dev/null").unwrap();
    let limit = Rlimit { current: Some(std::os::fd::AsRawFd::as_raw_fd(&one) as u64 + 1), ..before };
    setrlimit(Resource::Nofile, limit).unwrap();
    drop(one);
    let caller = TcpStream::connect(first.address()).unwrap();
    let since = processor_time();
    // sleep: the home tries to accept the connection, several times.
    std::thread::sleep(Duration::from_millis(500));
    let used = processor_time() - since;
    setrlimit(Resource::Nofile, before).unwrap();
    assert!(used < Duration::from_millis(250), "{used:?} of the processor while no descriptor was free");
    let second = Cluster::join(&ClusterConfig::new(1, 2, first.address()).key(b"secret")).unwrap();
    assert_eq!(first.wait_for(2, Duration::from_secs(20)).unwrap().len(), 2);
    drop((caller, second));
}
