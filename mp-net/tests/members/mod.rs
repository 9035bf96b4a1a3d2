//! Members in processes of their own, which tests kill or stop. They run the ignored test `started_member` of
//! the same program.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use mp_net::ClusterConfig;

pub(crate) const LEASE: Duration = Duration::from_millis(400);
/// Variables of a started member: its part, and the address of rank 0.
pub(crate) const PART: &str = "MP_NET_TEST_PART";
pub(crate) const FIRST: &str = "MP_NET_TEST_FIRST";

pub(crate) fn config(rank: usize, first: &str) -> ClusterConfig {
    ClusterConfig::new(rank, 2, first).lease(LEASE).timeout(Duration::from_secs(20))
}

/// A started member, which is killed at the end of the test.
pub(crate) struct Member(pub(crate) Child);

impl Drop for Member {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

/// Starts a member, and returns it with the first line that it prints.
pub(crate) fn start(part: &str, first: &str) -> (Member, String) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "started_member", "--ignored", "--nocapture"])
        .env(PART, part)
        .env(FIRST, first)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = lines.map_while(Result::ok).find_map(|line| line.strip_prefix("member: ").map(str::to_owned));
    (Member(child), line.expect("the member prints a line"))
}

/// Says that this member is ready, and waits to be killed.
pub(crate) fn ready(text: &str) -> ! {
    println!("\nmember: {text}");
    loop {
        std::thread::park();
    }
}
