//! A process of a cluster: `cargo xtask net` starts it on several hosts, kills and stops it, and cuts links.
//! The program writes one line for each event: microseconds of the monotonic clock, which all processes of a
//! machine share, and words.
//!
//! | role | work |
//! |---|---|
//! | `home` | rank 0: publishes queues, takes and checks the messages of `up`, fills `down` or `jobs` |
//! | `put` | puts numbered messages into `up` |
//! | `get` | takes messages of `down`, or leases those of `jobs` |
//! | `pool`, `serve` | runs numbered tasks on all hosts; serves a pool for them |
//! | `loader`, `serve-loader` | makes batches on all hosts; serves a loader for them |
//! | `objects`, `wait` | publishes objects of each kind; waits for all of them |
//! | `watch` | does no work: reports joined and lost members, as all roles do |
//! | `rate-home`, `rate` | measures round trips and throughput of queues |
//! | `pool-rate` | measures the tasks per second of a pool on this host and a second host, which has the role `serve` |
//! | `tcp-home`, `tcp` | measures round trips and throughput of a plain TCP socket, for comparison with queues |
//!
//! `home`, `objects`, `rate-home` and `watch` end when their input ends. Each role ends after `limit` seconds
//! at the latest.

mod consumer;
mod home;
mod loader;
mod message;
mod objects;
mod options;
mod pool;
mod producer;
mod rate;

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use mp_net::{Cluster, ClusterConfig, ClusterEvent, ClusterTls};
use options::Options;

/// Result of a role.
pub(crate) type RoleResult = Result<(), Box<dyn Error + Send + Sync>>;

/// Returns the time of the monotonic clock in microseconds.
pub(crate) fn now() -> i64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec * 1_000_000 + time.tv_nsec / 1000
}

/// Writes an event to the standard output.
macro_rules! say {
    ($($words:tt)*) => { println!("{} {}", $crate::now(), format_args!($($words)*)) };
}
pub(crate) use say;

/// Logger that writes warnings as events.
struct Logger;

impl log::Log for Logger {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() <= log::Level::Debug && metadata.target().starts_with("mp_")
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            say!("log {}", record.args());
        }
    }

    fn flush(&self) {}
}

/// Joins the cluster, and reports its changes.
pub(crate) fn join(options: &Options) -> Result<Cluster, Box<dyn Error + Send + Sync>> {
    // One rank for each host, and one for a second process on one of the hosts.
    let config = ClusterConfig::new(options.number("rank")?, 4, options.text("first")?)
        .key(b"key of the test")
        .lease(Duration::from_millis(options.number("lease")?))
        .grace(Duration::from_millis(options.number("grace")?))
        .timeout(Duration::from_secs(20));
    let config = match options.number_or_zero("credit")? {
        0 => config,
        bytes => config.credits(4096, bytes),
    };
    let config = match options.text("certificates") {
        Ok(folder) => {
            let [ca, certificate, key] =
                ["ca.pem", "member.pem", "member.key"].map(|name| format!("{folder}/{name}"));
            config.tls(ClusterTls::from_pem_files(ca, certificate, key)?)
        }
        Err(_) => config,
    };
    let cluster = Cluster::join(&config)?;
    let events = cluster.events();
    say!("joined");
    std::thread::spawn(move || {
        for event in events {
            match event {
                ClusterEvent::Joined(member) => say!("event joined {} {}", member.rank, member.host),
                ClusterEvent::Left(member) => say!("event left {}", member.rank),
                ClusterEvent::Lost(member) => say!("event lost {}", member.rank),
                ClusterEvent::FirstRankLost => say!("event lost 0"),
                other => say!("event {other:?}"),
            }
        }
    });
    Ok(cluster)
}

/// Blocks until the input ends.
pub(crate) fn wait_for_end_of_input() -> RoleResult {
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    Ok(())
}

fn run(role: &str, options: &Options) -> RoleResult {
    match role {
        "home" => home::run(options),
        "put" => producer::run(options),
        "get" => consumer::run(options),
        "pool" => pool::run(options),
        "pool-rate" => pool::measure(options),
        "serve" => pool::serve(options),
        "loader" => loader::run(options),
        "serve-loader" => loader::serve(options),
        "objects" => objects::serve(options),
        "wait" => objects::run(options),
        "watch" => {
            let _cluster = join(options)?;
            wait_for_end_of_input()
        }
        "rate-home" => rate::serve(options),
        "rate" => rate::run(options),
        "tcp-home" => rate::serve_tcp(options),
        "tcp" => rate::run_tcp(options),
        _ => Err(format!("unknown role {role}").into()),
    }
}

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let role = words.next().unwrap_or_default();
    let options = Options::new(words);
    _ = log::set_logger(&Logger).map(|()| log::set_max_level(log::LevelFilter::Debug));
    let limit = options.number("limit").unwrap_or(60);
    std::thread::spawn(move || {
        // sleep: this thread waits for the time limit, and ends the process.
        std::thread::sleep(Duration::from_secs(limit));
        say!("hang");
        std::process::exit(3);
    });
    match run(&role, &options) {
        Ok(()) => {
            say!("end");
            ExitCode::SUCCESS
        }
        Err(error) => {
            say!("failed {error}");
            ExitCode::FAILURE
        }
    }
}
