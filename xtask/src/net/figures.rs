//! Figures of queues and pools across hosts, compared with plain sockets, iperf3, gloo and Ray.

use std::collections::BTreeMap;
use std::time::Duration;

use super::hosts::Hosts;
use super::node::{Node, begins};
use crate::text_table;

const LIMIT: Duration = Duration::from_secs(120);

/// Figures of one program by their names.
type Figures = BTreeMap<String, f64>;

/// Rows of the table: names of figures, and titles.
const ROWS: [(&str, &str); 8] = [
    ("rtt-p50", "64 B, acknowledged, median (µs)"),
    ("rtt-p99", "64 B, acknowledged, 99th percentile (µs)"),
    ("pipelined-bytes", "64 B, put_many (messages/s)"),
    ("pipelined-tensors", "tensors of 64 B, put_many (messages/s)"),
    ("gbs-1-MiB", "1 MiB (GB/s)"),
    ("gbs-16-MiB", "16 MiB (GB/s)"),
    ("tasks", "pool of two hosts (tasks/s)"),
    ("tasks-alone", "pool of two hosts, one by one (tasks/s)"),
];

/// Goals: the figure and its limit, which is the greatest time or the least rate.
const LIMITS: [(&str, f64); 3] = [("rtt-p50", 40.0), ("rtt-p99", 200.0), ("pipelined-bytes", 500_000.0)];

/// Goals: the figure, the peer in the order of the columns, and the least ratio.
const GOALS: [(&str, usize, f64); 6] = [
    ("rtt-p50", RAY, 20.0),
    ("pipelined-bytes", RAY, 20.0),
    ("tasks", RAY, 10.0),
    ("tasks-alone", RAY, 10.0),
    ("gbs-1-MiB", TCP, 0.8),
    ("gbs-16-MiB", IPERF, 0.8),
];

/// Peers in the order of the columns.
const PEERS: [&str; 5] = ["TCP", "iperf3, 1 stream", "iperf3, 4 streams", "gloo", "Ray"];
const TCP: usize = 0;
const IPERF: usize = 1;
const RAY: usize = 4;

/// Returns the figures that a node has reported.
fn figures(node: &Node) -> Result<Figures, String> {
    let ended = node.join(LIMIT);
    let lines = node.lines();
    ended.map_err(|e| format!("{e}: {}", lines.last().map_or("", |line| &line.text)))?;
    let figure = |text: &str| {
        let mut words = text.split(' ').skip(1);
        Some((words.next()?.to_owned(), words.next()?.parse().ok()?))
    };
    let lines = lines.iter().filter(|line| begins(&line.text, "figure"));
    Ok(lines.filter_map(|line| figure(&line.text)).collect())
}

/// Measures the queue and the pool.
fn own(hosts: &Hosts) -> Result<Figures, String> {
    const CLUSTER: &str = "lease=2000 grace=0 limit=240";
    let home = hosts.start(0, "rate-home", CLUSTER)?;
    home.wait_for("ready", (1, 0), LIMIT)?;
    let mut own = figures(&hosts.start(1, "rate", CLUSTER)?)?;
    home.finish(LIMIT)?;
    let pool = hosts.start(0, "pool-rate", CLUSTER)?;
    pool.wait_for("ready", (1, 0), LIMIT)?;
    let served = hosts.start(1, "serve", CLUSTER)?;
    own.append(&mut figures(&pool)?);
    served.join(LIMIT)?;
    Ok(own)
}

/// Measures a plain socket.
fn tcp(hosts: &Hosts) -> Result<Figures, String> {
    let server = hosts.start(0, "tcp-home", "limit=240")?;
    server.wait_for("ready", (1, 0), LIMIT)?;
    let plain = figures(&hosts.start(1, "tcp", "limit=240")?)?;
    server.join(LIMIT)?;
    Ok(plain)
}

/// Measures iperf3 with some streams. The rate in GB/s belongs to the row of the largest messages.
fn iperf(streams: &str) -> Result<Figures, String> {
    let mut command = Hosts::command(0, "iperf3");
    command.args(["-s", "-1", "--forceflush"]);
    let server = Node::start("iperf3 -s".into(), command)?;
    server.wait("listening", Duration::from_secs(5), |lines| {
        lines.iter().any(|line| line.text.contains("listening")).then_some(())
    })?;
    let mut client = Hosts::command(1, "iperf3");
    client.args(["-c", "10.77.0.1", "-t", "3", "-J", "-P", streams]);
    let output = client.output().map_err(|e| format!("iperf3: {e}"))?;
    let json: serde_json::Value =
        serde_json::from_slice(&output.stdout).map_err(|e| format!("iperf3: {e}"))?;
    let bits = json["end"]["sum_received"]["bits_per_second"].as_f64().ok_or("iperf3 has no result")?;
    Ok(Figures::from([("gbs-16-MiB".to_owned(), bits / 8e9)]))
}

/// Measures a peer in Python, with a process on each host that gets these arguments.
fn python(hosts: &Hosts, first: &[&str], second: &[&str]) -> Result<Figures, String> {
    let last = |node: &Node| node.lines().iter().rev().take(3).map(|l| l.text.clone()).collect::<Vec<_>>();
    let home = hosts.start_script(0, first)?;
    home.wait_for("ready", (1, 0), LIMIT).map_err(|e| format!("{e}: {:?}", last(&home)))?;
    let measured = hosts.start_script(1, second)?;
    figures(&measured).map_err(|e| format!("{e}: {:?}", last(&measured)))
}

/// Returns a program's figure divided by a peer's, as a speed.
fn ratio(name: &str, own: &Figures, peer: &Figures) -> Option<f64> {
    let (own, peer) = (own.get(name)?, peer.get(name)?);
    Some(if name.starts_with("rtt") { peer / own } else { own / peer })
}

/// Measures, and prints two tables. Peers that are missing are reported. Returns `true` if no goal was missed
/// and, with `is_strict`, no peer is missing.
pub(super) fn print(hosts: &Hosts, is_strict: bool) -> Result<bool, String> {
    let own = own(hosts)?;
    let gloo = python(hosts, &["gloo.py", "0", "10.77.0.1"], &["gloo.py", "1", "10.77.0.1"]);
    let ray =
        [["hosts.py", "head", "10.77.0.1"].as_slice(), &["hosts.py", "measure", "10.77.0.1", "10.77.0.2"]];
    let peers = [tcp(hosts), iperf("1"), iperf("4"), gloo, python(hosts, ray[0], ray[1])];
    let peers: Vec<Figures> = PEERS
        .iter()
        .zip(peers)
        .map(|(peer, figures)| {
            figures.unwrap_or_else(|error| {
                println!("SKIPPED: {peer}: {error}");
                Figures::new()
            })
        })
        .collect();
    let mut table = vec![["", "mp"].into_iter().chain(PEERS).map(str::to_owned).collect::<Vec<_>>()];
    for (name, title) in ROWS {
        let mut row = vec![title.to_owned(), own.get(name).map(|v| format!("{v:.2}")).unwrap_or_default()];
        row.extend(peers.iter().map(|peer| peer.get(name).map(|v| format!("{v:.2}")).unwrap_or_default()));
        table.push(row);
    }
    println!("{}", text_table::table(&table, &[1, 2, 3, 4, 5, 6]));
    let titles = ["goal", "compared with", "figure", "limit", ""];
    let mut table = vec![titles.map(str::to_owned).to_vec()];
    let (mut missed, mut skipped) = (0, 0);
    let title = |name| ROWS.iter().find(|row| row.0 == name).map_or("", |row| row.1).to_owned();
    let limits = LIMITS.map(|(name, limit)| {
        let figure = own.get(name).copied();
        (
            name,
            "",
            figure,
            limit,
            figure.map(|f| if name.starts_with("rtt") { f <= limit } else { f >= limit }),
        )
    });
    let ratios = GOALS.map(|(name, peer, goal)| {
        let ratio = ratio(name, &own, &peers[peer]);
        (name, PEERS[peer], ratio, goal, ratio.map(|ratio| ratio >= goal))
    });
    for (name, peer, figure, goal, is_reached) in limits.into_iter().chain(ratios) {
        let result = match is_reached {
            Some(true) => "reached",
            Some(false) => "MISSED",
            None => "skipped",
        };
        missed += usize::from(is_reached == Some(false));
        skipped += usize::from(is_reached.is_none());
        let figure = figure.map_or("–".to_owned(), |figure| format!("{figure:.2}"));
        table.push(vec![title(name), peer.into(), figure, format!("{goal}"), result.into()]);
    }
    print!("{}", text_table::table(&table, &[2, 3]));
    println!("{missed} goals missed, {skipped} skipped");
    Ok(missed == 0 && (!is_strict || skipped == 0))
}
