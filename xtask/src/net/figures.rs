//! Figures of a queue of another host, compared with a plain socket and iperf3.

use std::collections::BTreeMap;
use std::time::Duration;

use super::hosts::Hosts;
use super::node::{Node, begins};
use crate::report;

const LIMIT: Duration = Duration::from_secs(120);

/// Rows of the table: names of the program's figures, and titles.
const ROWS: [(&str, &str); 5] = [
    ("rtt-p50", "64 B, acknowledged, median (µs)"),
    ("rtt-p99", "64 B, acknowledged, 99th percentile (µs)"),
    ("pipelined", "64 B, put_many (messages/s)"),
    ("gbs-1-MiB", "1 MiB (GB/s)"),
    ("gbs-16-MiB", "16 MiB (GB/s)"),
];

/// Returns the figures that a node has reported.
fn figures(node: &Node) -> Result<BTreeMap<String, f64>, String> {
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

/// Returns GB/s of iperf3, or `None` if it is missing.
fn iperf() -> Result<Option<f64>, String> {
    let mut command = Hosts::command(0, "iperf3");
    command.args(["-s", "-1", "--forceflush"]);
    let server = Node::start("iperf3 -s".into(), command)?;
    if server
        .wait("listening", Duration::from_secs(5), |lines| {
            lines.iter().any(|line| line.text.contains("listening")).then_some(())
        })
        .is_err()
    {
        return Ok(None);
    }
    let mut client = Hosts::command(1, "iperf3");
    client.args(["-c", "10.77.0.1", "-t", "3", "-J"]);
    let output = client.output().map_err(|e| format!("iperf3: {e}"))?;
    let json: serde_json::Value =
        serde_json::from_slice(&output.stdout).map_err(|e| format!("iperf3: {e}"))?;
    Ok(json["end"]["sum_received"]["bits_per_second"].as_f64().map(|bits| bits / 8e9))
}

/// Measures, and prints a table.
pub(super) fn print(hosts: &Hosts) -> Result<(), String> {
    let home = hosts.start(0, "home", "lease=2000 grace=0 limit=240 size=0 capacity=4096 silent=1")?;
    home.wait_for("ready", (1, 0), LIMIT)?;
    let own = figures(&hosts.start(1, "rate", "lease=2000 grace=0 limit=240")?)?;
    home.finish(LIMIT)?;
    let server = hosts.start(0, "tcp-home", "limit=240")?;
    server.wait_for("ready", (1, 0), LIMIT)?;
    let plain = figures(&hosts.start(1, "tcp", "limit=240")?)?;
    server.join(LIMIT)?;
    let iperf = iperf()?;
    let mut table = vec![["", "RemoteQueue", "TCP", "ratio"].map(str::to_owned).to_vec()];
    for (name, title) in ROWS {
        let (own, plain) = (own.get(name), plain.get(name));
        let shown = |value: Option<&f64>| value.map(|value| format!("{value:.2}")).unwrap_or_default();
        let ratio = own.zip(plain).map(|(own, plain)| format!("{:.2}", own / plain)).unwrap_or_default();
        table.push(vec![title.into(), shown(own), shown(plain), ratio]);
    }
    print!("{}", report::table(&table, &[1, 2, 3]));
    match iperf {
        Some(rate) => println!("iperf3, one stream: {rate:.2} GB/s"),
        None => println!("iperf3 is not installed"),
    }
    Ok(())
}
