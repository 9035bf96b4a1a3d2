//! Faults during runs of pools, loaders and training on several hosts.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process};

use super::faults::{HOME, KILLED, OTHER, PEER, SILENT};
use super::node::{Node, begins, now};
use super::run::{LIMIT, Run};
use super::{AVERAGING, EXAMPLE};

/// Names that the hosts have for their processes.
const NAMES: [&str; 3] = ["host-a", "host-b", "host-c"];
/// Size of the result of a task in bytes.
const RESULT: u64 = 4096;

/// A pool with the workers of three hosts, whose tasks follow each other until the end of the run.
struct Tasks {
    pool: Rc<Node>,
    serving: [Rc<Node>; 2],
}

impl Tasks {
    /// Starts the pool, and blocks until tasks have run on all hosts.
    fn start(run: &mut Run<'_>, options: &str) -> Result<Self, String> {
        let pool = run.start(HOME, "pool", options)?;
        let serving = [run.start(PEER, "serve", options)?, run.start(OTHER, "serve", options)?];
        let tasks = Self { pool, serving };
        (0..3).try_for_each(|host| tasks.wait_for(host, (20, 0)).map(drop))?;
        Ok(tasks)
    }

    /// Blocks until a host has run `count` tasks after a time. Returns the time of the last of these tasks.
    fn wait_for(&self, host: usize, (count, after): (usize, i64)) -> Result<i64, String> {
        self.pool.wait(&format!("task of {}", NAMES[host]), LIMIT, |lines| {
            let is_one = |text: &str| begins(text, "done") && text.split(' ').nth(2) == Some(NAMES[host]);
            let times = lines.iter().filter(|line| is_one(&line.text)).map(|line| line.at);
            times.filter(|at| *at >= after).nth(count - 1)
        })
    }

    /// Returns the hosts and processes of all results so far.
    fn workers(&self) -> Vec<(String, u32)> {
        let worker = |text: &str| {
            let mut words = text.split(' ').skip(2);
            Some((words.next()?.to_owned(), words.next()?.parse().ok()?))
        };
        let lines = self.pool.lines();
        lines.iter().filter(|line| begins(&line.text, "done")).filter_map(|l| worker(&l.text)).collect()
    }

    /// Ends the pool, and checks its tasks. The serving processes end by themselves.
    fn finish(&self, run: &mut Run<'_>, errors: usize) -> Result<(), String> {
        self.pool.finish(LIMIT)?;
        for node in &self.serving {
            // A killed process has ended already.
            if node.is_running() {
                node.join(LIMIT)?;
            }
        }
        run.count_tasks(&self.pool, errors);
        for host in [PEER, OTHER] {
            let results = self.workers().iter().filter(|(name, _)| name == NAMES[host]).count() as u64;
            let (_, from) = run.hosts.bytes(host)?;
            let violation = || format!("{}: {results} results in {from} bytes of its link", NAMES[host]);
            run.expect(results > 0 && from >= results * RESULT, violation);
        }
        Ok(())
    }
}

pub(super) fn kill_host(run: &mut Run<'_>) -> Result<(), String> {
    let mut tasks = Tasks::start(run, "")?;
    let killed = tasks.serving[0].kill()?;
    let known = tasks.pool.wait_for("event lost 1", (1, killed), LIMIT)?;
    run.known("pool", killed, known, KILLED);
    for host in [HOME, OTHER] {
        tasks.wait_for(host, (20, known))?;
    }
    // The rank is started again.
    tasks.serving[0] = run.start(PEER, "serve", "")?;
    tasks.wait_for(PEER, (20, now()))?;
    tasks.finish(run, 0)
}

/// Cuts the link of a host, or stops its processes, for longer than the lease. After that, the process of
/// this host joins the cluster again.
pub(super) fn interrupt(run: &mut Run<'_>, is_stop: bool, seconds: u64) -> Result<(), String> {
    let tasks = Tasks::start(run, "again=1")?;
    let switch = |run: &Run<'_>, is_begin| match is_stop {
        true => run.hosts.signal(PEER, if is_begin { Signal::STOP } else { Signal::CONT }),
        false => run.hosts.cut(PEER, is_begin),
    };
    let begun = now();
    switch(run, true)?;
    let known = tasks.pool.wait_for("event lost 1", (1, begun), LIMIT)?;
    run.known("pool", begun, known, SILENT);
    tasks.wait_for(OTHER, (20, known))?;
    // sleep: the rest of the fault.
    sleep(Duration::from_secs(seconds).saturating_sub(Duration::from_micros((now() - begun) as u64)));
    let ended = now();
    switch(run, false)?;
    tasks.serving[0].wait_for("ready", (1, begun), LIMIT)?;
    let again = tasks.wait_for(PEER, (1, ended))?;
    println!("  tasks run on the host again {:.1} s after the end", (again - ended) as f64 / 1e6);
    tasks.wait_for(PEER, (20, ended))?;
    tasks.finish(run, 0)
}

/// Kills workers of another host until a task has failed. With `retries`, kills several workers instead,
/// whose tasks are tried again.
pub(super) fn kill_worker(run: &mut Run<'_>, retries: u32) -> Result<(), String> {
    const MOST: usize = 10;
    let tasks = Tasks::start(run, &format!("retries={retries}"))?;
    let serving = &tasks.serving[0];
    for _ in 0..MOST {
        let (worker, _) = *serving.children()?.first().ok_or("the serving process has no worker")?;
        let killed = now();
        kill_process(worker, Signal::KILL).map_err(|e| format!("a worker: {e}"))?;
        // A worker that is killed between two tasks loses no task.
        tasks.wait_for(PEER, (30, killed))?;
        let lines = tasks.pool.lines();
        if let Some(error) = lines.iter().find(|line| begins(&line.text, "error")) {
            run.known("pool", killed, error.at, KILLED);
            let violation = || format!("the error names no rank: {}", error.text);
            run.expect(error.text.contains("of rank 1"), violation);
            break;
        }
    }
    let errors = usize::from(retries == 0);
    tasks.finish(run, errors)
}

/// Kills a process of rank 0 that sends tasks to another host.
pub(super) fn kill_forwarder(run: &mut Run<'_>) -> Result<(), String> {
    let tasks = Tasks::start(run, "")?;
    let local: BTreeSet<u32> =
        tasks.workers().into_iter().filter(|(host, _)| host == NAMES[HOME]).map(|(_, pid)| pid).collect();
    let children = tasks.pool.children()?;
    let forwarder = children.iter().find(|(_, inner)| !local.contains(inner));
    let (forwarder, _) = *forwarder.ok_or("the pool has no forwarder")?;
    let killed = now();
    kill_process(forwarder, Signal::KILL).map_err(|e| format!("a forwarder: {e}"))?;
    let known = tasks.pool.wait_for("error", (1, killed), LIMIT)?;
    run.known("pool", killed, known, KILLED);
    for host in [PEER, OTHER] {
        tasks.wait_for(host, (50, known))?;
    }
    // The killed process must be replaced by another forwarder, not by another worker of this host.
    let workers = tasks.workers();
    let local: BTreeSet<_> = workers.iter().filter(|(host, _)| host == NAMES[HOME]).collect();
    run.expect(local.len() == 1, || format!("workers of the pool's host: {local:?}"));
    tasks.finish(run, 1)
}

/// Kills rank 0. The other ranks end, and begin no more tasks.
pub(super) fn kill_first_rank(run: &mut Run<'_>) -> Result<(), String> {
    let tasks = Tasks::start(run, "chunk=100")?;
    let killed = tasks.pool.kill()?;
    for node in &tasks.serving {
        let known = node.wait_for("over", (1, killed), LIMIT)?;
        run.known(&node.name, killed, known, SILENT);
        node.join(LIMIT)?;
        let dropped = known + 1000 * i64::from(KILLED);
        let begun = node.numbers("begun").iter().filter(|(_, at)| *at > dropped).count();
        run.expect(begun == 0, || format!("{}: {begun} tasks were begun without rank 0", node.name));
    }
    Ok(())
}

/// Compares the batches of three hosts, one of which is killed, with the batches of one host.
pub(super) fn kill_loader_host(run: &mut Run<'_>) -> Result<(), String> {
    const BATCHES: usize = 100;
    /// Size of a batch in bytes.
    const SIZE: u64 = 256 << 10;
    let batches = |node: &Node| -> BTreeMap<u64, String> {
        let batch = |text: &str| {
            let mut words = text.strip_prefix("batch ")?.split(' ');
            Some((words.next()?.parse().ok()?, words.next()?.to_owned()))
        };
        node.lines().iter().filter_map(|line| batch(&line.text)).collect()
    };
    let alone = run.start(HOME, "loader", "workers=1")?;
    alone.join(LIMIT)?;
    let before = [PEER, OTHER].map(|host| run.hosts.bytes(host));
    let loader = run.start(HOME, "loader", "workers=5 hosts=1")?;
    let killed = run.start(PEER, "serve-loader", "")?;
    let other = run.start(OTHER, "serve-loader", "")?;
    loader.wait_for("batch", (BATCHES / 3, 0), LIMIT)?;
    killed.kill()?;
    loader.join(LIMIT)?;
    other.join(LIMIT)?;
    for (host, before) in [PEER, OTHER].into_iter().zip(before) {
        let carried = run.hosts.bytes(host)?.1 - before?.1;
        run.expect(carried >= 4 * SIZE, || format!("{} sent only {carried} bytes", NAMES[host]));
    }
    let (expected, found) = (batches(&alone), batches(&loader));
    run.expect(expected.len() == BATCHES, || format!("{} of {BATCHES} batches", expected.len()));
    let differing = expected.iter().filter(|(number, hash)| found.get(number) != Some(hash)).count();
    let more = found.len() != expected.len();
    run.expect(differing == 0 && !more, || format!("{differing} of {BATCHES} batches differ"));
    (run.figures.acknowledged, run.figures.arrived) = (expected.len(), found.len());
    Ok(())
}

/// Arguments of the example that trains. The next constant is the number of its batches.
const TRAINING: &str = "--workers 1 --epochs 20";
const BATCHES_OF_TRAINING: usize = 900;

/// Trains on three hosts. With `is_killed`, kills the process of one host during the training.
pub(super) fn train(run: &mut Run<'_>, is_killed: bool) -> Result<(), String> {
    let before = run.hosts.bytes(PEER)?.1;
    let nodes = [HOME, PEER, OTHER].map(|host| run.start_example(host, EXAMPLE, TRAINING));
    let [first, peer, other] = nodes;
    let (first, peer, other) = (first?, peer?, other?);
    if is_killed {
        // Waits for about 50 gradients of 14 KiB.
        let since = Instant::now();
        while run.hosts.bytes(PEER)?.1 - before < 700_000 {
            if since.elapsed() > LIMIT {
                return Err("rank 1 sends no gradients".into());
            }
            // sleep: the counters of a link can't be waited for.
            sleep(Duration::from_millis(20));
        }
        peer.kill()?;
        let lost = |text: &str| text.starts_with("stderr rank 1 (host-b") && text.contains("was lost");
        first.wait("rank 1 was lost", LIMIT, |lines| lines.iter().find(|l| lost(&l.text)).map(|_| ()))?;
    }
    first.wait_for_success(LIMIT)?;
    let rest = if is_killed { vec![&other] } else { vec![&peer, &other] };
    rest.into_iter().try_for_each(|node| node.wait_for_success(LIMIT))?;
    check_training(run, &[first])
}

/// Trains on each of three hosts, and averages the weights.
pub(super) fn average(run: &mut Run<'_>) -> Result<(), String> {
    let nodes = [HOME, PEER, OTHER].map(|host| run.start_example(host, AVERAGING, TRAINING));
    let [first, peer, other] = nodes;
    let nodes = [first?, peer?, other?];
    nodes.iter().try_for_each(|node| node.wait_for_success(LIMIT))?;
    let lines = nodes[0].lines();
    let accuracy = lines.iter().find_map(|line| line.text.split_once("test accuracy ")?.1.split(',').next());
    let accuracy: f64 = accuracy.and_then(|text| text.parse().ok()).unwrap_or_default();
    println!("  test accuracy {accuracy}");
    run.expect(accuracy >= 0.9, || format!("accuracy {accuracy}"));
    Ok(())
}

/// Trains on three hosts, with an agent of `torchrun` on each.
pub(super) fn torchrun(run: &mut Run<'_>) -> Result<(), String> {
    let mut agents = Vec::new();
    for host in [HOME, PEER, OTHER] {
        let Some(agent) = run.hosts.torchrun(host, EXAMPLE, TRAINING)? else {
            return run.skip("no Python with torch here (MP_PYTHON can name one)");
        };
        agents.push(run.add(agent));
    }
    agents.iter().try_for_each(|agent| agent.wait_for_success(LIMIT))?;
    // The first rank may be on any host.
    check_training(run, &agents)
}

/// Trains in three processes of one host, which `mpirun` starts.
pub(super) fn mpirun(run: &mut Run<'_>) -> Result<(), String> {
    let Some(launcher) = run.hosts.mpirun(EXAMPLE, TRAINING)? else {
        return run.skip("no mpirun here: install openmpi-bin");
    };
    let launcher = run.add(launcher);
    launcher.wait_for_success(LIMIT)?;
    check_training(run, &[launcher])
}

/// Checks the result of a training, which one of the nodes has printed.
fn check_training(run: &mut Run<'_>, nodes: &[Rc<Node>]) -> Result<(), String> {
    let lines: Vec<_> = nodes.iter().flat_map(|node| node.lines()).map(|line| line.text).collect();
    let result = lines.iter().find(|text| text.starts_with("batches by rank"));
    let result = result.ok_or("rank 0 has printed no result")?;
    println!("  {result}");
    let text = |from: &str, to: &str| Some(result.split_once(from)?.1.split_once(to)?.0.to_owned());
    let by_rank = text("[", "]").unwrap_or_default();
    let by_rank: Vec<usize> = by_rank.split(", ").filter_map(|count| count.parse().ok()).collect();
    let accuracy: f64 = text("accuracy ", ",").and_then(|text| text.parse().ok()).unwrap_or_default();
    let (all, is_shared) = (by_rank.iter().sum::<usize>(), by_rank.iter().all(|batches| *batches > 0));
    run.expect(all == BATCHES_OF_TRAINING && is_shared && by_rank.len() == 3, || {
        format!("{BATCHES_OF_TRAINING} batches: {by_rank:?}")
    });
    run.expect(accuracy >= 0.9, || format!("accuracy {accuracy}"));
    (run.figures.acknowledged, run.figures.arrived) = (BATCHES_OF_TRAINING, all);
    Ok(())
}
